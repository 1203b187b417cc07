"""Errors as tracebacks write them: their texts are masked (`error_texts`), and cut where too long.

Receives an error. Returns it, or a copy of it and of its causes with other texts.
"""

from typing import TypeVar

from reliable_mq.error_texts import text_of

TEXT_MAX = 10_000
"""Characters of an error's text in a traceback. An attempt may fail again and again."""
_CAUSES_MAX = 5

Made = TypeVar("Made", bound=BaseException)


def written_error(error: BaseException, depth: int = _CAUSES_MAX) -> BaseException:
    """Return an error for a traceback. It is the same one, if all may be written as it is.

    Otherwise it is a copy of the same name, place and causes with other texts.

    Args:
        error: the error; it is not changed.
        depth: how many of its causes, and of theirs, are looked at. Default 5.
    """
    below = [error.__cause__, error.__context__]
    cut = [written_error(each, depth - 1) if each and depth else each for each in below]
    made = _made_group(error, depth) if isinstance(error, BaseExceptionGroup) else _made(error)
    if made is error and all(a is b for a, b in zip(below, cut, strict=True)):
        return error
    if made is error:
        made = _named_as(error, str(error))
    made.__traceback__ = error.__traceback__
    made.__cause__, made.__context__ = cut
    made.__suppress_context__ = error.__suppress_context__
    return made


def _made(error: BaseException) -> BaseException:
    """Return an error with a shorter text, or this one if it may be written as it is."""
    try:
        whole, text = str(error), text_of(error)
    except Exception:  # noqa: BLE001 - `traceback` says that it cannot be read
        return error
    if len(text) > TEXT_MAX:
        text = f"{text[:TEXT_MAX]}… ({len(text)} characters)"
    return error if text == whole else _named_as(error, text)


def _named_as(error: BaseException, text: str) -> BaseException:
    kind = type(error)
    names = {"__module__": kind.__module__, "__qualname__": kind.__qualname__}
    made: BaseException = type(kind.__name__, (Exception,), names)(text)
    return _noted(made, error)


def _noted(made: Made, error: BaseException) -> Made:
    for note in getattr(error, "__notes__", ()):
        made.add_note(str(note))
    return made


def _made_group(
    group: BaseExceptionGroup[BaseException], depth: int
) -> BaseExceptionGroup[BaseException]:
    """Return a group of such errors, or this one if each of them may be written as it is."""
    within = [written_error(each, depth - 1) if depth else each for each in group.exceptions]
    is_same = all(a is b for a, b in zip(within, group.exceptions, strict=True))
    return group if is_same else _noted(group.derive(within), group)
