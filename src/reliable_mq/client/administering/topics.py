"""Topics: lists them, and returns their routes, settings, offsets and consumers.

Source: Apache RocketMQ `DefaultMQAdminExtImpl`, `TopicRouteData`, `TopicStatsTable`.
"""

from collections.abc import Collection
from typing import Any

import msgspec

from reliable_mq.client.administering.browsing import topic_names
from reliable_mq.client.administering.cluster_reply import (
    AdminTarget,
    Brokers,
    ClusterReply,
    all_brokers,
    ask_all,
    check_found,
    decoded,
    merged,
    queue_of,
)
from reliable_mq.client.administering.topic_settings import (
    TopicSettings,
    permission_text,
    read_settings,
)
from reliable_mq.client.connecting.namespace import is_of_system
from reliable_mq.client.connecting.routes import Broker
from reliable_mq.client.flow import Flow, succeeded
from reliable_mq.decodable import decodable
from reliable_mq.errors import NoRoute, ProtocolError
from reliable_mq.message import MessageQueue
from reliable_mq.names import DEAD_LETTER_PREFIX, RETRY_PREFIX
from reliable_mq.wire.codes import RequestCode, ResponseCode
from reliable_mq.wire.command import Command, request

SYSTEM_PREFIX = "rmq_sys_"
_NO_TOPIC = frozenset({ResponseCode.TOPIC_NOT_EXIST})


class TopicPlace(msgspec.Struct, frozen=True, kw_only=True):
    """A topic at one broker, from its route. `addresses`: by broker id, 0 is the master."""

    broker: str
    cluster: str
    addresses: dict[int, str]
    read_queues: int
    write_queues: int
    permission: str


class QueueStatus(msgspec.Struct, frozen=True, kw_only=True):
    """The messages in a queue: offsets from `first` to before `end`.

    `last_stored_ms`: when its newest message was stored, ms since the epoch; None if it is empty.
    """

    queue: MessageQueue
    first: int
    end: int
    last_stored_ms: int | None


class TopicStatus(msgspec.Struct, frozen=True):
    """The queues of a topic in order, and its messages per second in the last minute."""

    queues: list[QueueStatus]
    per_second: float


@decodable
class _Names(msgspec.Struct):
    topics: list[str] | None = msgspec.field(name="topicList", default=None)


def names(cluster: AdminTarget, *, everything: bool) -> Flow[ClusterReply[list[str]]]:
    """Return the topics that the name servers know, sorted.

    Without `everything`, topics of brokers and consumer groups are left out. Failures are of
    brokers that did not return the list of their own topics.

    Raises:
        RemoteError, Unavailable, ProtocolError: when no name server answers.
    """
    known = yield from topic_names(cluster.name_servers)
    if everything or not known:
        return ClusterReply(known)
    brokers = yield from all_brokers(cluster)
    system = request(RequestCode.GET_SYSTEM_TOPIC_LIST_FROM_BROKER)
    answers = yield from ask_all(cluster, brokers, system, _read_names)
    theirs = {name for own in answers.value.values() for name in own}
    theirs |= brokers.keys() | {broker.cluster for broker in brokers.values()}
    prefixes = (RETRY_PREFIX, DEAD_LETTER_PREFIX, SYSTEM_PREFIX)
    applications = [
        each
        for each in known
        if each not in theirs and not is_of_system(each) and not each.startswith(prefixes)
    ]
    return ClusterReply(applications, answers.failures)


def _read_names(reply: Command) -> list[str]:
    return decoded(reply, _Names, "the list of a broker's own topics").topics or []


class _BrokerData(msgspec.Struct, rename="camel"):
    broker_name: str
    broker_addrs: dict[int, str]
    cluster: str | None = None


class _QueueData(msgspec.Struct, rename="camel"):
    broker_name: str
    read_queue_nums: int
    write_queue_nums: int
    perm: int


@decodable
class _RouteData(msgspec.Struct, rename="camel"):
    broker_datas: list[_BrokerData] | None = None
    queue_datas: list[_QueueData] | None = None


def route(cluster: AdminTarget, topic: str) -> Flow[list[TopicPlace]]:
    """Return the brokers of a topic, sorted by name.

    Raises:
        NoRoute: when the name servers do not know it.
        RemoteError, Unavailable, ProtocolError: when none of them answers.
    """
    ext = {"topic": topic, "acceptStandardJsonOnly": "true"}
    asked = request(RequestCode.GET_ROUTEINFO_BY_TOPIC, ext)
    reply = yield from cluster.name_servers.ask(asked)
    if reply.code == ResponseCode.TOPIC_NOT_EXIST:
        raise NoRoute(f"no name server knows topic {topic}")
    told = decoded(succeeded(reply), _RouteData, f"the route of topic {topic}")
    brokers = {data.broker_name: data for data in told.broker_datas or ()}
    places: list[TopicPlace] = []
    for queues in told.queue_datas or ():
        if queues.broker_name not in brokers:
            raise ProtocolError(
                f"the route of topic {topic} has no address of {queues.broker_name}"
            )
        broker = brokers[queues.broker_name]
        places.append(
            TopicPlace(
                broker=broker.broker_name,
                cluster=broker.cluster or "",
                addresses=broker.broker_addrs,
                read_queues=queues.read_queue_nums,
                write_queues=queues.write_queue_nums,
                permission=permission_text(queues.perm),
            )
        )
    return sorted(places, key=lambda place: place.broker)


def brokers_of(cluster: AdminTarget, topic: str) -> Flow[dict[str, Broker]]:
    """Return the brokers that have a topic, by name.

    Raises:
        NoRoute: when the name servers do not know it.
        RemoteError, Unavailable, ProtocolError: when none of them answers.
    """
    known = yield from cluster.routes.look_up(topic)
    return dict(sorted(known.brokers.items()))


def settings(
    cluster: AdminTarget, topic: str, only: Collection[str] = ()
) -> Flow[ClusterReply[dict[str, TopicSettings]]]:
    """Return a topic's settings at every broker that has it, by broker name.

    Raises:
        NotFound: when no broker has it.
        UsageError: when a broker in `only` does not exist.
        RemoteError, Unavailable, ProtocolError: when no broker answers.
    """
    brokers = yield from all_brokers(cluster, only)
    answers = yield from settings_at(cluster, brokers, topic)
    return check_found(answers, f"no broker has topic {topic}")


def settings_at(
    cluster: AdminTarget, brokers: Brokers, topic: str
) -> Flow[ClusterReply[dict[str, TopicSettings]]]:
    """Return a topic's settings at those of the brokers that have it."""
    asked = request(RequestCode.GET_TOPIC_CONFIG, {"topic": topic})
    return (yield from ask_all(cluster, brokers, asked, read_settings, lacking=_NO_TOPIC))


class _QueueStats(msgspec.Struct, rename="camel"):
    min_offset: int
    max_offset: int
    last_update_timestamp: int = 0


@decodable
class _TopicStats(msgspec.Struct, rename="camel"):
    offset_table: dict[Any, _QueueStats]
    topic_put_tps: float = 0.0


def status(cluster: AdminTarget, topic: str) -> Flow[ClusterReply[TopicStatus]]:
    """Return the offsets of a topic's queues.

    Raises:
        NoRoute: when the name servers do not know the topic.
        NotFound: when no broker knows it.
        RemoteError, Unavailable, ProtocolError: when no broker answers.
    """
    brokers = yield from brokers_of(cluster, topic)
    asked = request(RequestCode.GET_TOPIC_STATS_INFO, {"topic": topic})
    answers = yield from ask_all(cluster, brokers, asked, _read_status, lacking=_NO_TOPIC)
    return merged(check_found(answers, f"no broker has topic {topic}"), _one_status)


def _read_status(reply: Command) -> TopicStatus:
    what = "the status of a topic"
    stats = decoded(reply, _TopicStats, what)
    queues = [
        QueueStatus(
            queue=queue_of(key, what),
            first=row.min_offset,
            end=row.max_offset,
            last_stored_ms=row.last_update_timestamp or None,
        )
        for key, row in stats.offset_table.items()
    ]
    return TopicStatus(queues, stats.topic_put_tps)


def _one_status(parts: Collection[TopicStatus]) -> TopicStatus:
    queues = [queue for part in parts for queue in part.queues]
    queues.sort(key=lambda row: row.queue)
    return TopicStatus(queues, sum(part.per_second for part in parts))


@decodable
class _Groups(msgspec.Struct):
    groups: list[str] | None = msgspec.field(name="groupList", default=None)


def consumers(cluster: AdminTarget, topic: str) -> Flow[ClusterReply[list[str]]]:
    """Return the consumer groups that subscribe to a topic or have offsets in it, sorted.

    Raises:
        NoRoute: when the name servers do not know the topic.
        RemoteError, Unavailable, ProtocolError: when no broker answers.
    """
    brokers = yield from brokers_of(cluster, topic)
    asked = request(RequestCode.QUERY_TOPIC_CONSUME_BY_WHO, {"topic": topic})
    answers = yield from ask_all(cluster, brokers, asked, _read_groups)
    return merged(answers, lambda parts: sorted({group for part in parts for group in part}))


def _read_groups(reply: Command) -> list[str]:
    return decoded(reply, _Groups, "the list of a topic's groups").groups or []
