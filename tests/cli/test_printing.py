"""What people are shown is what was written."""

import pytest

from reliable_mq.cli.printing import print_rows


@pytest.mark.parametrize("text", ["[/a]", "file [/tmp/in.csv] is empty", "[bold]x[/bold]", ":x:"])
def test_a_table_shows_keys_and_reasons_as_they_are(
    text: str, capsys: pytest.CaptureFixture[str]
) -> None:
    print_rows([{"message_key": text}], ["message_key"])

    assert text in capsys.readouterr().out
