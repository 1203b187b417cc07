"""Pulls: return the messages of a queue from an offset on, or wait for a message.

`pull_allowed` says whether it may, and what it accepts. `pull_reading` finds the messages.
Source: Apache RocketMQ `PullMessageProcessor`, `DefaultPullMessageResultHandler`.
"""

from reliable_mq.broker_core.delivery.long_poll import BYTES_FOR_COST, WaitingPull, Wanted
from reliable_mq.broker_core.groups import GroupConfig
from reliable_mq.broker_core.requests.filtered_pull import scan_cost
from reliable_mq.broker_core.requests.offsets import is_young
from reliable_mq.broker_core.requests.pull_allowed import allowed, refuse_revoked
from reliable_mq.broker_core.requests.pull_reading import RESET, Found, find
from reliable_mq.broker_core.requests.pull_reply import FOUND, PullExt, encode_found
from reliable_mq.broker_core.requests.refusal import (
    RequestRefused,
    of_unverified,
)
from reliable_mq.broker_core.state import BrokerState, Request
from reliable_mq.broker_core.store.consume_queue import ConsumeQueue
from reliable_mq.broker_core.topics import TopicConfig
from reliable_mq.errors import InvariantBroken
from reliable_mq.line_limit import limited_log
from reliable_mq.telemetry import broker_events
from reliable_mq.wire.answer import encode_answer
from reliable_mq.wire.codes import ResponseCode
from reliable_mq.wire.command import ONE_WAY_FLAG, Command, reply
from reliable_mq.wire.headers import PullMessageHeader
from reliable_mq.wire.long_frame import AnyFrame

log = limited_log(__name__)

COMMIT_OFFSET = 0x1
SUSPEND = 0x2
_LOOKED = (ResponseCode.SUCCESS, ResponseCode.PULL_RETRY_IMMEDIATELY)
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
    topic, wanted = allowed(state, group, header, request.connection.address)
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
        refuse_revoked(state, pull.command.code, pull.user, pull.address, header)
        group = state.groups.by_name.get(header.consumer_group)
        topic, wanted = allowed(state, group, header, pull.address, pull.wanted)
    except RequestRefused as refused:
        return encode_answer(reply(pull.command, refused.code, refused.remark, refused.ext)), 0
    found, work = find(state, header, wanted), 0
    _note_progress(state, header, found, pull.user, commits=False)
    if pull.wanted is not None:
        looked_at = found.next_offset - header.queue_offset if found.code in _LOOKED else 0
        work = scan_cost(pull.wanted, looked_at) + found.work
    return _answer(state, pull.command, header, found, topic, group), work


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
    if not commits or found.status == RESET:  # the client's offset is from before the reset
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
        _broker_to_read(state, queue, found, group) if state.config.slave_read else 0,
        found.next_offset,
        queue.first if queue else 0,
        queue.end if queue else 0,
        topic.topic_sys_flag,
        group.group_sys_flag if group else 0,
    )
    if found.status == FOUND:
        return encode_found(command, ext, found.body)
    return encode_answer(reply(command, found.code, found.status, ext.to_ext()))


def _broker_to_read(
    state: BrokerState, queue: ConsumeQueue | None, found: Found, group: GroupConfig | None
) -> int:
    """Return the id of the broker from which a group must read next, if slaves may be read.

    A group that reads messages which are probably not in memory gets the broker in its settings.
    """
    group = group or GroupConfig()
    last = found.next_offset - 1
    is_read = found.code in (ResponseCode.SUCCESS, ResponseCode.PULL_RETRY_IMMEDIATELY)
    is_slow = (
        is_read
        and queue is not None
        and queue.first <= last < queue.end
        and not is_young(state, queue.unit(last).commit_log_offset)
    )
    return group.which_broker_when_consume_slowly if is_slow else group.broker_id
