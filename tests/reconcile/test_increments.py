"""Increments against one full run, over random histories that are cut at random times."""

import random
from collections.abc import Iterable
from datetime import datetime, timedelta
from typing import Any

import pyarrow as pa
import pytest
from tests.reconcile.ledgers import GRACE, NOW, message_id

from reliable_mq.reconcile.brokers.log_roles import DEAD, FIRST, RETRY, RETRY_DELAYED
from reliable_mq.reconcile.judgement.event_rows import EVENT_ROWS, event_rows
from reliable_mq.reconcile.judgement.events import (
    EVENTS,
    LOG,
    RECORD,
    ROLES,
    STUB,
    TOLD,
    packed_ids,
    unpacked_ids,
)
from reliable_mq.reconcile.judgement.increments import FINAL, Increment, carried, completed
from reliable_mq.reconcile.judgement.judge import judge_traces
from reliable_mq.reconcile.judgement.traces import traces_of_rows
from reliable_mq.reconcile.judgement.verdict import Verdict
from reliable_mq.reconcile.judgement.world import World

BEGIN = NOW - timedelta(days=3)
MARGIN = timedelta(minutes=1)
GROUPS = ("payments", "loyalty")
CRC = 77
MANAGED = frozenset({"orders"})
STUB_ROW: dict[str, Any] = dict.fromkeys(("state", "tries"), 0)
STUB_ROW |= {"topic": "orders", "crc": CRC, "size": 4, "log_offset": 1}
RECORD_ROW: dict[str, Any] = {"kind": RECORD, "broker": "", "queue_topic": "orders", "queue_id": 0}
RECORD_ROW |= {"tries": 0, "size": 100, "crc": CRC}
Verdicts = dict[str, dict[str, str]]


class History:
    """Ledgers that change one step at a time, each step at a moment of its own."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.now = BEGIN
        self.stubs: dict[str, dict[str, Any]] = {}
        self.logs: dict[tuple[str, str], dict[str, Any]] = {}
        self.told: dict[tuple[str, str], dict[str, Any]] = {}
        self.records: list[dict[str, Any]] = []
        self.ids: list[str] = []
        self.topics: dict[str, str] = {}
        self.progress: dict[str, int] = dict.fromkeys(GROUPS, 0)

    def step(self) -> None:
        """Let time pass, and something happen to some message."""
        self.now += timedelta(seconds=self.rng.choice((0.1, 5.0, 60.0, 600.0, 2400.0)))
        if not self.ids or self.rng.random() < 0.2:
            self._begin()
            return
        recent = self.ids[-6:] if self.rng.random() < 0.8 else self.ids
        identity = self.rng.choice(recent)
        actions = (self._send, self._mark, self._receive, self._consume, self._confirm)
        weights = (4, 4, 2, 5, 4, 0.3, 0.3, 0.3, 0.4, 0.4, 0.3, 0.4)
        rare = (self._void, self._resend, self._die, self._retry, self._progress, self._tell)
        self.rng.choices((*actions, *rare, self._fail), weights)[0](identity)

    def _begin(self) -> None:
        identity = message_id(len(self.ids), self.now)
        self.ids.append(identity)
        self.topics[identity] = "orders"
        if self.rng.random() < 0.1:  # nobody's stub: unmanaged, or an orphan
            self.topics[identity] = self.rng.choice(("orders", "weather", "weather"))
            self._send(identity)
            return
        groups = self.rng.choice(((), GROUPS[:1], GROUPS))
        self.stubs[identity] = STUB_ROW | {
            "required": ",".join(groups),
            "seen": self.now,
            "changed": self.now,
        }
        if self.rng.random() < 0.1:
            self.stubs[identity]["until"] = self.now + timedelta(minutes=self.rng.randrange(90))

    def _store(self, identity: str, role: str, **more: Any) -> dict[str, Any]:
        place = len(self.records)
        record = RECORD_ROW | {"id": identity, "topic": self.topics[identity]}
        record |= {"state": ROLES.index(role), "queue_offset": place, "log_offset": place * 100}
        record |= {"seen": self.now, "changed": self.now, **more}
        self.records.append(record)
        return record

    def _send(self, identity: str) -> None:
        self._store(identity, FIRST)

    def _mark(self, identity: str) -> None:
        sent = [each for each in self.records if each["id"] == identity]
        if identity in self.stubs and sent:
            place = {"broker": "", "queue_id": 0, "queue_offset": sent[-1]["queue_offset"]}
            self._change(identity, **place)
            if not self.stubs[identity]["required"]:
                self._change(identity, state=1)

    def _change(self, identity: str, **columns: Any) -> None:
        if identity in self.stubs:
            self.stubs[identity] |= {"changed": self.now, **columns}

    def _log(self, identity: str, state: int) -> None:
        group = self.rng.choice(GROUPS)
        begun = {"seen": self.now, "state": 0, "topic": self.topics[identity], "broker": ""}
        log = self.logs.setdefault((identity, group), begun)
        if log["state"] == 0:
            log |= {"state": state, "tries": 1, "changed": self.now if state else None}

    def _receive(self, identity: str) -> None:
        self._log(identity, 0)

    def _consume(self, identity: str) -> None:
        self._log(identity, 1)

    def _confirm(self, identity: str) -> None:
        required = self.stubs.get(identity, {}).get("required", "").split(",")
        if all(self.logs.get((identity, group), {}).get("state") == 1 for group in required):
            self._change(identity, state=1)

    def _void(self, identity: str) -> None:
        self._change(identity, state=2)

    def _resend(self, identity: str) -> None:
        none = dict.fromkeys(("broker", "queue_id", "queue_offset"))
        self._change(identity, state=0, tries=0, **none)
        self._send(identity)

    def _die(self, identity: str) -> None:
        group = self.rng.choice(GROUPS)
        self._store(identity, DEAD, consumer_group=group, reason="no such card")
        if self.rng.random() < 0.5:
            self._change(identity, reason=group)

    def _fail(self, identity: str) -> None:
        due = self.now + timedelta(minutes=self.rng.randrange(60))
        group = self.rng.choice(GROUPS)
        self._store(identity, RETRY_DELAYED, consumer_group=group, tries=1, until=due)

    def _retry(self, identity: str) -> None:
        self._store(identity, RETRY, consumer_group=self.rng.choice(GROUPS), tries=1)

    def _progress(self, _identity: str) -> None:
        self.progress[self.rng.choice(GROUPS)] = len(self.records)

    def _tell(self, identity: str) -> None:
        told = {"seen": self.now, "state": 1, "changed": self.now}
        if identity in self.stubs:
            self.told.setdefault((identity, "audit"), told)

    def table_rows(self, since: datetime | None) -> list[dict[str, Any]]:
        """Return what the tables give to an increment, all for None."""

        def is_read(row: dict[str, Any]) -> bool:
            return since is None or row["state"] == 0 or row["changed"] >= since

        return [
            *({"kind": STUB, "id": i, **row} for i, row in self.stubs.items() if is_read(row)),
            *self._of_groups(LOG, (item for item in self.logs.items() if is_read(item[1]))),
            *self._of_groups(TOLD, (item for item in self.told.items() if is_read(item[1]))),
        ]

    @staticmethod
    def _of_groups(kind: int, items: Iterable[Any]) -> list[dict[str, Any]]:
        return [
            {"kind": kind, "id": identity, "consumer_group": group, **row}
            for (identity, group), row in items
        ]

    def look_up(self, ids: pa.Array) -> pa.Table:
        """Return all table rows of messages."""
        wanted = set(unpacked_ids(ids).to_pylist())
        return rows_of([row for row in self.table_rows(None) if row["id"] in wanted])

    def judged(self) -> pa.Table:
        """Return the verdicts of one run over everything, now."""
        everything = rows_of([*self.table_rows(None), *self.records])
        return judge_traces(traces_of_rows(everything), self.world(self.now))

    def world(self, as_of: datetime) -> World:
        return World(
            as_of=as_of,
            grace=GRACE,
            moving_since=as_of - timedelta(seconds=5),
            managed=MANAGED,
            progress={("", group, "orders"): {0: done} for group, done in self.progress.items()},
            begins={("", "orders"): {0: 0}},
        )


def rows_of(events: list[dict[str, Any]]) -> pa.Table:
    """Return events as rows, sorted by message as they come out of the shuffle."""
    ids = packed_ids(pa.array([event["id"] for event in events], pa.string())).to_pylist()
    packed = [{"marks": 0, **each, "id": key} for each, key in zip(events, ids, strict=True)]
    table = pa.Table.from_pylist(packed, EVENTS)
    batches = [event_rows(batch) for batch in table.combine_chunks().to_batches()]
    return pa.Table.from_batches(batches, EVENT_ROWS)


def verdicts_of(verdicts: pa.Table) -> Verdicts:
    found: Verdicts = {}
    columns = (verdicts[name].to_pylist() for name in ("message_id", "consumer_group", "verdict"))
    for identity, group, verdict in zip(*columns, strict=True):
        # What is promised to nobody is not told by group.
        found.setdefault(identity, {})["" if verdict == Verdict.UNMANAGED else group] = verdict
    return found


class Increments:
    """Increments over a history, one behind the other."""

    def __init__(self, history: History) -> None:
        self.history = history
        self.union: Verdicts = {}
        self.carried = rows_of([])
        self.log_end = 0
        self.since: datetime | None = None
        self.judged = 0

    def run(self, moving: int) -> None:
        """Do an increment; `moving`: how many steps happen between the reading of two ledgers."""
        history, as_of = self.history, self.history.now
        next_since = as_of - MARGIN
        early = bool(moving % 2)
        log = history.records[self.log_end :] if early else []
        self._steps(moving)
        tables = history.table_rows(self.since)
        self._steps(moving)
        log = log if early else history.records[self.log_end :]
        self.log_end += len(log)
        read = rows_of([*tables, *log])
        increment = Increment(self.since, next_since, managed=MANAGED)
        rows = completed(pa.concat_tables([read, self.carried]), increment, history.look_up)
        verdicts = judge_traces(traces_of_rows(rows), history.world(as_of))
        self.judged += verdicts.num_rows
        self.union |= verdicts_of(verdicts)
        self.carried = carried(rows, verdicts, next_since)
        self.since = next_since

    def _steps(self, count: int) -> None:
        for _ in range(count):
            self.history.step()


@pytest.mark.parametrize("seed", range(40))
def test_increments_come_to_the_same_as_one_full_run(seed: int) -> None:
    """Given a random history, cut at random times, also while ledgers are being read; then the
    newest verdicts of its increments are those of one run over all of it, at any time at which
    nothing moved."""
    history = History(seed)
    increments = Increments(history)
    for _ in range(history.rng.randint(2, 7)):
        for _ in range(history.rng.randint(1, 120)):
            history.step()
        moving = history.rng.choice((0, 0, 1, 2, 5))
        increments.run(moving=moving)
        if not moving:
            assert increments.union == verdicts_of(history.judged())
    history.now += timedelta(seconds=history.rng.choice((1, 3600)))
    increments.run(moving=0)

    assert increments.union == verdicts_of(history.judged())


def test_what_is_settled_is_not_carried() -> None:
    """Given a long history, then an increment judges what is new or open, and not the rest."""
    history = History(1)
    increments = Increments(history)
    for _ in range(30):
        for _ in range(60):
            history.step()
        increments.run(moving=0)
    before = increments.judged

    increments.run(moving=0)

    final = {str(verdict) for verdict in FINAL}
    is_open = [groups for groups in increments.union.values() if set(groups.values()) - final]
    assert len(increments.union) > len(is_open) + 50
    assert increments.judged - before < 1.1 * sum(map(len, is_open))
