"""Where the next pop of a group begins in a queue.

Source: Apache RocketMQ `PopMessageProcessor.getPopOffset`.
"""

from reliable_mq.broker_core.delivery.popped import PATH
from reliable_mq.broker_core.names import TIMER_TOPIC, is_retry_topic
from reliable_mq.broker_core.requests.offsets import is_young_queue
from reliable_mq.broker_core.requests.refusal import no_room_for_offsets
from reliable_mq.broker_core.state import BrokerState
from reliable_mq.wire.pop_headers import FROM_FIRST


def pop_position(state: BrokerState, group: str, topic: str, queue_id: int, init_mode: int) -> int:
    """Return the queue offset of the group's next message; a new group's is noted.

    A reset of the offset ends here, and everything that blocked the queue ends with it.

    Raises:
        RequestRefused: no room for one more offset.
    """
    if state.offsets.resets:
        reset = state.offsets.take_reset(group, topic, queue_id)
        if reset is not None:
            state.popped.reset(topic, group, queue_id)
            state.orders.forget_queue(topic, group, queue_id)
            return reset
    offset = state.popped.next_of(topic, group, queue_id)
    if offset is None:
        offset = state.offsets.get(group, topic, queue_id)
    if offset is not None:
        return offset
    offset = _first(state, topic, queue_id, init_mode)
    if not state.offsets.may_commit(group, topic, (queue_id,)):
        raise no_room_for_offsets()
    state.offsets.commit(group, topic, queue_id, offset)
    return offset


def note_reset(state: BrokerState, topic: str, group: str, queue_id: int, offset: int) -> None:
    """Note a reset of the offset, so that no start moves it behind earlier pops again."""
    queue = state.store.queue(TIMER_TOPIC, 0)
    if state.popped.note_reset(topic, group, queue_id, offset, queue.end if queue else 0):
        state.files.change(PATH, state.popped.dump)


def _first(state: BrokerState, topic: str, queue_id: int, init_mode: int) -> int:
    """Return where a new group begins: with the first message, or with the last one.

    A queue that is young, and has all its messages, is read from its begin: otherwise the first
    messages of a new topic would be missed.
    """
    queue = state.store.queues.get((topic, queue_id))
    if queue is None:
        return 0
    is_from_first = init_mode == FROM_FIRST or is_retry_topic(topic)
    if is_from_first or is_young_queue(state, queue):
        return queue.first
    return max(queue.first, queue.end - 1)


def position_now(state: BrokerState, group: str, topic: str, queue_id: int) -> int:
    """Return the same without changing anything; a new group begins with the first message."""
    reset = state.offsets.pending_reset(group, topic, queue_id)
    if reset is not None:
        return reset
    offset = state.popped.next_of(topic, group, queue_id)
    if offset is None:
        offset = state.offsets.get(group, topic, queue_id)
    return state.store.bounds(topic, queue_id)[0] if offset is None else offset
