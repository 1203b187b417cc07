"""Each framework in its two newest minor versions that the registry has for this Python.

`make frameworks` runs this. Each version has an environment of its own: the framework is installed
there, and everything else is taken from ours.
"""

import os
import re
import sys
import sysconfig
import venv
from functools import cache
from pathlib import Path

import pytest
from tests.waiting import run_process

pytestmark = [pytest.mark.packaging, pytest.mark.processes]

ROOT = Path(__file__).parents[2]
DJANGO = ("transactions", "consumers", "schema", "admin")
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


@pytest.mark.parametrize("place", range(MINORS), ids=["newest", "the one before"])
@pytest.mark.parametrize("framework", TESTS)
def test_a_framework_passes_its_tests(framework: str, place: int, tmp_path: Path) -> None:
    version = newest(framework)[place]
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
    assert used.strip() == version

    files, shop = TESTS[framework]
    words = ("-m", "pytest", "-n", "0", "-q", "-p", "no:cacheprovider", "-m", "not packaging")
    told = run(python, *words, *files.split(), "--basetemp", str(tmp_path / "tests"))
    told += run(python, *words, "tests/contrib/test_web_servers.py", "-k", shop)
    assert " passed" in told
