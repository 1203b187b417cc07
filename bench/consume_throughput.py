"""Messages a second that Apache's Java push consumer takes from a backlog, of either broker.

Each broker is given the same backlog in batches; then new consumer groups read it from the
beginning, brokers in turn, and the ratio of each turn counts. Brokers and the consumers' JVMs, one
for each broker, are warm when the first turn begins: they go on compiling for their first rounds.

With `--mode pop` the consumers share messages instead of queues (`setClientRebalance(false)`). Both
brokers keep a record of each pop and each acknowledgement until the invisible time is over, and
work on it then. So a round ends later, and the processor time has that work, too.

    python -m bench.consume_throughput --backlog 500000
    python -m bench.consume_throughput --backlog 500000 --mode pop
"""

import argparse
import contextlib
import json
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, NamedTuple

from bench import raw_results
from bench.apache_rocketmq import ApacheRocketMQ
from bench.child_process import ChildError
from bench.java_programs import WarmProgram, missing_tools, run_program
from bench.quiet import used_seconds, wait_until_idle
from bench.reliable_mq_broker import ReliableMQBroker
from bench.render import consume_table
from bench.send_throughput import BODY_BYTES, BROKERS, SETTLE_SECONDS_MAX, pin_to_two_cores
from reliable_mq.runtime.blocking_link import BlockingLink
from reliable_mq.wire.codes import RequestCode
from reliable_mq.wire.command import request

SEND_THREADS = 8
SEND_BATCH = 32
PROGRAM_SECONDS_MAX = 300.0
INVISIBLE_SECONDS = 10
ENDS_SECONDS = 3  # Apache's broker looks two seconds after the time of a message
TOPIC = "bench"
MODES = {"pull": "consume", "pop": "consume-pop"}
"""How members share, and the name of the results."""

Broker = ApacheRocketMQ | ReliableMQBroker


class Pair(NamedTuple):
    """A running broker, and the JVM in which its consumers run."""

    broker: Broker
    consumer: WarmProgram


def let_pop(broker: Broker, group: str) -> None:
    """Have a group share messages, as `mqadmin setConsumeMode` does."""
    mode = {"topic": TOPIC, "consumerGroup": group, "mode": "POP", "popShareQueueNum": 0}
    with BlockingLink(broker.address, 10) as link:
        body = json.dumps(mode).encode()
        answer = link.call(request(RequestCode.SET_MESSAGE_REQUEST_MODE, {}, body))
    if answer.code:
        raise ChildError(f"the mode of {group} is refused: {answer.code} {answer.remark}")


def take_round(pair: Pair, group: str, backlog: int, mode: str) -> dict[str, Any]:
    """Let a new group read the backlog of a broker, and return how that went.

    `broker_us` is the processor time of the broker, its name server not counted, for each message.
    """
    broker = pair.broker
    if mode == "pop":
        let_pop(broker, group)
    pids = broker.pids[:1]
    used = used_seconds(pids)
    seen = pair.consumer.round(group=group, count=backlog)
    if mode == "pop":
        time.sleep(INVISIBLE_SECONDS + ENDS_SECONDS)
    broker_us = (used_seconds(pids) - used) / max(1, seen["messages"]) * 1e6
    print(
        f"{group}: {broker.label} {seen['per_second']:,.0f} msg/s, "
        f"broker {broker_us:.1f} us a message",
        flush=True,
    )
    return {"broker": broker.label, **seen, "broker_us": round(broker_us, 2)}


def warm_up(pair: Pair, backlog: int, seconds: float, mode: str) -> None:
    """Let the backlog be read until that has taken so long."""
    number = 0
    while seconds > 0:
        number += 1
        seconds -= take_round(pair, f"bench_warm_{number}", backlog, mode)["seconds"]


def measure(
    directory: Path, *, backlog: int, runs: int, warmup: float, mode: str
) -> list[dict[str, Any]]:
    """Let every broker be read `runs` times, in turn, and return the rounds.

    Args:
        directory: where brokers and consumers write.
        backlog: messages to be read in a round.
        runs: rounds of each broker that count.
        warmup: seconds in which each broker is read before them.
        mode: "pull" or "pop".
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
            more = {"mode": mode, "invisible": INVISIBLE_SECONDS}
            consumer = WarmProgram(
                "PushConsumer", home, namesrv=broker.name_server_address, topic=TOPIC, **more
            )
            pairs.append(Pair(broker, stack.enter_context(consumer)))
        pids = [pid for pair in pairs for pid in (*pair.broker.pids, pair.consumer.pid)]
        wait_until_idle(pids, SETTLE_SECONDS_MAX)
        for pair in pairs:
            warm_up(pair, backlog, warmup, mode)
        for run in range(runs):
            for pair in pairs:
                wait_until_idle(pids, SETTLE_SECONDS_MAX)
                seen = take_round(pair, f"bench_consumer_{run}", backlog, mode)
                rounds.append({"run": run, **seen})
    return rounds


def main() -> int:
    parser = argparse.ArgumentParser(description="Push consumption of a backlog, both brokers.")
    parser.add_argument("--backlog", type=int, default=500_000)
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--warmup", type=float, default=15.0, help="seconds")
    parser.add_argument("--mode", choices=MODES, default="pull", help="how members share")
    options = parser.parse_args()
    if reason := missing_tools():
        print(reason, file=sys.stderr)
        return 2
    pin_to_two_cores()
    with tempfile.TemporaryDirectory(prefix="reliable-mq-consume-") as name:
        rounds = measure(Path(name), **vars(options))
    results = raw_results.of_now(MODES[options.mode], {**vars(options), "body": BODY_BYTES}, rounds)
    print(f"raw results: {raw_results.write(results)}\n{consume_table(results)}")
    return 1 if any(each["messages"] < options.backlog for each in rounds) else 0


if __name__ == "__main__":
    sys.exit(main())
