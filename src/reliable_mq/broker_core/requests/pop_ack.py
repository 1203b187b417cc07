"""Acknowledgements of popped messages, one by one or many at once.

Acknowledgements of one checkpoint that come in one turn share a record. The replies leave when it
is stored as the flush type promises. An acknowledgement that comes after its message has come back
is confirmed, and changes nothing, as at Apache's broker.
Source: Apache RocketMQ `AckMessageProcessor`, `BatchAck`.
"""

import binascii
from collections.abc import Iterator, Mapping, Sequence
from itertools import islice

import msgspec

from reliable_mq.broker_core.delivery.pop_orders import ILLEGAL
from reliable_mq.broker_core.delivery.pop_orders import PATH as ORDERS_PATH
from reliable_mq.broker_core.delivery.popped import AckedTime, TurnAcks
from reliable_mq.broker_core.names import pop_retry_topic
from reliable_mq.broker_core.requests.pop import REVIVE_QUEUES
from reliable_mq.broker_core.requests.pop_checks import known_queue
from reliable_mq.broker_core.requests.pop_records import append_acks_together
from reliable_mq.broker_core.requests.refusal import RequestRefused, refuse_above
from reliable_mq.broker_core.state import BrokerState, Request
from reliable_mq.broker_core.store.disk import is_out_of_room
from reliable_mq.decodable import decodable
from reliable_mq.errors import StoreError
from reliable_mq.wire.answer import encode_done
from reliable_mq.wire.codes import ResponseCode
from reliable_mq.wire.command import Command, reply
from reliable_mq.wire.java_int import I32, I64
from reliable_mq.wire.peer_texts import read_json_as
from reliable_mq.wire.pop_handle import (
    NORMAL,
    RETRY,
    RETRY_V2,
    HandleInvalid,
    PopHandle,
    parse_checkpoint,
)
from reliable_mq.wire.pop_headers import AckMessageHeader, ReadAckHeader
from reliable_mq.wire.pop_records import MESSAGES_MAX, CheckpointKey

_CHECKPOINTS_ASKED_MAX = 4_096  # of one request
_RECORDS_MAX = 16  # that are appended together, if they have few offsets:
_OFFSETS_MAX = 1_024  # each has 21 bytes at most, and a file of the log may be small
_AHEAD_MS = 60_000  # so far the clock of another broker over this store may have been ahead


@decodable
class _BatchAck(msgspec.Struct):
    """Acknowledgements of one checkpoint. `b`: a bit for each offset from `so` on, as base64."""

    c: str
    t: str
    r: str
    so: I64
    q: I32
    rq: I32
    pt: I64
    it: I64
    b: str


@decodable
class _BatchBody(msgspec.Struct):
    acks: list[_BatchAck] | None = None
    broker_name: str | None = msgspec.field(name="brokerName", default=None)


def ack_message(state: BrokerState, request: Request) -> Command | None:
    """ACK_MESSAGE."""
    command = request.command
    header = command.ack_header or AckMessageHeader.decode(command.ext_fields)
    known_queue(state, header.topic, header.queue_id, request.connection.address)
    first, end = state.store.bounds(header.topic, header.queue_id)
    if not first <= header.offset <= end:
        raise RequestRefused(
            ResponseCode.NO_MESSAGE,
            f"offset is illegal, key:{header.topic}@{header.queue_id}, commit:{header.offset}, "
            f"store:{first}~{end}",
        )
    known = header.handle if isinstance(header, ReadAckHeader) else None
    handle = known or parse_checkpoint(header.extra_info)
    _refuse_when_full(state)
    key = key_of(header, handle)
    if handle.is_order:
        ack_in_order(state, key, header.offset, request.connection.address)
        save_orders(state)
        state.reply_when_saved(request, reply(command))
        return None
    return _acknowledge(state, request, [(key, handle, (header.offset,))])


def key_of(header: AckMessageHeader, handle: PopHandle) -> CheckpointKey:
    """Return the checkpoint of a message."""
    return CheckpointKey(
        header.topic,
        header.consumer_group,
        header.queue_id,
        handle.start_offset,
        handle.popped_ms,
        handle.broker,
    )


def _refuse_when_full(state: BrokerState) -> None:
    if state.pressure.is_disk_full:
        raise RequestRefused(ResponseCode.SERVICE_NOT_AVAILABLE, "Service not available now.")


def batch_ack_message(state: BrokerState, request: Request) -> Command | None:
    """BATCH_ACK_MESSAGE. Offsets that the queue does not have are left out."""
    command = request.command
    body = read_json_as(command.body, _BatchBody) if command.body else _BatchBody()
    if not body.acks:
        raise RequestRefused(ResponseCode.NO_MESSAGE, "the request acknowledges no message")
    refuse_above(len(body.acks), _CHECKPOINTS_ASKED_MAX, "checkpoints")
    _refuse_when_full(state)
    broker = body.broker_name or state.config.broker_name
    found = [_read(state, each, broker) for each in body.acks]
    in_order = [each for each in found if each[1].is_order]
    for key, _, offsets in in_order:
        for offset in offsets:
            ack_in_order(state, key, offset, request.connection.address)
    others = [each for each in found if not each[1].is_order]
    if in_order:
        save_orders(state)
        if not others:
            state.reply_when_saved(request, reply(command))
            return None
    return _acknowledge(state, request, others)


_Acks = tuple[CheckpointKey, PopHandle, Sequence[int]]


def _read(state: BrokerState, ack: _BatchAck, broker: str) -> _Acks:
    if ack.r not in (NORMAL, RETRY, RETRY_V2):
        raise HandleInvalid(f"the field r is {ack.r[:20]!r}, not 0, 1 or 2")
    topic = ack.t
    if ack.r != NORMAL:
        topic = pop_retry_topic(ack.t, ack.c, is_v2=ack.r == RETRY_V2)
    handle = PopHandle(ack.so, ack.pt, ack.it, ack.rq, ack.r, broker, ack.q)
    first, end = state.store.bounds(topic, ack.q)
    if handle.is_order:  # what retention has deleted meanwhile must not hold the others back
        first = 0
    offsets = [ack.so + bit for bit in _bits(ack.b) if first <= ack.so + bit < end]
    return CheckpointKey(topic, ack.c, ack.q, ack.so, ack.pt, broker), handle, offsets


def _bits(text: str) -> list[int]:
    """Return the bits that are set in a base64 text, at most as many as a checkpoint has."""
    try:
        digits = (
            f"{int.from_bytes(binascii.a2b_base64(text.encode(), strict_mode=True), 'little'):b}"[
                ::-1
            ]
        )
    except ValueError as error:
        raise HandleInvalid(f"the field b is no base64: {error}") from error
    bits: list[int] = []
    at = digits.find("1")
    while at >= 0 and len(bits) < MESSAGES_MAX:
        bits.append(at)
        at = digits.find("1", at + 1)
    return bits


def save_orders(state: BrokerState) -> None:
    """Save what was popped in order; answers wait for it, see `reply_when_saved`."""
    if state.orders.is_dirty:
        state.files.change(ORDERS_PATH, state.orders.dump)


def ack_in_order(state: BrokerState, key: CheckpointKey, offset: int, peer: str) -> None:
    """Acknowledge a message that was popped in order, and move the group's offset.

    Raises:
        RequestRefused: the queue has handed out no such message.
    """
    topic, group, queue_id = key.topic, key.group, key.queue_id
    known = state.offsets.get(group, topic, queue_id)
    if offset < (-1 if known is None else known) or group not in state.groups.by_name:
        return
    next_offset = state.orders.acknowledge(topic, group, queue_id, offset, key.popped_ms, known)
    if next_offset == ILLEGAL:
        raise RequestRefused(
            ResponseCode.MESSAGE_ILLEGAL,
            f"offset is illegal, key:{topic}@{group}@{queue_id}, old:{known}, commit:{offset}, "
            f"next:{next_offset}, /{peer}",
        )
    if next_offset < 0:
        return
    if state.offsets.pending_reset(group, topic, queue_id) is None and state.offsets.may_commit(
        group, topic, (queue_id,)
    ):
        _, end = state.store.bounds(topic, queue_id)
        state.offsets.commit(group, topic, queue_id, min(next_offset, end))
    if state.pops.waiting:
        state.pops.wake(topic, group, queue_id)


def _acknowledge(state: BrokerState, request: Request, found: Sequence[_Acks]) -> Command | None:
    """Note acknowledgements, and send the reply when all of them are stored."""
    is_stored = False
    if len(state.popped.extensions):
        found = [now for each in found for now in _as_extended(state, each)]
    for key, handle, offsets in found:
        if offsets and needs_record(state, key, handle, offsets, request.now_ms):
            is_stored = True
            state.popped.acknowledge(key, handle.revive_ms, handle.revive_queue, offsets)
    if not is_stored:
        return reply(request.command)
    state.popped.acks_ms = request.now_ms
    if not request.command.is_oneway:
        state.popped.replies.append((request.connection.id, encode_done(request.command)))
    return None


def _as_extended(state: BrokerState, acks: _Acks) -> Iterator[_Acks]:
    """Yield acknowledgements by the handles that stand for theirs after extensions."""
    key, handle, offsets = acks
    extensions = state.popped.extensions
    extensions.used(key)
    plain = []
    for offset in offsets:
        extended = extensions.find(key, offset)
        if extended is None:
            plain.append(offset)
        else:
            yield *extended, (offset,)
    yield key, handle, plain


def needs_record(
    state: BrokerState, key: CheckpointKey, handle: PopHandle, offsets: Sequence[int], now_ms: int
) -> bool:
    """Whether acknowledgements must be stored. Not if their messages are back already.

    A checkpoint that is due within a second is in memory; it learns of them at once. While the
    clock is behind the timers, because it was set back, nobody knows what is back.
    """
    topic, group, queue_id, _, _, broker = key
    config, popped_ms, invisible_ms = state.config, handle.popped_ms, handle.invisible_ms
    _, end = state.store.bounds(topic, queue_id)
    last = offsets[0] if len(offsets) == 1 else max(offsets)
    is_possible = (
        topic in state.topics.by_name
        and last < end
        and 0 <= handle.revive_queue < REVIVE_QUEUES
        and broker == config.broker_name
        and group in state.groups.by_name
        and (popped_ms <= now_ms or popped_ms <= latest_pop_ms(state, now_ms))
        and invisible_ms <= config.timer_seconds_max * 1_000
    )
    if not is_possible:
        return False
    is_here = state.timers.revival.acknowledge(key, offsets)
    delivered_ms = state.timers.delivered_ms
    return is_here or popped_ms + invisible_ms > delivered_ms or delivered_ms > now_ms


def latest_pop_ms(state: BrokerState, now_ms: int) -> int:
    """Return the latest time that a pop can have had, also if the clock was set back since."""
    return max(now_ms, state.timers.delivered_ms, state.popped.latest_ms) + _AHEAD_MS


def _some_of(waiting: Mapping[AckedTime, TurnAcks]) -> dict[AckedTime, TurnAcks]:
    """Return the first ones, as many as may be one batch: one at least."""
    some: dict[AckedTime, TurnAcks] = {}
    count = 0
    for key, acks in islice(waiting.items(), _RECORDS_MAX):
        count += len(acks.offsets)
        if some and count > _OFFSETS_MAX:
            break
        some[key] = acks
    return some


def record_acks(state: BrokerState) -> None:
    """Store the acknowledgements of this turn; one record for each checkpoint."""
    popped, now_ms = state.popped, state.popped.acks_ms
    while popped.acks:
        some = _some_of(popped.acks)
        append_acks_together(state, some, now_ms)
        for key in some:
            del popped.acks[key]
    replies, popped.replies = popped.replies, []
    for connection, frame in replies:
        state.reply_when_stored(connection, state.store.log.end, frame)


def try_to_record_acks(state: BrokerState) -> None:
    """Call `record_acks`. Without room on the disk, retry later; replies wait until then."""
    try:
        record_acks(state)
    except StoreError as error:
        if not is_out_of_room(error):
            raise
        state.pressure.note_no_file(state.popped.acks_ms)
