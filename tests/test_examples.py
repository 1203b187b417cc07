"""Every example runs as it stands and prints what it says; the README's first block is one."""

import re
import sys
from pathlib import Path

import pytest
from tests.waiting import run_process

ROOT = Path(__file__).parent.parent
PROGRAMS = sorted((ROOT / "examples").glob("*/main.py"))
SECONDS_MAX = 120

pytestmark = pytest.mark.processes


def run(program: str, directory: Path) -> tuple[str, str]:
    """Run a program in an empty directory; return what it printed, and what was logged."""
    done = run_process(
        [sys.executable, "-c", program],
        cwd=directory,
        capture_output=True,
        timeout=SECONDS_MAX,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout, done.stderr


def first_block(text: str, language: str) -> str:
    found = re.search(rf"```{language}\n(.*?)```", text, re.DOTALL)
    assert found is not None
    return found.group(1)


def test_the_first_program_of_the_readme_prints_what_the_readme_says(tmp_path: Path) -> None:
    readme = (ROOT / "README.md").read_text()

    assert run(first_block(readme, "python"), tmp_path) == (first_block(readme, "text"), "")


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda path: path.parent.name)
def test_an_example_prints_what_is_expected(program: Path, tmp_path: Path) -> None:
    expected = program.with_name("expected.txt").read_text()

    assert run(program.read_text(), tmp_path)[0] == expected


def test_there_are_examples() -> None:
    assert PROGRAMS
