"""Make one row for each message and consumer group, from the events of messages. Pure.

Receives all traces of messages. Returns `SpreadRows`: the rows to judge, and the events that belong
to each row. A stub without required groups, and a message without known groups, has one row with
the group "". A ledger may have several events for one row: a group that moved to another database
has its log in both. Then the strongest event counts, and of equal ones the oldest.
"""

from dataclasses import dataclass

import numpy as np

from reliable_mq.reconcile.brokers.log_roles import DELAYED, FIRST, STRANDED
from reliable_mq.reconcile.judgement.events import (
    CONSUMED,
    DUPLICATE,
    LOG,
    RECORD,
    ROLES,
    STUB,
    TOLD,
)
from reliable_mq.reconcile.judgement.traces import (
    NameColumn,
    Traces,
    firsts_of,
    has_twins,
    spread,
    with_names,
)

ROLE = {role: place for place, role in enumerate(ROLES)}
_LATER_THAN_ANY_TIME = 1 << 60


@dataclass(frozen=True)
class SpreadRows:
    """The rows to judge. An event is an index of the traces; -1: there is none.

    One value for each row (rows are sorted by message): `message`, `group` (a code of `groups`),
    `is_required` (by the stub), `log` (the consume log that counts).

    One value for each message: `stub`; `first` (the first delivery with the lowest log offset);
    `delay` (the delayed record with the lowest log offset); `topic` (a code of the traces' topics);
    `start` (its first row); `required` (the number of groups that the stub requires).

    Lists of events: `records`, which contains `firsts` (first deliveries), `delays` (delayed
    records), `stranded` (records that no queue lists) and `copies` (records of a consumer group,
    each with its row in `row_of_copy`); `logs` (consume logs, each with its row in `row_of_log`).
    """

    message: np.ndarray
    group: np.ndarray
    is_required: np.ndarray
    log: np.ndarray
    stub: np.ndarray
    first: np.ndarray
    delay: np.ndarray
    topic: np.ndarray
    start: np.ndarray
    required: np.ndarray
    records: np.ndarray
    firsts: np.ndarray
    delays: np.ndarray
    stranded: np.ndarray
    copies: np.ndarray
    row_of_copy: np.ndarray
    logs: np.ndarray
    row_of_log: np.ndarray
    groups: NameColumn

    def __len__(self) -> int:
        return len(self.message)

    @property
    def counts(self) -> np.ndarray:
        """The number of rows of each message."""
        return np.diff(self.start, append=len(self.message))


def rows_of(traces: Traces) -> SpreadRows:
    """Make the rows of messages, one for each of their consumer groups."""
    count = len(traces.ids)
    kind, state, message = traces["kind"], traces["state"], traces.message
    stubs, records = np.flatnonzero(kind == STUB), np.flatnonzero(kind == RECORD)
    logs = np.flatnonzero((kind == LOG) | (kind == TOLD))
    if has_twins(message[stubs], count):
        # If a row was read twice, for example from two databases, the one that changed last counts.
        stubs = stubs[np.argsort(traces["changed"][stubs], kind="stable")[::-1]]
    stub = firsts_of(message[stubs], count, traces["seen"][stubs], stubs)
    lists = _required_names(traces.names["required"])
    named = traces.names["consumer_group"]
    groups = with_names(named, ("", *(name for names in lists for name in names)))
    spoken = np.array([*map(groups.code, named.values), -1], np.int64)[named.codes]

    width = len(groups.values)
    required, owed = _owed(traces, stub, lists, groups)
    keys = _keys(count, width, (owed, message[spoken >= 0] * width + spoken[spoken >= 0]))
    is_required = np.zeros(len(keys), bool)
    is_required[np.searchsorted(keys, owed[owed % width > 0])] = True

    row_of_log = np.searchsorted(keys, message[logs] * width + spoken[logs])
    doubt = np.where(state[logs] == CONSUMED, (traces["marks"][logs] & DUPLICATE) // DUPLICATE, 2)
    order = doubt.astype(np.int64) * _LATER_THAN_ANY_TIME + traces["seen"][logs]
    copies = records[spoken[records] >= 0]
    firsts = records[state[records] == ROLE[FIRST]]
    delays = records[state[records] == ROLE[DELAYED]]
    first, delay, any_record = (
        firsts_of(message[each], count, traces["log_offset"][each], each)
        for each in (firsts, delays, records)
    )
    any_log = firsts_of(message[logs], count, traces["seen"][logs], logs)
    speaker = np.where(stub >= 0, stub, np.where(any_record >= 0, any_record, any_log))
    return SpreadRows(
        message=keys // width,
        group=keys % width,
        is_required=is_required,
        log=firsts_of(row_of_log, len(keys), order, logs),
        stub=stub,
        first=first,
        delay=delay,
        topic=traces.names["topic"].codes[speaker],
        start=np.searchsorted(keys, np.arange(count, dtype=np.int64) * width),
        required=required,
        records=records,
        firsts=firsts,
        delays=delays,
        stranded=records[state[records] == ROLE[STRANDED]],
        copies=copies,
        row_of_copy=np.searchsorted(keys, message[copies] * width + spoken[copies]),
        logs=logs,
        row_of_log=row_of_log,
        groups=groups,
    )


def _required_names(required: NameColumn) -> list[list[str]]:
    """Return the different groups in each value of the column, and an empty list for null."""
    return [*(sorted({*text.split(",")} - {""}) for text in required.values), []]


def _owed(
    traces: Traces, stub: np.ndarray, lists: list[list[str]], groups: NameColumn
) -> tuple[np.ndarray, np.ndarray]:
    """Return the number of groups that each stub requires, and the keys of its rows.

    A stub that requires no group has a row with the group "", whose code is 0.
    """
    sizes = np.array([len(names) for names in lists])
    codes = np.array([code for names in lists for code in map(groups.code, names or [""])])
    begins = np.cumsum(np.maximum(sizes, 1)) - np.maximum(sizes, 1)
    has_stub = np.flatnonzero(stub >= 0)
    place = traces.names["required"].codes[stub[has_stub]]
    repeats = np.maximum(sizes, 1)[place]
    required = np.zeros(len(stub), np.int64)
    required[has_stub] = sizes[place]
    owed_group = codes[spread(begins[place], repeats)] if len(codes) else np.zeros(0, np.int64)
    return required, np.repeat(has_stub, repeats) * len(groups.values) + owed_group


def _keys(count: int, width: int, known: tuple[np.ndarray, ...]) -> np.ndarray:
    """Return the sorted keys (message * width + group): `known`, and one with "" for all others."""
    keys = np.sort(np.concatenate(known))
    keys = keys[np.diff(keys, prepend=-1) > 0]  # faster than `unique`, which hashes
    is_silent = np.ones(count, bool)
    is_silent[keys // width] = False
    silent = np.flatnonzero(is_silent)
    return np.sort(np.concatenate((keys, silent * width))) if len(silent) else keys
