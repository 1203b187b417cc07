"""A million popped messages in flight, a SIGKILL of the broker, and the way of each back.

A real broker is asked over sockets. All messages are popped, each pop with an invisible time of its
own; then the broker is killed and started again. Nothing is acknowledged. So each message must come
back once, not before its time, and within a second of it.

    python -m bench.popped_kill                    # a million, five minutes
    python -m bench.popped_kill --count 50000 --first 20 --over 10
"""

import argparse
import asyncio
import random
import sys
import tempfile
import threading
import time
from array import array
from collections.abc import Sequence
from pathlib import Path
from statistics import quantiles
from typing import Any

from bench import raw_results
from bench.child_process import ChildError
from bench.quiet import own_mib
from bench.reliable_mq_broker import ReliableMQBroker
from bench.render import figures_table
from reliable_mq import AsyncClient, Message
from reliable_mq.runtime.blocking_link import BlockingLink
from reliable_mq.wire.codes import RequestCode, ResponseCode
from reliable_mq.wire.command import Command, request
from reliable_mq.wire.record import Record, iter_records

TOPIC, GROUP = "popped-kill", "poppers"
QUEUES = 8
AT_ONCE = 1000
POPPERS = 4
LONG_MS = 3_600_000
SETTLE_SECONDS = 12  # the checkpoints of the offsets come every few seconds
ENDS_SECONDS = 10


def pop_request(invisible_ms: int, poll_ms: int) -> Command:
    """Return a request for as many messages as one may ask for."""
    fields: dict[str, object] = {
        "consumerGroup": GROUP,
        "topic": TOPIC,
        "queueId": -1,
        "maxMsgNums": 32,
        "invisibleTime": invisible_ms,
        "pollTime": poll_ms,
        "bornTime": int(time.time() * 1000) if poll_ms else 0,
        "initMode": 0,
    }
    return request(RequestCode.POP_MESSAGE, {name: str(value) for name, value in fields.items()})


async def fill(address: str, count: int, size: int) -> None:
    """Store so many messages, each with its number."""
    async with AsyncClient(address) as client:
        await client.create_topic(TOPIC, QUEUES)
        for at in range(0, count, AT_ONCE):
            numbers = range(at, min(count, at + AT_ONCE))
            bodies = (b"%010d" % number for number in numbers)
            some = [Message(topic=TOPIC, body=body.ljust(size, b"x")) for body in bodies]
            for outcome in await client.send_many(some):
                if isinstance(outcome, Exception):
                    raise outcome


def _number_of(record: Record) -> int:
    return int(bytes(record.body[:10]))


class Flight:
    """When each message is due, when it was back in the log, and when a consumer had it again.

    Args:
        address: of the broker.
        count: messages.
        first_ms: the shortest invisible time.
        over_ms: the longest one is by so much longer.
    """

    def __init__(self, address: str, count: int, first_ms: int, over_ms: int) -> None:
        self._address = address
        self._first_ms, self._over_ms = first_ms, over_ms
        self.due_ms = array("q", [0]) * count
        self.stored_ms = array("q", [0]) * count
        self.came_ms = array("q", [0]) * count
        self.twice = 0

    def pop_all(self) -> None:
        """Pop until there is nothing more."""
        threads = [threading.Thread(target=self._pop, args=(seed,)) for seed in range(POPPERS)]
        for each in threads:
            each.start()
        for each in threads:
            each.join()
        if missing := sum(1 for due in self.due_ms if not due):
            raise ChildError(f"{missing} messages were not popped")

    def _pop(self, seed: int) -> None:
        rng = random.Random(seed)
        with BlockingLink(self._address, 30) as link:
            while True:
                invisible = self._first_ms + rng.randrange(self._over_ms)
                answer = link.call(pop_request(invisible, 0))
                if answer.code != ResponseCode.SUCCESS:
                    return
                due = int(answer.ext_fields["popTime"]) + invisible
                for record in iter_records(answer.body):
                    self.due_ms[_number_of(record)] = due

    def watch(self) -> None:
        """Take what comes back, until some seconds after the last one was due."""
        end = max(self.due_ms) / 1000 + ENDS_SECONDS
        with BlockingLink(self._address, 30) as link:
            while time.time() < end:
                answer = link.call(pop_request(LONG_MS, 1_000))
                if answer.code != ResponseCode.SUCCESS:
                    continue
                now_ms = int(time.time() * 1000)
                for record in iter_records(answer.body):
                    number = _number_of(record)
                    self.twice += bool(self.came_ms[number])
                    self.came_ms[number] = now_ms
                    self.stored_ms[number] = record.store_time_ms


def measure(directory: Path, options: argparse.Namespace) -> list[dict[str, Any]]:
    """Run it once; return the figures."""
    figures: list[dict[str, Any]] = []

    def note(what: str, value: float, unit: str, bar: str = "") -> None:
        figures.append({"what": what, "broker": "ours", "value": value, "unit": unit, "bar": bar})
        print(f"{what}: {value:,} {unit}", flush=True)

    broker = ReliableMQBroker(directory, "ASYNC_FLUSH")
    broker.start()
    try:
        asyncio.run(fill(broker.name_server_address, options.count, options.size))
        flight = Flight(broker.address, options.count, options.first * 1000, options.over * 1000)
        before, begun = own_mib(broker.pids[0]), time.monotonic()
        flight.pop_all()
        took = time.monotonic() - begun
        note("popped", round(options.count / took), "messages/s")
        held = (own_mib(broker.pids[0]) - before) * 1024**2 / options.count
        note("memory for each message in flight", round(held, 1), "bytes", "< 200")
        time.sleep(SETTLE_SECONDS)
        if time.time() * 1000 > min(flight.due_ms):
            raise ChildError("messages are due before the kill: give a longer --first")
        broker.kill()
        begun = time.monotonic()
        broker.start()
        note("SIGKILL until ready", round(time.monotonic() - begun, 2), "s", "< 5")
        flight.watch()
    finally:
        broker.kill()
    report(flight, note)
    return figures


def report(flight: Flight, note: Any) -> None:
    """Say what came back, and when."""
    note("lost", sum(1 for came in flight.came_ms if not came), "messages", "0")
    note("came twice", flight.twice, "messages", "0")
    for what, times in (("in the log", flight.stored_ms), ("at the consumer", flight.came_ms)):
        pairs = zip(times, flight.due_ms, strict=True)
        late = sorted(at - due for at, due in pairs if at)
        if len(late) < 2:
            continue
        early = sum(1 for each in late if each < 0)
        note(f"{what} early", early, "messages", "0")
        note(f"{what}: half are late by", late[len(late) // 2], "ms")
        note(f"{what}: 99 of 100 by at most", round(quantiles(late, n=100)[98]), "ms")
        note(f"{what}: the last by", late[-1], "ms", "<= 1000")
        note(f"{what} late by over a second", sum(each > 1000 for each in late), "messages", "0")


def reached(figures: Sequence[dict[str, Any]]) -> bool:
    """Tell whether nothing was lost, early or doubled."""
    values = {each["what"]: each["value"] for each in figures}
    return not (values["lost"] or values["came twice"] or values.get("in the log early"))


def main() -> int:
    parser = argparse.ArgumentParser(description="Popped messages in flight over a SIGKILL.")
    parser.add_argument("--count", type=int, default=1_000_000, help="messages")
    parser.add_argument("--size", type=int, default=100, help="bytes of a body")
    parser.add_argument("--first", type=int, default=75, help="shortest invisible time, seconds")
    parser.add_argument("--over", type=int, default=150, help="the longest is by so much longer")
    parser.add_argument("--keep", action="store_true", help="keep the result in bench/results")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="reliable-mq-popped-") as name:
        figures = measure(Path(name), options)
    settings = {k: v for k, v in vars(options).items() if k != "keep"}
    results = raw_results.of_now("popped-kill", settings, figures)
    print(figures_table(results))
    if options.keep:
        print(raw_results.write(results))
    return 0 if reached(figures) else 1


if __name__ == "__main__":
    sys.exit(main())
