"""How many suppressed duplicates a second: copies of messages whose effect is committed.

A consumer's deliveries, as the client hands them to it, over a real Redis and a real PostgreSQL.
Every message is handled once, then its copies come: each costs one round trip to Redis and one look
at its row. Both are shared with those that come at the same moment. The statements are counted.

    python -m bench.duplicates [--seconds 5] [--messages 2000]
"""

import argparse
import asyncio
import itertools
import sys
import tempfile
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import uvloop
from sqlalchemy import event

from bench import raw_results
from bench.render import figures_table
from reliable_mq.consume.asyncio_delivery import HandlerGate, MessageProcessing
from reliable_mq.consume.consumer import Consumer, plan_of
from reliable_mq.consume.sql_consume_transaction import ConsumeTransaction
from reliable_mq.database.sql_database import Database
from reliable_mq.idempotency.redis_leases import RedisLeases
from reliable_mq.message import MessageQueue, ReceivedMessage
from reliable_mq.outcomes import CONSUMED
from reliable_mq.testing.local_servers import LocalPostgres, LocalValkey

BAR = 5_000
#: name -> (how many handler calls at once, how many messages each)
MODES = {
    "one at a time": (1, 1),
    "8 at once, the default": (8, 1),
    "64 at once": (64, 1),
    "batch=64, one at a time": (1, 64),
}


def ignore(message: ReceivedMessage) -> None:
    """The handler: what it does is not measured."""


def messages(count: int) -> list[ReceivedMessage]:
    """Return so many messages, as they are delivered."""
    queue = MessageQueue("orders", "broker-a", 0)
    return [
        ReceivedMessage(
            topic="orders", body=b"{}", message_id=f"{at:032X}", queue=queue, queue_offset=at
        )
        for at in range(count)
    ]


async def measure(
    deliveries: MessageProcessing,
    batches: Sequence[Sequence[ReceivedMessage]],
    at_once: int,
    until: float,
) -> int:
    """Deliver batches again and again until a time; return how many messages were acknowledged."""
    endless = itertools.cycle(batches)
    counts = [0] * at_once

    async def deliver(slot: int) -> None:
        while time.perf_counter() < until:
            batch = next(endless)
            if await deliveries.handle(batch) != [CONSUMED] * len(batch):
                raise AssertionError("a copy was not suppressed")
            counts[slot] += len(batch)

    await asyncio.gather(*map(deliver, range(at_once)))
    return sum(counts)


async def run(database: Database, redis: str, seconds: float, count: int) -> list[dict[str, Any]]:
    """Handle every message once, then measure each mode."""
    statements = 0

    def counted(*_: object) -> None:
        nonlocal statements
        statements += 1

    consumer = Consumer(plan=plan_of(ignore), topic="orders", group="bench", lease=10.0, batch=64)
    attempts = ConsumeTransaction(consumer, database, retry_waits=(1.0,))
    leases = RedisLeases(redis, duplicate_window=3600.0)
    deliveries = MessageProcessing(attempts, leases, ThreadPoolExecutor(8), HandlerGate())
    all_of_them = messages(count)
    for batch in _cut(all_of_them, 64):
        await deliveries.handle(batch)
    await leases.claim([("warm", "bench")], 1.0)  # what was done is written by now
    event.listen(database.engine, "before_cursor_execute", counted)
    figures = []
    for name, (at_once, size) in MODES.items():
        used, begin = time.process_time(), time.perf_counter()
        before = statements
        done = await measure(deliveries, _cut(all_of_them, size), at_once, begin + seconds)
        speed = done / (time.perf_counter() - begin)
        micros = (time.process_time() - used) / done * 1e6
        bar = f">= {BAR:,}" if at_once > 1 or size > 1 else ""
        figures += [
            {"what": name, "value": round(speed), "unit": "duplicates/s", "bar": bar},
            {"what": f"{name}: our processor", "value": round(micros), "unit": "us", "bar": ""},
            {
                "what": f"{name}: statements",
                "value": round((statements - before) / done, 3),
                "unit": "a duplicate",
                "bar": "",
            },
        ]
    await leases.close()
    return figures


def _cut(row: Sequence[ReceivedMessage], size: int) -> list[Sequence[ReceivedMessage]]:
    return [row[at : at + size] for at in range(0, len(row), size)]


def main() -> int:
    parser = argparse.ArgumentParser(description="Suppressed duplicates a second.")
    parser.add_argument("--seconds", type=float, default=5.0, help="of each mode")
    parser.add_argument("--messages", type=int, default=2_000)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="reliable-mq-duplicates-") as name:
        directory = Path(name)
        directory.chmod(0o755)  # PostgreSQL runs as another user when we are root
        postgres, valkey = LocalPostgres(directory / "postgres"), LocalValkey(directory / "valkey")
        try:
            database = Database(postgres.start(), prefix="rmq_", connections=8)
            database.create_tables()
            flow = run(database, valkey.start(), options.seconds, options.messages)
            rounds = uvloop.run(flow)
            database.close()
        finally:
            valkey.stop()
            postgres.stop()
    results = raw_results.of_now("duplicates", vars(options), rounds)
    print(f"raw results: {raw_results.write(results)}\n{figures_table(results)}")
    slow = [each["what"] for each in rounds if each["bar"][:2] == ">=" and each["value"] < BAR]
    print(*(f"below the bar: {each}" for each in slow), sep="\n")
    return 1 if slow else 0


if __name__ == "__main__":
    sys.exit(main())
