"""Faults planted by a seed into ledgers that the real system made, several on one message.

Receives ledgers as Parquet and the messages that nothing happened to; hands on ledgers in which
something did, and what must be found. What a fault means is said here once more, in sentences.
"""

import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
from tests.reconcile.corpus.application import LOYALTY, PAYMENTS, TOPIC

GROUPS = (LOYALTY, PAYMENTS)
Expected = dict[tuple[str, str], str]

# How often each happens to a message that something happens to; "" is nothing.
STUBS = ("",) * 4 + ("unconfirmed",) * 4 + ("voided", "none")
MARKS = ("", "", "unmarked")
RECORDS = ("",) * 4 + ("lost", "differs")
AGES = ("",) * 5 + ("young",)
LOGS = ("",) * 4 + ("gone", "gone", "hung", "working", "twice")
COPIES = ("",) * 5 + ("dead", "tried again")


@dataclass(frozen=True)
class Fault:
    """What happened to one message; `logs` and `copies` by consumer group."""

    message_id: str
    stub: str
    mark: str
    record: str
    age: str
    logs: Mapping[str, str]
    copies: Mapping[str, str]

    def expected(self) -> Expected:
        """Return the rows that a reconciliation has of the message."""
        groups: Sequence[str] = GROUPS
        if self.stub == "none":
            groups = [each for each in GROUPS if self.logs[each] != "gone" or self.copies[each]]
            if not groups:
                groups = [""] if self.record != "lost" else []
        return {(self.message_id, group): self._verdict(group) for group in groups}

    def _verdict(self, group: str) -> str:
        log, copy = self.logs.get(group, "gone"), self.copies.get(group, "")
        has_effect = log == ""
        if log == "twice":
            return "duplicate effect"
        if self.stub == "voided":
            return "voided but consumed" if has_effect else "voided"
        if self.stub == "none":
            return "orphan"
        if self.record == "differs":
            return "content differs"
        if has_effect:
            return self._verdict_on_an_effect()
        if copy == "dead":
            return "dead-lettered"
        if self.age == "young" or log == "working":
            return "in flight"
        if copy == "tried again":
            return "waiting"
        if self.stub == "":
            return "confirmed without a log"
        if self.record == "lost":
            return "lost by the broker" if self.mark == "" else "not sent"
        return "stuck" if log == "hung" else "not consumed"

    def _verdict_on_an_effect(self) -> str:
        everyone = all(log in ("", "twice") for log in self.logs.values())
        if self.stub == "" or not everyone:
            return "settled"
        return "in flight" if self.age == "young" else "consumed, not confirmed"


def drawn(ids: Sequence[str], seed: int, share: float) -> Iterator[Fault]:
    """Yield faults of about this share of the messages, never of one twice."""
    rng = random.Random(seed)
    for identity in ids:
        if rng.random() < share:
            yield Fault(
                identity,
                rng.choice(STUBS),
                rng.choice(MARKS),
                rng.choice(RECORDS),
                rng.choice(AGES),
                {group: rng.choice(LOGS) for group in GROUPS},
                {group: rng.choice(COPIES) for group in GROUPS},
            )


_STUBS = """
    SELECT s.* REPLACE (
        CASE f.stub WHEN 'unconfirmed' THEN 0 WHEN 'voided' THEN 2 ELSE s.status END AS status,
        CASE WHEN f.mark = '' OR f.mark IS NULL THEN s.broker_name END AS broker_name,
        CASE WHEN f.mark = '' OR f.mark IS NULL THEN s.queue_id END AS queue_id,
        CASE WHEN f.mark = '' OR f.mark IS NULL THEN s."offset" END AS "offset",
        CASE WHEN f.record = 'differs' THEN xor(s.content_crc, 1) ELSE s.content_crc END
            AS content_crc,
        CASE WHEN f.age = 'young' THEN {young} ELSE s.create_date END AS create_date)
    FROM read_parquet('{source}/stubs/*.parquet') s LEFT JOIN fault f USING (message_id)
    WHERE f.stub IS DISTINCT FROM 'none'
"""
_LOGS = """
    SELECT l.* REPLACE (
        CASE WHEN f.log IN ('hung', 'working') THEN 0 ELSE l.state END AS state,
        CASE WHEN f.log IN ('hung', 'working') THEN 'somebody' ELSE l.owner END AS owner,
        CASE f.log WHEN 'hung' THEN {as_of} - INTERVAL 1 MINUTE
            WHEN 'working' THEN {as_of} + INTERVAL 1 MINUTE ELSE l.lease_until END AS lease_until,
        CASE WHEN f.log IN ('hung', 'working') THEN NULL ELSE l.consume_date END AS consume_date)
    FROM read_parquet('{source}/consume_logs/*.parquet') l
    LEFT JOIN group_fault f USING (message_id, consumer_group) WHERE f.log IS DISTINCT FROM 'gone'
    UNION ALL BY NAME
    SELECT l.* REPLACE (1 AS database, l.consume_date + INTERVAL 1 SECOND AS consume_date)
    FROM read_parquet('{source}/consume_logs/*.parquet') l
    JOIN group_fault f USING (message_id, consumer_group) WHERE f.log = 'twice'
"""
_RECORDS = """
    SELECT r.* FROM read_parquet('{source}/records/*.parquet') r
    LEFT JOIN fault f USING (message_id) WHERE f.record IS DISTINCT FROM 'lost'
    UNION ALL BY NAME
    SELECT CASE copy WHEN 'dead' THEN 'dead' ELSE 'retry delayed' END AS role,
        {log_end} + row_number() OVER () AS commit_log_offset, 300::BIGINT AS size,
        '{topic}' AS topic, consumer_group, message_id, 0 AS queue_id, 0::BIGINT AS queue_offset,
        CASE copy WHEN 'dead' THEN '%DLQ%' || consumer_group ELSE 'SCHEDULE_TOPIC_XXXX' END
            AS queue_topic,
        1 AS reconsume_times, {as_of} - INTERVAL 1 HOUR AS store_time,
        {as_of} - INTERVAL 1 HOUR AS born_time, broker,
        CASE copy WHEN 'dead' THEN NULL ELSE {as_of} + INTERVAL 1 HOUR END AS due_time
    FROM group_fault CROSS JOIN
        (SELECT DISTINCT broker FROM read_parquet('{source}/records/*.parquet'))
    WHERE copy <> ''
"""
_UNTOUCHED = ("confirmations", "progress", "queue_begins")


def plant(
    source: Path, target: Path, faults: Sequence[Fault], as_of: datetime, grace: timedelta
) -> None:
    """Write the ledgers at `source` once more, with faults, to `target`."""
    fault = [[getattr(each, name) for each in faults] for name in ("message_id", *_OF_MESSAGE)]
    pairs = [(each, group) for each in faults for group in GROUPS]
    group_fault: list[list[Any]] = [
        [each.message_id for each, _ in pairs],
        [group for _, group in pairs],
        [each.logs[group] for each, group in pairs],
        [each.copies[group] for each, group in pairs],
    ]
    now = f"TIMESTAMPTZ '{as_of.isoformat()}'"
    values = {"source": str(source), "as_of": now, "topic": TOPIC}
    values["young"] = f"{now} - INTERVAL '{grace // timedelta(microseconds=2)} microseconds'"
    with duckdb.connect() as connection:
        connection.execute("SET TimeZone = 'UTC'")
        connection.register("fault", _texts(("message_id", *_OF_MESSAGE), fault))
        names = ("message_id", "consumer_group", "log", "copy")
        connection.register("group_fault", _texts(names, group_fault))
        end = "SELECT max(commit_log_offset + size) FROM read_parquet('{source}/records/*.parquet')"
        (row,) = connection.execute(end.format(**values)).fetchall()
        values["log_end"] = str(row[0])
        tables = {"stubs": _STUBS, "consume_logs": _LOGS, "records": _RECORDS}
        tables |= {
            name: f"SELECT * FROM read_parquet('{source}/{name}/*.parquet')" for name in _UNTOUCHED
        }
        for name, statement in tables.items():
            (target / name).mkdir(parents=True)
            file = target / name / "all.parquet"
            query = statement.format(**values)
            connection.execute(f"COPY ({query}) TO '{file}' (FORMAT parquet)")


_OF_MESSAGE = ("stub", "mark", "record", "age")


def _texts(names: Sequence[str], columns: Sequence[Sequence[str]]) -> pa.Table:
    return pa.table([pa.array(values, pa.string()) for values in columns], names=list(names))
