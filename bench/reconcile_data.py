"""Ledgers of any size for the measurements of reconciliation, written by their formats alone.

    python -m bench.reconcile_data --messages 1000000 --directory DIRECTORY

makes `DIRECTORY/postgres` (a stub for each message and a consume log for each of two groups) and
`DIRECTORY/store` (the broker's log); with more messages it adds to what is there. The real system
would need hours for ten million. What has to be true of it is proved with data that it did make,
in the tests; this only has to be large. `reconcile_shape` says what is in it.
"""

import argparse
import json
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from pathlib import Path

import psycopg

from bench.reconcile_shape import (
    BODY_HEAD,
    BROKER,
    CYCLE,
    FAULT_EVERY,
    FAULTY_SLOT,
    GROUPS,
    NUMBER_DIGITS,
    RETRIED_SLOT,
    Data,
)
from bench.reconcile_store import StoreFiles
from reliable_mq import ReliableMQ
from reliable_mq.testing.local_servers import LocalPostgres

BODY_SIZE = 300
SPAN_SECONDS = 24 * 3600
OLDEST_SECONDS = 30 * 3600  # ago
ADDED_SECONDS = 60
ROWS_AT_ONCE = 500_000
# Loading is not measured: no log is written ahead of a table that is emptied in the transaction.
LOADING = {"wal_level": "minimal", "max_wal_senders": "0", "synchronous_commit": "off"}
LOADING |= {"maintenance_work_mem": "512MB", "max_wal_size": "8GB"}

# The id's random digits are those of the number's MD5, as in `reconcile_shape.message_ids`.
MESSAGES = """
    SELECT n, slot.*, (n / {cycle} * per_cycle + rank) AS "offset", h,
        upper(lpad(to_hex(ms), 12, '0') || '7' || substr(h, 1, 3) || '8' || substr(h, 4, 15))
            AS message_id,
        to_timestamp(ms / 1000.0) AS create_date,
        CASE WHEN n % {fault_every} = {faulty} THEN n / {fault_every} % 3 END AS fault
    FROM (
        SELECT n, md5(n::text) AS h, {begin_ms} + n * {step_us} / 1000 AS ms
        FROM generate_series({first}::bigint, {last}::bigint) n OFFSET 0
    ) message JOIN slot ON slot.number = n % {cycle}
"""
STUBS = """
    INSERT INTO rmq_message_stub (seq, message_id, topic, tag, message_key, content, content_type,
        status, count, broker_name, queue_id, "offset", required_groups, create_date, update_date)
    SELECT n + 1, message_id, topic, tag, lpad(n::text, {digits}, '0'),
        convert_to('{body_head}' || lpad(n::text, {digits}, '0') || body_rest, 'UTF8'),
        'application/json', CASE WHEN fault IN (0, 2) THEN 0 ELSE 1 END, 1, '{broker}', queue_id,
        "offset", '{groups}', create_date, create_date + interval '300 ms'
    FROM ({messages}) message
"""
LOGS = """
    INSERT INTO rmq_consume_log (consumer_group, message_id, topic, broker_name, queue_id, "offset",
        state, attempt, create_date, consume_date)
    SELECT consumer_group, message_id, topic, '{broker}', queue_id, "offset", 1,
        CASE WHEN number = {retried} AND consumer_group = '{groups[0]}' THEN 2 ELSE 1 END,
        create_date + interval '10 ms',
        create_date + interval '12 ms' + interval '1 ms' * ('x' || substr(h, 20, 2))::bit(8)::int
    FROM ({messages}) message CROSS JOIN (SELECT unnest(ARRAY{groups}) AS consumer_group) g
    WHERE fault IS NULL OR fault = 0 OR consumer_group <> '{groups[1]}'
"""


class Ledgers:
    """A directory with a PostgreSQL server and a store, and what is in them.

    Args:
        directory: made if missing; every user must be able to enter it when the caller is root.
    """

    def __init__(self, directory: Path) -> None:
        self.directory = directory.resolve()
        self.directory.mkdir(parents=True, exist_ok=True)
        self.directory.chmod(0o755)
        self.postgres = LocalPostgres(self.directory / "postgres")
        self.store = self.directory / "store"
        self._noted = self.directory / "data.json"

    @property
    def data(self) -> Data | None:
        """What has been made so far."""
        return Data(**json.loads(self._noted.read_text())) if self._noted.exists() else None

    def make(self, messages: int, body_size: int = BODY_SIZE) -> Data:
        """Make the ledgers of a day, or add to them what is missing of so many messages.

        What is added is of the minute that begins now, so that it is newer than all that was read.
        The server runs afterwards.

        Raises:
            ValueError: when the number is no multiple of 400, or fewer than are there.
        """
        before = self.data
        if messages % CYCLE or (before and messages < before.messages):
            raise ValueError(f"{messages} is no multiple of {CYCLE}, or fewer than are there")
        first = before.messages if before else 0
        now_ms = int(time.time() * 1000)
        step_us = SPAN_SECONDS * 1_000_000 // messages
        data = Data(messages, body_size, now_ms - OLDEST_SECONDS * 1000, step_us)
        if before and first == messages:
            data = before
        elif before:
            step_us = ADDED_SECONDS * 1_000_000 // (messages - first)
            begin_ms = now_ms + 1000 - first * step_us // 1000
            data = Data(messages, before.body_size, begin_ms, step_us)
        self.postgres.start()
        if first < messages:
            with ThreadPoolExecutor() as pool:  # the log is made beside the tables
                log = pool.submit(StoreFiles(self.store, data).write, first // CYCLE)
                self._fill(data, first)
                log.result()
            self._noted.write_text(json.dumps(asdict(data)))
        return data

    def _fill(self, data: Data, first: int) -> None:
        mq = ReliableMQ("reconcile-data", database=self.postgres.url)
        mq.create_tables()
        mq.close()
        self._set(LOADING)
        address = self.postgres.url.replace("+psycopg", "")
        with ThreadPoolExecutor() as pool:
            tables = ((STUBS, "rmq_message_stub"), (LOGS, "rmq_consume_log"))
            list(pool.map(lambda each: _fill_table(address, data, first, *each), tables))
        with psycopg.connect(address, autocommit=True) as connection:
            end = "SELECT setval(pg_get_serial_sequence('rmq_message_stub', 'seq'), %s)"
            connection.execute(end, (data.messages,))
            connection.execute("VACUUM (ANALYZE, FREEZE) rmq_message_stub, rmq_consume_log")
        self._set(dict.fromkeys(LOADING))

    def _set(self, settings: dict[str, str | None] | dict[str, str]) -> None:
        with psycopg.connect(
            self.postgres.url.replace("+psycopg", ""), autocommit=True
        ) as connection:
            for name, value in settings.items():
                change = f"SET {name} = '{value}'" if value else f"RESET {name}"
                connection.execute(f"ALTER SYSTEM {change}")
        self.postgres.restart()


def _fill_table(address: str, data: Data, first: int, statement: str, table: str) -> None:
    rows = [
        (number, *slot[:4], per_cycle, slot.body_rest)
        for number, slot in enumerate(data.slots)
        for per_cycle in (data.per_cycle(slot.topic, slot.queue_id),)
    ]
    with psycopg.connect(address) as connection:
        connection.execute(
            "CREATE TEMP TABLE slot (number bigint, topic text, tag text, queue_id int,"
            " rank bigint, per_cycle bigint, body_rest text)"
        )
        with connection.cursor().copy("COPY slot FROM STDIN") as copy:
            for row in rows:
                copy.write_row(row)
        connection.execute("ANALYZE slot")
        connection.execute("SET enable_nestloop = off")
        connection.execute("SET enable_mergejoin = off")
        if first == 0:
            connection.execute(f"TRUNCATE {table}")
        for begin in range(first, data.messages, ROWS_AT_ONCE):
            names = {
                "cycle": CYCLE,
                "fault_every": FAULT_EVERY * CYCLE,
                "faulty": FAULTY_SLOT,
                "begin_ms": data.begin_ms,
                "step_us": data.step_us,
                "first": begin,
                "last": min(begin + ROWS_AT_ONCE, data.messages) - 1,
            }
            connection.execute(
                statement.format(
                    messages=MESSAGES.format(**names),
                    digits=NUMBER_DIGITS,
                    body_head=BODY_HEAD,
                    broker=BROKER,
                    groups=list(GROUPS) if statement is LOGS else ",".join(GROUPS),
                    retried=RETRIED_SLOT,
                )
            )


def main() -> int:
    parser = argparse.ArgumentParser(description="Ledgers for the measurements of reconciliation.")
    parser.add_argument("--messages", type=int, required=True, help="a multiple of 400")
    parser.add_argument("--body", type=int, default=BODY_SIZE, help="mean size of a body in bytes")
    parser.add_argument("--directory", type=Path, required=True)
    options = parser.parse_args()
    ledgers = Ledgers(options.directory)
    began, used = time.perf_counter(), time.process_time()
    data = ledgers.make(options.messages, options.body)
    made = {"seconds": time.perf_counter() - began, "own_cpu": time.process_time() - used}
    ledgers.postgres.stop()
    print(json.dumps(asdict(data) | made | {"expected": data.expected()}, indent=1))
    return 0


if __name__ == "__main__":
    sys.exit(main())
