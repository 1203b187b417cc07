"""Which frames of a traceback are the application's own. Receives an error; returns one to show."""

import importlib
from pathlib import Path
from types import TracebackType

from reliable_mq.error_texts import named_as, text_of

_PACKAGE = f"{Path(__file__).parent}/"
_STANDARD = f"{Path(importlib.__file__).parents[1]}/"
_IMPORTERS = ("<frozen ", _PACKAGE, importlib.__file__)
_INSTALLED = ("site-packages", "dist-packages")
_CAUSES_MAX = 5


def is_foreign(file_name: str) -> bool:
    """Return whether a frame is one of this package, or of the importer."""
    return file_name.startswith(_IMPORTERS)


def is_own(file_name: str) -> bool:
    """Return whether a frame is neither that, nor one of an installed package or of Python."""
    is_installed = any(each in file_name for each in _INSTALLED)
    return not (is_foreign(file_name) or is_installed or file_name.startswith(_STANDARD))


def with_own_frames(error: BaseException, shown: BaseException) -> BaseException:
    """Return an error to show: the type and the text of `shown`, the application's frames only.

    It has no cause: an error of a database is one of the driver, of the ORM and of SQLAlchemy. If
    no frame is the application's, it is `error`.

    Args:
        error: what was raised; its frames, or those of its causes, are kept.
        shown: the error whose type and text say most, such as that of the driver.
    """
    each: BaseException | None = error
    frames = None
    for _ in range(_CAUSES_MAX):
        if each is not None:  # the one below lies deeper in the application
            frames = _own_part(each.__traceback__) or frames
            each = each.__cause__
    if frames is None:
        return error
    return named_as(shown, text_of(shown)).with_traceback(frames)


def _own_part(traceback: TracebackType | None) -> TracebackType | None:
    parts = []
    while traceback is not None:
        if is_own(traceback.tb_frame.f_code.co_filename):
            parts.append(traceback)
        traceback = traceback.tb_next
    rest: TracebackType | None = None
    for each in reversed(parts):
        rest = TracebackType(rest, each.tb_frame, each.tb_lasti, each.tb_lineno)
    return rest
