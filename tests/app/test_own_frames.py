"""An error to show has the application's own frames, and says one cause."""

import json
from traceback import extract_tb

from reliable_mq.own_frames import with_own_frames


def caught(text: str) -> Exception:
    """Return the error of a library that this module calls, wrapped as an ORM does it."""
    try:
        try:
            json.loads(text)
        except ValueError as below:
            raise RuntimeError("of the ORM") from below
    except RuntimeError as error:
        return error
    raise AssertionError


def test_the_deepest_frames_of_the_application_are_shown_with_the_text_that_says_most() -> None:
    error = caught("{")
    assert error.__cause__ is not None

    shown = with_own_frames(error, error.__cause__)

    assert [each.filename for each in extract_tb(shown.__traceback__)] == [__file__]
    assert extract_tb(shown.__traceback__)[0].line == "json.loads(text)"
    assert (type(shown).__name__, type(shown).__module__) == ("JSONDecodeError", "json.decoder")
    assert str(shown).startswith("Expecting property name")
    assert shown.__cause__ is shown.__context__ is None


def test_an_error_without_a_frame_of_the_application_is_shown_as_it_is() -> None:
    error = ValueError("raised nowhere")

    assert with_own_frames(error, error) is error
