"""Another invisible time for a popped message: longer for slow work, shorter to get it again soon.

The message gets a checkpoint of its own, and is acknowledged in the former one. Both are stored
together, so it is never without one. Until the new handle is used, the former one stands for it:
the answer may be lost. A message that was popped in order stays in its queue; only
the time changes when it is handed out again.
Source: Apache RocketMQ `ChangeInvisibleTimeProcessor`.
"""

from reliable_mq.broker_core.delivery.pop_extensions import Extended
from reliable_mq.broker_core.requests.pop import REVIVE_QUEUES
from reliable_mq.broker_core.requests.pop_ack import (
    key_of,
    latest_pop_ms,
    needs_record,
    save_orders,
)
from reliable_mq.broker_core.requests.pop_checks import known_queue, refuse_hiding, refuse_too_long
from reliable_mq.broker_core.requests.pop_records import append_acks, append_checkpoint
from reliable_mq.broker_core.requests.refusal import RequestRefused
from reliable_mq.broker_core.state import BrokerState, Request
from reliable_mq.wire.answer import encode_answer
from reliable_mq.wire.codes import ResponseCode
from reliable_mq.wire.command import Command, reply
from reliable_mq.wire.pop_handle import HandleInvalid, PopHandle, parse_handle
from reliable_mq.wire.pop_headers import ChangeInvisibleTimeHeader
from reliable_mq.wire.pop_records import NO_POP, CheckpointKey, PopAcks, PopCheckpoint


def change_invisible_time(state: BrokerState, request: Request) -> Command | None:
    """CHANGE_MESSAGE_INVISIBLETIME. The reply has the parts of the message's new handle."""
    header = ChangeInvisibleTimeHeader.decode(request.command.ext_fields)
    topic = known_queue(state, header.topic, header.queue_id, request.connection.address)
    refuse_hiding(state, topic, header.consumer_group)
    first, end = state.store.bounds(header.topic, header.queue_id)
    if not first <= header.offset < end:
        raise RequestRefused(
            ResponseCode.NO_MESSAGE,
            f"offset is illegal, key:{header.topic}@{header.queue_id}, commit:{header.offset}, "
            f"store:{first}~{end}",
        )
    handle = parse_handle(header.extra_info)
    refuse_too_long(state, header.invisible_time)
    if handle.is_order:
        return _in_order(state, request, header, handle)
    if not 0 <= handle.revive_queue < REVIVE_QUEUES:
        raise HandleInvalid(f"the handle {header.extra_info[:100]!r} names no revive queue")
    if state.pressure.is_disk_full:
        raise RequestRefused(ResponseCode.SERVICE_NOT_AVAILABLE, "Service not available now.")
    if handle.popped_ms > latest_pop_ms(state, request.now_ms):
        raise HandleInvalid(f"the handle {header.extra_info[:100]!r} is of a time to come")
    extensions = state.popped.extensions
    asked = key_of(header, handle)
    extensions.used(asked)
    origin, handle = extensions.find(asked, header.offset) or (asked, handle)
    # The two keys must differ, and the timers must not have passed the time.
    popped_ms = max(request.now_ms, handle.popped_ms + 1, state.timers.delivered_ms)
    state.popped.latest_ms = max(state.popped.latest_ms, popped_ms)
    key = CheckpointKey(
        header.topic,
        header.consumer_group,
        header.queue_id,
        header.offset,
        popped_ms,
        state.config.broker_name,
    )
    checkpoint = PopCheckpoint(key, header.invisible_time, (header.offset,), next_offset=NO_POP)
    place = append_checkpoint(state, checkpoint, handle.revive_queue, request.now_ms)
    is_counted = False  # not if it is back
    if needs_record(state, origin, handle, (header.offset,), request.now_ms):
        acks = PopAcks(origin, (header.offset,))
        place = append_acks(state, acks, handle.revive_ms, handle.revive_queue, request.now_ms)
        is_counted = state.popped.was_in_flight(handle.revive_ms)
    if not is_counted and state.popped.was_in_flight(checkpoint.revive_ms):
        state.popped.add(header.topic, header.consumer_group, header.queue_id, 1)
    made = PopHandle(
        header.offset,
        popped_ms,
        header.invisible_time,
        handle.revive_queue,
        handle.kind,
        key.broker,
        header.queue_id,
        header.offset,
    )
    extensions.note(asked, header.offset, Extended(key, made))
    if not request.command.is_oneway:
        ext = _ext(popped_ms, header.invisible_time, handle.revive_queue)
        frame = encode_answer(reply(request.command, ext=ext))
        state.reply_when_stored(request.connection.id, place.end, frame)
    return None


def _in_order(
    state: BrokerState, request: Request, header: ChangeInvisibleTimeHeader, handle: PopHandle
) -> Command | None:
    topic, group, queue_id = header.topic, header.consumer_group, header.queue_id
    if header.offset < (state.offsets.get(group, topic, queue_id) or 0):
        return reply(request.command)
    at_ms = request.now_ms + header.invisible_time
    state.orders.show_at(topic, group, queue_id, header.offset, handle.popped_ms, at_ms)
    ext = _ext(handle.popped_ms, at_ms - handle.popped_ms, handle.revive_queue)
    save_orders(state)
    state.reply_when_saved(request, reply(request.command, ext=ext))
    return None


def _ext(popped_ms: int, invisible_ms: int, revive_queue: int) -> dict[str, str]:
    return {
        "popTime": str(popped_ms),
        "invisibleTime": str(invisible_ms),
        "reviveQid": str(revive_queue),
    }
