"""Popped messages come back: those without an acknowledgement, when their time is over.

A message is stored again in the retry topic of its group and topic; a message of a retry topic is
stored in the same one. Its next pop finds it there.
Source: Apache RocketMQ `PopReviveService`.
"""

from reliable_mq.broker_core.delivery.popped import PoppedPlace
from reliable_mq.broker_core.delivery.popped_before import begin_count, units_of
from reliable_mq.broker_core.delivery.revival import DueCheckpoint
from reliable_mq.broker_core.names import (
    REVIVE_GROUP,
    TIMER_TOPIC,
    is_retry_topic,
    pop_retry_topic,
    revive_topic,
)
from reliable_mq.broker_core.needed_topics import ensure_dead_letter_topic, ensure_pop_retry_topic
from reliable_mq.broker_core.state import BrokerState
from reliable_mq.broker_core.store.appender import StoredMessage
from reliable_mq.broker_core.store.consume_queue import ConsumeQueue
from reliable_mq.errors import MessageRefused, RecordError
from reliable_mq.limits import PROPERTIES_SIZE_MAX
from reliable_mq.line_limit import limited_log
from reliable_mq.telemetry import broker_events
from reliable_mq.telemetry.message_facts import facts_in
from reliable_mq.wire.java_hash import tags_code
from reliable_mq.wire.pop_handle import popped_topic
from reliable_mq.wire.pop_records import CHECKPOINT, decode_checkpoint
from reliable_mq.wire.properties import (
    FIRST_POP_TIME,
    POP_CK_OFFSET,
    TAGS,
    encode_properties,
)
from reliable_mq.wire.record import Record

log = limited_log(__name__)

# Limits of one turn, so that a burst does not block the event loop.
_MESSAGES_MAX = 1_000
_SIZE_MAX = 8 * 1024 * 1024
_TIMES_MAX = 2**31 - 1
# Of a handle as a property, without the name of its broker. A consumer that gets a message of a
# retry topic without a handle fails, with all messages that came together.
_HANDLE_SIZE = 96
_UNSAVED_MS = 30_000  # how late another broker may have saved its offsets, at least
_UNITS_AT_ONCE = 1_000


def bring_back(state: BrokerState, now_ms: int) -> int:
    """Store the messages whose time is over in their retry topics; return their number.

    Raises:
        StoreError: no room for the log's next file. The rest follows later.
    """
    revival, timers = state.timers.revival, state.timers
    if not len(revival) or timers.has_late(timers.limit_ms(now_ms)):
        return 0  # an acknowledgement may be among what is late; see `limit_ms`
    until_ms = min(now_ms, timers.delivered_ms) if timers.delivered_ms else now_ms
    count = size = 0
    while (due := revival.due(until_ms)) is not None:
        if count >= _MESSAGES_MAX or size > _SIZE_MAX:
            return count
        reason = _reason_against(state, due)
        if reason is None:
            for index in range(len(due.checkpoint.offsets)):
                if due.waiting >> index & 1:
                    size += _bring_one(state, due, index, now_ms)
                    due.waiting &= ~(1 << index)
                    count += 1
        else:
            _note_gone(state, due, reason)
        revival.forget(due)
    timers.ended.count(state.store.log.end)
    if state.popped.revive_queues and not revival.unplaced:
        _end_revive_queues(state)
    return count


def _end_revive_queues(state: BrokerState) -> None:
    """Note that everything that was found in the revive topic is done, once this is durable."""
    topic = revive_topic(state.config.broker_cluster_name)
    queue = state.store.queue(TIMER_TOPIC, 0)
    for queue_id, last in state.popped.revive_queues.items():
        state.popped.commit_later(
            PoppedPlace(
                state.store.log.end, queue.end if queue else 0, REVIVE_GROUP, topic, queue_id, last
            )
        )
    state.popped.revive_queues.clear()


def _reason_against(state: BrokerState, due: DueCheckpoint) -> str | None:
    """Return why the messages of a checkpoint do not come back; None: they do.

    "": somebody has deleted the topic or the group, and knows it.
    """
    key = due.checkpoint.key
    is_known = popped_topic(key.topic, key.group) in state.topics.by_name
    if not is_known or key.group not in state.groups.by_name:
        return ""
    if key.broker not in ("", state.config.broker_name):
        return f"the broker {key.broker} has handed it out, and this one is another"
    return None


def _note_gone(state: BrokerState, due: DueCheckpoint, reason: str) -> None:
    """Note that the messages that wait do not come back."""
    state.popped.ended(due.checkpoint.key, due.checkpoint.revive_ms, due.waiting.bit_count())
    for index, offset in enumerate(due.checkpoint.offsets):
        if reason and due.waiting >> index & 1:
            _log_gone(state, due, offset, reason)


def _log_gone(state: BrokerState, due: DueCheckpoint, offset: int, reason: str) -> None:
    key = due.checkpoint.key
    state.popped.gone += 1
    broker_events.POPPED_MESSAGE_GONE.log(
        log,
        topic=key.topic,
        queue_id=key.queue_id,
        queue_offset=offset,
        group=key.group,
        reason=reason,
    )


def _bring_one(state: BrokerState, due: DueCheckpoint, index: int, now_ms: int) -> int:
    """Store one message again, unless it is gone or was back before a crash; return its size."""
    key = due.checkpoint.key
    state.popped.ended(key, due.checkpoint.revive_ms, 1)
    names = due.names_of(index)
    if any(state.timers.ended.has_come_back(*name) for name in names):
        return 0
    queue = state.store.queue(key.topic, key.queue_id)
    offset = due.checkpoint.offsets[index]
    record = None
    if queue is not None and queue.first <= offset < queue.end:
        record = state.store.reader.message(queue, offset)
    if record is None:
        is_old = queue is not None and offset < queue.first
        reason = "retention has deleted it meanwhile" if is_old else "its record cannot be read"
        _log_gone(state, due, offset, reason)
        return 0
    name = key.topic
    if not is_retry_topic(name):
        name = pop_retry_topic(name, key.group, is_v2=state.config.pop_retry_v2)
    topic = ensure_pop_retry_topic(state, name, now_ms)
    place, number = names[-1]
    message = _again(state, record, topic.topic_name, key.popped_ms, f"{place} {number}")
    if len(message.properties) + _HANDLE_SIZE + len(key.broker.encode()) > PROPERTIES_SIZE_MAX:
        message.topic = ensure_dead_letter_topic(state, key.group, now_ms).topic_name
        reason = f"no room for its handle beside its properties; it is in {message.topic} now"
        _log_gone(state, due, offset, reason)
    try:
        state.append(message, now_ms)
    except MessageRefused as error:
        broker_events.POPPED_MESSAGE_DROPPED.log(
            log,
            **facts_in(record.property_map()),
            log_offset=record.commit_log_offset,
            error=error,
        )
    return record.size


def _again(
    state: BrokerState, record: Record, topic: str, popped_ms: int, place: str
) -> StoredMessage:
    properties = record.property_map()
    if record.reconsume_times == 0 or FIRST_POP_TIME not in properties:
        properties[FIRST_POP_TIME] = str(popped_ms)
    properties[POP_CK_OFFSET] = place
    try:
        encoded = encode_properties(properties)
    except MessageRefused:  # no room for the extra properties; the message matters more
        encoded = record.properties
    return StoredMessage(
        topic=topic,
        queue_id=0,
        body=record.body,
        properties=encoded,
        flag=record.flag,
        sys_flag=record.sys_flag,
        born_time_ms=record.born_time_ms,
        born_host=state.host,
        reconsume_times=min(record.reconsume_times + 1, _TIMES_MAX),
    )


def settle_popped(state: BrokerState, now_ms: int) -> None:
    """Continue where the last broker over this store has ended, once it is open.

    Its offsets may be older than its checkpoints, and its table of topics older than the messages
    that came back. It may have put checkpoints into the revive topic, as Apache's broker does.
    """
    begin_count(state)
    _know_retry_topics(state, now_ms)
    state.popped.latest_ms = state.store.appender.last_time_ms
    _raise_offsets(state)
    _raise_by_orders(state)
    topic = revive_topic(state.config.broker_cluster_name)
    for (name, queue_id), queue in state.store.queues.items():
        if name != topic:
            continue
        noted = state.offsets.get(REVIVE_GROUP, name, queue_id)
        begin = queue.first if noted is None else max(queue.first, noted + 1)
        for number in range(begin, queue.end):
            record = state.store.reader.message(queue, number)
            if record is not None:
                state.timers.revival.take(record, record.property_map().get(TAGS, ""))
        if begin < queue.end:
            # Not before these messages are back: until then a crash must find them here again.
            state.popped.revive_queues[queue_id] = queue.end - 1


def _know_retry_topics(state: BrokerState, now_ms: int) -> None:
    """Make retry topics again that have messages of a known group and topic.

    A crash may have taken them from the table. A topic that was deleted has no messages.
    """
    topics = state.topics.by_name
    for (name, _queue_id), queue in state.store.queues.items():
        if is_retry_topic(name) and name not in topics and queue.first < queue.end:
            sources = (popped_topic(name, group) for group in state.groups.by_name)
            if any(source != name and source in topics for source in sources):
                ensure_pop_retry_topic(state, name, now_ms)


def _raise_offsets(state: BrokerState) -> None:
    """Move offsets behind what was popped: a crash may have saved the checkpoint only."""
    popped = state.popped
    for (topic, group, queue_id), note in popped.resets.items():
        if topic in state.topics.by_name and group in state.groups.by_name:
            state.offsets.commit(group, topic, queue_id, note.offset)
    queue = state.store.queue(TIMER_TOPIC, 0)
    if queue is None:
        return
    begin = max(queue.first, min(popped.noted or 0, queue.end))
    oldest_ms = 0
    if popped.noted is None or not state.topics.is_ours:  # the offsets may be of another broker
        saved_ms = max(_UNSAVED_MS, 2 * state.config.offset_interval_ms)
        oldest_ms = state.store.appender.last_time_ms - saved_ms
        begin = _begin_of_recent(state, queue, begin, oldest_ms)
    code = tags_code(CHECKPOINT)
    for number, unit in units_of(queue, begin, queue.end):
        if unit.tags_code != code:
            continue
        record = state.store.reader.message(queue, number)
        if record is not None and record.store_time_ms >= oldest_ms:
            _raise_offset(state, record, number)
    popped.is_changed = bool(popped.pairs or popped.resets)


def _begin_of_recent(state: BrokerState, queue: ConsumeQueue, begin: int, oldest_ms: int) -> int:
    """Return a number, from `begin` on, before which all timed messages are older."""
    number = queue.end
    while number > begin:  # backwards, so that an old note costs nothing
        number = max(begin, number - _UNITS_AT_ONCE)
        record = state.store.reader.message(queue, number)
        if record is not None and record.store_time_ms < oldest_ms:
            break
    return number


def _raise_by_orders(state: BrokerState) -> None:
    """Move offsets up to what was acknowledged in order; forget pops of what is lost."""
    for (topic, group, queue_id), next_offset, last in list(state.orders.standings()):
        queue = state.store.queue(topic, queue_id)
        known = state.offsets.get(group, topic, queue_id)
        if queue is None or last >= queue.end:
            state.orders.forget_queue(topic, group, queue_id)
        elif state.orders.raises_offsets and (known is None or known < next_offset):
            state.offsets.commit(group, topic, queue_id, next_offset)


def _raise_offset(state: BrokerState, record: Record, number: int) -> None:
    try:
        checkpoint = decode_checkpoint(record.body)
    except RecordError:
        return
    key = checkpoint.key
    queue = state.store.queue(key.topic, key.queue_id)
    is_there = key.topic in state.topics.by_name and key.group in state.groups.by_name
    reset = state.popped.resets.get((key.topic, key.group, key.queue_id))
    if not is_there or queue is None:
        return
    state.popped.pairs.add((key.topic, key.group))
    if reset is not None and number < reset.checkpoint:
        return
    known = state.offsets.get(key.group, key.topic, key.queue_id) or 0
    popped = checkpoint.next_offset
    if popped is None:  # Apache's extensions look like pops: count what goes on where others end
        popped = max(checkpoint.offsets, default=-1) + 1 if key.start_offset <= known else 0
    if known < popped <= queue.end:
        state.offsets.commit(key.group, key.topic, key.queue_id, popped)
