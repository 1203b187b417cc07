"""Builds the wheel, and the software bill of materials of it and of all that it installs.

`make sbom`. The wheel is installed into a new environment, with the versions that
`.github/constraints.txt` pins. So the bill lists what a user gets, and nothing of our tools.
"""

import argparse
import shutil
import subprocess
import sys
import venv
from pathlib import Path

ROOT = Path(__file__).parents[2]
OUT = ROOT / "build" / "sbom"
PINS = ROOT / ".github" / "constraints.txt"
BILL = "reliable-mq.cdx.json"


def make_bill(out: Path, *, requires: str = "") -> Path:
    """Write the wheel and its bill of materials into a folder, which is emptied before.

    Args:
        out: the folder.
        requires: the extras to install, such as "postgres,prometheus"; "": only the core.

    Returns:
        The file of the bill: CycloneDX in JSON.
    """
    shutil.rmtree(out, ignore_errors=True)
    _run("-m", "build", "--wheel", "--outdir", str(out), str(ROOT))
    (wheel,) = out.glob("*.whl")
    environment = out / "environment"
    venv.create(environment, symlinks=True)
    python = str(environment / "bin" / "python")
    wanted = f"{wheel}[{requires}]" if requires else str(wheel)
    words = ("install", "--quiet", "--disable-pip-version-check", "--constraint", str(PINS), wanted)
    _run("-m", "pip", "--python", python, *words)
    bill = out / BILL
    project = ("--pyproject", str(ROOT / "pyproject.toml"), "--mc-type", "library")
    form = ("--output-format", "JSON", "--output-reproducible", "--output-file", str(bill))
    _run("-m", "cyclonedx_py", "environment", *project, *form, python)
    shutil.rmtree(environment)
    return bill


def _run(*words: str) -> None:
    subprocess.run([sys.executable, *words], check=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--extras", default="", help="such as postgres,prometheus")
    print(make_bill(OUT, requires=parser.parse_args().extras))
