"""Records of what was popped and acknowledged: timed messages for the revive topic.

They wait like other timed messages, so they need no memory, and Apache's broker finds them as its
own. Source: Apache RocketMQ `PopMessageProcessor.buildCkMsg`, `AckMessageProcessor`.
"""

from collections.abc import Mapping

from reliable_mq.broker_core.delivery.popped import TurnAcks
from reliable_mq.broker_core.delivery.written_notes import WrittenNote
from reliable_mq.broker_core.names import TIMER_TOPIC, revive_topic
from reliable_mq.broker_core.state import BrokerState
from reliable_mq.broker_core.store.appender import AppendResult, StoredMessage
from reliable_mq.errors import MessageRefused
from reliable_mq.wire.pop_records import (
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
    body = encode_acks(acks)
    return _append(state, body, acks.tag, acks.name, revive_ms, revive_queue, now_ms)


def append_acks_together(
    state: BrokerState, found: Mapping[CheckpointKey, TurnAcks], now_ms: int
) -> None:
    """Store acknowledgements of some checkpoints, a record for each, side by side in the log."""
    if len(found) == 1:
        ((key, (revive_ms, revive_queue, acked)),) = found.items()
        append_acks(state, PopAcks(key, tuple(acked)), revive_ms, revive_queue, now_ms)
        return
    topic = revive_topic(state.config.broker_cluster_name)
    bodies: list[bytes] = []
    properties: list[bytes] = []
    times: list[tuple[int, int]] = []
    for key, (revive_ms, revive_queue, acked) in found.items():
        acks = PopAcks(key, tuple(acked))
        bodies.append(encode_acks(acks))
        out_ms = _out_ms(state, revive_ms)
        properties.append(_properties(acks.tag, acks.name, topic, revive_ms, out_ms, revive_queue))
        times.append((revive_ms, out_ms))
    like = _message(state, b"", b"", now_ms)
    place, offsets = state.store.appender.append_batch(
        like, [0] * len(bodies), bodies, properties, now_ms
    )
    note, queue_offset, last = state.timers.written.note, place.queue_offset, len(offsets) - 1
    for index, ((due_ms, out_ms), at) in enumerate(zip(times, offsets, strict=True)):
        size = (place.end if index == last else offsets[index + 1]) - at
        note(WrittenNote(queue_offset + index, at, size, topic, due_ms, out_ms))


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
    topic = revive_topic(state.config.broker_cluster_name)
    properties = _properties(tag, name, topic, due_ms, out_ms, revive_queue)
    place = state.append(_message(state, body, properties, now_ms), now_ms)
    size = place.end - place.commit_log_offset
    state.timers.written.note(
        WrittenNote(place.queue_offset, place.commit_log_offset, size, topic, due_ms, out_ms)
    )
    return place


def _out_ms(state: BrokerState, due_ms: int) -> int:
    """Return the slot of the timers for a time."""
    precision_ms = state.timers.precision_ms
    return (due_ms - 1) // precision_ms * precision_ms


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
