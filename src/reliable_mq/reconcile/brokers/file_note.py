"""What the bundled broker noted of its own log: from where on its segments must be there.

Receives the path of a store; hands on what the note says, as far as it may be believed. The broker
refuses a store that lacks a noted segment; reconciliation reads on and names what is missing.
"""

from contextlib import suppress
from pathlib import Path

import msgspec

from reliable_mq.decodable import decodable

_NOTE = "config/storeProgress.json"
_CHECKPOINT = "checkpoint"
_TIME_SIZE = 8


@decodable
class _Note(msgspec.Struct, rename="camel"):
    log_start: int = 0
    last_record: int = -1
    last_time_ms: int = 0


def has_note(store: Path) -> bool:
    """Return whether the bundled broker wrote to this store."""
    return (store / _NOTE).exists()


def noted_start(store: Path) -> int | None:
    """Return the log offset from which on the broker knows its log; None: nobody knows.

    Retention notes where the log begins before it removes a segment. So ask this after the segments
    were listed. A note is of no use when another broker wrote to the store since: then the
    checkpoint is newer. Source: Apache RocketMQ `StoreCheckpoint` for its first eight bytes.
    """
    with suppress(OSError, msgspec.MsgspecError):
        with (store / _CHECKPOINT).open("rb") as file:
            stored_ms = int.from_bytes(file.read(_TIME_SIZE))
        note = msgspec.json.decode((store / _NOTE).read_bytes(), type=_Note)
        if note.last_record >= 0 and stored_ms <= note.last_time_ms:
            return note.log_start
    return None
