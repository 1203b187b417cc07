"""An empty word on a command line is refused: it comes from a variable that is not set."""

import pytest

from reliable_mq.cli.main import BAD_USAGE, run


def test_an_empty_message_is_refused_before_any_database_is_asked(
    capfd: pytest.CaptureFixture[str],
) -> None:
    with pytest.raises(SystemExit) as ended:
        run(["stub", "show", "", "--app", "nowhere:mq"])

    assert ended.value.code == BAD_USAGE
    assert "error: MESSAGE is empty: give the message id" in capfd.readouterr().err
