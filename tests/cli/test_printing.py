"""What people are shown is what was written."""

import pytest

from reliable_mq.cli.printing import print_rows


@pytest.mark.parametrize("text", ["[/a]", "file [/tmp/in.csv] is empty", "[bold]x[/bold]", ":x:"])
def test_a_table_shows_keys_and_reasons_as_they_are(
    text: str, capsys: pytest.CaptureFixture[str]
) -> None:
    print_rows([{"message_key": text}], ["message_key"])

    assert text in capsys.readouterr().out


ID = "0A" * 16
STUB = {
    "message_id": ID,
    "time": "2026-11-28T13:00:00+00:00",
    "age": "5 m",
    "topic": "orders",
    "tag": "",
    "key": "order-4711",
    "groups": "billing, stock",
    "status": "UNCONFIRMED",
    "sent": 1,
    "next": "2026-11-28T13:05:00+00:00",
    "note": "every send of it failed: no name server answers",
}


def shown_at(
    width: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> list[str]:
    """Return the lines of a stub and of one with another key, in a terminal of this width."""
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    monkeypatch.setenv("COLUMNS", str(width))
    monkeypatch.setenv("TERM", "dumb")
    print_rows([STUB, {**STUB, "key": "B" * 30}], list(STUB))
    return capsys.readouterr().out.splitlines()


@pytest.mark.parametrize("width", [40, 80, 100, 120, 160, 172, 200, 400])
def test_ids_and_keys_are_on_one_line_in_a_terminal_of_each_width(
    width: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    lines = shown_at(width, monkeypatch, capsys)
    words = [word for line in lines for word in line.split()]

    assert words.count(ID) == 2
    assert {"order-4711", "B" * 30} <= set(words)
    if width >= 80:
        assert all(len(line) <= width for line in lines)


def test_a_narrow_terminal_has_a_block_of_lines_for_each_row(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    lines = shown_at(80, monkeypatch, capsys)

    assert lines[0] == f"message id  {ID}"
    assert lines[5] == "key         order-4711"
    assert lines[11:13] == ["", f"message id  {ID}"]


def test_a_pipe_has_a_line_for_each_row(capsys: pytest.CaptureFixture[str]) -> None:
    print_rows([STUB], list(STUB))

    assert len(capsys.readouterr().out.splitlines()) == 2
