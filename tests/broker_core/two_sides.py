"""Two brokers get the same bytes: one knows short ways, the other one takes the general ones."""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

from tests.broker_core.broker_world import START_MS, TOPIC, BrokerWorld, connection

from reliable_mq.broker_core.answers import Answer
from reliable_mq.broker_core.requests import known_sends, send
from reliable_mq.errors import FrameError
from reliable_mq.wire import frame as frame_reading
from reliable_mq.wire.batch_body import decode_alike
from reliable_mq.wire.codes import RequestCode
from reliable_mq.wire.command import Command, decode_request, encode_command, request
from reliable_mq.wire.frame import JSON, Frame, FrameReader
from reliable_mq.wire.known_send import KnownSends

QUEUES = 12
NARROW, LONG = "narrow", "l" * 127
KEY = "7F000001B418251A69D75A3F0000000"


class Side:
    """A broker that is sent bytes; it recognises alike messages, or decodes each in general."""

    general = staticmethod(decode_request)

    def __init__(self, *, knows: bool, **properties: str) -> None:
        self.world = self.new_world(properties)
        self.knows = knows
        self.answers: list[Answer] = []
        self.known = self.alike = 0
        self._readers: dict[int, tuple[Any, Any]] = {}
        for topic in (TOPIC, NARROW, LONG):
            self.world.create_topic(topic, QUEUES if topic == TOPIC else 1)

    def new_world(self, properties: dict[str, str]) -> BrokerWorld:
        """Return the broker."""
        return BrokerWorld(None, **properties)

    def _reader(self, of: int) -> tuple[Any, Any]:
        if of not in self._readers:
            known, decode = self.world.core.decoder(connection(of).host)
            self._readers[of] = (
                (FrameReader(64, known), decode) if self.knows else (FrameReader(64), self.general)
            )
        return self._readers[of]

    def receive(self, data: bytes, of: int = 1) -> bool:
        """Take one read of a connection; return whether it is closed for it."""
        reader, decode = self._reader(of)
        try:
            commands = self._commands(reader.feed(data), decode)
            while reader.uncut:
                commands += self._commands(reader.cut_more(), decode)
        except FrameError:
            del self._readers[of]
            return True
        for command in commands:
            if isinstance(command, KnownSends):
                self.known += len(command.bodies)
            with patch.object(send, "decode_alike", self._alike):
                self.world.core.receive(connection(of), command, self.world.now_ms)
        return False

    def _alike(self, body: bytes) -> Any:
        found = decode_alike(body) if self.knows else None
        self.alike += found is not None
        return found

    def index(self) -> None:
        """List in the index what is visible."""
        while self.world.core.index_some(self.world.now_ms):
            pass

    @staticmethod
    def _commands(frames: Iterable[Any], decode: Any) -> list[Command]:
        return [decode(each) if isinstance(each, Frame) else each for each in frames]

    def end_turn(self) -> None:
        """Write the turn, and keep its answers as they leave."""
        core = self.world.core
        turn = core.take_turn(self.world.now_ms, self.world.now_ms)
        self.answers += turn.replies
        self.world.waiting.append(turn)
        self.world.write()
        self.answers += core.state.answers.take_ready()

    def seen(self) -> dict[str, object]:
        """Return everything that a send may change."""
        self.end_turn()
        self.index()
        state = self.world.state
        state.collect_statistics(self.world.now_ms)
        statistics = state.statistics
        return {
            "answers": [(number, bytes(frame)) for number, frame in self.answers],
            "files": self.world.disk.files(),
            "queues": {
                key: (queue.first, queue.end, queue.last_log_offset, queue.log_end)
                for key, queue in state.store.queues.items()
            },
            "units": {
                key: [queue.unit(number) for number in range(queue.first, queue.end)]
                for key, queue in state.store.queues.items()
            },
            "totals": (statistics.totals, statistics.put_size),
            "counters": {key: (item.value, item.times) for key, item in statistics._items.items()},
            "log": (state.store.log.end, state.store.appender.last_time_ms),
            "refused": state.quotas.refusals(),
        }


@contextmanager
def columns_from(count: int) -> Iterator[None]:
    """Have so many sends read and stored as columns."""
    with patch.object(known_sends, "FEW", count), patch.object(frame_reading, "ALIKE_MIN", count):
        yield


def send_command(
    opaque: int,
    *,
    kind: int = JSON,
    code: int = RequestCode.SEND_MESSAGE_V2,
    flag: int = 0,
    body: bytes = b"x",
    **changes: str | None,
) -> Command:
    """Return a send as Apache's Java client makes it; a field that is None is left out."""
    fields = {
        "a": "producers",
        "b": TOPIC,
        "c": "TBW102",
        "d": "4",
        "e": "3",
        "f": "0",
        "g": str(START_MS),
        "h": "0",
        "i": f"UNIQ_KEY\x01{KEY}0\x02WAIT\x01true\x02",
        "j": "0",
        "k": "false",
        "m": "false",
        "n": "b",
        **changes,
    }
    command = request(code, {k: v for k, v in fields.items() if v is not None}, body)
    command.opaque, command.flag, command.serialize_type = opaque, flag, kind
    command.language = "JAVA"
    return command


def send_frame(opaque: int, **fields: Any) -> bytes:
    """Return `send_command` as that client writes it."""
    return encode_command(send_command(opaque, **fields))
