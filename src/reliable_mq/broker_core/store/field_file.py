"""A file of i64 fields, 4096 bytes long: the format of Apache RocketMQ's two checkpoints.

Saves and loads a struct of numbers, in the order of its fields.
Source: Apache RocketMQ `StoreCheckpoint`, `TimerCheckpoint`.
"""

import struct
from typing import TypeVar

import msgspec

from reliable_mq.broker_core.store.disk import Disk

FILE_SIZE = 4096

_Fields = TypeVar("_Fields", bound=msgspec.Struct)


def load_fields(disk: Disk, path: str, fields: type[_Fields]) -> _Fields:
    """Return the content of the file; the defaults when it does not exist."""
    form = _form_of(fields)
    if disk.size_of(path) < form.size:
        return fields()
    file = disk.open(path, FILE_SIZE)
    values = form.unpack(file.read(0, form.size))
    file.close()
    return fields(**dict(zip(fields.__struct_fields__, values, strict=True)))


def save_fields(disk: Disk, path: str, fields: msgspec.Struct) -> None:
    """Write and sync the file. Everything that it claims must be synced before."""
    if disk.size_of(path) not in (-1, FILE_SIZE):  # cut short, so without content
        disk.remove(path)
    file = disk.open(path, FILE_SIZE)
    file.write(0, (_form_of(type(fields)).pack(*msgspec.structs.astuple(fields)),))
    file.sync()
    file.close()


def _form_of(fields: type[msgspec.Struct]) -> struct.Struct:
    return struct.Struct(f">{len(fields.__struct_fields__)}q")
