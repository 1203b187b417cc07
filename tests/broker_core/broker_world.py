"""A broker's core on a disk in memory, driven by hand: no sockets, no clock, no threads."""

from collections.abc import Mapping
from typing import Any, TypeVar

from reliable_mq.broker_core.config_reading import broker_config
from reliable_mq.broker_core.core import BrokerCore
from reliable_mq.broker_core.state import BrokerState, PeerConnection, Turn
from reliable_mq.broker_core.store.appender import StoredMessage
from reliable_mq.broker_core.store.commit_log import CommitLog
from reliable_mq.testing.memory_disk import MemoryDisk
from reliable_mq.watched_time import ClockReading
from reliable_mq.wire import fastjson
from reliable_mq.wire.codes import RequestCode
from reliable_mq.wire.command import (
    Command,
    decode_command,
    encode_command,
    request,
)
from reliable_mq.wire.frame import FrameReader
from reliable_mq.wire.properties import encode_properties
from reliable_mq.wire.record import Record, pack_host

SMALL = {
    "mappedFileSizeCommitLog": str(256 * 1024),
    "mappedFileSizeConsumeQueue": "20000",
    "maxMessageSize": "65536",
    "maxHashSlotNum": "100",
    "maxIndexNum": "2000",
    "brokerName": "b",
}
START_MS = 1_700_000_000_000
TOPIC = "orders"
GROUP = "payments"

_T = TypeVar("_T")


def connection(number: int) -> PeerConnection:
    return PeerConnection(number, pack_host("10.0.0.1", number), f"10.0.0.1:{number}")


def there(thing: _T | None) -> _T:
    """Return what must be there."""
    assert thing is not None
    return thing


class BrokerWorld:
    """One broker, its disk and its time. `inbox` keeps what each connection was sent.

    Everything that is handed out is written and durable at once, unless `is_writing` is False.
    """

    is_warned = False  # of properties that have no effect

    def __init__(self, disk: MemoryDisk | None = None, **properties: str) -> None:
        self.disk = disk or MemoryDisk()
        self.now_ms = START_MS
        self.properties = {**SMALL, **properties}
        self.is_writing = True
        self.inbox: dict[int, list[Command]] = {}
        self.waiting: list[Turn] = []
        self._opaque = 0
        self.start()

    def start(self) -> None:
        """Start a core over what the disk has."""
        config, warnings = broker_config(self.properties)
        assert bool(warnings) == self.is_warned, warnings
        self.core = BrokerCore(config, self.disk)
        self.core.open(self.now_ms)
        self.finish_turn()

    def stop(self) -> None:
        """Stop cleanly."""
        self.finish_turn()
        self.core.close()

    def reading(self, *, ahead_ms: int = 0) -> ClockReading:
        """Return a look at the clock, and at one that nobody sets: by it the clock is ahead."""
        return ClockReading(self.now_ms / 1000, (self.now_ms - ahead_ms) / 1000, self.disk.boot_id)

    @property
    def state(self) -> BrokerState:
        return self.core.state

    def ask(
        self,
        code: int,
        ext: Mapping[str, object] | None = None,
        body: bytes = b"",
        *,
        of: int = 1,
        version: int = 493,
    ) -> Command:
        """Send a request over connection `of` and return its reply."""
        answer = self.begin(code, ext, body, of=of, version=version)
        if answer is None:
            answer = self._indexed_reply(of)
        assert answer is not None, f"request {code} was not answered"
        return answer

    def begin(
        self,
        code: int,
        ext: Mapping[str, object] | None = None,
        body: bytes = b"",
        *,
        of: int = 1,
        version: int = 493,
        oneway: bool = False,
    ) -> Command | None:
        """Send a request and return its reply, None when there is none yet."""
        self._opaque += 1
        fields = {name: str(value) for name, value in (ext or {}).items() if value is not None}
        command = request(code, fields, body, oneway=oneway)
        command.opaque = self._opaque
        command.version = version
        (frame,) = FrameReader().feed(encode_command(command))
        self.core.receive(connection(of), self.core.decode(frame), self.now_ms)
        self.finish_turn()
        return self.reply_to(self._opaque, of=of)

    def _indexed_reply(self, of: int) -> Command | None:
        """Let the index come up to the log, and take what waited for it."""
        while self.core.index_some(self.now_ms):
            pass
        self.finish_turn()
        return self.reply_to(self._opaque, of=of)

    def reply_to(self, opaque: int, *, of: int = 1) -> Command | None:
        """Take the reply to a request out of a connection's inbox."""
        for command in self.inbox.get(of, []):
            if command.is_reply and command.opaque == opaque:
                self.inbox[of].remove(command)
                return command
        return None

    @property
    def last_opaque(self) -> int:
        return self._opaque

    def notices(self, of: int = 1) -> list[Command]:
        """Take the broker's own requests out of a connection's inbox."""
        found = [command for command in self.inbox.get(of, []) if not command.is_reply]
        self.inbox[of] = [command for command in self.inbox.get(of, []) if command.is_reply]
        return found

    def finish_turn(self) -> None:
        """Deliver replies, and write what is to be written, until nothing more comes."""
        while True:
            turn = self.core.take_turn()
            for number, frame in turn.replies + turn.registered_replies:
                self.inbox.setdefault(number, []).extend(
                    decode_command(cut) for cut in FrameReader().feed(bytes(frame))
                )
            self.waiting.append(turn)
            has_written = self.is_writing and self.write()
            if not (has_written or self.state.files.has_due):
                return

    def write(self) -> bool:
        """Write what waits; return whether there was something."""
        waiting, self.waiting = self.waiting, []
        end = -1
        for turn in waiting:
            if turn.batch:
                CommitLog.write_batch(turn.batch)
                CommitLog.sync(turn.batch)
                end = turn.batch.end
            for path, text in turn.files.items():
                self.disk.write_text(path, text)
        if end >= 0:
            self.core.stored(end, durable=True)
        are_saved = any(turn.files for turn in waiting)
        if are_saved:
            self.core.saved()
        return end >= 0 or are_saved

    def pass_time(self, milliseconds: int, *, step: int = 100) -> None:
        """Let time pass with a tick each `step` milliseconds."""
        end = self.now_ms + milliseconds
        while self.now_ms < end:
            self.now_ms = min(end, self.now_ms + step)
            self.core.tick(self.now_ms)
            self.core.index_some(self.now_ms)
            self.finish_turn()

    # what tests ask for again and again

    def create_topic(self, name: str = TOPIC, queues: int = 1, perm: int = 6) -> None:
        answer = self.ask(
            RequestCode.UPDATE_AND_CREATE_TOPIC,
            {"topic": name, "readQueueNums": queues, "writeQueueNums": queues, "perm": perm},
        )
        assert answer.code == 0

    def send(
        self, body: bytes = b"x", *, topic: str = TOPIC, queue_id: int = 0, **properties: str
    ) -> Command:
        answer = self.ask(
            RequestCode.SEND_MESSAGE_V2, send_header(topic, queue_id, **properties), body
        )
        assert answer.code == 0, answer.remark
        return answer

    def forge(self, topic: str, queue_id: int = 0, **properties: str) -> None:
        """Store what no client could have sent: another broker took it, and left us its log."""
        message = StoredMessage(
            topic=topic,
            queue_id=queue_id,
            body=b"forged",
            properties=encode_properties({"UNIQ_KEY": "F" * 32, **properties}),
            flag=0,
            sys_flag=0,
            born_time_ms=self.now_ms,
            born_host=connection(1).host,
        )
        self.state.append(message, self.now_ms)
        self.finish_turn()

    def subscribe(
        self, *topics: str, of: int = 1, group: str = GROUP, **changes: object
    ) -> Command:
        return self.ask(
            RequestCode.HEART_BEAT, {}, heartbeat(*topics, of=of, group=group, **changes), of=of
        )

    def records(self, topic: str, queue_id: int = 0) -> list[Record]:
        """Return the messages of a queue, oldest first."""
        queue = self.state.store.queue(topic, queue_id)
        if queue is None:
            return []
        units = [queue.unit(n) for n in range(queue.first, queue.end)]
        return [there(self.state.store.read_record(unit.commit_log_offset)) for unit in units]

    def file(self, path: str) -> Any:
        """Return what a configuration file says."""
        return fastjson.loads(self.disk.read_text(path))


def send_header(topic: str = TOPIC, queue_id: int = 0, **properties: str) -> dict[str, object]:
    return {
        "a": "producers",
        "b": topic,
        "c": "TBW102",
        "d": 4,
        "e": queue_id,
        "f": 0,
        "g": START_MS,
        "h": 0,
        "i": encode_properties(properties).decode() if properties else None,
    }


def pull_header(offset: int = 0, **changes: object) -> dict[str, object]:
    """Return the header of a pull that brings its subscription with it."""
    return {
        "consumerGroup": GROUP,
        "topic": TOPIC,
        "queueId": 0,
        "queueOffset": offset,
        "maxMsgNums": 32,
        "sysFlag": 4,
        "commitOffset": 0,
        "suspendTimeoutMillis": 15_000,
        "subscription": "*",
        **changes,
    }


def waiting_pull_header(offset: int = 0, **changes: object) -> dict[str, object]:
    """Return the header of a pull that may be held."""
    return pull_header(offset, **{"sysFlag": 6, **changes})


def heartbeat(*topics: str, of: int = 1, group: str = GROUP, **changes: object) -> bytes:
    beat: dict[str, object] = {
        "clientID": changes.pop("client_id", f"client-{of}"),
        "heartbeatFingerprint": changes.pop("fingerprint", 0),
        "withoutSub": changes.pop("without_sub", False),
        "producerDataSet": [],
    }
    version = changes.pop("sub_version", 1)
    consumer = {
        "groupName": group,
        "consumeType": "CONSUME_PASSIVELY",
        "messageModel": "CLUSTERING",
        "consumeFromWhere": "CONSUME_FROM_LAST_OFFSET",
        "subscriptionDataSet": [
            {"topic": topic, "subString": "*", "subVersion": version} for topic in topics
        ],
        **changes,
    }
    return fastjson.dumps({**beat, "consumerDataSet": [consumer]})
