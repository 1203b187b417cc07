"""A verb that is awaited as one for threads: same parameters and words, run by the client's loop.

Receives a verb of a twin on the loop; hands on the verb of the face. Each class of a face has the
table of its verbs; what differs in its behaviour or its words is written there in full.
"""

from collections.abc import Callable, Coroutine
from functools import wraps
from typing import Any, Concatenate, Generic, ParamSpec, TypeVar

from reliable_mq.runtime.loop_thread import LoopThread

A = TypeVar("A")
P = ParamSpec("P")
R = TypeVar("R")

Started = Callable[[], LoopThread]
"""Gives the thread of a client, or raises because it is not started."""


class ThreadFace(Generic[A]):
    """Verbs for threads over those of a twin on the client's loop.

    Args:
        started: gives the thread of the loop.
        twin: has the verbs that are awaited.
    """

    def __init__(self, started: Started, twin: A) -> None:
        self._started = started
        self._twin = twin


def waits(
    verb: Callable[Concatenate[A, P], Coroutine[Any, Any, R]],
) -> Callable[Concatenate[ThreadFace[A], P], R]:
    """Return the verb of a twin as one that waits in the caller's thread."""

    @wraps(verb)
    def wait(self: ThreadFace[A], /, *args: P.args, **kwargs: P.kwargs) -> R:
        thread = self._started()
        return thread.run(verb(self._twin, *args, **kwargs))

    return wait
