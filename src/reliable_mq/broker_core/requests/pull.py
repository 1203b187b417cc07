"""Pulls: return the messages of a queue from an offset on, or wait for a message.

A pull accepts messages by its group's subscription, or by its own expression (`pull_wanted`).
The usual one wants all, and gets them in one piece; for the others see `pull_reading`.
Source: Apache RocketMQ `PullMessageProcessor`, `DefaultPullMessageResultHandler`.
"""

from operator import lt
from typing import NamedTuple

from reliable_mq.broker_core.clients import BROADCASTING, SubscriptionData
from reliable_mq.broker_core.delivery.long_poll import BYTES_FOR_COST, WaitingPull, Wanted
from reliable_mq.broker_core.filter.sql92 import Filter
from reliable_mq.broker_core.filter.tokens import FilterRefused
from reliable_mq.broker_core.groups import GroupConfig
from reliable_mq.broker_core.requests.filtered_pull import scan_cost
from reliable_mq.broker_core.requests.pull_reading import (
    FOUND,
    Found,
    broker_to_read,
    read,
    read_filtered,
)
from reliable_mq.broker_core.requests.pull_wanted import inline_wanted
from reliable_mq.broker_core.requests.refusal import (
    SEE_FAQ,
    RequestRefused,
    no_such_topic,
    of_unverified,
)
from reliable_mq.broker_core.requests.revoked import refuse_revoked
from reliable_mq.broker_core.requests.subscription import compiled, is_by_tags, refuse_when_off
from reliable_mq.broker_core.state import BrokerState, Request
from reliable_mq.broker_core.store.consume_queue import ConsumeQueue
from reliable_mq.broker_core.topics import READ, TopicConfig
from reliable_mq.errors import InvariantBroken
from reliable_mq.line_limit import limited_log
from reliable_mq.telemetry import broker_events
from reliable_mq.wire.answer import encode_answer
from reliable_mq.wire.codes import ResponseCode
from reliable_mq.wire.command import ONE_WAY_FLAG, Command, encode_command, reply
from reliable_mq.wire.frame import JSON, encode_frame
from reliable_mq.wire.headers import PullMessageHeader
from reliable_mq.wire.long_frame import AnyFrame, LongBody, LongFrame
from reliable_mq.wire.record import are_messages
from reliable_mq.wire.record_scan import are_valid

log = limited_log(__name__)

COMMIT_OFFSET = 0x1
SUSPEND = 0x2
_LOOKED = (ResponseCode.SUCCESS, ResponseCode.PULL_RETRY_IMMEDIATELY)
_RESET = "OFFSET_RESET"
_SUBSCRIPTION_FLAG = 0x4
_GROUP_FORBIDDEN = {"forbiddenType": "2"}
_TOPIC_FORBIDDEN = {"forbiddenType": "3"}
_BROADCASTING_FORBIDDEN = {"forbiddenType": "4"}
_SUBSCRIPTION_FORBIDDEN = {"forbiddenType": "5"}
_ALL, _TAG = "*", "TAG"
_TOO_MANY = "too many pulls wait; retry later"


def pull_message(state: BrokerState, request: Request) -> None:
    """PULL_MESSAGE and LITE_PULL_MESSAGE."""
    command = request.command
    header = command.pull_header or PullMessageHeader.decode(command.ext_fields)
    name = header.consumer_group
    if state.quotas.limit_pulls:
        known = name if name in state.groups.by_name else ""
        state.quotas.take_pull(known, request.user, request.now_ms)
    group = state.groups.by_name.get(name) or state.find_group(name, request.now_ms, request.user)
    topic, wanted = _allowed(state, group, header, request.connection.address)
    found = find(state, header, wanted)
    waiting: WaitingPull | None = None
    if found.code == ResponseCode.PULL_NOT_FOUND and header.sys_flag & SUSPEND:
        waiting = _waiting(state, request, header, wanted, found.next_offset)
        if not state.pulls.has_room(waiting):
            state.pulls.refused += 1
            raise RequestRefused(ResponseCode.SYSTEM_BUSY, _TOO_MANY)
    _note_progress(
        state, header, found, request.user, commits=bool(header.sys_flag & COMMIT_OFFSET)
    )
    if command.flag & ONE_WAY_FLAG:
        return
    if waiting:
        state.pulls.hold(waiting)
        return
    state.reply(request.connection.id, _answer(state, command, header, found, topic, group))


def answer_waiting(state: BrokerState, pull: WaitingPull) -> int:
    """Answer a pull that waited; return the work in microseconds. The caller must not hold it.

    Permissions may have changed during the wait, so they are checked again. A slave may have found
    that its log differs from its master's. The subscription is not parsed again.
    """
    cost = pull.cost
    try:
        frame: AnyFrame
        frame, work = _answer_to_waiting(state, pull)
        cost += work
    except InvariantBroken:
        raise
    except Exception as error:  # noqa: BLE001 - it is logged
        broker_events.WAITING_PULL_FAILED.log(log, traceback_of=True, client=pull.address)
        text = f"{type(error).__name__}: {error}"
        frame = encode_answer(reply(pull.command, ResponseCode.SYSTEM_ERROR, text))
    state.answers.ready.append((pull.connection, frame))
    return cost + len(frame) // BYTES_FOR_COST


def _answer_to_waiting(state: BrokerState, pull: WaitingPull) -> tuple[AnyFrame, int]:
    """Return the reply, and how many microseconds the scan for it took."""
    header = pull.header
    try:
        if state.is_unverified:
            raise of_unverified()
        if state.guard is not None:
            refuse_revoked(state, pull.command.code, pull.user, pull.address, header)
        group = state.groups.by_name.get(header.consumer_group)
        topic, wanted = _allowed(state, group, header, pull.address, pull.wanted)
    except RequestRefused as refused:
        return encode_answer(reply(pull.command, refused.code, refused.remark, refused.ext)), 0
    found, work = find(state, header, wanted), 0
    _note_progress(state, header, found, pull.user, commits=False)
    if pull.wanted is not None:
        looked_at = found.next_offset - header.queue_offset if found.code in _LOOKED else 0
        work = scan_cost(pull.wanted, looked_at) + found.work
    return _answer(state, pull.command, header, found, topic, group), work


def _allowed(
    state: BrokerState,
    group: GroupConfig | None,
    header: PullMessageHeader,
    peer: str,
    known: Wanted = None,
) -> tuple[TopicConfig, Wanted]:
    """Return the topic of an allowed pull, and the messages that the pull accepts.

    `known` is the former result for a waiting pull.

    Raises:
        RequestRefused: when the pull is not allowed.
    """
    if group is None:
        raise RequestRefused(
            ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST,
            f"subscription group [{header.consumer_group}] does not exist, {SEE_FAQ}",
        )
    if not group.consume_enable:
        raise RequestRefused(
            ResponseCode.NO_PERMISSION,
            f"subscription group no permission, {header.consumer_group}",
            _GROUP_FORBIDDEN,
        )
    topic = state.topics.by_name.get(header.topic)
    if topic is None:
        raise no_such_topic(header.topic, after=" ")
    if not topic.perm & READ:
        raise RequestRefused(
            ResponseCode.NO_PERMISSION,
            f"the topic[{header.topic}] pulling message is forbidden",
            _TOPIC_FORBIDDEN,
        )
    if not 0 <= header.queue_id < topic.read_queue_nums:
        raise RequestRefused(
            ResponseCode.INVALID_PARAMETER,
            f"queueId[{header.queue_id}] is illegal, topic:[{header.topic}] "
            f"topicConfig.readQueueNums:[{topic.read_queue_nums}] consumer:[/{peer}]",
        )
    return topic, _wanted_by(state, group, header, known)


def _wanted_by(
    state: BrokerState, group: GroupConfig, header: PullMessageHeader, known: Wanted = None
) -> Wanted:
    """Return the messages that a pull accepts.

    `known` is the former result for a waiting pull. The expression of the pull is the same then,
    and the subscription usually is, so that it need not be parsed again.

    Raises:
        RequestRefused: when the group has no such subscription, or its expression does not parse.
    """
    if header.sys_flag & _SUBSCRIPTION_FLAG:
        return inline_wanted(state, header.subscription or "", header.expression_type, known)
    subscription = _registered(state, group, header)
    if subscription.expression_type == _TAG or is_by_tags(subscription.expression_type):
        return None if subscription.sub_string == _ALL else frozenset(subscription.code_set)
    refuse_when_off(state, subscription.expression_type)
    try:
        return compiled(subscription.sub_string, subscription.expression_type, known)
    except FilterRefused as refused:
        raise RequestRefused(
            ResponseCode.FILTER_DATA_NOT_EXIST,
            "The broker's consumer filter data is not exist!Your expression may be wrong!",
        ) from refused


def _registered(
    state: BrokerState, group: GroupConfig, header: PullMessageHeader
) -> SubscriptionData:
    """Return the group's subscription to the topic, as its members sent it in heartbeats."""
    members = state.clients.consumers.get(header.consumer_group)
    if members is None:
        raise RequestRefused(
            ResponseCode.SUBSCRIPTION_NOT_EXIST, f"the consumer's group info not exist{SEE_FAQ}"
        )
    if members.message_model == BROADCASTING and not group.consume_broadcast_enable:
        raise RequestRefused(
            ResponseCode.NO_PERMISSION,
            f"the consumer group[{header.consumer_group}] can not consume by broadcast way",
            _BROADCASTING_FORBIDDEN,
        )
    groups = state.groups
    if groups.forbidden and groups.is_read_forbidden(group.group_name, header.topic):
        raise RequestRefused(
            ResponseCode.NO_PERMISSION,
            f"the consumer group[{header.consumer_group}] is forbidden for topic[{header.topic}]",
            _SUBSCRIPTION_FORBIDDEN,
        )
    subscription = members.subscriptions.get(header.topic)
    if subscription is None:
        raise RequestRefused(
            ResponseCode.SUBSCRIPTION_NOT_EXIST, f"the consumer's subscription not exist{SEE_FAQ}"
        )
    if subscription.sub_version < header.sub_version:
        raise RequestRefused(
            ResponseCode.SUBSCRIPTION_NOT_LATEST, "the consumer's subscription not latest"
        )
    return subscription


def find(state: BrokerState, header: PullMessageHeader, wanted: Wanted) -> Found:
    """Return the wanted messages of a queue from an offset on; see `Found`."""
    if state.offsets.resets:
        reset = state.offsets.take_reset(header.consumer_group, header.topic, header.queue_id)
        if reset is not None:
            return Found(ResponseCode.PULL_OFFSET_MOVED, _RESET, reset)
    queue = state.store.queues.get((header.topic, header.queue_id))
    offset = header.queue_offset
    if queue is None or queue.end == 0:
        code = ResponseCode.PULL_NOT_FOUND if offset == 0 else ResponseCode.PULL_OFFSET_MOVED
        return Found(code, "NO_MESSAGE_IN_QUEUE", 0)
    if offset < queue.first:
        return Found(ResponseCode.PULL_OFFSET_MOVED, "OFFSET_TOO_SMALL", queue.first)
    if offset == queue.end:
        return Found(ResponseCode.PULL_NOT_FOUND, "OFFSET_OVERFLOW_ONE", offset)
    if offset > queue.end:
        return Found(ResponseCode.PULL_OFFSET_MOVED, "OFFSET_OVERFLOW_BADLY", queue.end)
    if isinstance(wanted, Filter):
        return read_filtered(state, queue, header, wanted)
    found = _read_all(state, queue, header) if wanted is None else None
    return found or read(state, queue, header, wanted)


def _read_all(state: BrokerState, queue: ConsumeQueue, header: PullMessageHeader) -> Found | None:
    """Read like `_read` if all records are sound, wanted, and within the size limit; else None.

    This is the usual case. Neighbouring records are read without a step per record.
    """
    config = state.config
    log = state.store.log
    count_max = max(1, min(header.max_msg_nums, config.pull_count_max))
    places = queue.places(header.queue_offset, count_max)
    if places is None or places.begins[0] < log.start:
        return None
    begins, sizes = places
    size = sum(sizes)
    if not 0 < size <= min(header.max_msg_bytes or config.pull_size_max, config.pull_size_max):
        return None
    body = log.read_joined(begins, sizes)
    if not are_messages(body, sizes, header.queue_id, header.queue_offset):
        return None
    damage = log.damage
    is_sound = begins[0] >= damage.sought_from and (
        not damage.stretches or damage.is_excluded(begins[0], begins[-1] + sizes[-1])
    )
    if not is_sound and not are_valid(body, begins, sizes):
        return None
    if not all(map(lt, begins, begins[1:])):
        return None
    count = len(sizes)
    return Found(ResponseCode.SUCCESS, FOUND, header.queue_offset + count, body, count)


def _note_progress(
    state: BrokerState, header: PullMessageHeader, found: Found, user: str, *, commits: bool
) -> None:
    group, topic, queue_id = header.consumer_group, header.topic, header.queue_id
    pulled = state.offsets.pulls.get((topic, group))
    if pulled is not None and queue_id in pulled:
        pulled[queue_id] = found.next_offset
    else:
        state.offsets.note_pull(group, topic, queue_id, found.next_offset)
    state.statistics.pulled(group, topic, queue_id, found.messages, len(found.body))
    if state.quotas.limit_pulls:
        state.quotas.charge_pull(group, user, found.messages, len(found.body))
    if not commits or found.status == _RESET:  # the client's offset is from before the reset
        return
    if state.offsets.may_commit(group, topic, (queue_id,)):
        state.offsets.commit(group, topic, queue_id, header.commit_offset)
    else:
        broker_events.OFFSET_DROPPED.log(log, group=group, topic=topic)


def _waiting(
    state: BrokerState,
    request: Request,
    header: PullMessageHeader,
    wanted: Wanted,
    next_offset: int,
) -> WaitingPull:
    """Return a waiting pull; of its command only the fields for the reply are kept."""
    config = state.config
    wait_ms = header.suspend_timeout_millis if config.long_polling else config.short_polling_ms
    connection, command = request.connection, request.command
    return WaitingPull(
        connection.id,
        connection.address,
        Command(command.code, command.opaque, serialize_type=command.serialize_type),
        header,
        request.now_ms + wait_ms,
        wanted,
        next_offset,
        user=request.user,
    )


def _answer(
    state: BrokerState,
    command: Command,
    header: PullMessageHeader,
    found: Found,
    topic: TopicConfig,
    group: GroupConfig | None,
) -> AnyFrame:
    queue = state.store.queues.get((header.topic, header.queue_id))
    ext = PullExt(
        broker_to_read(state, queue, found, group) if state.config.slave_read else 0,
        found.next_offset,
        queue.first if queue else 0,
        queue.end if queue else 0,
        topic.topic_sys_flag,
        group.group_sys_flag if group else 0,
    )
    if found.status == FOUND:
        return encode_found(command, ext, found.body)
    return encode_answer(reply(command, found.code, found.status, ext.to_ext()))


class PullExt(NamedTuple):
    """The fields of a reply in order: suggested broker, offsets, flags."""

    suggested_broker: int
    next_offset: int
    min_offset: int
    max_offset: int
    topic_flag: int
    group_flag: int

    def to_ext(self) -> dict[str, str]:
        """Return the fields by their names on the wire."""
        return dict(zip(_NAMES, map(str, self), strict=True))


_NAMES = (
    *("suggestWhichBrokerId", "nextBeginOffset", "minOffset", "maxOffset"),
    *("topicSysFlag", "groupSysFlag"),
)
_MARKS = PullExt(-11, -12, -13, -14, -15, -16)
_OPAQUE = -17


def encode_found(command: Command, ext: PullExt, body: bytes | LongBody) -> AnyFrame:
    """Return the frame of the reply to `command`, with the records in `body`."""
    if isinstance(body, LongBody):
        return LongFrame(bytes(encode_found(command, ext, b"")), body)
    if command.serialize_type == JSON:
        return encode_frame(JSON, _TEMPLATE % (*ext, command.opaque), body)
    return encode_answer(reply(command, ResponseCode.SUCCESS, FOUND, ext.to_ext(), body))


def _cut_template() -> bytes:
    """Make the template from a normally encoded reply, so that both give the same bytes."""
    sample = reply(Command(11, _OPAQUE), ResponseCode.SUCCESS, FOUND, _MARKS.to_ext())
    template = encode_command(sample)[8:].replace(b"%", b"%%")
    for mark in (*_MARKS, _OPAQUE):
        template = template.replace(str(mark).encode(), b"%d")
    return template


_TEMPLATE = _cut_template()
