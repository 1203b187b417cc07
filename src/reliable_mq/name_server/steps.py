"""Long work in steps, so that the event loop can serve other connections in between.

A step function yields every tenth of a millisecond, and returns its result at the end.
"""

from collections.abc import Generator
from typing import TypeVar

_T = TypeVar("_T")

Steps = Generator[None, None, _T]
"""Work under way: each `next` runs one step; the result comes with `StopIteration`."""


def finish(steps: Steps[_T]) -> _T:
    """Run all steps at once and return the result."""
    while True:
        try:
            next(steps)
        except StopIteration as end:
            result: _T = end.value
            return result
