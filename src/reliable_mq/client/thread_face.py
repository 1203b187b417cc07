"""Verbs for threads, made from asynchronous verbs: same parameters and docstring, run by the loop.

Receives a verb of the asynchronous class. Returns the verb for threads. Each class for threads has
a table of its verbs. A verb that behaves differently is written there in full.
"""

from collections.abc import Callable, Coroutine
from functools import wraps
from typing import Any, Concatenate, Generic, ParamSpec, TypeVar

from reliable_mq.runtime.loop_thread import LoopThread

A = TypeVar("A")
P = ParamSpec("P")
R = TypeVar("R")

Started = Callable[[], LoopThread]
"""Returns the thread of a client, or raises if the client is not started."""


class ThreadFace(Generic[A]):
    """The base of a class for threads, over an object on the client's loop.

    Args:
        started: returns the thread of the loop.
        twin: the object with the asynchronous verbs.
    """

    def __init__(self, started: Started, twin: A) -> None:
        self._started = started
        self._twin = twin


def waits(
    verb: Callable[Concatenate[A, P], Coroutine[Any, Any, R]],
) -> Callable[Concatenate[ThreadFace[A], P], R]:
    """Return a verb that waits in the caller's thread for the asynchronous verb."""

    name = verb.__name__

    @wraps(verb)
    def wait(self: ThreadFace[A], /, *args: P.args, **kwargs: P.kwargs) -> R:
        thread = self._started()
        own: Callable[P, Coroutine[Any, Any, R]] = getattr(self._twin, name)  # of its own class
        return thread.run(own(*args, **kwargs))

    return wait
