"""What it costs to write many messages in transactions: one by one, and by `tx.send_many`.

No broker takes part: a commit needs none, and another process would send. A row of a shop, inserted
by SQLAlchemy alone in as large blocks, stands beside. Each figure is the median of the rounds.

    python -m bench.many_at_once [--messages 10000] [--rounds 5]
"""

import argparse
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from bench import raw_results
from bench.order_flow_app import AMOUNT, INSERT_EFFECT, Placed, metadata
from bench.render import figures_table
from reliable_mq import ReliableMQ
from reliable_mq.testing.local_servers import LocalPostgres, free_port

BLOCK = 1000
TOPIC = "many"

Write = Callable[[ReliableMQ, list[Placed]], None]


def by_rows(mq: ReliableMQ, payloads: list[Placed]) -> None:
    """Insert a row of the business for each payload, without messages."""
    with mq.database.session() as session, session.begin():
        session.execute(INSERT_EFFECT, [each.model_dump() for each in payloads])


def by_many(mq: ReliableMQ, payloads: list[Placed]) -> None:
    """Send a block by one call."""
    with mq.transaction() as tx:
        tx.send_many(TOPIC, payloads, key=lambda order: str(order.order_id))


def one_by_one(mq: ReliableMQ, payloads: list[Placed]) -> None:
    """Send a block by one call for each message, in one transaction."""
    with mq.transaction() as tx:
        for each in payloads:
            tx.send(TOPIC, each, key=str(each.order_id))


def alone(mq: ReliableMQ, payloads: list[Placed]) -> None:
    """Send each message in a transaction of its own."""
    for each in payloads:
        with mq.transaction() as tx:
            tx.send(TOPIC, each, key=str(each.order_id))


WAYS: dict[str, Write] = {
    f"rows of a shop alone, {BLOCK:,} a transaction": by_rows,
    f"`tx.send_many`, {BLOCK:,} a transaction": by_many,
    f"`tx.send`, {BLOCK:,} a transaction": one_by_one,
    "`tx.send`, a transaction each": alone,
}


def measured(mq: ReliableMQ, count: int, rounds: int) -> list[dict[str, Any]]:
    """Return the speed, and the processor time of this process, of each way to write."""
    times: dict[str, list[tuple[float, float]]] = {what: [] for what in WAYS}
    blocks = [
        [Placed(order_id=number, amount=AMOUNT) for number in range(at, min(at + BLOCK, count))]
        for at in range(0, count, BLOCK)
    ]
    for _ in range(rounds + 1):  # the first round warms up
        for what, write in WAYS.items():
            began, used = time.perf_counter(), time.process_time()
            for block in blocks:
                write(mq, block)
            times[what].append((time.perf_counter() - began, time.process_time() - used))
    found = []
    for what, taken in times.items():
        walls, processors = zip(*taken[1:], strict=True)
        speed, cost = count / statistics.median(walls), statistics.median(processors) / count
        found.append({"what": what, "value": round(speed), "unit": "messages/s", "bar": ""})
        mine = f"{what}: this process"
        found.append({"what": mine, "value": round(cost * 1e6, 1), "unit": "us", "bar": ""})
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description="Many messages in transactions.")
    parser.add_argument("--messages", type=int, default=10_000)
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        Path(folder).chmod(0o755)
        postgres = LocalPostgres(Path(folder) / "postgres")
        postgres.start()
        try:
            nowhere = f"127.0.0.1:{free_port()}"
            mq = ReliableMQ("many", database=postgres.url, broker=nowhere, relay="shared")
            mq.topic(TOPIC, groups=[])
            mq.create_tables()
            metadata.create_all(mq.database.engine)
            found = measured(mq, options.messages, options.rounds)
            mq.close()
        finally:
            postgres.stop()
    settings = {"messages": options.messages, "block": BLOCK}
    result = raw_results.of_now("many-at-once", settings, found)
    print(figures_table(result))
    raw_results.write(result)
    return 0


if __name__ == "__main__":
    sys.exit(main())
