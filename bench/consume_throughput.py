"""Messages a second that Apache's Java push consumer takes from a backlog, of either broker.

Each broker is given the same backlog in batches; then new consumer groups read it from the
beginning, brokers in turn, and the ratio of each turn counts. Brokers and the consumers' JVMs, one
for each broker, are warm when the first turn begins: they go on compiling for their first rounds.

    python -m bench.consume_throughput --backlog 500000
"""

import argparse
import contextlib
import sys
import tempfile
from pathlib import Path
from typing import Any, NamedTuple

from bench import raw_results
from bench.apache_rocketmq import ApacheRocketMQ
from bench.java_programs import WarmProgram, missing_tools, run_program
from bench.quiet import used_seconds, wait_until_idle
from bench.reliable_mq_broker import ReliableMQBroker
from bench.render import consume_table
from bench.send_throughput import BODY_BYTES, BROKERS, SETTLE_SECONDS_MAX, pin_to_two_cores

SEND_THREADS = 8
SEND_BATCH = 32
PROGRAM_SECONDS_MAX = 300.0

Broker = ApacheRocketMQ | ReliableMQBroker


class Pair(NamedTuple):
    """A running broker, and the JVM in which its consumers run."""

    broker: Broker
    consumer: WarmProgram


def take_round(pair: Pair, group: str, backlog: int) -> dict[str, Any]:
    """Let a new group read the backlog of a broker, and return how that went.

    `broker_us` is the processor time of the broker, its name server not counted, for each message.
    """
    broker = pair.broker
    pids = broker.pids[:1]
    used = used_seconds(pids)
    seen = pair.consumer.round(group=group, count=backlog)
    broker_us = (used_seconds(pids) - used) / max(1, seen["messages"]) * 1e6
    print(
        f"{group}: {broker.label} {seen['per_second']:,.0f} msg/s, "
        f"broker {broker_us:.1f} us a message",
        flush=True,
    )
    return {"broker": broker.label, **seen, "broker_us": round(broker_us, 2)}


def warm_up(pair: Pair, backlog: int, seconds: float) -> None:
    """Let the backlog be read until that has taken so long."""
    number = 0
    while seconds > 0:
        number += 1
        seconds -= take_round(pair, f"bench_warm_{number}", backlog)["seconds"]


def measure(directory: Path, *, backlog: int, runs: int, warmup: float) -> list[dict[str, Any]]:
    """Let every broker be read `runs` times, in turn, and return the rounds.

    Args:
        directory: where brokers and consumers write.
        backlog: messages to be read in a round.
        runs: rounds of each broker that count.
        warmup: seconds in which each broker is read before them.
    """
    rounds: list[dict[str, Any]] = []
    with contextlib.ExitStack() as stack:
        pairs = []
        for key, broker_type in BROKERS.items():
            home = directory / key
            home.mkdir()
            broker = stack.enter_context(broker_type(home / "broker", "ASYNC_FLUSH"))
            run_program(
                "Sender",
                home,
                timeout=PROGRAM_SECONDS_MAX,
                namesrv=broker.name_server_address,
                threads=SEND_THREADS,
                batch=SEND_BATCH,
                count=backlog,
                body=BODY_BYTES,
            )
            consumer = WarmProgram("PushConsumer", home, namesrv=broker.name_server_address)
            pairs.append(Pair(broker, stack.enter_context(consumer)))
        pids = [pid for pair in pairs for pid in (*pair.broker.pids, pair.consumer.pid)]
        wait_until_idle(pids, SETTLE_SECONDS_MAX)
        for pair in pairs:
            warm_up(pair, backlog, warmup)
        for run in range(runs):
            for pair in pairs:
                wait_until_idle(pids, SETTLE_SECONDS_MAX)
                seen = take_round(pair, f"bench_consumer_{run}", backlog)
                rounds.append({"run": run, **seen})
    return rounds


def main() -> int:
    parser = argparse.ArgumentParser(description="Push consumption of a backlog, both brokers.")
    parser.add_argument("--backlog", type=int, default=500_000)
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--warmup", type=float, default=15.0, help="seconds")
    options = parser.parse_args()
    if reason := missing_tools():
        print(reason, file=sys.stderr)
        return 2
    pin_to_two_cores()
    with tempfile.TemporaryDirectory(prefix="reliable-mq-consume-") as name:
        rounds = measure(Path(name), **vars(options))
    results = raw_results.of_now("consume", {**vars(options), "body": BODY_BYTES}, rounds)
    print(f"raw results: {raw_results.write(results)}\n{consume_table(results)}")
    return 1 if any(each["messages"] < options.backlog for each in rounds) else 0


if __name__ == "__main__":
    sys.exit(main())
