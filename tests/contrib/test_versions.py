"""Each framework in its two newest minor versions that the registry has for this Python, and in the
oldest that its extra allows.

`make frameworks` runs this. Each version has an environment of its own: the framework is installed
there, and everything else is taken from ours.
"""

import os
import re
import sys
import sysconfig
import tomllib
import venv
from functools import cache
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.version import Version
from tests.waiting import run_process

pytestmark = [pytest.mark.packaging, pytest.mark.processes]

ROOT = Path(__file__).parents[2]
DJANGO = (
    *("transactions", "consumers", "schema", "admin"),
    *("databases", "periodic", "health", "command", "test_runner"),
)
TESTS = {
    "fastapi": ("tests/contrib/test_fastapi.py", "fastapi"),
    "flask": ("tests/contrib/test_flask.py", "flask"),
    "litestar": ("tests/contrib/test_litestar.py", "litestar"),
    "django": (" ".join(f"tests/contrib/test_django_{each}.py" for each in DJANGO), "django"),
}
MINORS = 2


@cache
def newest(framework: str) -> list[str]:
    """Return the newest version of each of the newest minors, the newest first."""
    asked = run_process(
        [sys.executable, "-m", "pip", "index", "versions", framework],
        timeout=60,
        capture_output=True,
    )
    line = re.search(r"^Available versions: (.*)$", asked.stdout, re.MULTILINE)
    if line is None:
        pytest.skip(f"no registry answers: {asked.stderr[-200:]}")
    found: dict[str, str] = {}
    for each in line[1].split(", "):
        found.setdefault(".".join(each.split(".")[:2]), each)
    return list(found.values())[:MINORS]


def oldest(framework: str) -> str:
    """Return the version that the extra of a framework begins with, as the registry writes it."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    (wanted,) = map(Requirement, project["optional-dependencies"][framework])
    (least,) = wanted.specifier
    assert least.operator == ">="
    return f"{least.version}.0" if least.version.count(".") == 1 else least.version


@pytest.mark.parametrize("place", [*range(MINORS), None], ids=["newest", "before", "oldest"])
@pytest.mark.parametrize("framework", TESTS)
def test_a_framework_passes_its_tests(framework: str, place: int | None, tmp_path: Path) -> None:
    version = oldest(framework) if place is None else newest(framework)[place]
    venv.create(tmp_path / "venv", symlinks=True)
    python = str(tmp_path / "venv" / "bin" / "python")
    ours = sysconfig.get_path("purelib")
    around = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}

    def run(*words: str) -> str:
        done = run_process(words, timeout=600, capture_output=True, cwd=ROOT, env=around)
        assert done.returncode == 0, done.stdout[-6000:] + done.stderr[-2000:]
        return done.stdout

    pip = (sys.executable, "-m", "pip", "--python", python, "install", "--quiet")
    run(*pip, f"{framework}=={version}")
    site = run(python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))").strip()
    Path(site, "ours.pth").write_text(f"{ROOT / 'src'}\n{ours}\n")
    used = run(
        python, "-c", f"from importlib.metadata import version; print(version('{framework}'))"
    )
    assert Version(used.strip()) == Version(version)

    files, shop = TESTS[framework]
    words = ("-m", "pytest", "-n", "0", "-q", "-p", "no:cacheprovider")
    place_of = ("--basetemp", str(tmp_path / "tests"))
    for chosen in (
        (*files.split(), "-m", "not packaging"),
        ("tests/contrib/test_web_servers.py", "-k", shop),
    ):
        assert " passed" in run(python, *words, *chosen, *place_of)
