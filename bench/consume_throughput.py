"""Messages a second that Apache's Java push consumer takes from a backlog, of either broker.

Each broker is given the same backlog in batches; then new consumer groups read it from the
beginning, brokers in turn, and the ratio of each turn counts. The brokers are warm when the first
turn begins: Apache's goes on compiling for its first rounds. The consumer is a new JVM each time,
so the first part of every round is cold for both.

    python -m bench.consume_throughput --backlog 500000
"""

import argparse
import contextlib
import sys
import tempfile
from pathlib import Path
from typing import Any

from bench import raw_results
from bench.apache_rocketmq import ApacheRocketMQ
from bench.java_programs import missing_tools, run_program
from bench.quiet import used_seconds, wait_until_idle
from bench.reliable_mq_broker import ReliableMQBroker
from bench.render import consume_table
from bench.send_throughput import BODY_BYTES, BROKERS, SETTLE_SECONDS_MAX, pin_to_two_cores

SEND_THREADS = 8
SEND_BATCH = 32
PROGRAM_SECONDS_MAX = 300.0

Broker = ApacheRocketMQ | ReliableMQBroker


def take_round(home: Path, broker: Broker, group: str, backlog: int) -> dict[str, Any]:
    """Let a new group read the backlog of a broker, and return how that went.

    `broker_us` is the processor time of the broker, its name server not counted, for each message.
    """
    pids = broker.pids[:1]
    used = used_seconds(pids)
    seen = run_program(
        "PushConsumer",
        home,
        timeout=PROGRAM_SECONDS_MAX,
        namesrv=broker.name_server_address,
        group=group,
        count=backlog,
    )
    broker_us = (used_seconds(pids) - used) / max(1, seen["messages"]) * 1e6
    print(
        f"{group}: {broker.label} {seen['per_second']:,.0f} msg/s, "
        f"broker {broker_us:.1f} us a message",
        flush=True,
    )
    return {"broker": broker.label, **seen, "broker_us": round(broker_us, 2)}


def warm_up(home: Path, broker: Broker, backlog: int, seconds: float) -> None:
    """Let the backlog be read until that has taken so long."""
    number = 0
    while seconds > 0:
        number += 1
        seconds -= take_round(home, broker, f"bench_warm_{number}", backlog)["seconds"]


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
        brokers = []
        for key, broker_type in BROKERS.items():
            (directory / key).mkdir()
            broker = stack.enter_context(broker_type(directory / key / "broker", "ASYNC_FLUSH"))
            brokers.append((directory / key, broker))
            run_program(
                "Sender",
                directory / key,
                timeout=PROGRAM_SECONDS_MAX,
                namesrv=broker.name_server_address,
                threads=SEND_THREADS,
                batch=SEND_BATCH,
                count=backlog,
                body=BODY_BYTES,
            )
        pids = [pid for _, each in brokers for pid in each.pids]
        wait_until_idle(pids, SETTLE_SECONDS_MAX)
        for home, broker in brokers:
            warm_up(home, broker, backlog, warmup)
        for run in range(runs):
            for home, broker in brokers:
                wait_until_idle(pids, SETTLE_SECONDS_MAX)
                seen = take_round(home, broker, f"bench_consumer_{run}", backlog)
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
