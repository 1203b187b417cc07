"""The rebalance: takes and gives back queues when the members of a group change.

Source: Apache RocketMQ `RebalanceImpl.rebalanceByTopic`.
"""

from collections.abc import Mapping
from types import MappingProxyType
from typing import NamedTuple

from reliable_mq.client.connecting.routes import MASTER_ID, Route
from reliable_mq.client.consuming.allocation import allocate
from reliable_mq.client.consuming.assigned_queue import AssignedQueue
from reliable_mq.client.consuming.consumer_group import ConsumerGroup
from reliable_mq.client.consuming.offsets import commit_at_last, first_offset, offset_at_slave
from reliable_mq.client.consuming.queue_locks import LockGrant, lock_queues, unlock
from reliable_mq.client.flow import Flow, call, now, succeeded
from reliable_mq.errors import (
    ConfigurationError,
    ConnectionLost,
    NoRoute,
    ProtocolError,
    RemoteError,
    Unavailable,
)
from reliable_mq.wire import fastjson
from reliable_mq.wire.codes import RequestCode
from reliable_mq.wire.command import request


class AssignmentChanges(NamedTuple):
    """The result of a rebalance.

    `settled` is False when it should be repeated soon. `obstacles` are the reasons, if there are
    any. `missing` are topics that no name server knows (yet). `accepted`: the brokers of all other
    topics have answered, and count this member. `idle`: topics of which others have all queues, and
    the numbers of members and of queues.
    """

    added: list[AssignedQueue]
    left: list[AssignedQueue]
    settled: bool
    obstacles: frozenset[str] = frozenset()
    missing: frozenset[str] = frozenset()
    accepted: bool = False
    idle: Mapping[str, tuple[int, int]] = MappingProxyType({})


def rebalance(group: ConsumerGroup) -> Flow[AssignmentChanges]:
    """Compute this member's share of every topic; take and leave queues accordingly.

    If the route or the members of a topic cannot be read, the topic keeps its queues.
    """
    added: list[AssignedQueue] = []
    left: list[AssignedQueue] = []
    settled = accepted = True
    faults: dict[str, list[str]] = {}  # topics by the error that they have in common
    obstacles: set[str] = set()
    missing: set[str] = set()
    idle: dict[str, tuple[int, int]] = {}
    for topic in group.tags:
        try:
            route = yield from group.routes.of(topic)
            members = yield from _members(group, route)
            share = set(
                allocate(group.allocation_of(topic), group.client_id, route.readable, members)
            )
        except NoRoute:  # a topic without messages does not exist yet: this is no fault
            settled = False
            missing.add(topic)
            continue
        except ConnectionLost:  # the connection tells it
            settled = accepted = False
            continue
        except (Unavailable, RemoteError, ProtocolError, ConfigurationError) as error:
            settled = accepted = False
            faults.setdefault(str(error), []).append(topic)
            continue
        if not route.readable:
            settled = False
            obstacles.add(f"topic {topic} has no queue that may be read: give it permission 6")
        accepted = accepted and group.client_id in members
        settled = settled and group.client_id in members
        if not share and len(members) > len(route.readable) and topic in group.subscription.topics:
            idle[topic] = len(members), len(route.readable)
        left += [group.leave(queue) for queue in group.assigned_of(topic) - share]
        for queue in sorted(share - group.assigned_of(topic)):
            if group.is_leaving(queue):
                settled = False  # not given back yet; after that it is assigned again
            else:
                added.append(group.assign(queue))
    for fault, topics in faults.items():
        what = "topic" if len(topics) == 1 else "topics"
        obstacles.add(f"{what} {', '.join(topics)} cannot be read: {fault}")
    return AssignmentChanges(
        added, left, settled, frozenset(obstacles), frozenset(missing), accepted, idle
    )


def _members(group: ConsumerGroup, route: Route) -> Flow[list[str]]:
    """Return the client ids of the group, from the first broker that answers.

    A broadcasting member reads all queues, as if it were alone.
    """
    if group.subscription.broadcasting:
        return [group.client_id]
    failure: Exception = NoRoute(f"no broker of topic {route.topic} is known")
    for broker in route.brokers.values():
        address = broker.to_read_from(0)
        if address is None:
            continue
        command = request(RequestCode.GET_CONSUMER_LIST_BY_GROUP, {"consumerGroup": group.name})
        try:
            reply = yield from call(address, command, group.settings.request_timeout_seconds)
            return list(fastjson.loads(succeeded(reply).body)["consumerIdList"])
        except (Unavailable, RemoteError) as error:
            failure = error
        except (ValueError, KeyError, TypeError) as error:
            failure = ProtocolError(f"a list of consumers cannot be decoded: {error!r}")
    group.routes.mark_stale(route.topic)
    raise failure


def keep_ready(group: ConsumerGroup) -> Flow[bool]:
    """Renew and request locks, and find out where to read; return whether all queues are ready.

    A queue without a lock may have had another owner meanwhile. Before anything starts, messages
    that this owner has committed are dropped.
    """
    well = True
    locked = [assigned for assigned in group.all_queues if _wants_lock(assigned)]
    for broker_name, of_broker in group.by_broker(locked):
        queues = list(filter(_wants_lock, of_broker))  # again: other requests took time
        if not queues:
            continue
        try:
            grant = yield from lock_queues(group, broker_name, queues)
        except (Unavailable, RemoteError, ProtocolError):
            well = False
            continue
        for assigned in queues:
            well = (yield from _use_grant(group, assigned, grant)) and well
    for assigned in group.assigned:
        if not assigned.needs_lock and not assigned.is_started:
            well = (yield from _find_start(group, assigned)) and well
    return well


def _wants_lock(assigned: AssignedQueue) -> bool:
    """Whether a lock is useful. A lock that arrives after the unlock would block the next owner."""
    if assigned.is_given_back or not assigned.needs_lock:
        return False
    return assigned.running > 0 or not assigned.leaving


def _use_grant(group: ConsumerGroup, assigned: AssignedQueue, grant: LockGrant) -> Flow[bool]:
    if assigned.queue not in grant.queues:
        assigned.lose_lock()
        return False
    instant = yield from now()
    knows_where = assigned.is_started and assigned.holds_lock(instant.lease_seconds)
    if not knows_where and not (yield from _find_start(group, assigned)):
        return False
    assigned.lock_until(grant.expires)
    return True


def _find_start(group: ConsumerGroup, assigned: AssignedQueue) -> Flow[bool]:
    broker = group.routes.broker(assigned.queue.broker_name)
    address = broker.to_read_from(MASTER_ID) if broker is not None else None
    if broker is None or address is None:
        return False
    knows = address == broker.master or group.local_offsets is not None
    asks = first_offset if knows else offset_at_slave
    try:
        offset = yield from asks(group, assigned.queue, address)
    except Unavailable:
        group.routes.mark_stale(assigned.queue.topic)
        return False
    except (RemoteError, ProtocolError):
        return False
    if assigned.is_started:
        assigned.forget_below(offset)
    else:
        assigned.start_at(offset)
    return True


def give_back(group: ConsumerGroup, assigned: AssignedQueue) -> Flow[None]:
    """Commit and then unlock a queue without running messages."""
    yield from commit_at_last(group, [assigned])
    yield from unlock(group, [assigned])
    group.forget(assigned)


def give_all_back(group: ConsumerGroup) -> Flow[None]:
    """Leave every queue: commit, then unlock. Locks that cannot be released expire."""
    for assigned in group.assigned:
        group.leave(assigned.queue)
    queues = group.all_queues
    yield from commit_at_last(group, queues)
    yield from unlock(group, [q for q in queues if not q.running])
    for assigned in queues:
        group.forget(assigned)
