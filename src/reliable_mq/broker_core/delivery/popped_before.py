"""Counts what was in flight at the start: what earlier lives of the broker have popped.

The topic of the timers lists checkpoints and acknowledgements. It is read in slices, from the
newest record back, to where everything is over. Each message of a checkpoint counts one, and each
that is acknowledged counts one less, if its time was not over at the start. So the numbers are
right when the slices come to their end; until then they may be too low.
"""

from collections.abc import Iterator

from reliable_mq.broker_core.delivery.popped import Popped
from reliable_mq.broker_core.names import TIMER_TOPIC, is_revive_topic
from reliable_mq.broker_core.state import BrokerState
from reliable_mq.broker_core.store.consume_queue import ConsumeQueue, QueueUnit
from reliable_mq.errors import RecordError
from reliable_mq.wire.java_hash import tags_code
from reliable_mq.wire.pop_records import (
    ACK,
    ACKS,
    CHECKPOINT,
    CheckpointKey,
    decode_acks,
    decode_checkpoint,
)
from reliable_mq.wire.properties import REAL_TOPIC, TAGS, TIMER_DELIVER_MS
from reliable_mq.wire.record import Record

_UNITS_AT_ONCE = 2_000
_READS_AT_ONCE = 300  # about 6 ms
_CODES = frozenset(map(tags_code, (CHECKPOINT, ACK, ACKS)))


def begin_count(state: BrokerState) -> None:
    """Begin to count, once the log is open; `count_some` goes on."""
    popped, queue = state.popped, state.store.queue(TIMER_TOPIC, 0)
    # After a clock that was ahead, the timers have passed later times.
    popped.counted_from_ms = max(state.started_ms, state.timers.delivered_ms)
    popped.uncounted = queue.end if queue is not None else 0


def count_some(state: BrokerState) -> None:
    """Count the next slice, if one is left."""
    popped, queue = state.popped, state.store.queue(TIMER_TOPIC, 0)
    if not popped.uncounted or queue is None:
        return
    number, reads = popped.uncounted, 0
    first = max(queue.first, number - _UNITS_AT_ONCE)
    for number, unit in reversed(list(units_of(queue, first, popped.uncounted))):
        if unit.tags_code in _CODES:
            reads += 1
            record = state.store.reader.message(queue, number)
            if record is not None:
                _count(state, record)
        if reads == _READS_AT_ONCE:
            break
    if number in (queue.first, popped.uncounted) or _is_over(state, queue, number):
        popped.all_counted()
    else:
        popped.uncounted = number


def units_of(queue: ConsumeQueue, first: int, end: int) -> Iterator[tuple[int, QueueUnit]]:
    """Yield the units of a queue from `first` to `end` - 1, each with its number."""
    while first < end and (units := queue.units(first, end - first)):
        yield from enumerate(units, first)
        first += len(units)


def _is_over(state: BrokerState, queue: ConsumeQueue, number: int) -> bool:
    """Whether everything before a record was over at the start."""
    record = state.store.reader.message(queue, number)
    longest_ms = state.config.timer_seconds_max * 1_000
    return record is None or record.store_time_ms + longest_ms < state.popped.counted_from_ms


def _count(state: BrokerState, record: Record) -> None:
    popped, properties = state.popped, record.property_map()
    if not is_revive_topic(properties.get(REAL_TOPIC, "")):
        return
    try:
        if properties.get(TAGS) == CHECKPOINT:
            checkpoint = decode_checkpoint(record.body)
            if popped.was_in_flight(checkpoint.revive_ms):
                _add(state, popped, checkpoint.key, len(checkpoint.offsets))
            return
        acks = decode_acks(record.body, state.config.broker_name)
        revive_ms = int(properties.get(TIMER_DELIVER_MS, "0"))
    except (RecordError, ValueError):
        return
    if popped.was_in_flight(revive_ms):
        _add(state, popped, acks.key, -len(set(acks.offsets)))


def _add(state: BrokerState, popped: Popped, key: CheckpointKey, count: int) -> None:
    if key.topic in state.topics.by_name and key.group in state.groups.by_name:
        popped.add(key.topic, key.group, key.queue_id, count)
