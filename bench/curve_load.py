"""What `curves` sends: requests made in advance, over one connection, some at a time.

Only the broker's processor time counts, so this client may be slow.
"""

import itertools
import socket
import time
from collections.abc import Iterable, Mapping, Sequence
from typing import Self

from bench.attack_requests import frame
from bench.quiet import resident_mib
from bench.reliable_mq_broker import ReliableMQBroker
from bench.send_cost import processor_seconds
from reliable_mq.wire.codes import RequestCode
from reliable_mq.wire.command import Command, decode_command
from reliable_mq.wire.frame import FrameReader
from reliable_mq.wire.properties import encode_properties

AT_ONCE = 16
BODY = b"x" * 1024
GROUP = "curves"
SETTLED_SHARE = 0.02  # of a processor; a broker at rest uses less, a checkpoint more
LOOK_SECONDS = 1.0
PUT_OFF_SECONDS = 11.0  # a checkpoint begins after ten
_TIMEOUT_SECONDS = 60.0
_ids = itertools.count(1)


class Caller:
    """One connection. A context manager."""

    def __init__(self, address: str) -> None:
        host, _, port = address.rpartition(":")
        self._socket = socket.create_connection((host, int(port)), _TIMEOUT_SECONDS)
        self._reader = FrameReader()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._socket.close()

    def write(self, frames: Iterable[bytes]) -> None:
        """Send requests; `read` has their answers."""
        self._socket.sendall(b"".join(frames))

    def read(self, count: int) -> list[Command]:
        """Return the next answers, at least `count`.

        Raises:
            RuntimeError: when one is a refusal.
        """
        answers: list[Command] = []
        while len(answers) < count:
            data = self._socket.recv(1 << 20)
            if not data:
                raise RuntimeError("the broker has closed the connection")
            answers += map(decode_command, self._reader.feed(data))
        for answer in answers:
            if answer.code:
                raise RuntimeError(f"refused: {answer.code} {answer.remark}")
        return answers

    def ask(self, frames: Iterable[bytes], at_once: int = AT_ONCE) -> list[Command]:
        """Send requests, `at_once` at a time, and return the last answers."""
        rest, answers = iter(frames), []
        while some := list(itertools.islice(rest, at_once)):
            self.write(some)
            answers = self.read(len(some))
        return answers


def creation(topic: str, queues: int = 1) -> bytes:
    """Return the request that creates a topic."""
    fields = {
        "topic": topic,
        "defaultTopic": "TBW102",
        "perm": 6,
        "order": "false",
        "readQueueNums": queues,
        "writeQueueNums": queues,
        "topicFilterType": "SINGLE_TAG",
        "topicSysFlag": 0,
    }
    return frame(RequestCode.UPDATE_AND_CREATE_TOPIC, fields)


def send(topic: str, queue: int = 0, properties: Mapping[str, str] | None = None) -> bytes:
    """Return the request that sends a message of 1 KiB, as clients do: it has an id of its own."""
    properties = {"UNIQ_KEY": f"{next(_ids):032X}", "WAIT": "true", **(properties or {})}
    fields = {"a": GROUP, "b": topic, "c": "TBW102", "d": 8, "e": queue, "f": 0, "g": 1, "h": 0}
    fields |= {"i": encode_properties(properties).decode(), "j": 0, "k": "false"}
    return frame(RequestCode.SEND_MESSAGE_V2, {**fields, "l": 0, "m": "false"}, BODY)


def pull(topic: str, queue: int = 0, offset: int = 0, **changes: object) -> bytes:
    """Return the request that pulls 32 messages, with or without a wait."""
    fields = {
        "consumerGroup": GROUP,
        "topic": topic,
        "queueId": queue,
        "queueOffset": offset,
        "maxMsgNums": 32,
        "sysFlag": 4,
        "commitOffset": 0,
        "suspendTimeoutMillis": 900_000,
        "subscription": "*",
        "subVersion": 0,
        **changes,
    }
    return frame(RequestCode.PULL_MESSAGE, fields)


def commit(topic: str, queue: int = 0, offset: int = 1) -> bytes:
    """Return the request that commits an offset."""
    fields = {"consumerGroup": GROUP, "topic": topic, "queueId": queue, "commitOffset": offset}
    return frame(RequestCode.UPDATE_CONSUMER_OFFSET, fields)


class Subject:
    """A running broker, and what it uses.

    Args:
        broker: it has started.
    """

    def __init__(self, broker: ReliableMQBroker) -> None:
        (self.pid,) = broker.pids
        self.address = broker.address

    def settle(self) -> None:
        """Return when the broker rests: what it has put off is done."""
        calm = 0
        while calm < PUT_OFF_SECONDS / LOOK_SECONDS:
            before = processor_seconds(self.pid)
            time.sleep(LOOK_SECONDS)
            is_calm = processor_seconds(self.pid) - before < SETTLED_SHARE * LOOK_SECONDS
            calm = calm + 1 if is_calm else 0

    def cost(self, caller: Caller, frames: Sequence[bytes], at_once: int = AT_ONCE) -> float:
        """Return the microseconds of the broker's processor for each of these requests."""
        before = processor_seconds(self.pid)
        caller.ask(frames, at_once)
        return (processor_seconds(self.pid) - before) / len(frames) * 1e6

    def whole_cost(self, caller: Caller, frames: Sequence[bytes], rest: float) -> float:
        """The same with everything that the broker has put off, without its `rest`."""
        before, begin = processor_seconds(self.pid), time.monotonic()
        caller.ask(frames)
        self.settle()
        used, seconds = processor_seconds(self.pid) - before, time.monotonic() - begin
        return (used - rest * seconds) / len(frames) * 1e6

    def rest(self, seconds: float) -> float:
        """Return the processors that it uses while nobody asks."""
        before, begin = processor_seconds(self.pid), time.monotonic()
        time.sleep(seconds)
        return (processor_seconds(self.pid) - before) / (time.monotonic() - begin)

    def resident(self) -> float:
        """Return its resident memory in MiB."""
        return resident_mib(self.pid)
