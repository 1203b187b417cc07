"""Errors as tracebacks write them: their texts are masked (`error_texts`), and cut where too long.

Receives an error. Returns it, or a copy of it and of its causes with other texts.
"""

from collections.abc import Sequence
from typing import TypeVar

from reliable_mq.error_texts import hides_words_of, named_as, text_of

TEXT_MAX = 10_000
"""Characters of an error's text in a traceback. An attempt may fail again and again."""
_CAUSES_MAX = 50
_NOT_WRITTEN = "its causes, or errors within it, are not written: there are too many"

Made = TypeVar("Made", bound=BaseException)
_Seen = dict[int, BaseException | None]
"""The written errors by the identity of the given ones; None: it is being written."""


def written_error(error: BaseException) -> BaseException:
    """Return an error for a traceback. It is the same one, if all may be written as it is.

    Otherwise it is a copy of the same name, place and causes with other texts. The error is not
    changed. A chain of more than 50 causes loses the oldest ones, and says so.
    """
    return _written(error, _CAUSES_MAX, {}) or error


def _written(error: BaseException, depth: int, seen: _Seen) -> BaseException | None:
    """Return an error as it may be written; None: it is being written, so this is a circle."""
    if id(error) in seen:
        return seen[id(error)]
    seen[id(error)] = None
    below = [error.__cause__, error.__context__]
    cut = [_written(each, depth - 1, seen) if each and depth else None for each in below]
    made = _made(error, depth, seen)
    if any(a is not b for a, b in zip(below, cut, strict=True)):
        made = _copy(error) if made is error else made
        if not depth:
            made.add_note(_NOT_WRITTEN)
    if made is not error:
        made.__traceback__ = error.__traceback__
        made.__cause__, made.__context__ = cut
        made.__suppress_context__ = error.__suppress_context__
    seen[id(error)] = made
    return made


def _made(error: BaseException, depth: int, seen: _Seen) -> BaseException:
    """Return an error with another text, or this one if it may be written as it is."""
    if isinstance(error, BaseExceptionGroup):
        return _made_group(error, depth, seen)
    try:
        whole, text = str(error), text_of(error)
    except Exception:  # noqa: BLE001 - `traceback` says that it cannot be read
        return error
    if len(text) > TEXT_MAX:
        text = f"{text[:TEXT_MAX]}… ({len(text)} characters)"
    has_hidden_notes = hides_words_of(error) and hasattr(error, "__notes__")
    return error if text == whole and not has_hidden_notes else _named_as(error, text)


def _copy(error: BaseException) -> BaseException:
    """Return a copy of an error that may be written as it is."""
    if isinstance(error, BaseExceptionGroup):
        return _group_of(error, error.exceptions)
    try:
        text = str(error)
    except Exception:  # noqa: BLE001 - its own `__str__` may raise anything
        text = "(its text cannot be read)"
    return _named_as(error, text)


def _named_as(error: BaseException, text: str) -> BaseException:
    return _noted(named_as(error, text), error)


def _noted(made: Made, error: BaseException) -> Made:
    for note in () if hides_words_of(error) else getattr(error, "__notes__", ()):
        made.add_note(str(note))
    return made


def _made_group(
    group: BaseExceptionGroup[BaseException], depth: int, seen: _Seen
) -> BaseExceptionGroup[BaseException]:
    """Return a group of such errors, or this one if each of them may be written as it is."""
    within = [_written(each, depth - 1, seen) if depth else None for each in group.exceptions]
    is_same = all(a is b for a, b in zip(within, group.exceptions, strict=True))
    if is_same and not hides_words_of(group):
        return group
    named = zip(within, group.exceptions, strict=True)
    return _group_of(group, [made or _named_as(error, "…") for made, error in named])


def _group_of(
    group: BaseExceptionGroup[BaseException], within: Sequence[BaseException]
) -> BaseExceptionGroup[BaseException]:
    """Return a copy of a group with these errors. The rules for texts hold for its own, too."""
    if hides_words_of(group):
        return BaseExceptionGroup("", within)
    try:
        return _noted(group.derive(within), group)
    except Exception:  # noqa: BLE001 - a class of the application may need more arguments
        return _noted(BaseExceptionGroup(group.message, within), group)
