"""An empty word on a command line is refused: it comes from a variable that is not set."""

import pytest

from reliable_mq.cli.main import BAD_USAGE, run


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("stub", "show", "", "--app", "nowhere:mq"), "MESSAGE is empty: give one"),
        (("stub", "show", " ", "--app", "nowhere:mq"), "MESSAGE is empty: give one"),
        (("stub", "list", "--app", ""), "--app is empty: give MODULE:OBJECT, or leave it out"),
        (("stub", "list", "--db", ""), "--db is empty: give URL, or leave it out"),
        (("stub", "list", "--app", "nowhere:mq", "--topic="), "--topic is empty: give a value, or"),
        (("stub", "retry", "", "--app", "nowhere:mq"), "is empty: give one"),
        (("topic", "list", "--broker", ""), "--broker is empty: give HOST:PORT;…, or leave it out"),
        (("dlq", "retry", "--group", "", "--app", "nowhere:mq"), "--group is empty: give a value"),
        (("pause", "", "--app", "nowhere:mq"), "TOPIC is empty: give one, or leave it out"),
        (("group", "progress", "", "--broker", "h:1"), "GROUP is empty: give one, or leave it out"),
        (("broker", "--store", "store", "--host="), "--host is empty: give a value, or leave it"),
    ],
)
def test_an_empty_word_is_refused_before_anything_is_asked(
    words: tuple[str, ...],
    says: str,
    capfd: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """An empty filter would choose everything, an empty address that of the environment."""
    monkeypatch.setenv("RELIABLE_MQ_BROKER", "127.0.0.1:1")

    with pytest.raises(SystemExit) as ended:
        run(words)

    assert ended.value.code == BAD_USAGE
    assert says in capfd.readouterr().err


def test_a_note_may_be_empty(capfd: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        run(["stub", "void", "A" * 32, "--note", "", "--db", "sqlite:///nowhere.db"])

    assert "there is no file nowhere.db" in capfd.readouterr().err
