"""Records of what was popped and acknowledged: timed messages for the revive topic.

They wait like other timed messages, so they need no memory, and Apache's broker finds them as its
own. Source: Apache RocketMQ `PopMessageProcessor.buildCkMsg`, `AckMessageProcessor`.
"""

from collections.abc import Mapping

from reliable_mq.broker_core.delivery.written_notes import WrittenNote
from reliable_mq.broker_core.names import TIMER_TOPIC, revive_topic
from reliable_mq.broker_core.state import BrokerState
from reliable_mq.broker_core.store.appender import AppendResult, StoredMessage
from reliable_mq.wire.pop_records import (
    AHEAD_MS,
    CHECKPOINT,
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
    encode_properties,
)


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


def _append(
    state: BrokerState,
    body: bytes,
    tag: str,
    name: str,
    due_ms: int,
    revive_queue: int,
    now_ms: int,
) -> AppendResult:
    precision_ms = state.config.timer_precision_ms
    out_ms = (due_ms - 1) // precision_ms * precision_ms
    topic = revive_topic(state.config.broker_cluster_name)
    properties: Mapping[str, str] = {
        TIMER_DELIVER_MS: str(due_ms),
        UNIQ_KEY: name,
        TAGS: tag,
        TIMER_OUT_MS: str(out_ms),
        REAL_TOPIC: topic,
        REAL_QUEUE_ID: str(revive_queue),
    }
    message = StoredMessage(
        topic=TIMER_TOPIC,
        queue_id=0,
        body=body,
        properties=encode_properties(properties),
        flag=0,
        sys_flag=0,
        born_time_ms=now_ms,
        born_host=state.host,
    )
    place = state.append(message, now_ms)
    size = place.end - place.commit_log_offset
    state.timers.written.note(
        WrittenNote(place.queue_offset, place.commit_log_offset, size, topic, due_ms, out_ms)
    )
    return place
