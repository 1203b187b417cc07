"""One text for a verb that exists twice: for threads, and to be awaited.

Receives a face and its twin; hands on the face with the twin's docstrings. The source keeps the
first sentence, for whoever reads it without running it. Refuses to touch a verb with a text of its
own.
"""

import inspect
import re
from collections.abc import Callable
from typing import Any, TypeVar

K = TypeVar("K", bound=type[Any])

_POINTS = re.compile(r"\b[Ss]ee `Async\w+\.(\w+)`\.\s*\Z")


def documented_by(twin: type[Any]) -> Callable[[K], K]:
    """Return a decorator of classes: a verb whose docstring ends "see `AsyncX.verb`" gets that.

    Args:
        twin: has the verbs that are pointed to.
    """

    def decorate(face: K) -> K:
        for name, verb in vars(face).items():
            points = _POINTS.search(verb.__doc__ or "") if inspect.isfunction(verb) else None
            if points is not None and points[1] == name:
                verb.__doc__ = getattr(twin, name).__doc__
        return face

    return decorate
