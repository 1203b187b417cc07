"""Pops: hand messages out for a time, from any queue of a topic, or wait for a message.

A pop takes messages of the topic, and those that came back from earlier pops of its group. Each
fifth pop begins with the latter. Every queue that it takes from gets a checkpoint; the reply leaves
when the checkpoints are stored as the flush type promises.
Source: Apache RocketMQ `PopMessageProcessor`.
"""

from collections.abc import Iterator

import msgspec

from reliable_mq.broker_core.delivery.long_poll import BYTES_FOR_COST, Wanted
from reliable_mq.broker_core.delivery.pop_orders import PATH as ORDERS_PATH
from reliable_mq.broker_core.delivery.popped import RETRY_EVERY, PoppedPlace
from reliable_mq.broker_core.delivery.waiting_pops import WaitingPop, poll_end_ms
from reliable_mq.broker_core.names import TIMER_TOPIC, pop_retry_topic
from reliable_mq.broker_core.requests.filtered_pull import scan_cost
from reliable_mq.broker_core.requests.pop_checks import (
    readable_topic,
    refuse_group,
    refuse_long_attempt,
    refuse_too_long,
)
from reliable_mq.broker_core.requests.pop_position import pop_position
from reliable_mq.broker_core.requests.pop_records import append_checkpoint
from reliable_mq.broker_core.requests.pop_waiting import hold_until_saved, waiting_pop
from reliable_mq.broker_core.requests.popped_body import places_in, with_handles, without_handles
from reliable_mq.broker_core.requests.pull import find
from reliable_mq.broker_core.requests.pull_wanted import inline_wanted
from reliable_mq.broker_core.requests.refusal import RequestRefused, of_unverified
from reliable_mq.broker_core.requests.revoked import refuse_revoked
from reliable_mq.broker_core.state import BrokerState, Request
from reliable_mq.broker_core.topics import TopicConfig
from reliable_mq.errors import InvariantBroken
from reliable_mq.line_limit import limited_log
from reliable_mq.telemetry import broker_events
from reliable_mq.wire.answer import encode_answer
from reliable_mq.wire.codes import ResponseCode
from reliable_mq.wire.command import Command, reply
from reliable_mq.wire.headers import PullMessageHeader
from reliable_mq.wire.pop_handle import (
    ORDER_QUEUE,
    PopHandle,
    kind_of,
    offsets_field,
    start_offset_field,
)
from reliable_mq.wire.pop_headers import PopMessageHeader
from reliable_mq.wire.pop_records import MESSAGES_MAX, CheckpointKey, PopCheckpoint
from reliable_mq.wire.popped_record import has_handle

log = limited_log(__name__)

REVIVE_QUEUES = 8
_LATE_MS = 500  # of a request that has waited elsewhere
_POP_COST = 100  # microseconds
_MOVED = ("OFFSET_TOO_SMALL", "OFFSET_OVERFLOW_BADLY")
_SKIPPED = ("NO_MATCHED_MESSAGE", "MESSAGE_WAS_REMOVING")
FOUND, _NOTHING = "FOUND", "NO_MESSAGE_IN_QUEUE"
_NO_POP = dict.fromkeys(("popTime", "invisibleTime", "reviveQid", "restNum"), "0")  # Java needs it


class _Pop(msgspec.Struct):
    """A pop under way: what it may take, and what it has."""

    header: PopMessageHeader
    wanted: Wanted
    now_ms: int
    user: str
    revive_queue: int
    room: int
    size_left: int
    rest: int = 0
    work: int = 0  # microseconds of looking at messages that are not wanted
    is_moved: bool = False  # behind messages that are not wanted
    end: int = 0  # of the log behind its checkpoints
    bodies: list[bytes] = msgspec.field(default_factory=list)
    starts: list[str] = msgspec.field(default_factory=list)
    offsets: list[str] = msgspec.field(default_factory=list)
    counts: list[str] = msgspec.field(default_factory=list)


def pop_message(state: BrokerState, request: Request) -> Command | None:
    """POP_MESSAGE."""
    command, now_ms = request.command, request.now_ms
    header = PopMessageHeader.decode(command.ext_fields)
    if not header.born_time:
        header = msgspec.structs.replace(header, born_time=now_ms)
    ip = state.config.broker_ip
    if now_ms - header.born_time - header.poll_time > _LATE_MS:
        late = f"the broker[{ip}] pop message is timeout too much"
        raise RequestRefused(ResponseCode.POLLING_TIMEOUT, late, _NO_POP)
    refuse_long_attempt(header.attempt_id)
    _refuse_illegal(state, header)
    topic = readable_topic(state, header.topic, header.queue_id, request.connection.address)
    refuse_group(state, header.consumer_group, request)
    if state.quotas.limit_pulls:
        state.quotas.take_pull(header.consumer_group, request.user, now_ms)
    wanted = inline_wanted(state, header.exp, header.exp_type) if header.exp else None
    pop = _pop(state, header, topic, wanted, now_ms, request.user)
    if pop.bodies:
        _send(state, request.connection.id, command, pop)
        _tell_others(state, pop)
        return None
    return _wait(state, request, header, wanted, pop)


def _refuse_illegal(state: BrokerState, header: PopMessageHeader) -> None:
    ip, config = state.config.broker_ip, state.config
    if header.max_msg_nums < 1:
        raise RequestRefused(
            ResponseCode.INVALID_PARAMETER,
            f"maxMsgNums is {header.max_msg_nums}: ask for 1 to {MESSAGES_MAX} messages",
        )
    if header.max_msg_nums > MESSAGES_MAX:
        raise RequestRefused(
            ResponseCode.INVALID_PARAMETER,
            f"the broker[{ip}] pop message's num is greater than {MESSAGES_MAX}",
        )
    if not config.timer_wheel:
        raise RequestRefused(
            ResponseCode.SYSTEM_ERROR,
            f"the broker[{ip}] pop message is forbidden because timerWheelEnable is false",
        )
    refuse_too_long(state, header.invisible_time)
    if state.pressure.is_disk_full:
        raise RequestRefused(ResponseCode.SERVICE_NOT_AVAILABLE, "Service not available now.")


def _wait(
    state: BrokerState, request: Request, header: PopMessageHeader, wanted: Wanted, pop: _Pop
) -> Command | None:
    """Let a pop wait that found nothing, unless it may not."""
    command = request.command
    is_new = header.consumer_group in state.groups.unsaved
    deadline_ms = poll_end_ms(header.born_time, header.poll_time, request.now_ms)
    if not is_new and (header.poll_time <= 0 or deadline_ms <= request.now_ms):
        return _nothing(command, ResponseCode.POLLING_TIMEOUT, pop)
    waiting = waiting_pop(request, header, deadline_ms, wanted)
    if not state.pops.has_room(waiting):
        return _nothing(command, ResponseCode.POLLING_FULL, pop)
    if command.is_oneway:
        return None
    if is_new:
        hold_until_saved(state, request, waiting)
    else:
        _hold(state, waiting, pop)
    return None


def _hold(state: BrokerState, waiting: WaitingPop, pop: _Pop) -> None:
    """Let a pop wait; it goes on in the next turn while it has not looked at all that is there.

    Otherwise the messages behind the limit of one look would wait until the next one arrives.
    """
    state.pops.hold(waiting)
    if pop.is_moved and pop.rest > 0:
        state.pops.go_on(waiting)


def answer_waiting_pop(state: BrokerState, waiting: WaitingPop, now_ms: int) -> int:
    """Answer a pop that waited, or let it wait on; return the work in microseconds.

    The caller must not hold it. Permissions may have changed, so they are checked again.
    """
    try:
        work = _answer_waiting(state, waiting, now_ms)
    except InvariantBroken:
        raise
    except RequestRefused as refused:
        answer = reply(waiting.command, refused.code, refused.remark, refused.ext)
        state.reply(waiting.connection, encode_answer(answer))
        _wake_next(state, waiting.header)
        work = 0
    except Exception as error:  # noqa: BLE001 - it is logged
        broker_events.WAITING_PULL_FAILED.log(log, traceback_of=True, client=waiting.address)
        text = f"{type(error).__name__}: {error}"
        answer = reply(waiting.command, ResponseCode.SYSTEM_ERROR, text)
        state.reply(waiting.connection, encode_answer(answer))
        _wake_next(state, waiting.header)
        work = 0
    return _POP_COST + work


def _answer_waiting(state: BrokerState, waiting: WaitingPop, now_ms: int) -> int:
    header: PopMessageHeader = waiting.header
    if state.is_unverified:  # another broker is the master now
        raise of_unverified()
    refuse_revoked(state, waiting.command.code, waiting.user, waiting.address, header)
    _refuse_illegal(state, header)
    topic = readable_topic(state, header.topic, header.queue_id, waiting.address)
    group = state.groups.by_name.get(header.consumer_group)
    if group is None or not group.consume_enable:
        name = header.consumer_group
        raise RequestRefused(
            ResponseCode.NO_PERMISSION, f"subscription group no permission, {name}"
        )
    pop = _pop(state, header, topic, waiting.wanted, now_ms, waiting.user)
    if pop.bodies:
        _send(state, waiting.connection, waiting.command, pop)
        _tell_others(state, pop)
    elif now_ms < waiting.deadline_ms:
        _hold(state, waiting, pop)
    else:
        answer = _nothing(waiting.command, ResponseCode.POLLING_TIMEOUT, pop)
        state.reply(waiting.connection, encode_answer(answer))
        _tell_others(state, pop)
    return pop.work + sum(map(len, pop.bodies)) // BYTES_FOR_COST


def _pop(
    state: BrokerState,
    header: PopMessageHeader,
    topic: TopicConfig,
    wanted: Wanted,
    now_ms: int,
    user: str,
) -> _Pop:
    """Take messages of the queues in turn, and write their checkpoints."""
    number = state.popped.number = state.popped.number + 1
    state.popped.now_ms = now_ms
    if not header.order:  # a message must not come back at a time that the timers have passed
        now_ms = max(now_ms, state.timers.delivered_ms)
        state.popped.latest_ms = max(now_ms, state.popped.latest_ms)
    revive_queue = ORDER_QUEUE if header.order else number % REVIVE_QUEUES
    room, size = header.max_msg_nums, state.config.pull_size_max
    pop = _Pop(header, wanted, now_ms, user, revive_queue, room, size)
    if header.consumer_group in state.groups.unsaved:
        return pop
    turn = state.popped.turn_of(header.topic, header.consumer_group)
    is_retry_first = not header.order and turn.is_of_retries()
    if is_retry_first:
        _pop_retries(state, pop, turn.pops)
    if header.queue_id >= 0:
        _pop_queue(state, pop, header.topic, header.queue_id)
    elif count := topic.read_queue_nums:
        first = turn.first_queue(count) if pop.room > 0 else 0
        for index in range(count):
            _pop_queue(state, pop, header.topic, (first + index) % count)
    if not is_retry_first and pop.room > 0 and not header.order:
        _pop_retries(state, pop, turn.pops)
    return pop


def _pop_retries(state: BrokerState, pop: _Pop, number: int) -> None:
    """Take messages that came back. A reply can have those of one version of the topic only."""
    config, header = state.config, pop.header
    versions: Iterator[bool] = iter((config.pop_retry_v2,))
    if config.pop_retry_v2 and config.pops_retry_v1:
        versions = iter((True, False) if number // RETRY_EVERY % 2 else (False, True))
    for is_v2 in versions:
        name = pop_retry_topic(header.topic, header.consumer_group, is_v2=is_v2)
        topic = state.topics.by_name.get(name)
        taken = len(pop.bodies)
        for queue_id in range(topic.read_queue_nums if topic else 0):
            _pop_queue(state, pop, name, queue_id)
        if len(pop.bodies) > taken:
            return


def _pop_queue(state: BrokerState, pop: _Pop, topic: str, queue_id: int) -> None:
    header, group = pop.header, pop.header.consumer_group
    offset = pop_position(state, group, topic, queue_id, header.init_mode)
    if header.order and state.orders.blocks(
        topic, group, queue_id, header.attempt_id, header.invisible_time, pop.now_ms
    ):
        return
    queue = state.store.queues.get((topic, queue_id))
    if queue is None:
        return
    if pop.room <= 0 or pop.size_left <= 0:
        pop.rest += max(0, queue.end - offset)
        return
    pull = PullMessageHeader(
        consumer_group=group,
        topic=topic,
        queue_id=queue_id,
        queue_offset=offset,
        max_msg_nums=pop.room,
        sys_flag=0,
        commit_offset=0,
        suspend_timeout_millis=0,
        max_msg_bytes=pop.size_left,
    )
    found = find(state, pull, pop.wanted)
    if found.status in _MOVED:
        offset = found.next_offset
        state.offsets.commit(group, topic, queue_id, offset)
        found = find(state, msgspec.structs.replace(pull, queue_offset=offset), pop.wanted)
    pop.rest += max(0, queue.end - found.next_offset)
    pop.work += scan_cost(pop.wanted, max(0, found.next_offset - offset)) + found.work
    if found.status == FOUND:
        body = found.body if isinstance(found.body, bytes) else b"".join(found.body.pieces)
        _hand_out(state, pop, topic, queue_id, offset, found.next_offset, body)
    elif found.status in _SKIPPED and found.next_offset > offset:
        pop.is_moved = True
        _move(state, group, topic, queue_id, found.next_offset)


def _move(state: BrokerState, group: str, topic: str, queue_id: int, offset: int) -> None:
    """Move a group's offset behind messages that it does not want."""
    if state.popped.next_of(topic, group, queue_id) is None:
        state.offsets.commit(group, topic, queue_id, offset)
    else:
        end, timers = state.store.log.end, state.store.queues.get((TIMER_TOPIC, 0))
        place = PoppedPlace(end, timers.end if timers else 0, group, topic, queue_id, offset)
        state.popped.commit_later(place)


def _hand_out(
    state: BrokerState,
    pop: _Pop,
    topic: str,
    queue_id: int,
    offset: int,
    next_offset: int,
    body: bytes,
) -> None:
    """Give messages to a pop, and write their checkpoint or note their order."""
    header, group = pop.header, pop.header.consumer_group
    sizes, offsets = places_in(body)
    broker = state.config.broker_name
    if header.order:
        pop.counts += state.orders.handed_out(
            topic, group, queue_id, header.attempt_id, pop.now_ms, header.invisible_time, offsets
        )
        state.offsets.commit(group, topic, queue_id, offset)
    else:
        key = CheckpointKey(topic, group, queue_id, offset, pop.now_ms, broker)
        checkpoint = PopCheckpoint(
            key, header.invisible_time, tuple(offsets), next_offset=next_offset
        )
        place = append_checkpoint(state, checkpoint, pop.revive_queue, state.popped.now_ms)
        pop.end = place.end
        if pop.now_ms == state.popped.latest_ms:
            state.timers.settled.popped(checkpoint, place.queue_offset, place.commit_log_offset)
        state.popped.popped(
            PoppedPlace(place.end, place.queue_offset, group, topic, queue_id, next_offset),
            len(offsets),
            checkpoint.revive_ms,
        )
    state.statistics.pulled(group, topic, queue_id, len(offsets), len(body))
    if state.quotas.limit_pulls:
        state.quotas.charge_pull(group, pop.user, len(offsets), len(body))
    if topic != header.topic:
        popped = pop.now_ms, header.invisible_time, pop.revive_queue
        handle = PopHandle(offset, *popped, kind_of(topic), broker, queue_id)
        body = with_handles(body, sizes, offsets, header.topic, handle)
    elif has_handle(body):
        body = without_handles(body, sizes, topic)
    pop.bodies.append(body)
    pop.starts.append(start_offset_field(topic, queue_id, offset))
    pop.offsets.append(offsets_field(topic, queue_id, offsets))
    pop.room -= len(offsets)
    pop.size_left -= len(body)


def _ext(pop: _Pop) -> dict[str, str]:
    ext = {
        "popTime": str(pop.now_ms),
        "invisibleTime": str(pop.header.invisible_time),
        "reviveQid": str(pop.revive_queue),
        "restNum": str(pop.rest),
        "startOffsetInfo": ";".join(pop.starts),
        "msgOffsetInfo": ";".join(pop.offsets),
    }
    if pop.header.order:
        ext["orderCountInfo"] = ";".join(pop.counts)
    return ext


def _send(state: BrokerState, connection: int, command: Command, pop: _Pop) -> None:
    if command.is_oneway:
        return
    answer = reply(command, ResponseCode.SUCCESS, FOUND, _ext(pop), b"".join(pop.bodies))
    if pop.end:
        state.reply_when_stored(connection, pop.end, encode_answer(answer))
    else:  # in order
        state.files.change(ORDERS_PATH, state.orders.dump)
        frame = encode_answer(answer)
        state.files.when_saved(lambda: state.answers.now(connection, frame))


def _nothing(command: Command, code: ResponseCode, pop: _Pop) -> Command:
    return reply(command, code, _NOTHING, _ext(pop))


def _tell_others(state: BrokerState, pop: _Pop) -> None:
    """Wake the next pop of the group, if this one has left messages."""
    if pop.rest > 0:
        _wake_next(state, pop.header)


def _wake_next(state: BrokerState, header: PopMessageHeader) -> None:
    """Wake the next pop of the group: a message wakes one only, which has ended."""
    if state.pops.waiting:
        state.pops.wake(header.topic, header.consumer_group, header.queue_id)
