"""Every example runs as it stands and prints what it says; the README's first block is one."""

import re
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.forked_programs import Programs
from tests.waiting import run_process

ROOT = Path(__file__).parent.parent
PROGRAMS = sorted((ROOT / "examples").glob("*/main.py"))
SECONDS_MAX = 120

pytestmark = pytest.mark.processes


@pytest.fixture(scope="module")
def programs() -> Iterator[Programs]:
    with Programs(
        *("sqlalchemy.dialects.sqlite", "sqlalchemy.orm", "uvloop"),
        *("reliable_mq.app.application", "reliable_mq.runtime.broker_server"),
    ) as made:
        yield made


def first_block(text: str, language: str) -> str:
    found = re.search(rf"```{language}\n(.*?)```", text, re.DOTALL)
    assert found is not None
    return found.group(1)


def test_the_first_program_of_the_readme_prints_what_the_readme_says(tmp_path: Path) -> None:
    readme = (ROOT / "README.md").read_text()

    done = run_process(
        [sys.executable, "-c", first_block(readme, "python")],
        cwd=tmp_path,
        capture_output=True,
        timeout=SECONDS_MAX,
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == first_block(readme, "text")


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda path: path.parent.name)
def test_an_example_prints_what_is_expected(
    programs: Programs, program: Path, tmp_path: Path
) -> None:
    expected = program.with_name("expected.txt").read_text()

    done = programs.run(["-c", program.read_text()], cwd=tmp_path, timeout=SECONDS_MAX)
    assert done.returncode == 0, done.stderr
    assert done.stdout == expected


def test_there_are_examples() -> None:
    assert PROGRAMS
