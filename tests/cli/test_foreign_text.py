"""What strangers wrote reaches terminals and logs as escapes, cut, in a limited number of lines."""

import ast
import json
import logging
from pathlib import Path

import pytest

import reliable_mq
from reliable_mq.cli import message as message_command
from reliable_mq.cli.log_options import PlainFormatter
from reliable_mq.cli.printing import print_names, print_rows
from reliable_mq.cli.saying import say
from reliable_mq.line_limit import LINE_LENGTH_MAX, TEXTS_MAX, LineLimit
from reliable_mq.message import MessageQueue, ReceivedMessage
from reliable_mq.plain_text import printable, printable_lines

EVIL = "\x1b]0;owned\x07\x1b[2Jpaid\r\n\x9b31m\u202eback\x7f"
SHOWN = r"\x1b]0;owned\x07\x1b[2Jpaid\r\n\x9b31m\u202eback\x7f"


def is_harmless(text: str) -> bool:
    return all(character.isprintable() or character == "\n" for character in text)


def test_what_does_not_print_is_shown_as_escapes() -> None:
    assert printable(EVIL) == SHOWN
    assert printable("größer, 数 und\u3000mehr ✓") == "größer, 数 und\u3000mehr ✓"
    assert printable("\udc80") == r"\udc80"
    assert printable("x" * 50, 40) == "x" * 40 + "... (10 characters more)"
    assert printable_lines("a\n\tb\x1b[m") == "a\n\tb\\x1b[m"


def evil_message() -> ReceivedMessage:
    return ReceivedMessage(
        topic=EVIL,
        body=EVIL.encode(),
        message_id="A" * 32,
        offset_message_id="B" * 32,
        queue=MessageQueue(EVIL, EVIL, 0),
        queue_offset=1,
        tag=EVIL + "x" * 30_000,
        keys=(EVIL,),
        properties={EVIL: EVIL},
    )


@pytest.mark.parametrize("as_json", [False, True])
def test_a_found_message_prints_nothing_that_a_terminal_obeys(
    as_json: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    message_command._print([evil_message()], as_json=as_json)
    message_command._print_whole([evil_message()], as_json=as_json)
    said = capsys.readouterr().out
    assert is_harmless(said)
    if as_json:
        rows = json.loads(said.splitlines()[0])
        assert rows[0]["content"] == EVIL, "JSON has it as it is"
    else:
        assert "x" * 1_000 not in said.split("message_id ")[0].replace("\n", "")


def test_names_rows_and_lines_print_nothing_that_a_terminal_obeys(
    capsys: pytest.CaptureFixture[str],
) -> None:
    print_names([EVIL], as_json=False)
    print_rows([{"note": EVIL}], ["note"])
    say(f"group {EVIL}")
    say(f"error: {EVIL}", err=True)
    said = capsys.readouterr()
    assert is_harmless(said.out + said.err)
    assert len(said.out.splitlines()) == 4, "and forges no line"


def test_only_one_module_of_the_commands_prints() -> None:
    """What a command prints goes through `say`; what is not, is fixed text or JSON."""
    allowed = {"saying.py", "printing.py", "main.py", "broker.py", "namesrv.py", "proxy.py"}
    allowed.add("console.py")  # its line of readiness
    folder = Path(next(iter(reliable_mq.__path__))) / "cli"
    found = [
        f"{path.name}:{node.lineno}"
        for path in folder.glob("*.py")
        if path.name not in allowed
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Call) and ast.unparse(node.func) in ("print", "typer.echo")
    ]
    assert not found


def evil_record() -> logging.LogRecord:
    error = ValueError(EVIL + "x" * 10_000)
    what = (type(error), error, None)
    return logging.LogRecord("n", logging.ERROR, "p", 1, "%s", (str(error),), what)


def test_a_commands_log_has_nothing_that_a_terminal_obeys() -> None:
    line = PlainFormatter("%(levelname)s %(message)s").format(evil_record())
    assert is_harmless(line)
    assert line.startswith(f"ERROR {SHOWN}x")


def test_peers_cause_so_many_lines_a_minute_and_the_next_says_how_many_were_left_out() -> None:
    limit = LineLimit(3)

    def passes(second: float) -> str:
        record = logging.LogRecord("n", logging.WARNING, "p", 1, "closed %s", ("x",), None)
        record.created = 1_000.0 + second
        return record.getMessage() if limit.filter(record) else ""

    assert [passes(second) for second in (0, 1, 2, 3, 59)] == ["closed x"] * 3 + ["", ""]
    assert passes(61) == "closed x (2 lines like it were left out before it)"
    assert passes(62) == "closed x"


def said(limit: LineLimit, level: int, text: object, *args: object) -> str:
    """Return what a limit lets pass of a line, or ""."""
    record = logging.LogRecord("n", level, "p", 1, text, args, None)
    record.created = 1_000.0
    return record.getMessage() if limit.filter(record) else ""


def test_lines_that_a_peer_causes_hide_no_other_line_of_the_module() -> None:
    limit = LineLimit(3)
    for _ in range(9):
        said(limit, logging.WARNING, "what %s answers cannot be used", "a peer")
    assert said(limit, logging.WARNING, "what %s answers cannot be used", "a peer") == ""
    assert said(limit, logging.WARNING, "no room for %s", "the log") == "no room for the log"


def test_what_ends_the_broker_is_always_said() -> None:
    limit = LineLimit(1)
    assert [said(limit, logging.CRITICAL, "it stops") for _ in range(3)] == ["it stops"] * 3


def test_texts_that_are_made_up_are_limited_together() -> None:
    limit = LineLimit(3)
    passed = [said(limit, logging.WARNING, f"text {number}") for number in range(10_000)]
    assert len([text for text in passed if text]) <= TEXTS_MAX + 3
    assert len(limit._counts) <= TEXTS_MAX + 1


@pytest.mark.parametrize("args", [("a",), ("a", "b", "c"), ({"b": 1},)])
def test_a_line_whose_arguments_do_not_fit_raises_nothing_into_the_caller(
    args: tuple[object, ...],
) -> None:
    text = said(LineLimit(), logging.WARNING, "%s of %d\x1b[2J", *args)
    assert is_harmless(text)
    assert "%s of %d" in text


def test_a_line_that_a_peer_causes_is_escaped_and_cut() -> None:
    record = evil_record()
    assert LineLimit().filter(record)
    line = logging.Formatter().format(record)
    assert is_harmless(line)
    assert line.startswith(SHOWN)
    assert max(map(len, line.splitlines())) < LINE_LENGTH_MAX + 200


def test_every_module_that_peers_can_make_write_has_a_limited_log() -> None:
    """Damage of the store is no peer's doing: all of it is named, up to the store's own limit."""
    source = Path(next(iter(reliable_mq.__path__)))
    found = [
        str(path)
        for station in ("wire", "name_server", "broker_core", "runtime")
        for path in (source / station).rglob("*.py")
        if path.parent.name != "store" and "logging.getLogger" in path.read_text()
    ]
    assert not found
