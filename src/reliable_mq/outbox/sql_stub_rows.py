"""Stubs as they are read from the rows of their table.

An unreadable row gives a stub with a flaw, which keeps what finds its row.
"""

from typing import Any

import msgspec
from sqlalchemy import (
    Column,
    Row,
    Table,
)

from reliable_mq.database.sql_types import (
    EARLIEST,
    LATEST,
    Unreadable,
)
from reliable_mq.error_texts import words_of
from reliable_mq.outbox.stub import Stub, groups_of

_properties = msgspec.json.Decoder(dict[str, str])
_AS_THEY_ARE = (
    *("seq", "message_id", "topic", "tag", "message_key", "ordering_key"),
    *("content_type", "count"),
)
_READ = (
    *_AS_THEY_ARE,
    *("content", "properties", "required_groups", "given_up_by", "create_date", "deliver_time"),
    *("broker_name", "queue_id", "offset"),
)


def stub_columns(table: Table) -> list[Column[Any]]:
    """Return the columns that `stub_of` reads."""
    return [table.c[name] for name in _READ]


def stub_of(row: Row[Any]) -> Stub:
    """Return the stub in a row of `stub_columns`. An unreadable row gives a stub with a `flaw`.

    A stub with a flaw keeps the columns that find its row and the rows behind it.
    """
    try:
        return _read(row)
    except (msgspec.MsgspecError, AttributeError, TypeError, ValueError) as error:
        count = row._mapping["count"]  # `row.count` is a method of every tuple
        return Stub(
            seq=row.seq,
            message_id=row.message_id,
            topic=row.topic,
            ordering_key=row.ordering_key,
            content=b"",
            count=count if isinstance(count, int) else 0,
            required_groups=groups_of(row.required_groups)
            if isinstance(row.required_groups, str)
            else (),
            flaw=f"the stub's row cannot be read: {words_of(error)}",
        )


def _read(whole: Row[Any]) -> Stub:
    """Return the stub in a row. Raises when a value is not legal for its column."""
    row = whole._mapping
    if odd := [name for name in _READ if isinstance(row[name], Unreadable)]:
        raise ValueError(f"the column {odd[0]} holds text that is not UTF-8")
    for name in ("create_date", "deliver_time"):
        if row[name] in (EARLIEST, LATEST):
            raise ValueError(f"the column {name} holds no valid time")
    try:
        properties = _properties.decode(row["properties"])
    except msgspec.MsgspecError as error:
        raise ValueError(f"the column properties: {words_of(error)}") from error
    place = {name: row[name] for name in ("broker_name", "queue_id", "offset")}
    values = {name: row[name] for name in _AS_THEY_ARE} | {
        "content": memoryview(row["content"]).tobytes(),  # bytes() would also accept a number
        "properties": properties,
        "required_groups": groups_of(row["required_groups"]),
        "given_up_by": groups_of(row["given_up_by"]),
        "create_time": row["create_date"].timestamp(),
        "deliver_time": row["deliver_time"] and row["deliver_time"].timestamp(),
        "position": None if row["broker_name"] is None else place,
    }
    return msgspec.convert(values, Stub)
