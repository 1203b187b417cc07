"""Records of what was popped and acknowledged: timed messages for the revive topic.

They wait like other timed messages, so they need no memory, and Apache's broker finds them as its
own. Source: Apache RocketMQ `PopMessageProcessor.buildCkMsg`, `AckMessageProcessor`.
"""

from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import NamedTuple

from reliable_mq.broker_core.delivery.popped import AckedTime, TurnAcks
from reliable_mq.broker_core.delivery.written_notes import WrittenNote
from reliable_mq.broker_core.names import TIMER_TOPIC, revive_topic
from reliable_mq.broker_core.state import BrokerState
from reliable_mq.broker_core.store.appender import AppendResult, StoredMessage
from reliable_mq.broker_core.store.timer_log import slot_of
from reliable_mq.errors import MessageRefused
from reliable_mq.wire.java_hash import tags_code
from reliable_mq.wire.pop_records import (
    ACK,
    ACKS,
    AHEAD_MS,
    CHECKPOINT,
    CheckpointKey,
    PopAcks,
    PopCheckpoint,
    encode_acks,
    encode_checkpoint,
)
from reliable_mq.wire.properties import (
    REAL_QUEUE_ID,
    REAL_TOPIC,
    TAGS,
    TIMER_DELIVER_MS,
    TIMER_OUT_MS,
    UNIQ_KEY,
)

_PAIRS = 6  # of the properties of a record
_ACK_CODE, _ACKS_CODE = tags_code(ACK), tags_code(ACKS)


def append_checkpoint(
    state: BrokerState, checkpoint: PopCheckpoint, revive_queue: int, now_ms: int
) -> AppendResult:
    """Store a checkpoint; it is read one second before its messages come back."""
    due_ms = checkpoint.revive_ms - AHEAD_MS
    body = encode_checkpoint(checkpoint)
    return _append(state, body, CHECKPOINT, checkpoint.name, due_ms, revive_queue, now_ms)


def append_acks(
    state: BrokerState, acks: PopAcks, revive_ms: int, revive_queue: int, now_ms: int
) -> AppendResult:
    """Store acknowledgements; they are read when the other messages come back."""
    form = _ack_form(acks.key, revive_ms, _out_ms(state, revive_ms), revive_queue, _topic(state))
    body, properties = form.record(acks.offsets)
    place = state.append(_message(state, body, properties, now_ms), now_ms)
    size = place.end - place.commit_log_offset
    state.timers.written.note(form.note(place.queue_offset, place.commit_log_offset, size))
    state.timers.settled.acknowledged(acks.key, revive_ms, acks.offsets, place.commit_log_offset)
    return place


def append_acks_together(
    state: BrokerState, found: Mapping[AckedTime, TurnAcks], now_ms: int
) -> None:
    """Store acknowledgements of some checkpoints, a record for each, side by side in the log."""
    if len(found) == 1:
        (((key, revive_ms), (revive_queue, acked)),) = found.items()
        append_acks(state, PopAcks(key, tuple(acked)), revive_ms, revive_queue, now_ms)
        return
    topic, forms, records, codes = _topic(state), [], [], []
    for (key, revive_ms), (revive_queue, acked) in found.items():
        form = _ack_form(key, revive_ms, _out_ms(state, revive_ms), revive_queue, topic)
        forms.append(form)
        records.append(form.record(tuple(acked)))
        codes.append(_ACK_CODE if len(acked) == 1 else _ACKS_CODE)
    bodies, properties = zip(*records, strict=True)
    like = _message(state, b"", b"", now_ms)
    place, offsets = state.store.appender.append_batch(
        like, [0] * len(bodies), bodies, properties, now_ms, codes
    )
    note, queue_offset, ends = state.timers.written.note, place.queue_offset, [*offsets, place.end]
    acknowledged = state.timers.settled.acknowledged
    acks = zip(forms, offsets, found.items(), strict=True)
    for number, (form, at, ((key, revive_ms), (_, acked))) in enumerate(acks):
        note(form.note(queue_offset + number, at, ends[number + 1] - at))
        acknowledged(key, revive_ms, acked, at)


class _AckForm(NamedTuple):
    """The records of acknowledgements of one checkpoint: they differ in their offsets only.

    Those of one message have its offset in body and properties, those of several in the body.
    """

    body: bytes  # behind the offset, or the offsets
    before: bytes  # the offset in the properties, and behind it
    behind: bytes
    of_several: bytes
    topic: str
    due_ms: int
    out_ms: int

    def record(self, offsets: Sequence[int]) -> tuple[bytes, bytes]:
        """Return body and properties of the record of some messages."""
        if len(offsets) == 1:
            return (
                b'{"ao":%d%b' % (offsets[0], self.body),
                b"%b%d%b" % (self.before, offsets[0], self.behind),
            )
        text = ",".join(map(str, offsets)).encode()
        return b'{"ao":-1,"aol":[%b]%b' % (text, self.body), self.of_several

    def note(self, queue_offset: int, place: int, size: int) -> WrittenNote:
        """Return what the timers need to know of a record."""
        return WrittenNote(queue_offset, place, size, self.topic, self.due_ms, self.out_ms)


@lru_cache(maxsize=1024)
def _ack_form(
    key: CheckpointKey, revive_ms: int, out_ms: int, revive_queue: int, topic: str
) -> _AckForm:
    """Return the form of the records of a checkpoint; `encode_acks` says how they look."""
    one, several = PopAcks(key, (0,)), PopAcks(key, (0, 0))
    body = encode_acks(one).removeprefix(b'{"ao":0')
    properties, of_several = (
        _properties(each.tag, each.name, topic, revive_ms, out_ms, revive_queue)
        for each in (one, several)
    )
    at = properties.index(f"{UNIQ_KEY}\x01".encode())
    at += len(f"{UNIQ_KEY}\x01{key.topic}@{key.queue_id}@".encode())
    before, behind = properties[:at], properties[at + 1 :]
    return _AckForm(body, before, behind, of_several, topic, revive_ms, out_ms)


def _append(
    state: BrokerState,
    body: bytes,
    tag: str,
    name: str,
    due_ms: int,
    revive_queue: int,
    now_ms: int,
) -> AppendResult:
    out_ms = _out_ms(state, due_ms)
    topic = _topic(state)
    properties = _properties(tag, name, topic, due_ms, out_ms, revive_queue)
    place = state.append(_message(state, body, properties, now_ms), now_ms)
    size = place.end - place.commit_log_offset
    state.timers.written.note(
        WrittenNote(place.queue_offset, place.commit_log_offset, size, topic, due_ms, out_ms)
    )
    return place


def _topic(state: BrokerState) -> str:
    return revive_topic(state.config.broker_cluster_name)


def _out_ms(state: BrokerState, due_ms: int) -> int:
    """Return the slot of the timers for a time."""
    return slot_of(due_ms, state.timers.precision_ms)


def _message(state: BrokerState, body: bytes, properties: bytes, now_ms: int) -> StoredMessage:
    return StoredMessage(
        topic=TIMER_TOPIC,
        queue_id=0,
        body=body,
        properties=properties,
        flag=0,
        sys_flag=0,
        born_time_ms=now_ms,
        born_host=state.host,
    )


def _properties(
    tag: str, name: str, topic: str, due_ms: int, out_ms: int, revive_queue: int
) -> bytes:
    """Return the properties of a record, as stored."""
    text = (
        f"{TIMER_DELIVER_MS}\x01{due_ms}\x02{UNIQ_KEY}\x01{name}\x02{TAGS}\x01{tag}\x02"
        f"{TIMER_OUT_MS}\x01{out_ms}\x02{REAL_TOPIC}\x01{topic}\x02"
        f"{REAL_QUEUE_ID}\x01{revive_queue}\x02"
    )
    if text.count("\x01") != _PAIRS or text.count("\x02") != _PAIRS:
        raise MessageRefused(f"the name {name[:100]!r} of a record contains a separator")
    return text.encode()
