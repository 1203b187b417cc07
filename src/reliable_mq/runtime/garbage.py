"""Short garbage collections for a process that keeps many objects for a long time.

A full collection examines every object. With the tables of 10,000 topics, it stops the event loop
for a tenth of a second and finds nothing. Objects that survive a full collection are mostly tables
and caches, so later collections skip them. Full collections run more often instead, and each one
examines only new objects: some thousand, which takes an eighth of a millisecond.
"""

import gc
from typing import Any

_YOUNG_MAX = 250
_MIDDLE_MAX = 1
_OLD_MAX = 1


def keep_collections_short() -> None:
    """Make the garbage collector examine each object in one full collection at most.

    It is for this project's programs. An application configures the collector of its own process.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(_YOUNG_MAX, _MIDDLE_MAX, _OLD_MAX)
    if _freeze_survivors not in gc.callbacks:
        gc.callbacks.append(_freeze_survivors)


def collect_new() -> None:
    """Collect now, if collections are short.

    The collector counts new objects less those that go. Where many old ones go, for example
    requests that have waited, it looks at thousands of new ones at a time, and that takes 10 ms.
    """
    if _freeze_survivors in gc.callbacks:
        gc.collect()


def _freeze_survivors(phase: str, info: dict[str, Any]) -> None:
    if phase == "stop" and info["generation"] == 2:
        gc.freeze()
