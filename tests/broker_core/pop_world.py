"""A broker whose messages are popped: the requests of a consumer, and what it gets."""

from collections.abc import Mapping
from typing import NamedTuple

from tests.broker_core.broker_world import GROUP, TOPIC, BrokerWorld

from reliable_mq.testing.memory_disk import MemoryDisk
from reliable_mq.wire.codes import RequestCode as Ask
from reliable_mq.wire.command import Command
from reliable_mq.wire.pop_handle import PopHandle, kind_of, parse_handle
from reliable_mq.wire.record import Record, iter_records

INVISIBLE_MS = 10_000
BEHIND_MS = 6 * INVISIBLE_MS
RETRY = f"%RETRY%{GROUP}_{TOPIC}"
RETRY_V2 = f"%RETRY%{GROUP}+{TOPIC}"


class Taken(NamedTuple):
    """A popped message, and its handle as a client makes it from the reply."""

    record: Record
    topic: str
    handle: PopHandle

    @property
    def body(self) -> bytes:
        return self.record.body


class PopWorld(BrokerWorld):
    """One broker with a topic, and a group that pops it."""

    queues = 1

    def __init__(self, disk: MemoryDisk | None = None, **properties: str) -> None:
        super().__init__(disk, **{"mappedFileSizeTimerLog": "65536", **properties})
        if TOPIC not in self.state.topics.by_name:
            self.create_topic(TOPIC, self.queues)

    def pop_header(self, **changes: object) -> dict[str, object]:
        return {
            "consumerGroup": GROUP,
            "topic": TOPIC,
            "queueId": -1,
            "maxMsgNums": 32,
            "invisibleTime": INVISIBLE_MS,
            "pollTime": 0,
            "bornTime": self.now_ms,
            "initMode": 0,
            "expType": "TAG",
            "exp": "*",
            **changes,
        }

    def pop(self, **changes: object) -> list[Taken]:
        """Pop, and return what came."""
        answer = self.ask(Ask.POP_MESSAGE, self.pop_header(**changes))
        assert answer.code in (0, 210), answer.remark
        return taken(answer)

    def commit(self, offset: int) -> None:
        """Commit an offset of queue 0."""
        place = {"consumerGroup": GROUP, "topic": TOPIC, "queueId": 0, "commitOffset": offset}
        assert self.ask(Ask.UPDATE_CONSUMER_OFFSET, place).code == 0

    def bodies(self, **changes: object) -> list[bytes]:
        return [each.body for each in self.pop(**changes)]

    def ack(self, message: Taken, **changes: object) -> Command:
        return self.ask(Ask.ACK_MESSAGE, ack_header(message, **changes))

    def extend(self, message: Taken, invisible_ms: int, **changes: object) -> Command:
        header = {**ack_header(message), "invisibleTime": invisible_ms, **changes}
        return self.ask(Ask.CHANGE_MESSAGE_INVISIBLETIME, header)

    def check(self) -> None:
        """Check the invariants of what a pop touches."""
        state = self.state
        state.popped.invariants(state.store.log.durable)
        for part in (state.pops, state.notifications, state.orders, state.timers.revival):
            part.invariants()
        state.timers.invariants()
        state.timers.settled.invariants()
        state.offsets.invariants()

    def pass_time(self, milliseconds: int, *, step: int = 100) -> None:
        super().pass_time(milliseconds, step=step)
        self.check()

    def restart(self, *, is_killed: bool = False) -> None:
        """Stop cleanly, or die at once; then start again over what the disk has."""
        if is_killed:
            self.disk.kill()
            self.waiting.clear()
        else:
            self.stop()
        self.start()


class ManyQueues(PopWorld):
    """A broker whose topic has four queues."""

    queues = 4


def world_behind_timers(more_ms: int = 0) -> PopWorld:
    """Return a world with a clock `BEHIND_MS` behind: pops from one place have the same time."""
    world = PopWorld()
    world.send(b"first")
    world.pop()
    world.pass_time(2 * INVISIBLE_MS + more_ms)
    world.now_ms -= BEHIND_MS
    return world


def ack_header(message: Taken, **changes: object) -> dict[str, object]:
    return {
        "consumerGroup": GROUP,
        "topic": message.topic,
        "queueId": message.handle.queue_id,
        "extraInfo": message.handle.text(),
        "offset": message.handle.offset,
        **changes,
    }


def taken(answer: Command) -> list[Taken]:
    """Return the messages of a reply, as Apache's client reads it."""
    if answer.code:
        return []
    ext = answer.ext_fields
    starts = _by_queue(ext["startOffsetInfo"])
    offsets = _by_queue(ext["msgOffsetInfo"])
    found: list[Taken] = []
    for record in iter_records(answer.body):
        topic, group = record.topic, GROUP
        popped = record.property_map().get("POP_CK")
        if popped is not None:
            handle = parse_handle(popped)
            real = {"1": f"%RETRY%{group}_{topic}", "2": f"%RETRY%{group}+{topic}"}
            assert str(handle.offset) in offsets[f"{handle.kind} {handle.queue_id}"].split(",")
            found.append(Taken(record, real[handle.kind], handle))
            continue
        kind = kind_of(topic)
        key = f"{kind} {record.queue_id}"
        assert str(record.queue_offset) in offsets[key].split(",")
        handle = PopHandle(
            int(starts[key]),
            int(ext["popTime"]),
            int(ext["invisibleTime"]),
            int(ext["reviveQid"]),
            kind,
            "b",
            record.queue_id,
            record.queue_offset,
        )
        found.append(Taken(record, topic, handle))
    return found


def _by_queue(text: str) -> Mapping[str, str]:
    """Return the last word of each part of a field by the two before it."""
    return dict(part.rsplit(" ", 1) for part in text.split(";") if part)
