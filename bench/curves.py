"""How a broker's costs grow: processor time at both ends of a range, and their ratio.

Every figure is processor time of the broker's process, so it says about the same on a busy machine.
A figure that hardly grows over a range of a thousand does not bend. Exits with 1 when one grows by
more than its bar.

    python -m bench.curves                       everything, some thirty minutes
    python -m bench.curves topics queues         only these ranges
    python -m bench.curves --quick topics        shorter ranges and rests, nothing written
"""

import argparse
import contextlib
import os
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

from bench import raw_results
from bench.curve_load import (
    AT_ONCE,
    BODY,
    Caller,
    Subject,
    commit,
    creation,
    pull,
    send,
)
from bench.curve_table import BAR, curves_table
from bench.reliable_mq_broker import ReliableMQBroker
from bench.send_cost import processor_seconds
from bench.table_text import OURS

SENDS = 20_000
WARM = 2_000
FIRST = 10_000
CREATED = 100
STARTS = 3
REST = "thousandths of a processor"
SILENT_SECONDS = 31.0  # a broker closes connections that are silent for 120 s
PULLS_OF_CONNECTION = 100
LOG_SIZE = 1000 * 256 * 1024  # bytes of a log in files of different sizes
SQL92: dict[str, object] = {"expressionType": "SQL92", "subscription": "price > 3 AND kind = 'new'"}
PRICED = {"price": "7", "kind": "new"}

Measured = tuple[str, float, str]


class Range(NamedTuple):
    """What grows: from, to, and what is measured at a size."""

    small: int
    large: int
    measure: Callable[[Path, int, float], Iterator[Measured]]


@contextlib.contextmanager
def started(directory: Path, settings: dict[str, str] | None = None) -> Iterator[Subject]:
    """Run a broker that answers sends when they are written."""
    with ReliableMQBroker(directory, "ASYNC_FLUSH", settings=settings) as broker:
        yield Subject(broker)


def start_cost(directory: Path, settings: dict[str, str] | None = None) -> float:
    """Return the processor seconds from the command to the ready line, of a store that is there."""
    seconds = []
    for _ in range(STARTS):
        with ReliableMQBroker(directory, "ASYNC_FLUSH", settings=settings) as broker:
            seconds.append(processor_seconds(broker.pids[0]))
    return median(seconds)


def spread(places: Sequence[tuple[str, int]], count: int) -> list[bytes]:
    """Return sends that go to each place in turn."""
    return [send(*places[number % len(places)]) for number in range(count)]


def of_places(directory: Path, topics: int, queues: int, seconds: float) -> Iterator[Measured]:
    """What a broker with so many topics and queues costs."""
    names = [f"curve-{number}" for number in range(topics)]
    places = [(name, queue) for queue in range(queues) for name in names]
    with started(directory) as broker, Caller(broker.address) as caller:
        caller.ask([creation(name, queues) for name in names])
        caller.ask(spread(places, FIRST))  # a message of each, at least
        broker.settle()
    yield "a start", start_cost(directory) * 1e3, "ms"
    with started(directory) as broker, Caller(broker.address) as caller:
        broker.settle()
        rest = broker.rest(seconds)
        yield "at rest", rest * 1e3, REST
        more = [creation(f"one-more-{number}") for number in range(CREATED)]
        yield "creating a topic", broker.cost(caller, more, 1), "us"
        caller.ask(spread(places, WARM))
        yield "a send", broker.cost(caller, spread(places, SENDS)), "us"
        broker.settle()
        whole = broker.whole_cost(caller, spread(places, SENDS), rest)
        yield "a send, with all that is put off", whole, "us"
        pulls = [pull(*places[number % len(places)], maxMsgNums=1) for number in range(SENDS // 4)]
        caller.ask(pulls[:WARM])
        yield "a pull of one message", broker.cost(caller, pulls), "us"
        broker.settle()  # the figures of the pulls are counted later
        commits = [commit(*places[number % len(places)]) for number in range(SENDS)]
        yield "a commit, with all that is put off", broker.whole_cost(caller, commits, rest), "us"
        yield "resident", broker.resident(), "MiB"


def of_topics(directory: Path, count: int, seconds: float) -> Iterator[Measured]:
    yield from of_places(directory, count, 1, seconds)


def of_queues(directory: Path, count: int, seconds: float) -> Iterator[Measured]:
    yield from of_places(directory, 1, count, seconds)
    yield from of_filtered(directory.with_name(f"{directory.name}-sql92"), count)


def of_filtered(directory: Path, count: int) -> Iterator[Measured]:
    """Pulls by an expression that all messages pass, of many queues in turn."""
    filtering = {"enablePropertyFilter": "true"}
    with started(directory, filtering) as broker, Caller(broker.address) as caller:
        caller.ask([creation("priced", count)])
        each = max(4, WARM // count)
        caller.ask(send("priced", number % count, PRICED) for number in range(each * count))
        for what, most in (("a pull of four by SQL92", 4), ("a pull of one by SQL92", 1)):
            pulls = [
                pull("priced", number % count, 0, maxMsgNums=most, **SQL92)
                for number in range(SENDS // 4)
            ]
            caller.ask(pulls[:WARM])
            yield what, broker.cost(caller, pulls), "us"


def of_connections(directory: Path, count: int, seconds: float) -> Iterator[Measured]:
    """Sends beside connections that are silent."""
    with started(directory) as broker, contextlib.ExitStack() as stack:
        caller = stack.enter_context(Caller(broker.address))
        for _ in range(count):
            stack.enter_context(Caller(broker.address))
        caller.ask([creation("busy", 8)])
        places = [("busy", queue) for queue in range(8)]
        caller.ask(spread(places, WARM))
        yield "a send", broker.cost(caller, spread(places, SENDS)), "us"
        broker.settle()
        yield "at rest", broker.rest(min(seconds, SILENT_SECONDS)) * 1e3, REST


def of_pulls(directory: Path, count: int, seconds: float) -> Iterator[Measured]:
    """Sends beside pulls that wait, and sends that each wake one of them."""
    with started(directory) as broker, contextlib.ExitStack() as stack:
        caller = stack.enter_context(Caller(broker.address))
        caller.ask([creation("busy", 8), creation("awaited", count)])
        for first in range(0, count, PULLS_OF_CONNECTION):
            waiting = stack.enter_context(Caller(broker.address))
            queues = range(first, min(first + PULLS_OF_CONNECTION, count))
            waiting.write(pull("awaited", queue, sysFlag=6) for queue in queues)
        places = [("busy", queue) for queue in range(8)]
        caller.ask(spread(places, WARM))
        yield "a send", broker.cost(caller, spread(places, SENDS)), "us"
        broker.settle()
        yield "at rest", broker.rest(min(seconds, SILENT_SECONDS)) * 1e3, REST
        woken = min(count, PULLS_OF_CONNECTION)
        caller.ask([creation("woken", woken)])
        consumer = stack.enter_context(Caller(broker.address))
        before, times = processor_seconds(broker.pid), SENDS // 4
        for number in range(times):
            consumer.write([pull("woken", number % woken, number // woken, sysFlag=6)])
            caller.ask([send("woken", number % woken)])
            consumer.read(1)
        used = processor_seconds(broker.pid) - before
        yield "a pull that waits, and the send that wakes it", used / times * 1e6, "us"


def of_properties(directory: Path, count: int, _seconds: float) -> Iterator[Measured]:
    """Sends of messages with so many properties."""
    properties = {f"name{number}": f"value{number}" for number in range(count)}
    with started(directory) as broker, Caller(broker.address) as caller:
        caller.ask([creation("busy", 8)])
        caller.ask(send("busy", 0, properties) for _ in range(WARM))
        broker.settle()
        frames = [send("busy", 0, properties) for _ in range(SENDS)]
        yield "a send", broker.cost(caller, frames), "us"


def of_keys(directory: Path, count: int, seconds: float) -> Iterator[Measured]:
    """Sends of messages with so many keys, and the index of each key."""
    counter = iter(range(SENDS * count * 4))

    def one() -> bytes:
        return send("busy", 0, {"KEYS": " ".join(f"k{next(counter)}" for _ in range(count))})

    with started(directory) as broker, Caller(broker.address) as caller:
        caller.ask([creation("busy", 8)])
        sends = SENDS // 4
        caller.ask([one() for _ in range(WARM)])
        broker.settle()
        rest = broker.rest(min(seconds, SILENT_SECONDS))
        yield "a send", broker.cost(caller, [one() for _ in range(sends)]), "us"
        broker.settle()
        whole = broker.whole_cost(caller, [one() for _ in range(sends)], rest)
        yield "a key, with the send and all that is put off", whole / count, "us"


def of_segments(directory: Path, count: int, seconds: float) -> Iterator[Measured]:
    """The same log in few files and in many: sends, pulls from anywhere, start, rest."""
    settings = {"mappedFileSizeCommitLog": str(LOG_SIZE // count), "maxMessageSize": "65536"}
    messages = LOG_SIZE // (len(BODY) + 300)
    places = [("busy", queue) for queue in range(8)]
    with started(directory, settings) as broker, Caller(broker.address) as caller:
        caller.ask([creation("busy", 8)])
        caller.ask(send(*places[number % 8]) for number in range(messages))
        broker.settle()
        yield "at rest", broker.rest(seconds) * 1e3, REST
        yield "a send", broker.cost(caller, spread(places, SENDS // 4)), "us"
    with started(directory, settings) as broker, Caller(broker.address) as caller:
        last = messages // 8 - 32
        pulls = [pull("busy", number % 8, number * 32 % last) for number in range(SENDS // 8)]
        yield "a pull of 32 from anywhere in the log", broker.cost(caller, pulls), "us"
    yield "a start", start_cost(directory, settings) * 1e3, "ms"


RANGES = {
    "topics": Range(10, 10_000, of_topics),
    "queues": Range(10, 10_000, of_queues),
    "connections": Range(10, 10_000, of_connections),
    "waiting pulls": Range(10, 10_000, of_pulls),
    "properties": Range(1, 64, of_properties),
    "keys": Range(1, 64, of_keys),
    "segments": Range(1, 1_000, of_segments),
}


def measure(name: str, sizes: tuple[int, int], seconds: float) -> list[dict[str, Any]]:
    """Return what is measured at both ends of a range."""
    found: dict[str, dict[str, Any]] = {}
    for size in sizes:
        with tempfile.TemporaryDirectory(prefix=f"reliable-mq-curves-{size}-") as made:
            for what, value, unit in RANGES[name].measure(Path(made) / "b", size, seconds):
                print(f"{name} {size:,}: {what} {value:,.4g} {unit}", flush=True)
                of = {"range": name, "what": f"{name}: {what}", "broker": OURS, "unit": unit}
                row = found.setdefault(what, of)
                row.setdefault("sizes", []).append(size)
                row.setdefault("values", []).append(round(value, 4))
    return list(found.values())


def main() -> int:
    parser = argparse.ArgumentParser(description="How a broker's costs grow.")
    parser.add_argument("ranges", nargs="*", choices=[*RANGES, []], default=[])
    parser.add_argument("--quick", action="store_true", help="a tenth of each range")
    parser.add_argument("--rest-seconds", type=float, default=62.0, help="two registrations")
    options = parser.parse_args()
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)  # else each start compiles what has changed
    seconds = 10.0 if options.quick else options.rest_seconds
    rows = []
    for name in options.ranges or RANGES:
        small, large, _ = RANGES[name]
        sizes = (small, max(large // 10, small)) if options.quick else (small, large)
        rows += measure(name, sizes, seconds)
    results = raw_results.of_now("curves", {"at once": AT_ONCE, "body": len(BODY)}, rows)
    print(curves_table(results))
    if not options.quick:
        print(raw_results.write(results))
    return int(any(each["values"][-1] > BAR * each["values"][0] for each in rows))


if __name__ == "__main__":
    sys.exit(main())
