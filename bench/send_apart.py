"""Messages a second that a broker takes on a processor of its own, Apache's and ours in one run.

The generator in C of `send_floor` has the other processor, so the client is not the limit. Both
brokers share their processor, but only one gets messages at a time. Each is warmed up until two
rounds in a row differ by less than 5 %. Then they take rounds in turn. Apache's broker refuses a
send that waited 200 ms; a cold one on one processor needs longer, so it may wait for ten seconds.

    python -m bench.send_apart [--messages 120000] [--rounds 5] [--ways "ASYNC 64"]
"""

import argparse
import os
import sys
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from bench import raw_results
from bench.apache_rocketmq import ApacheRocketMQ
from bench.java_programs import missing_tools
from bench.reliable_mq_broker import ReliableMQBroker
from bench.send_ceiling import missing_compiler
from bench.send_floor import QUEUES, TOPIC, Generator, Way
from bench.send_tables import apart_table
from bench.send_throughput import BROKERS, STEADY
from reliable_mq.client.thread_client import Client

WARM_ROUNDS_MAX = 12
SETTINGS = {"apache": {"waitTimeMillsInSendQueue": "10000"}}
WAYS = (
    Way("ASYNC 64", "ASYNC_FLUSH", 1, 64, 1, 2.5),
    Way("ASYNC batches", "ASYNC_FLUSH", 1, 4, 32, 2.0),
    Way("SYNC 64", "SYNC_FLUSH", 1, 64, 1, 2.5),
    Way("SYNC batches", "SYNC_FLUSH", 1, 4, 32, 2.0),
)
"""The bar of each is the least ratio to Apache's rate."""


class _Place(NamedTuple):
    """A running broker: its name in tables, the process that stores, and its port."""

    label: str
    pid: int
    port: int


@contextmanager
def _brokers(directory: Path, flush: str) -> Iterator[list[_Place]]:
    """Start both brokers on the first processor, and leave this process on the second."""
    first, second = sorted(os.sched_getaffinity(0))[:2]
    with ExitStack() as stack:
        os.sched_setaffinity(0, {first})
        places = []
        for key, kind in BROKERS.items():
            broker = stack.enter_context(
                kind(directory / f"{key}-{flush}", flush, settings=SETTINGS.get(key))
            )
            assert isinstance(broker, ApacheRocketMQ | ReliableMQBroker)
            with Client(broker.name_server_address) as client:
                client.create_topic(TOPIC, QUEUES)
            port = int(broker.address.rpartition(":")[2])
            places.append(_Place(broker.label, broker.pids[0], port))
        os.sched_setaffinity(0, {second})
        try:
            yield places
        finally:
            os.sched_setaffinity(0, {first, second})


def _warm(generator: Generator, place: _Place, way: Way) -> None:
    """Send rounds until two in a row differ by less than 5 %."""
    before = 0.0
    for _ in range(WARM_ROUNDS_MAX):
        _cost, rate = generator.cost(place.pid, place.port, way)
        if before and abs(rate / before - 1) < STEADY:
            break
        before = rate


def _measure(generator: Generator, directory: Path, ways: list[Way], rounds: int) -> list[Any]:
    """Return the rounds of all ways, brokers in turn."""
    found: list[dict[str, Any]] = []
    for flush in dict.fromkeys(way.flush for way in ways):
        with _brokers(directory, flush) as places:
            for way in (each for each in ways if each.flush == flush):
                for place in places:
                    _warm(generator, place, way)
                for turn in range(rounds):
                    for place in places:
                        cost, rate = generator.cost(place.pid, place.port, way)
                        found.append(
                            {
                                "mode": way.name,
                                "bar": way.bar,
                                "broker": place.label,
                                "run": turn,
                                "per_second": round(rate),
                                "broker_us": round(cost, 2),
                            }
                        )
                        print(f"{way.name}: {place.label} {rate:,.0f} msg/s, {cost:.1f} us")
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description="Sends to a broker on a processor of its own.")
    parser.add_argument("--messages", type=int, default=120_000, help="in a round")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--ways", nargs="+", help="only those whose name begins so")
    options = parser.parse_args()
    if reason := missing_tools() or missing_compiler():
        print(reason, file=sys.stderr)
        return 2
    if sys.platform != "linux" or len(os.sched_getaffinity(0)) < 2:
        print("two processors of a Linux machine are needed", file=sys.stderr)
        return 2
    ways = [w for w in WAYS if not options.ways or w.name.startswith(tuple(options.ways))]
    with tempfile.TemporaryDirectory(prefix="reliable-mq-apart-") as name:
        generator = Generator(Path(name), options.messages, "json")
        rounds = _measure(generator, Path(name), ways, options.rounds)
    settings = {"messages": options.messages, "rounds": options.rounds, "body": 1024}
    results = raw_results.of_now("send-apart", settings, rounds)
    if not options.ways:
        print(f"raw results: {raw_results.write(results)}")
    print(apart_table(results))
    return 0


if __name__ == "__main__":
    sys.exit(main())
