"""Deletes stored messages from under a running broker, as a bad disk or a bad script would.

Receives the store directory and which messages; hands on files in which they are gone. The log
stays walkable: where the record was there is another valid record of the same size, of a topic
nobody reads, and the consume queue's unit points at it with that record's tag.
Files: `commitlog/<offset of first byte>`, `consumequeue/<topic>/<queue>/<position of first byte>`.
"""

import struct
from pathlib import Path
from typing import NamedTuple

import psycopg
from tenacity import retry, retry_if_exception_type, stop_after_delay, wait_fixed

from examples.demo.processes import DemoFailed
from reliable_mq.wire.java_hash import tags_code
from reliable_mq.wire.properties import encode_properties
from reliable_mq.wire.record import (
    Record,
    decode_record,
)
from reliable_mq.wire.record_encode import encode_record

FILLER_TOPIC = "filler"
FILLER_TAG = "filler"
_UNIT = struct.Struct(">qiq")  # commit-log offset, size, tags code
_SIZE = struct.Struct(">i")


class AcknowledgedMessage(NamedTuple):
    """A message by its id and the place the broker acknowledged it at."""

    message_id: str
    topic: str
    queue_id: int
    queue_offset: int


def unconsumed_messages(database: str) -> list[AcknowledgedMessage]:
    """Return the messages that the broker acknowledged and nobody has consumed, oldest first."""
    with psycopg.connect(database.replace("+psycopg", "")) as connection:
        rows = connection.execute(
            """
            SELECT message_id, topic, queue_id, "offset" FROM rmq_message_stub s
            WHERE broker_name IS NOT NULL AND NOT EXISTS
                (SELECT FROM rmq_consume_log l WHERE l.message_id = s.message_id)
            ORDER BY seq
            """
        ).fetchall()
    return [AcknowledgedMessage(*row) for row in rows]


def delete_message(store: Path, message: AcknowledgedMessage) -> int:
    """Replace a message in the live files of `store`; return its offset in the commit log.

    Raises:
        DemoFailed: when it is not where the broker said it was.
    """
    queue = store / "consumequeue" / message.topic / str(message.queue_id)
    queue_file, at, log_offset, size = _unit_at(queue, message.queue_offset * _UNIT.size)
    with queue_file.open("r+b") as units:
        log_file, place = _file_and_place(store / "commitlog", log_offset)
        with log_file.open("r+b") as log:
            log.seek(place)
            record = decode_record(log.read(size), 0)
            if record.property_map().get("UNIQ_KEY") != message.message_id:
                raise DemoFailed(f"{message.message_id} is not at {log_file.name}:{place}")
            log.seek(place)
            log.write(filler_for(record))
        units.seek(at)
        units.write(_UNIT.pack(log_offset, size, tags_code(FILLER_TAG)))
    return log_offset


@retry(
    retry=retry_if_exception_type(DemoFailed),
    wait=wait_fixed(0.05),
    stop=stop_after_delay(30),
    reraise=True,
)
def _unit_at(queue: Path, position: int) -> tuple[Path, int, int, int]:
    """Return file and place of a unit of a queue, and the log offset and size that it names.

    The broker makes the file, and writes the unit, some moments after it answered.
    """
    queue_file, at = _file_and_place(queue, position)
    with queue_file.open("rb") as units:
        units.seek(at)
        log_offset, size, _tag = _UNIT.unpack(units.read(_UNIT.size).ljust(_UNIT.size, b"\0"))
    if not size:
        raise DemoFailed(f"{queue_file}: no unit is written at {at}")
    return queue_file, at, log_offset, size


def filler_for(record: Record) -> bytes:
    """Return a valid stored record of another topic, of the same size and at the same place."""
    filler = Record(
        topic=FILLER_TOPIC,
        body=b"",
        properties=encode_properties({"TAGS": FILLER_TAG}),
        queue_id=record.queue_id,
        queue_offset=record.queue_offset,
        commit_log_offset=record.commit_log_offset,
        born_time_ms=record.born_time_ms,
        born_host=record.born_host,
        store_time_ms=record.store_time_ms,
        store_host=record.store_host,
    )
    filler.body = b"-" * (len(encode_record(record)) - len(encode_record(filler)))
    return encode_record(filler)


def _file_and_place(folder: Path, position: int) -> tuple[Path, int]:
    """Return the file that holds a position and the place in it; a name is its first position."""
    names = [path.name for path in folder.iterdir()] if folder.is_dir() else []
    starts = [int(name) for name in names if name.isdigit()]
    start = max((start for start in starts if start <= position), default=None)
    if start is None:
        raise DemoFailed(f"{folder} has no file for position {position}")
    return folder / f"{start:020d}", position - start
