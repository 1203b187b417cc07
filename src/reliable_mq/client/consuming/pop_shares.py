"""Where a member of a group pops: at the master of each broker, from all queues or from some.

Every member pops from all queues, so nobody has to agree on anything. If an administrator has set
the mode POP for the group and the topic, with a number of members that share a queue, the broker
computes the queues of each member (`mqadmin setConsumeMode`).
Source: Apache RocketMQ `QueryAssignmentProcessor`, `RebalanceImpl.getRebalanceResultFromBroker`.
"""

from collections.abc import Collection
from typing import NamedTuple

from reliable_mq.client.connecting.routes import Route
from reliable_mq.client.consuming.consumer_group import ConsumerGroup
from reliable_mq.client.flow import Flow, call
from reliable_mq.errors import NoRoute, ProtocolError, RemoteError, Unavailable
from reliable_mq.wire import fastjson
from reliable_mq.wire.codes import RequestCode
from reliable_mq.wire.command import request

ALL_QUEUES = -1


class Share(NamedTuple):
    """What a member pops from: all queues of a topic at a broker, or one of them."""

    topic: str
    broker_name: str
    queue_id: int = ALL_QUEUES


class FoundShares(NamedTuple):
    """Where a member pops now.

    `gone`: shares whose topic has a route, which does not name them any more. `missing`: topics
    that no name server knows (yet). `obstacles`: why a route could not be read.
    """

    shares: frozenset[Share]
    gone: frozenset[Share]
    missing: frozenset[str]
    obstacles: frozenset[str]


def shares_of(group: ConsumerGroup, known: Collection[Share] = ()) -> Flow[FoundShares]:
    """Find the brokers of the group's topics, and what this member pops there.

    The retry topic of the group is among the topics: consumers by the queue have sent messages back
    to it.
    """
    shares: set[Share] = set()
    gone: set[Share] = set()
    missing: set[str] = set()
    obstacles: set[str] = set()
    for topic in group.filters:
        try:
            route = yield from group.routes.of(topic)
        except NoRoute:
            if topic != group.subscription.retry_topic:
                missing.add(topic)
            continue
        except (Unavailable, RemoteError, ProtocolError) as error:
            obstacles.add(f"the route of topic {topic} cannot be read: {error}")
            continue
        found = yield from _shares_of_topic(group, route)
        shares |= found
        gone |= {share for share in known if share.topic == topic} - found
    return FoundShares(frozenset(shares), frozenset(gone), frozenset(missing), frozenset(obstacles))


def _shares_of_topic(group: ConsumerGroup, route: Route) -> Flow[set[Share]]:
    names = {queue.broker_name for queue in route.readable}
    masters = {name: route.brokers[name].master for name in names if route.brokers[name].master}
    every = {Share(route.topic, name) for name in masters}
    if route.topic == group.subscription.retry_topic:
        return every
    body = fastjson.dumps(
        {
            "clientId": group.client_id,
            "consumerGroup": group.name,
            "messageModel": "CLUSTERING",
            "strategyName": "AVG",
            "topic": route.topic,
        }
    )
    for _, address in sorted(masters.items()):
        command = request(RequestCode.QUERY_ASSIGNMENT, None, body)
        try:
            reply = yield from call(address or "", command, group.settings.request_timeout_seconds)
        except Unavailable:
            continue
        given = _assigned(reply.body, route.topic) if reply.code == 0 else frozenset()
        return {share for share in given if share.broker_name in masters} or every
    return every


def _assigned(body: bytes, topic: str) -> frozenset[Share]:
    """Return what an answer assigns by the mode POP; empty: nobody has set this mode."""
    try:
        rows = fastjson.loads(body).get("messageQueueAssignments") or ()
        return frozenset(
            Share(topic, row["messageQueue"]["brokerName"], int(row["messageQueue"]["queueId"]))
            for row in rows
            if row.get("mode") == "POP"
        )
    except (ValueError, KeyError, TypeError, AttributeError):
        return frozenset()  # it only saves requests: this member pops from all queues
