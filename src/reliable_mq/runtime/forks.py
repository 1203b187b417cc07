"""Renews in a forked child everything that it must not share with its parent.

Some servers fork after they have loaded the application: Gunicorn with `--preload`, Celery,
`multiprocessing`. The child gets copies of the connections, and of the names that own rows, but no
threads. A socket that two processes read works for neither.
"""

import os
import threading
from collections.abc import Callable
from typing import Any
from weakref import WeakMethod

_lock = threading.Lock()
_methods: list[WeakMethod[Callable[[], None]]] = []
_parents: list[Any] = []
"""Kept for ever and never closed: closing them would disturb the parent, which uses them too."""


def call_in_child(method: Callable[[], None]) -> None:
    """Call a bound method in every child forked from now on, as long as its object exists."""
    with _lock:
        _methods[:] = [each for each in _methods if each() is not None]
        _methods.append(WeakMethod(method))


def leave_to_parent(*things: Any) -> None:
    """Keep the parent's objects from being closed in the child when no other reference is left."""
    _parents.extend(things)


def _in_child() -> None:
    for each in _methods:
        method = each()
        if method is not None:
            method()


# The lock keeps a fork from interrupting `call_in_child`, and is free in the child afterwards.
os.register_at_fork(
    before=_lock.acquire, after_in_parent=_lock.release, after_in_child=_lock.release
)
os.register_at_fork(after_in_child=_in_child)
