"""Read the bundled broker's note about its own log: where the log begins.

Receives the path of a store. Returns the note if it is current. The broker refuses a store that
lacks a noted segment. Reconciliation reads such a store, and reports what is missing.
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
    """Return the log offset at which, by the note, the log begins; None: unknown.

    Retention writes the note before it removes a segment. So list the segments first, and call this
    after. The note is not current if another broker wrote to the store since: then the checkpoint
    is newer. Source: Apache RocketMQ `StoreCheckpoint` for its first eight bytes.
    """
    with suppress(OSError, msgspec.MsgspecError):
        with (store / _CHECKPOINT).open("rb") as file:
            stored_ms = int.from_bytes(file.read(_TIME_SIZE))
        note = msgspec.json.decode((store / _NOTE).read_bytes(), type=_Note)
        if note.last_record >= 0 and stored_ms <= note.last_time_ms:
            return note.log_start
    return None
