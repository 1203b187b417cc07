"""Reconciliation in plain Python: slow, all in memory, and written apart from the Spark job.

It shares with the job the decision table and the scan of the log, which have tests of their own;
what it says about every message is compared with what Spark says, row by row.
"""

import re
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Any

from sqlalchemy import MetaData, create_engine, select
from tests.reconcile.decisions import decide
from tests.reconcile.plain_scan import rows_of
from tests.reconcile.raw_ledgers import digest_of_stub

from reliable_mq.database.sql_consume_log_table import consume_log_table
from reliable_mq.database.sql_stub_table import message_stub_table
from reliable_mq.reconcile.brokers.file_queues import read_progress
from reliable_mq.reconcile.brokers.file_store import read_layout
from reliable_mq.reconcile.brokers.log_scan import LogRow
from reliable_mq.wire.record import body_checksum

Row = Mapping[str, Any]
OURS = re.compile(r"[0-9A-F]{12}7[0-9A-F]{3}[89AB][0-9A-F]{15}", re.IGNORECASE)
DELAYS = (1, 5, 10, 30, 60, 120, 180, 240, 300, 360, 420, 480, 540, 600, 1200, 1800, 3600, 7200)


class PlainReconciliation:
    """Reads all ledgers into dictionaries and judges message by message."""

    def __init__(self, url: str, store: str, as_of: datetime, grace: timedelta) -> None:
        engine = create_engine(url)
        with engine.connect() as connection:
            stubs = connection.execute(select(message_stub_table(MetaData()))).mappings()
            self.stubs: dict[str, Row] = {row["message_id"]: dict(row) for row in stubs}
            logs = connection.execute(select(consume_log_table(MetaData()))).mappings()
            self.logs: dict[tuple[str, str], Row] = {
                (row["message_id"], row["consumer_group"]): dict(row) for row in logs
            }
        engine.dispose()
        layout = read_layout(store)
        self.records: dict[str, list[LogRow]] = {}
        for partition in layout.partitions:
            for row in rows_of(partition, check_body=True):
                if row.role not in ("system", "damaged"):
                    self.records.setdefault(row.message_id or "", []).append(row)
        self.oldest = datetime.fromtimestamp((layout.oldest_ms or 0) / 1000, UTC)
        self.begins = layout.queue_begins
        self.progress = read_progress(store)
        self.managed = {row["topic"] for row in self.stubs.values()}
        self.as_of, self.late = as_of, as_of - grace
        self.moving_since = as_of - min(grace, timedelta(seconds=5))

    def verdicts(self) -> dict[tuple[str, str], str]:
        """Return the verdict of every message and consumer group of the union of the ledgers."""
        identities = self.stubs.keys() | self.records.keys() | {key[0] for key in self.logs}
        return {
            (identity, group): str(decide(self.facts(identity, group)))
            for identity in identities
            for group in self.groups(identity)
        }

    def required(self, identity: str) -> set[str]:
        text = self.stubs[identity]["required_groups"] if identity in self.stubs else ""
        return set(text.split(",")) - {""}

    def groups(self, identity: str) -> set[str]:
        groups = self.required(identity)
        if identity in self.stubs and not groups:
            groups = {""}
        groups |= {group for message, group in self.logs if message == identity}
        groups |= {r.consumer_group for r in self.records.get(identity, []) if r.consumer_group}
        return groups or {""}

    def facts(self, identity: str, group: str) -> dict[str, str]:
        stub, log = self.stubs.get(identity), self.logs.get((identity, group))
        records = self.records.get(identity, [])
        firsts = [r for r in records if r.role == "first"]
        required = self.required(identity)
        topics = [x["topic"] for x in (stub,) if x] + [r.topic for r in records]
        topics += [row["topic"] for (message, _), row in self.logs.items() if message == identity]
        done = self.progress.get((group, topics[0] or ""), {})
        passed = [done.get(r.queue_id or 0, 0) > (r.queue_offset or 0) for r in firsts]
        consumed = {g for g in required if self.logs.get((identity, g), {}).get("state") == 1}
        status = ["unconfirmed", "confirmed", "voided"]
        if stub and not stub["content"]:
            status[2] = "tombstone"
        kind = "required" if group in required else ("extra" if group else "ack")
        return {
            "stub": status[stub["status"]] if stub else "none",
            "group": kind,
            "position": "known" if stub and stub["offset"] is not None else "unknown",
            "record": self._record(stub, log, records, topics[0] or ""),
            "progress": "passed" if passed and all(passed) else "behind",
            "retry": self._retry(stub, group, firsts, records),
            "log": self._log(log, stub, records),
            "everyone": "yes" if required and consumed == required else "no",
            "age": self._age(identity, stub, records),
            "topic": "managed" if topics[0] in self.managed else "unmanaged",
        }

    def _record(self, stub: Row | None, log: Row | None, records: list[LogRow], topic: str) -> str:
        stored = [r for r in records if r.role in ("first", "delayed")]
        if stub:
            rights = {self._is_right(stub, r) for r in stored}
            if False in rights:
                return "forged" if True in rights else "differs"
        if any(r.role == "first" for r in stored):
            return "present"
        if stored:
            return "delayed" if any(self._due(r) >= self.late for r in stored) else "overdue"
        if any(r.role == "stranded" for r in records):
            return "stranded"
        is_sent = stub is not None and stub["offset"] is not None
        due = stub["deliver_time"] if stub else None
        if is_sent and due and log is None:
            return "expired" if due < self.oldest else "absent"
        place = stub if is_sent and not due else log
        if place and place["offset"] < self.begins.get((topic, place["queue_id"]), 0):
            return "expired"
        return "absent"

    @staticmethod
    def _is_right(stub: Row, record: LogRow) -> bool:
        """Say whether a record is what the stub says, as far as it can be known."""
        crc = body_checksum(stub["content"])
        return record.content_crc is None or (
            record.content_crc == crc and record.message_digest == digest_of_stub(stub)
        )

    @staticmethod
    def _due(record: LogRow) -> datetime:
        level = record.delay_level or (record.queue_id or 0) + 1
        stored = datetime.fromtimestamp((record.store_time or 0) / 1000, UTC)
        return stored + timedelta(seconds=DELAYS[min(level, len(DELAYS)) - 1])

    def _retry(
        self, stub: Row | None, group: str, firsts: list[LogRow], records: list[LogRow]
    ) -> str:
        copies = [r for r in records if r.consumer_group == group]
        if stub and group and group in (stub["given_up_by"] or "").split(","):
            return "dead"
        attempts = [r for r in copies if r.role != "dead"]
        newest = max((r.commit_log_offset for r in (*firsts, *attempts)), default=-1)
        if any(r.role == "dead" and r.commit_log_offset > newest for r in copies):
            return "dead"
        retries = [r for r in copies if r.role == "retry"]
        done = self.progress.get((group, f"%RETRY%{group}"), {})
        if any((r.queue_offset or 0) >= done.get(r.queue_id or 0, 0) for r in retries):
            return "waiting"
        places = {r.reconsume_times: r.commit_log_offset for r in retries}
        for r in copies:
            is_next = r.commit_log_offset > places.get(r.reconsume_times, -1)
            if r.role == "retry delayed" and is_next and self._due(r) >= self.late:
                return "waiting"
        return "none"

    def _log(self, log: Row | None, stub: Row | None, records: list[LogRow]) -> str:
        if log is None:
            return "none"
        if log["state"] == 1:
            stored = [r for r in records if r.role in ("first", "delayed")]
            others = [r for r in stored if stub and not self._is_right(stub, r)]
            is_pair = 0 < len(others) < len(stored)
            place = (log["topic"], log["queue_id"], log["offset"])
            copies = {(r.topic, r.queue_id, r.queue_offset) for r in records if r.consumer_group}
            at_other = {(r.topic, r.queue_id, r.queue_offset) for r in others} - copies
            return "other" if is_pair and place in at_other else "consumed"
        holds = log["owner"] is not None and log["lease_until"] is not None
        return "live" if holds and log["lease_until"] > self.as_of else "dead"

    def _age(self, identity: str, stub: Row | None, records: list[LogRow]) -> str:
        def moment(milliseconds: int | None) -> datetime:
            return datetime.fromtimestamp((milliseconds or 0) / 1000, UTC)

        logs = [row for (message, _), row in self.logs.items() if message == identity]
        times = [moment(r.store_time) for r in records]
        times += [row[name] for row in logs for name in ("create_date", "consume_date")]
        if stub:
            born = stub["create_date"]
            times.append(stub["update_date"])
        elif OURS.fullmatch(identity) is None:
            born = min([moment(r.born_time) for r in records] + [r["create_date"] for r in logs])
        else:
            born = moment(int(identity[:12], 16))
        if any(time >= self.moving_since for time in times if time):
            return "fresh"
        if stub and stub["deliver_time"]:
            born = max(born, stub["deliver_time"])
        return "fresh" if born > self.late else "old"
