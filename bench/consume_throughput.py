"""Messages a second that Apache's Java push consumer takes from a backlog, of either broker.

Each broker is given the same backlog in batches; then new consumer groups read it from the
beginning, brokers in turn. Every round is a JVM of its own, so its first part is cold for both.

    python -m bench.consume_throughput --backlog 500000
"""

import argparse
import contextlib
import sys
import tempfile
from pathlib import Path
from typing import Any

from bench import raw_results
from bench.java_programs import missing_tools, run_program
from bench.quiet import wait_until_idle
from bench.render import consume_table
from bench.send_throughput import BODY_BYTES, BROKERS, SETTLE_SECONDS_MAX, pin_to_two_cores

SEND_THREADS = 8
SEND_BATCH = 32
PROGRAM_SECONDS_MAX = 300.0


def measure(directory: Path, *, backlog: int, runs: int) -> list[dict[str, Any]]:
    """Let every broker be read `runs` times, in turn, and return the rounds."""
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
        for run in range(runs):
            for home, broker in brokers:
                wait_until_idle(
                    [pid for _, each in brokers for pid in each.pids], SETTLE_SECONDS_MAX
                )
                seen = run_program(
                    "PushConsumer",
                    home,
                    timeout=PROGRAM_SECONDS_MAX,
                    namesrv=broker.name_server_address,
                    group=f"bench_consumer_{run}",
                    count=backlog,
                )
                rounds.append({"broker": broker.label, "run": run, **seen})
                print(f"{broker.label}: {seen['per_second']:,.0f} msg/s", flush=True)
    return rounds


def main() -> int:
    parser = argparse.ArgumentParser(description="Push consumption of a backlog, both brokers.")
    parser.add_argument("--backlog", type=int, default=500_000)
    parser.add_argument("--runs", type=int, default=5)
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
