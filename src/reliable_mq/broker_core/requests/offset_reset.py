"""Offsets of a whole group: reset by time or to an offset, clone, compare.

Source: Apache RocketMQ `AdminBrokerProcessor.resetOffset`, `Broker2Client.resetOffset`,
`ConsumerOffsetManager`.
"""

from reliable_mq.broker_core.clients import RegisteredGroup, RegisteredMember
from reliable_mq.broker_core.names import group_fault
from reliable_mq.broker_core.requests.offsets import is_known_queue, offset_at_time
from reliable_mq.broker_core.requests.pop_ack import save_orders
from reliable_mq.broker_core.requests.pop_position import note_reset
from reliable_mq.broker_core.requests.pull import answer_waiting
from reliable_mq.broker_core.requests.queue_stats import QueueKey, queue_key
from reliable_mq.broker_core.requests.refusal import (
    QUEUES_ASKED_MAX,
    RequestRefused,
    no_room_for_offsets,
    refuse_above,
)
from reliable_mq.broker_core.state import BrokerState, Request
from reliable_mq.limits import OFFSETS_ASKED_MAX
from reliable_mq.wire import fastjson
from reliable_mq.wire.codes import RequestCode, ResponseCode
from reliable_mq.wire.command import Command, encode_command, reply, request
from reliable_mq.wire.headers import (
    CloneGroupOffsetHeader,
    CorrectionOffsetHeader,
    ResetOffsetHeader,
)
from reliable_mq.wire.java_int import I64_MAX

_VERSION_MIN = 28  # MQVersion.V3_0_7_SNAPSHOT: older clients do not support these requests


def invoke_broker_to_reset_offset(state: BrokerState, asked: Request) -> Command | None:
    """INVOKE_BROKER_TO_RESET_OFFSET: reset by time or to an offset, with or without consumers.

    By default (`useServerSideResetOffset`) the broker keeps the new offsets, and each consumer gets
    its new offset with its next pull. Commits before that are dropped. If the property is false,
    the broker sends the new offsets to the online consumers.
    """
    header = ResetOffsetHeader.decode(asked.command.ext_fields)
    if not state.config.server_side_reset:
        return _send_resets(state, asked, header)
    topic = state.topics.get(header.topic)
    if topic is None:
        raise RequestRefused(ResponseCode.TOPIC_NOT_EXIST, f"Topic {header.topic} does not exist")
    if state.groups.get(header.group) is None:
        raise RequestRefused(
            ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST, f"Group {header.group} does not exist"
        )
    if header.queue_id >= 0:
        offsets = {header.queue_id: _target(state, header)}
    else:
        refuse_above(topic.read_queue_nums, QUEUES_ASKED_MAX, "queues")
        offsets = {
            queue_id: _by_time(state, header, queue_id) for queue_id in range(topic.read_queue_nums)
        }
    if not offsets:
        raise RequestRefused(ResponseCode.SYSTEM_ERROR, "No queues to reset.")
    if not state.offsets.may_commit(header.group, header.topic, offsets):
        raise no_room_for_offsets()
    for queue_id, offset in offsets.items():
        if is_known_queue(state, header.topic, queue_id):  # Apache also keeps unknown queues
            state.offsets.reset(header.group, header.topic, queue_id, offset)
            state.orders.forget_queue(header.topic, header.group, queue_id)
            note_reset(state, header.topic, header.group, queue_id, offset)
        _wake_pulls(state, header, queue_id)
    save_orders(state)
    state.reply_when_saved(asked, _table_reply(state, asked.command, header.topic, offsets))
    return None


def _target(state: BrokerState, header: ResetOffsetHeader) -> int:
    offset = header.offset
    if offset is None or offset == -1:
        return _by_time(state, header, header.queue_id)
    first, end = state.store.bounds(header.topic, header.queue_id)
    if not first <= offset <= end + 1:
        raise RequestRefused(
            ResponseCode.SYSTEM_ERROR,
            f"Target offset {offset} not in consume queue range [{first}-{end}]",
        )
    return offset


def _by_time(state: BrokerState, header: ResetOffsetHeader, queue_id: int) -> int:
    queue = state.store.queue(header.topic, queue_id)
    if header.timestamp < 0:
        return queue.end if queue else 0
    return offset_at_time(state, queue, header.timestamp)


def _wake_pulls(state: BrokerState, header: ResetOffsetHeader, queue_id: int) -> None:
    """Answer the group's waiting pulls, so that its consumers see the reset at once.

    The first pull takes the reset. The others are answered as if their timeout were over.
    A consumer that left the group gets no answer: its last commit may arrive after it unregistered,
    as with the Java client, and would undo a reset that its pull had taken.
    """
    if state.pops.waiting:
        state.pops.wake(header.topic, header.group, queue_id)
    group = state.clients.consumer_group(header.group)
    members = group.members if group else {}
    pulls = state.pulls.of_group(header.topic, queue_id, header.group)
    pulls = [pull for pull in pulls if pull.connection in members]
    for pull in pulls[:1]:
        state.pulls.release(pull)
        answer_waiting(state, pull)
    for pull in pulls[1:]:
        state.pulls.expire(pull)


def _send_resets(state: BrokerState, asked: Request, header: ResetOffsetHeader) -> Command:
    """Send RESET_CONSUMER_CLIENT_OFFSET to each online consumer of the group."""
    topic = state.topics.get(header.topic)
    if topic is None:
        raise RequestRefused(
            ResponseCode.TOPIC_NOT_EXIST,
            f"[reset-offset] reset offset failed, no topic in this broker. topic={header.topic}",
        )
    refuse_above(topic.write_queue_nums, QUEUES_ASKED_MAX, "queues")
    offsets: dict[int, int] = {}
    for queue_id in range(topic.write_queue_nums):
        consumed = state.offsets.get(header.group, header.topic, queue_id)
        if consumed is None:
            raise RequestRefused(
                ResponseCode.SYSTEM_ERROR, f"THe consumer group <{header.group}> not exist"
            )
        by_time = _by_time(state, header, queue_id)
        offsets[queue_id] = by_time if header.is_force else min(by_time, consumed)
    group = state.clients.consumer_group(header.group)
    if group is None:
        raise RequestRefused(
            ResponseCode.CONSUMER_NOT_ONLINE,
            f"Consumer not online, so can not reset offset, Group: {header.group} "
            f"Topic: {header.topic} Timestamp: {header.timestamp}",
        )
    refuse_old_clients(group)
    for member in group.members.values():
        state.reply(member.connection, _reset_frame(state, header, member, offsets))
    return _table_reply(state, asked.command, header.topic, offsets)


def refuse_old_clients(group: RegisteredGroup) -> None:
    """Refuse requests that clients before version 3.0.7 do not support."""
    for member in group.members.values():
        if member.version < _VERSION_MIN:
            raise RequestRefused(
                ResponseCode.SYSTEM_ERROR,
                f"the client does not support this feature. version={member.version}",
            )


def _reset_frame(
    state: BrokerState, header: ResetOffsetHeader, member: RegisteredMember, offsets: dict[int, int]
) -> bytes:
    """Return the request to one consumer; C++ based clients expect a list of queues."""
    body: object
    if member.language == "CPP":
        body = [
            {**dict(queue_key(state, header.topic, queue_id)), "offset": offset}
            for queue_id, offset in offsets.items()
        ]
    else:
        body = _table(state, header.topic, offsets)
    ext = {
        "topic": header.topic,
        "group": header.group,
        "timestamp": str(header.timestamp),
        "isForce": str(header.is_force).lower(),
    }
    command = request(
        RequestCode.RESET_CONSUMER_CLIENT_OFFSET,
        ext,
        fastjson.dumps({"offsetTable": body}),
        oneway=True,
    )
    return encode_command(command)


def _table(state: BrokerState, topic: str, offsets: dict[int, int]) -> dict[QueueKey, int]:
    return {queue_key(state, topic, queue_id): offset for queue_id, offset in offsets.items()}


def _table_reply(
    state: BrokerState, command: Command, topic: str, offsets: dict[int, int]
) -> Command:
    body = {"offsetTable": _table(state, topic, offsets)}
    return reply(command, body=fastjson.dumps(body))


def clone_group_offset(state: BrokerState, asked: Request) -> Command:
    """CLONE_GROUP_OFFSET: for one topic, or for all topics in which the source has offsets.

    Deleted topics are skipped. Topics without a subscription of an online source are skipped,
    unless `offline` is set. (Without a topic Apache clones nothing: it looks for a topic "null".)
    """
    header = CloneGroupOffsetHeader.decode(asked.command.ext_fields)
    source = state.clients.consumer_group(header.src_group)
    wanted = source.subscriptions if source and not header.offline else None
    topic = (header.topic or "").strip()
    fault = group_fault(header.dest_group)
    if fault:
        raise RequestRefused(ResponseCode.INVALID_PARAMETER, fault)
    names = [
        name
        for name in ([topic] if topic else state.offsets.topics_of(header.src_group))
        if state.topics.get(name) is not None and (not wanted or name in wanted)
    ]
    size = sum(state.offsets.size_of(header.src_group, name) for name in names)
    refuse_above(size, OFFSETS_ASKED_MAX, "offsets")
    if not state.offsets.may_clone(header.src_group, header.dest_group, names):
        raise no_room_for_offsets()
    for name in names:
        state.offsets.clone(header.src_group, header.dest_group, name)
    return reply(asked.command)


def query_correction_offset(state: BrokerState, asked: Request) -> Command:
    """QUERY_CORRECTION_OFFSET: the lowest offset of all groups in each queue of a topic.

    Groups in `filterGroups` do not count. (Apache deletes their offsets; that is a bug there,
    because this request is a query.) If the group to compare is behind all others, the offset is
    the largest 64-bit number.
    """
    header = CorrectionOffsetHeader.decode(asked.command.ext_fields)
    ignored = set((header.filter_groups or "").split(","))
    lowest: dict[int, int] = {}
    groups = [group for group in state.offsets.groups_of(header.topic) if group not in ignored]
    size = sum(state.offsets.size_of(group, header.topic) for group in groups)
    refuse_above(size, OFFSETS_ASKED_MAX, "offsets")
    for group in groups:
        for queue_id, offset in state.offsets.all_of(group, header.topic).items():
            if offset >= state.store.bounds(header.topic, queue_id)[0]:
                lowest[queue_id] = min(offset, lowest.get(queue_id, offset))
    for queue_id, offset in state.offsets.all_of(header.compare_group, header.topic).items():
        if lowest.get(queue_id, offset) > offset:
            lowest[queue_id] = I64_MAX
    return reply(asked.command, body=fastjson.dumps({"correctionOffsets": lowest}))
