"""What an audited request names: topics, groups, users and so on.

Receives a command. Returns names for its line in the audit, read as its handler reads them. Knows
no values: `audited` looks at what the names stand for.
"""

import operator
from collections.abc import Callable, Mapping
from typing import Any

import msgspec

from reliable_mq.access.users import subject_in
from reliable_mq.wire.command import Command
from reliable_mq.wire.peer_texts import read_json, read_properties

NAMES_MAX = 20
"""Names of one line: a request may name thousands."""

Names = Mapping[str, Any]


def fields_named(**wanted: str) -> Callable[[Command], Names]:
    """Return a function that reads names from the fields of a request: name=field."""

    def names(command: Command) -> Names:
        ext = command.ext_fields
        return {name: ext[field] for name, field in wanted.items() if field in ext}

    return names


def nothing(_command: Command) -> Names:
    """Return no name: the request is about the whole broker."""
    return {}


def row_named(**wanted: str) -> Callable[[Command], Names]:
    """Return a function that reads names from the JSON object in the body: its texts."""

    def names(command: Command) -> Names:
        row = read_json(command.body) if command.body else {}
        found = {name: row.get(field) for name, field in wanted.items()}
        return {name: value for name, value in found.items() if isinstance(value, str)}

    return names


def rows_named(name: str, table: str, field: str) -> Callable[[Command], Names]:
    """Return a function that reads names from a list of objects in the body."""

    def names(command: Command) -> Names:
        rows, read = _rows_in(command.body, table)
        values = [read(row, field) for row in rows[:NAMES_MAX]]
        found = [value for value in values if isinstance(value, str)]
        return {name: found, "count": len(rows)} if len(rows) > NAMES_MAX else {name: found}

    return names


def _rows_in(body: bytes, table: str) -> tuple[list[Any], Callable[[Any, str], Any]]:
    """Return the rows of a list of objects, and what reads a field: most rows are not read."""
    try:
        unread = msgspec.json.decode(body, type=dict[str, msgspec.Raw])[table]
        return msgspec.json.decode(unread, type=list[msgspec.Raw]), _field_in
    except msgspec.DecodeError:  # not standard JSON
        return read_json(body)[table], operator.getitem


def _field_in(row: msgspec.Raw, field: str) -> Any:
    """Return a field. No other one is read: a handler may accept a row with 1e999 in another."""
    return msgspec.json.decode(msgspec.json.decode(row, type=dict[str, msgspec.Raw])[field])


def properties_named(name: str) -> Callable[[Command], Names]:
    """Return a function that reads the names of all properties in the body."""

    def names(command: Command) -> Names:
        return {name: sorted(read_properties(command.body))}

    return names


def subject_named(command: Command) -> Names:
    """Return whose policies a request adds, as its handler reads it."""
    fields = command.ext_fields
    row = read_json(command.body) if command.body else None
    subject = subject_in(row if isinstance(row, dict) else {}, fields)
    return {"subject": subject} if isinstance(subject, str) else {}


def forbidden_named(command: Command) -> Names | None:
    """UPDATE_AND_GET_GROUP_FORBIDDEN also only asks."""
    if "readable" not in command.ext_fields:
        return None
    return fields_named(group="group", topic="topic")(command)


def removed_threshold(command: Command) -> Names:
    """REMOVE_COLD_DATA_FLOW_CTR_CONFIG: the body is the name of a group."""
    return {"groups": [command.body.decode()]}


def shown_names(names: Names) -> Names:
    """Return what a request names; of a long list the first names, and how many there are."""
    counts = [len(each) for each in names.values() if isinstance(each, list)]
    if max(counts, default=0) <= NAMES_MAX:
        return names
    cut = {
        name: each[:NAMES_MAX] if isinstance(each, list) else each for name, each in names.items()
    }
    return {**cut, "count": max(counts)}
