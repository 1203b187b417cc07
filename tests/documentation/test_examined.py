"""Pages say what is true: their Python compiles and imports what exists, their commands parse."""

import subprocess
from pathlib import Path

import pytest
from tests.documentation.examined import (
    blocks,
    command_fault,
    command_lines,
    python_faults,
    reference_faults,
)
from tests.documentation.staging import GENERATED, ROOT

HISTORY = {"CHANGELOG.md"}
"""Says what was true of a release."""
PAGES = [
    *(path for path in ROOT.glob("*.md") if path.name not in HISTORY),
    *sorted((ROOT / "docs").rglob("*.md")),
]


def name_of(page: Path) -> str:
    return page.relative_to(ROOT).as_posix()


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_the_python_of_a_page_compiles_and_uses_what_exists(page: Path) -> None:
    assert python_faults(page.read_text()) == []


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_the_commands_of_a_page_are_accepted_by_their_parser(page: Path) -> None:
    lines = command_lines(page.read_text())
    faults = [command_fault(line, is_whole=is_whole) for line, is_whole in lines]

    assert [each for each in faults if each] == []


def shell_faults(text: str) -> list[str]:
    """Return what a shell says against the commands of a page, without running them."""
    told = (
        subprocess.run(["sh", "-n"], input=each, capture_output=True, text=True, check=False)
        for each in blocks(text, "sh")
    )
    return [each.stderr for each in told if each.returncode]


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_a_shell_can_read_the_commands_of_a_page(page: Path) -> None:
    assert shell_faults(page.read_text()) == []


def test_a_planted_fault_of_a_shell_is_found() -> None:
    (fault,) = shell_faults("```sh\nreliable-mq run 'shop:mq\n```")

    assert "nterminated" in fault


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_variables_targets_and_modules_on_a_page_exist(page: Path) -> None:
    assert reference_faults(page.read_text()) == []


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("`RELIABLE_MQ_DATABSE`", "RELIABLE_MQ_DATABSE: no setting has this variable"),
        ("`make nonsense`", "make nonsense: no such target"),
        ("python -m tests.nonsense", "python -m tests.nonsense: no such module"),
    ],
)
def test_a_planted_name_is_found(text: str, fault: str) -> None:
    assert reference_faults(text) == [fault]


@pytest.mark.parametrize("place", GENERATED)
def test_a_page_that_is_made_from_the_code_passes_the_same_examination(place: str) -> None:
    text = GENERATED[place]()

    assert reference_faults(text) == []
    assert python_faults(text) == []
    lines = command_lines(text.replace("```text", "```usage"))
    faults = [command_fault(line, is_whole=is_whole) for line, is_whole in lines]
    assert [each for each in faults if each] == []


@pytest.mark.parametrize(
    ("program", "fault"),
    [
        ("from reliable_mq import Nonsense", "there is no such name"),
        ("import reliable_mq.nonsense", "No module named"),
        ("mq.nonsense()", "ReliableMQ has no such name"),
        ('tx.send("orders", {}, nonsense=1)', "there is no option nonsense"),
        ('@mq.consumer("orders", group="a", nonsense=1)\ndef f(): ...', "no option nonsense"),
        ('ReliableMQ("shop", nonsense=1)', "there is no option nonsense"),
        ("def f(:", "invalid syntax"),
    ],
)
def test_a_planted_fault_of_a_program_is_found(program: str, fault: str) -> None:
    (found,) = python_faults(f"```python\n{program}\n```")

    assert fault in found


@pytest.mark.parametrize(
    ("line", "fault"),
    [
        ("reliable-mq nonsense", "there is no command nonsense"),
        ("reliable-mq run shop:mq --nonsense", "No such option: --nonsense"),
        ("reliable-mq stub nonsense", "No such command 'nonsense'"),
        ("reliable-mq stub show", "Missing argument"),
        ("A=1 reliable-mq broker --port x", "Invalid value for '--port'"),
    ],
)
def test_a_planted_fault_of_a_command_is_found(line: str, fault: str) -> None:
    ((found, is_whole),) = command_lines(f"```sh\n{line}\n```")

    assert fault in (command_fault(found, is_whole=is_whole) or "")


def test_a_command_within_a_sentence_may_leave_out_its_arguments() -> None:
    ((line, is_whole),) = command_lines("Say `reliable-mq stub show` then.")

    assert command_fault(line, is_whole=is_whole) is None
