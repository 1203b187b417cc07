"""Reads a message's record from the files of a store, while its broker runs or is down.

Receives the folder of a store, ours or Apache's, and the place of a message in a queue. Opens files
for reading only and takes no lock, so it disturbs no broker. Returns the record, or why there is
none.
"""

import struct
from collections.abc import Iterable
from pathlib import Path

from reliable_mq.client.administering.browsing import shown
from reliable_mq.errors import ConfigurationError, RecordError
from reliable_mq.limits import RECORD_SIZE_MAX, TOPIC_LENGTH_MAX
from reliable_mq.message import MessageQueue, ReceivedMessage
from reliable_mq.names import is_legal_name
from reliable_mq.wire.record import decode_record

_UNIT = struct.Struct(">qiq")
"""A unit of a consume queue: log offset, size of the record, hash of the tag."""
_DIGITS = 20


class NoRecord(RecordError):
    """A store has no record at a place; the text says why."""


def stores_of(given: Iterable[str]) -> dict[str, Path]:
    """Return the folders of stores by the names of their brokers; "": of any broker.

    Args:
        given: texts such as `broker-a=/data/store` or `/data/store`.

    Raises:
        ConfigurationError: a folder is no store, or two are of one broker.
    """
    found: dict[str, Path] = {}
    for name, folder in map(_named, given):
        if name in found:
            raise ConfigurationError(
                f"--store {folder}: there is one already{f' of {name}' if name else ''}; name"
                " each by its broker, as broker-a=DIR"
            )
        if not (folder / "commitlog").is_dir():
            raise ConfigurationError(f"--store {folder}: no store is there: no folder commitlog")
        found[name] = folder
    return found


def _named(text: str) -> tuple[str, Path]:
    name, is_named, folder = text.partition("=")
    return (name, Path(folder)) if is_named else ("", Path(text))


def record_in(store: Path, queue: MessageQueue, offset: int) -> ReceivedMessage:
    """Return the message at an offset of a queue.

    Raises:
        NoRecord: there is none.
        OSError: a file cannot be read.
    """
    if not is_legal_name(queue.topic, TOPIC_LENGTH_MAX) or queue.queue_id < 0 or offset < 0:
        raise NoRecord("the stub names no place of a store")
    units = store / "consumequeue" / queue.topic / str(queue.queue_id)
    unit = _bytes_at(units, offset * _UNIT.size, _UNIT.size)
    if len(unit) < _UNIT.size:
        raise NoRecord(f"{store} has no message {offset} of {queue.topic}, {queue.queue_id}")
    log_offset, size, _ = _UNIT.unpack(unit)
    if not 0 < size <= RECORD_SIZE_MAX:
        raise NoRecord(f"{store} has removed message {offset} of {queue.topic}")
    body = _bytes_at(store / "commitlog", log_offset, size)
    try:
        record = decode_record(body)
    except RecordError as error:
        raise NoRecord(f"{store} has no whole record at {log_offset}: {error}") from error
    there = (record.topic, record.queue_id, record.queue_offset)
    if there != (queue.topic, queue.queue_id, offset):
        raise NoRecord(f"{store} has another record there: {record.topic}, {record.queue_offset}")
    return shown(record, queue)


def _bytes_at(folder: Path, position: int, size: int) -> bytes:
    """Return bytes of a row of files, whose names are the positions at which they begin."""
    begins = (int(path.name) for path in folder.iterdir() if _is_file_of_row(path.name))
    begin = max((each for each in begins if each <= position), default=None)
    if begin is None:
        return b""
    with (folder / f"{begin:0{_DIGITS}d}").open("rb") as file:
        file.seek(position - begin)
        return file.read(size)


def _is_file_of_row(name: str) -> bool:
    return len(name) == _DIGITS and name.isascii() and name.isdigit()
