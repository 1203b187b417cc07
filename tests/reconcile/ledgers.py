"""Ledgers for the tests: a store directory written by the format alone, and rows in real tables."""

import struct
from collections import defaultdict
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from sqlalchemy import MetaData, create_engine, insert

from reliable_mq.database.sql_confirmation_table import confirmation_table
from reliable_mq.database.sql_consume_log_table import consume_log_table
from reliable_mq.database.sql_stub_table import message_stub_table
from reliable_mq.database.sql_types import set_table_options
from reliable_mq.message import new_message_id
from reliable_mq.wire import fastjson
from reliable_mq.wire.properties import encode_properties
from reliable_mq.wire.record import (
    Record,
    encode_blank,
)
from reliable_mq.wire.record_encode import encode_record

NOW = datetime(2026, 11, 20, 12, 0, tzinfo=UTC)
GRACE = timedelta(minutes=10)
LONG_AGO = NOW - timedelta(hours=2)
JUST_NOW = NOW - timedelta(minutes=1)
BLANK_NEEDS = 8
QUEUE_FILE_UNITS = 1_000


def milliseconds(moment: datetime) -> int:
    return int(moment.timestamp() * 1000)


def message_id(number: int, moment: datetime = LONG_AGO) -> str:
    return new_message_id(milliseconds(moment), number.to_bytes(10, "big"))


class StoreWriter:
    """Writes a store directory with Apache's file names; small segments, so that many roll."""

    def __init__(self, root: Path, segment_size: int = 64 * 1024) -> None:
        self.root = root
        self._segment_size = segment_size
        self._segments: dict[int, bytearray] = {0: bytearray()}
        self._end = 0
        self._queues: dict[tuple[str, int], list[bytes]] = defaultdict(list)
        self.offsets: dict[str, dict[int, int]] = {}

    def add(
        self,
        topic: str,
        body: bytes,
        *,
        properties: Mapping[str, str],
        queue_id: int = 0,
        store_time: datetime = LONG_AGO,
        reconsume_times: int = 0,
        sys_flag: int = 0,
        tags_code: int = 0,
    ) -> Record:
        """Append one record and its consume-queue unit; return the record."""
        queue = self._queues[topic, queue_id]
        record = Record(
            topic=topic,
            body=body,
            properties=encode_properties(properties),
            queue_id=queue_id,
            queue_offset=len(queue),
            commit_log_offset=self._end,
            sys_flag=sys_flag,
            born_time_ms=milliseconds(store_time) - 5,
            store_time_ms=milliseconds(store_time),
            reconsume_times=reconsume_times,
        )
        data = encode_record(record)
        base = self._end // self._segment_size * self._segment_size
        room = base + self._segment_size - self._end
        if len(data) + BLANK_NEEDS > room:
            self._segments[base] += encode_blank(room)
            base += self._segment_size
            self._segments[base] = bytearray()
            self._end = base
            return self.add(
                topic,
                body,
                properties=properties,
                queue_id=queue_id,
                store_time=store_time,
                reconsume_times=reconsume_times,
                sys_flag=sys_flag,
                tags_code=tags_code,
            )
        self._segments[base] += data
        self._end += len(data)
        queue.append(struct.pack(">qiq", record.commit_log_offset, len(data), tags_code))
        record.size = len(data)
        return record

    def send(self, identity: str, body: bytes, topic: str = "orders", **more: Any) -> Record:
        """Append the first delivery of a message."""
        return self.add(topic, body, properties={"UNIQ_KEY": identity, "TAGS": "paid"}, **more)

    def commit(self, group: str, topic: str, queue_id: int, offset: int) -> None:
        """Set a group's committed offset."""
        self.offsets.setdefault(f"{topic}@{group}", {})[queue_id] = offset

    def write(self) -> str:
        """Write the files, pre-allocated as a broker's are, and return the store's path."""
        log = self.root / "commitlog"
        log.mkdir(parents=True, exist_ok=True)
        for base, data in self._segments.items():
            (log / f"{base:020d}").write_bytes(data.ljust(self._segment_size, b"\0"))
        next_base = max(self._segments) + self._segment_size
        (log / f"{next_base:020d}").write_bytes(bytes(self._segment_size))
        for (topic, queue_id), units in self._queues.items():
            folder = self.root / "consumequeue" / topic / str(queue_id)
            folder.mkdir(parents=True, exist_ok=True)
            for first in range(0, len(units), QUEUE_FILE_UNITS):
                packed = b"".join(units[first : first + QUEUE_FILE_UNITS])
                path = folder / f"{first * 20:020d}"
                path.write_bytes(packed.ljust(QUEUE_FILE_UNITS * 20, b"\0"))
        config = self.root / "config"
        config.mkdir(exist_ok=True)
        table = {"dataVersion": {"counter": 1}, "offsetTable": self.offsets}
        (config / "consumerOffset.json").write_bytes(fastjson.dumps(table))
        return str(self.root)


class TableWriter:
    """Collects rows and writes them to the tables of a database."""

    def __init__(self, url: str) -> None:
        self.url = url
        metadata = set_table_options(MetaData())
        self.stubs = message_stub_table(metadata)
        self.logs = consume_log_table(metadata)
        self.confirmations = confirmation_table(metadata, "rmq_")
        self._engine = create_engine(url)
        metadata.create_all(self._engine)
        self._stub_rows: list[dict[str, Any]] = []
        self._log_rows: list[dict[str, Any]] = []
        self._told_rows: list[dict[str, Any]] = []

    def stub(self, identity: str, content: bytes = b"body", **columns: Any) -> None:
        """Add a stub of two hours ago, unconfirmed and never sent, unless told otherwise."""
        created = columns.get("create_date", LONG_AGO)
        self._stub_rows.append(
            {
                "message_id": identity,
                "topic": "orders",
                "tag": "paid",
                "message_key": "",
                "ordering_key": "",
                "content_type": "",
                "properties": "{}",
                "content": content,
                "status": 0,
                "count": 0,
                "broker_name": None,
                "queue_id": None,
                "offset": None,
                "required_groups": "",
                "resend_time": None,
                "given_up": False,
                "given_up_by": "",
                "note": None,
                "owner": None,
                "lease_until": None,
                "deliver_time": None,
                "create_date": created,
                "update_date": created,
                **columns,
            }
        )

    def sent(self, record: Record) -> dict[str, Any]:
        """Return the columns of a stub that knows where `record` is."""
        place = {"queue_id": record.queue_id, "offset": record.queue_offset}
        return {"broker_name": "broker-a", "count": 1, **place}

    def log(self, identity: str, group: str, state: int, **columns: Any) -> None:
        """Add a consume log of two hours ago."""
        created = columns.get("create_date", LONG_AGO)
        self._log_rows.append(
            {
                "message_id": identity,
                "consumer_group": group,
                "topic": "orders",
                "broker_name": "broker-a",
                "queue_id": 0,
                "offset": 0,
                "state": state,
                "attempt": 1,
                "owner": None,
                "lease_until": None,
                "create_date": created,
                "consume_date": created if state else None,
                "confirm_to": None,
                **columns,
            }
        )

    def told(self, identity: str, group: str, state: int) -> None:
        """Add what a group of another database told two hours ago."""
        row = {"message_id": identity, "consumer_group": group, "state": state, "notices": 1}
        self._told_rows.append(row | {"create_date": LONG_AGO, "update_date": LONG_AGO})

    def write(self) -> str:
        """Insert the rows and return the database's URL."""
        with self._engine.begin() as connection:
            if self._stub_rows:
                connection.execute(insert(self.stubs), self._stub_rows)
            if self._log_rows:
                connection.execute(insert(self.logs), self._log_rows)
            if self._told_rows:
                connection.execute(insert(self.confirmations), self._told_rows)
        self._stub_rows, self._log_rows, self._told_rows = [], [], []
        self._engine.dispose()
        return self.url
