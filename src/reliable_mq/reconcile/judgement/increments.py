"""Increments: which events a run carries to the next one, and how that one completes them. Pure.

An increment reads everything that changed since the previous run, and all open rows of the tables.
It also gets the carried events of the previous run. A run carries the events of each message that
has a verdict that is not final, or that the next run will read again.

V4: a message without carried events is new, or its verdicts were final. In the second case a
second delivery or a person changed it since. For such messages the tables are read again by id.
Their records were judged by an earlier run; the position in the stub says where they are.

All tables here have the schema `EVENT_ROWS`.
"""

from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from reliable_mq.reconcile.brokers.log_roles import FIRST
from reliable_mq.reconcile.judgement.event_rows import (
    EVENT_ROWS,
    NONE,
    bodies_of,
    names_of,
    packed_bodies,
    packed_names,
)
from reliable_mq.reconcile.judgement.events import (
    CARRIED,
    LOG,
    NO_TIME,
    RECEIVED,
    RECORD,
    ROLES,
    STUB,
    TOLD,
    UNCONFIRMED,
    id_times,
    packed_ids,
)
from reliable_mq.reconcile.judgement.verdict import Verdict
from reliable_mq.reconcile.judgement.world import microseconds

FINAL = (Verdict.SETTLED, Verdict.VOIDED, Verdict.UNMANAGED)
"""Verdicts that time alone does not change. Every increment judges all others again."""

LookUp = Callable[[pa.Array], pa.Table]
"""Returns all rows of the tables for messages, by their packed ids."""


@dataclass(frozen=True)
class Increment:
    """The time range that an increment reads, and that of the next one.

    Args:
        since: of settled and consumed rows, read those that changed at this moment or later. None:
            this is the first increment, which reads everything.
        next_since: `since` of the next increment.
        mark: retention has removed rows before this moment only. None: it has removed none.
            Default None.
        managed: the topics for which a stub was ever written. Default: none.
    """

    since: datetime | None
    next_since: datetime
    mark: datetime | None = None
    managed: frozenset[str] = frozenset()


class _Rows:
    """Decoded rows: the numbers of each event, and a code for each message."""

    def __init__(self, rows: pa.Table) -> None:
        self.rows = rows.combine_chunks()
        ids = _column(self.rows, "id").dictionary_encode()
        self.ids = ids.dictionary
        self.message = ids.indices.to_numpy(zero_copy_only=False).astype(np.int64)
        self.body = bodies_of(_column(self.rows, "body"))
        self.kind = self.body["kind"]
        self.is_carried = self.body["marks"] & CARRIED != 0

    def messages(self, mask: np.ndarray) -> np.ndarray:
        """Say for each message whether the mask is true for one of its rows."""
        found = np.zeros(len(self.ids), bool)
        found[self.message[mask]] = True
        return found

    def among(self, ids: pa.Array) -> np.ndarray:
        """Say for each message whether it is one of `ids`."""
        found: np.ndarray = pc.is_in(self.ids, ids).to_numpy(zero_copy_only=False)
        return found

    def without(self, mask: np.ndarray) -> pa.Table:
        """Return the rows for which the mask is false."""
        return self.rows.filter(pa.array(~mask)) if mask.any() else self.rows


def _column(rows: pa.Table, name: str) -> pa.Array:
    column = rows.column(name)
    return column.chunk(0) if column.num_chunks else pa.array([], column.type)


def completed(rows: pa.Table, increment: Increment, look_up: LookUp) -> pa.Table:
    """Complete the events of messages that an increment has read or carried.

    Args:
        rows: the read and carried events, all those of a message together.
        increment: the time range that was read.
        look_up: reads the rest of messages from the tables. It is called for few messages.
    """
    if increment.since is None:
        return rows
    parts = _Rows(rows)
    known = parts.ids.filter(pa.array(parts.messages(parts.is_carried)))
    parts = _Rows(_without_superseded(parts, increment.since))
    asked = ~parts.among(known) & _is_incomplete(parts, increment)
    if asked.any():
        is_notice = look_up(parts.ids.filter(pa.array(asked))).cast(EVENT_ROWS)
        rest = parts.without(asked[parts.message] & (parts.kind != RECORD))
        parts = _Rows(pa.concat_tables([rest, is_notice]))
    if increment.mark is not None:
        parts = _without_removed(parts, known, increment.mark)
    remembered = _remembered(parts, known, increment.since)
    return pa.concat_tables([parts.rows, remembered]) if remembered.num_rows else parts.rows


def _without_superseded(parts: _Rows, since: datetime) -> pa.Table:
    """Drop carried table rows that were read again, or that would have been if they existed."""
    if not parts.is_carried.any():
        return parts.rows
    names = _column(parts.rows, "names").dictionary_encode().indices.to_numpy()
    stub = parts.kind == STUB
    # Two stubs with one id in two databases differ in their creation time.
    _, created = np.unique(parts.body["seen"], return_inverse=True)
    key = parts.message * (int(created.max(initial=0)) + 1) + created
    is_old = stub & np.isin(key, key[stub & ~parts.is_carried])
    key = parts.message * (int(names.max(initial=0)) + 1) + names
    is_notice = parts.kind == TOLD
    is_old |= is_notice & np.isin(key, key[is_notice & ~parts.is_carried])
    return parts.without(parts.is_carried & (is_old | _read_again(parts, microseconds(since))))


def _is_incomplete(parts: _Rows, increment: Increment) -> np.ndarray:
    """Say for each message, if it was not carried, whether the tables may have more rows of it."""
    is_stub = parts.kind == STUB
    has_stub = parts.messages(is_stub)
    lacks_stub = ~has_stub & parts.messages(_is_managed(parts, increment.managed))
    was_final = is_stub & _was_final(parts, increment.since) if increment.since else is_stub
    incomplete: np.ndarray = lacks_stub | parts.messages(was_final)
    return incomplete


def _is_managed(parts: _Rows, managed: frozenset[str]) -> np.ndarray:
    encoded = _column(parts.rows, "names").dictionary_encode()
    topics = names_of(encoded.dictionary.to_pylist())["topic"]
    # A notice has no topic, but its message has a stub, so it counts as managed.
    known = np.array([topic is None or topic in managed for topic in topics], bool)
    is_managed: np.ndarray = known[encoded.indices.to_numpy()]
    return is_managed


def _was_final(parts: _Rows, since: datetime) -> np.ndarray:
    """Say for each stub whether it is older than the range that was read.

    Such a stub, if it was not carried, had final verdicts. An exception is a stub that a long
    transaction committed late: it is unconfirmed and unchanged.
    """
    begin = microseconds(since)
    is_late = (parts.body["state"] == UNCONFIRMED) & (parts.body["changed"] < begin)
    old: np.ndarray = (parts.body["seen"] < begin) & ~is_late
    return old


def _without_removed(parts: _Rows, known: pa.Array, mark: datetime) -> _Rows:
    """Drop new messages from before retention's mark: their other rows were removed."""
    born = id_times(parts.ids)
    first = np.full(len(born), np.iinfo(np.int64).max)
    is_stub = parts.kind == STUB
    np.minimum.at(first, parts.message[is_stub], parts.body["seen"][is_stub])
    born = np.where(born == NO_TIME, first, born)
    is_gone = (born < microseconds(mark)) & ~parts.among(known)
    return _Rows(parts.without(is_gone[parts.message]))


def _remembered(parts: _Rows, known: pa.Array, since: datetime) -> pa.Table:
    """Return the records of messages with final verdicts, made from the positions in the stubs."""
    is_new = ~parts.among(known)[parts.message]
    chosen = (parts.kind == STUB) & is_new & _was_final(parts, since)
    stubs = parts.rows.filter(pa.array(chosen))
    body = parts.body[chosen].copy()
    body["kind"], body["state"], body["marks"] = RECORD, ROLES.index(FIRST), 0
    for name in ("seen", "changed", "until", "log_offset", "tries"):
        body[name] = NONE[body[name].dtype.itemsize]
    body["tries"] = 0
    encoded = _column(stubs, "names").dictionary_encode()
    names = names_of(encoded.dictionary.to_pylist())
    names["queue_topic"] = names["topic"]
    names["required"] = names["reason"] = [None] * len(names["topic"])
    texts = packed_names(names).take(encoded.indices)
    columns = [_column(stubs, "id"), packed_bodies(body), texts]
    return pa.table(columns, schema=EVENT_ROWS)


def carried(rows: pa.Table, verdicts: pa.Table, next_since: datetime) -> pa.Table:
    """Return the events to carry: of messages that are open or that will be read again.

    Args:
        rows: the completed events of messages.
        verdicts: the verdicts on these messages.
        next_since: see `Increment`.
    """
    parts = _Rows(rows)
    final = pc.is_in(verdicts["verdict"].cast(pa.string()), pa.array([str(v) for v in FINAL]))
    open_ids = packed_ids(verdicts["message_id"].filter(pc.invert(final)).combine_chunks())
    again = parts.messages(_read_again(parts, microseconds(next_since)))
    kept = (parts.among(open_ids) | again | _has_lone_copies(parts))[parts.message]
    body = parts.body[kept].copy()
    body["marks"] |= CARRIED
    chosen = parts.rows.filter(pa.array(kept))
    columns = [_column(chosen, "id"), packed_bodies(body), _column(chosen, "names")]
    return pa.table(columns, schema=EVENT_ROWS)


def _has_lone_copies(parts: _Rows) -> np.ndarray:
    """Say for each message whether only its record names a group, so that no table can do it."""
    encoded = _column(parts.rows, "names").dictionary_encode()
    names = names_of(encoded.dictionary.to_pylist())["consumer_group"]
    codes = {name: code for code, name in enumerate(dict.fromkeys(names))}
    of_names = np.array([codes[name] for name in names], np.int64)
    group = of_names[encoded.indices.to_numpy()]
    key = parts.message * (len(codes) + 1) + group
    is_copy = (parts.kind == RECORD) & (group != codes.get(None, -1))
    return parts.messages(is_copy & ~np.isin(key, key[np.isin(parts.kind, (LOG, TOLD))]))


def _read_again(parts: _Rows, begin: int) -> np.ndarray:
    """Say for each row whether the next increment reads it anyway."""
    body, kind = parts.body, parts.kind
    changed = body["changed"] >= begin
    stub = (kind == STUB) & ((body["state"] == UNCONFIRMED) | changed)
    log = (kind == LOG) & ((body["state"] == RECEIVED) | changed)
    is_notice = (kind == TOLD) & changed
    again: np.ndarray = stub | log | is_notice
    return again
