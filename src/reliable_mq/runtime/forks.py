"""What a forked child must not share with its parent is made anew in the child.

Servers that fork after they loaded the application (Gunicorn with `--preload`, Celery,
`multiprocessing`) copy its connections, and the names under which it owns rows, but none of its
threads. A socket that two processes read is of use to neither.
"""

import os
import threading
from collections.abc import Callable
from typing import Any
from weakref import WeakMethod

_lock = threading.Lock()
_methods: list[WeakMethod[Callable[[], None]]] = []
_parents: list[Any] = []
"""Kept for ever and never touched: to close them would disturb the parent, who uses them too."""


def call_in_child(method: Callable[[], None]) -> None:
    """Call a bound method in every child that is forked from now on, while its object lives."""
    with _lock:
        _methods[:] = [each for each in _methods if each() is not None]
        _methods.append(WeakMethod(method))


def leave_to_parent(*things: Any) -> None:
    """Keep what belongs to the parent from being closed, also when nobody else knows it."""
    _parents.extend(things)


def _in_child() -> None:
    for each in _methods:
        method = each()
        if method is not None:
            method()


# No fork between the two steps of `call_in_child`, and no lock that nobody in the child releases.
os.register_at_fork(
    before=_lock.acquire, after_in_parent=_lock.release, after_in_child=_lock.release
)
os.register_at_fork(after_in_child=_in_child)
