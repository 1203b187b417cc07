"""Keeps collections of cyclic garbage short in a process that holds many objects for long.

A full collection looks at every object there is: with the tables of 10,000 topics it stops the
event loop for a tenth of a second, to find nothing. What has survived a full collection is a table
or a cache, so it is not looked at again; full collections come more often instead, and each looks
only at what was made since the last one.
"""

import gc
from typing import Any

_YOUNG_MAX = 2_000
_MIDDLE_MAX = 10
_OLD_MAX = 1


def keep_collections_short() -> None:
    """Let this process's collector look at each object in one full collection at most.

    For programs of our own; a process that is an application's sets its collector as it likes.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(_YOUNG_MAX, _MIDDLE_MAX, _OLD_MAX)
    if _freeze_survivors not in gc.callbacks:
        gc.callbacks.append(_freeze_survivors)


def _freeze_survivors(phase: str, info: dict[str, Any]) -> None:
    if phase == "stop" and info["generation"] == 2:
        gc.freeze()
