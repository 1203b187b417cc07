"""A broker and its name server in memory: the real cores, a disk in memory, a clock set by hand.

Receives commands; hands on replies at once. Nothing runs by itself: `tick` does what is due by the
clock. What it acknowledged is on its disk, so that `restart` finds it as after SIGKILL.
"""

from reliable_mq.broker_core.config_reading import broker_config
from reliable_mq.broker_core.core import BrokerCore
from reliable_mq.broker_core.registration import registrations
from reliable_mq.broker_core.state import PeerConnection
from reliable_mq.broker_core.store.commit_log import CommitLog
from reliable_mq.errors import ConfigurationError
from reliable_mq.name_server.core import NameServerCore
from reliable_mq.testing.manual_clock import ManualClock
from reliable_mq.testing.memory_disk import MemoryDisk
from reliable_mq.wire.codes import RequestCode
from reliable_mq.wire.command import (
    Command,
    decode_command,
    encode_command,
)
from reliable_mq.wire.frame import FrameReader
from reliable_mq.wire.record import Record, pack_host

NAME_SERVER = "127.0.0.1:9876"
BROKER = "127.0.0.1:10911"

_BROKER_CONNECTION = 1
_PROPERTIES = {
    "brokerName": "memory",
    "brokerIP1": "127.0.0.1",
    "listenPort": "10911",
    "mappedFileSizeCommitLog": str(32 * 1024 * 1024),
    "mappedFileSizeConsumeQueue": "200000",
    "messageIndexEnable": "false",
}
_SUSPEND = 0x2


class MemoryBroker:
    """One broker and one name server.

    Args:
        clock: their time.
        properties: settings of the broker, by Apache RocketMQ's names.

    Raises:
        ConfigurationError: when a property does not read, or the broker has none of its name.
    """

    def __init__(self, clock: ManualClock, **properties: str) -> None:
        self._clock = clock
        self._disk = MemoryDisk()
        self._properties = _PROPERTIES | properties
        self._name_server = NameServerCore()
        self._opaque = 0
        self._inbox: dict[int, list[Command]] = {}
        self._start()

    def _start(self) -> None:
        config, warnings = broker_config(self._properties)
        if warnings:  # a test would not see them
            raise ConfigurationError("; ".join(warnings))
        self.core = BrokerCore(config, self._disk)
        self.core.open(self._clock.epoch_ms)
        self._finish_turn()
        self._register()

    def restart(self) -> None:
        """Kill the broker and start it over what its disk has; every connection is gone."""
        self._inbox.clear()
        self._start()

    def ask(self, address: str, command: Command, of: int) -> Command | None:
        """Return the reply to a command that came over connection `of`; None: it gets none."""
        self._opaque += 1
        command.opaque = self._opaque
        if address == NAME_SERVER:
            self._register()
            return self._name_server.receive(of, command, self._clock.epoch_ms)
        if command.code == RequestCode.PULL_MESSAGE:  # nobody would wake it up
            flags = int(command.ext_fields["sysFlag"]) & ~_SUSPEND
            command.ext_fields["sysFlag"] = str(flags)
        (frame,) = FrameReader().feed(encode_command(command))
        self.core.receive(_connection(of), self.core.decode(frame), self._clock.epoch_ms)
        self._finish_turn()
        for answer in self._inbox.get(of, []):
            if answer.is_reply and answer.opaque == self._opaque:
                self._inbox[of].remove(answer)
                return answer
        return None

    def requests_to(self, of: int) -> list[Command]:
        """Take what the broker asks of the client at connection `of`, as half messages' checks."""
        asked = [each for each in self._inbox.get(of, []) if not each.is_reply]
        self._inbox.pop(of, None)
        return asked

    @property
    def address(self) -> str:
        """Where the broker says that it is."""
        return BROKER

    def answer(self, frame: bytes, of: int) -> None:
        """Take a client's answer to what the broker asked."""
        (cut,) = FrameReader().feed(bytes(frame))
        self.core.receive(_connection(of), self.core.decode(cut), self._clock.epoch_ms)
        self._finish_turn()

    def records(self, topic: str) -> list[Record]:
        """Return the messages of a topic, in the order in which they were stored."""
        store = self.core.state.store
        config = self.core.state.topics.get(topic)
        found = []
        for queue_id in range(config.read_queue_nums if config is not None else 0):
            queue = store.queue(topic, queue_id)
            if queue is None:
                continue
            for at in range(queue.first, queue.end):
                record = store.read_record(queue.unit(at).commit_log_offset)
                if record is not None:
                    found.append(record)
        return sorted(found, key=lambda record: record.commit_log_offset)

    def tick(self) -> None:
        """Do what is due by the clock: delays, check-backs, held queue locks."""
        self.core.tick(self._clock.epoch_ms)
        self._finish_turn()

    def disconnect(self, of: int) -> None:
        """Let a connection end, as when its process dies."""
        self.core.disconnected(of)
        self._inbox.pop(of, None)
        self._finish_turn()

    def _register(self) -> None:
        """Let the name server know the topics, as a broker does before it answers who made one."""
        self.core.state.take_unregistered()
        for command in registrations(self.core.state):
            self._name_server.receive(_BROKER_CONNECTION, command, self._clock.epoch_ms)

    def _finish_turn(self) -> None:
        """Write and sync what is to be written, and take the replies, until nothing more comes."""
        while True:
            turn = self.core.take_turn()
            for number, frame in turn.replies + turn.registered_replies:
                inbox = self._inbox.setdefault(number, [])
                inbox.extend(decode_command(cut) for cut in FrameReader().feed(bytes(frame)))
            if turn.batch:
                CommitLog.write_batch(turn.batch)
                CommitLog.sync(turn.batch)
            for path, content in turn.files.items():
                self._disk.write_text(path, content)
            if turn.batch:
                self.core.stored(turn.batch.end, durable=True, now_ms=self._clock.epoch_ms)
            if turn.files:
                self.core.saved()
            if not turn.batch and not turn.files:
                return


def _connection(number: int) -> PeerConnection:
    return PeerConnection(number, pack_host("127.0.0.1", number), f"127.0.0.1:{number}")
