"""Copies docstrings from the asyncio verbs to the same verbs for threads.

It receives a class and its twin, and gives the class the twin's docstrings. The source keeps the
first sentence for readers. Verbs with a full text of their own keep it.
"""

import inspect
import re
from collections.abc import Callable
from typing import Any, TypeVar

K = TypeVar("K", bound=type[Any])

_POINTS = re.compile(r"\b[Ss]ee `Async\w+\.(\w+)`\.\s*\Z")


def documented_by(twin: type[Any]) -> Callable[[K], K]:
    """Return a class decorator: docstrings ending "See `AsyncX.verb`." become those of that verb.

    Args:
        twin: the class with the full docstrings.
    """

    def decorate(face: K) -> K:
        for name, verb in vars(face).items():
            points = _POINTS.search(verb.__doc__ or "") if inspect.isfunction(verb) else None
            if points is not None and points[1] == name:
                verb.__doc__ = getattr(twin, name).__doc__
        return face

    return decorate
