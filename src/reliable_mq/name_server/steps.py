"""Work that is done in steps, so that others are served in between.

A function of steps yields after each of some milliseconds, and returns its result at the end.
"""

from collections.abc import Generator
from typing import TypeVar

_T = TypeVar("_T")

Steps = Generator[None, None, _T]
"""Work under way: each `next` does a step, and the end has the result."""


def finish(steps: Steps[_T]) -> _T:
    """Do all steps at once and return the result."""
    while True:
        try:
            next(steps)
        except StopIteration as end:
            result: _T = end.value
            return result
