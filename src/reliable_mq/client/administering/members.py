"""Connected clients: members of consumer groups with their own reports, and producers.

A member is connected to every broker of its topics, so several brokers report it. Here it appears
once, with those brokers. Source: Apache RocketMQ `ConsumerConnection`, `ConsumerRunningInfo`,
`ProducerConnection`, `MQVersion`.
"""

from collections.abc import Mapping
from typing import Any

import msgspec

from reliable_mq.client.administering.cluster_reply import (
    AdminTarget,
    Brokers,
    ClusterReply,
    all_brokers,
    ask_all,
    decoded,
    first_failure,
    queue_of,
)
from reliable_mq.client.flow import Call, Flow, call_all, reply_of, succeeded
from reliable_mq.decodable import decodable
from reliable_mq.errors import FoundNowhere, ReliableMQError, RemoteError
from reliable_mq.message import MessageQueue
from reliable_mq.wire.codes import RequestCode, ResponseCode
from reliable_mq.wire.command import Command, request

MEMBER_SECONDS = 10.0
"""Timeout of questions to members: a broker waits this long for a member's answer."""
_OFFLINE = frozenset({ResponseCode.CONSUMER_NOT_ONLINE})
_FIRST_REGULAR, _MINORS, _STEPS = 212, 10, 20  # MQVersion: V4_0_0_SNAPSHOT; two per patch
_HIGHER = 612
_KINDS = {
    "CONSUME_ACTIVELY": "pull",
    "CONSUME_PASSIVELY": "push",
    "CONSUME_POP": "pop",
}


class Connection(msgspec.Struct, frozen=True, kw_only=True):
    """A client, as brokers see it. `address`: as one of them sees it. `brokers`: their names."""

    client_id: str
    address: str
    language: str
    version: str
    brokers: tuple[str, ...] = ()


class GroupConnections(msgspec.Struct, frozen=True, kw_only=True):
    """The connected members of a consumer group; no members: it is offline.

    `kind`: "push", "pull" or "pop". `model`: "clustering" or "broadcasting". `from_where`: the
    start in a new queue, in Apache's words. `subscriptions`: the filter of each topic.
    """

    members: tuple[Connection, ...] = ()
    kind: str = ""
    model: str = ""
    from_where: str = ""
    subscriptions: dict[str, str] = {}


class QueueHeld(msgspec.Struct, frozen=True, kw_only=True):
    """A queue of a member. `committed`: all messages before this offset are consumed.

    `held`: messages that it has pulled and not finished. Times are ms since the epoch.
    """

    queue: MessageQueue
    committed: int
    held: int
    is_locked: bool
    last_pull_ms: int
    last_consume_ms: int


class MemberState(msgspec.Struct, frozen=True, kw_only=True):
    """A member's report. `properties`: by Apache's names. `stack`: stacks of its threads."""

    client_id: str
    properties: dict[str, str]
    queues: tuple[QueueHeld, ...]
    stack: str = ""


class _Connection(msgspec.Struct, rename="camel"):
    client_id: str
    client_addr: str = ""
    language: str | None = None
    version: int = 0


class _Subscription(msgspec.Struct, rename="camel"):
    sub_string: str | None = None
    expression_type: str | None = "TAG"


@decodable
class Consumers(msgspec.Struct, rename="camel"):
    """The members of a group at one broker (`ConsumerConnection`)."""

    connection_set: list[_Connection]
    consume_type: str | None = None
    message_model: str | None = None
    consume_from_where: str | None = None
    subscription_table: dict[str, _Subscription] | None = None


@decodable
class _Producers(msgspec.Struct, rename="camel"):
    connection_set: list[_Connection]


class _Producer(msgspec.Struct):
    client_id: str = msgspec.field(name="clientId")
    address: str = msgspec.field(name="remoteIP", default="")
    language: str | None = None
    version: int = 0


@decodable
class _AllProducers(msgspec.Struct):
    groups: dict[str, list[_Producer]] = msgspec.field(name="data", default_factory=dict)


def connections(cluster: AdminTarget, group: str) -> Flow[ClusterReply[GroupConnections]]:
    """Return the connected members of a group and how it consumes; no members: it is offline.

    Raises:
        NoRoute: when the name servers know no broker.
        RemoteError, Unavailable, ProtocolError: when no broker answers.
    """
    brokers = yield from all_brokers(cluster)
    asked = request(RequestCode.GET_CONSUMER_CONNECTION_LIST, {"consumerGroup": group})
    answers = yield from ask_all(cluster, brokers, asked, _read_consumers, lacking=_OFFLINE)
    if answers.failures and len(answers.failures) == len(brokers):
        raise first_failure(answers.failures)
    if not answers.value:
        return ClusterReply(GroupConnections(), answers.failures)
    first = next(iter(answers.value.values()))
    subscriptions = {
        topic: data.sub_string or ""
        for consumers in answers.value.values()
        for topic, data in (consumers.subscription_table or {}).items()
    }
    kind = first.consume_type or ""
    found = GroupConnections(
        members=_once({name: each.connection_set for name, each in answers.value.items()}),
        kind=_KINDS.get(kind, kind),
        model=(first.message_model or "").lower(),
        from_where=first.consume_from_where or "",
        subscriptions=dict(sorted(subscriptions.items())),
    )
    return ClusterReply(found, answers.failures)


def _read_consumers(reply: Command) -> Consumers:
    return decoded(reply, Consumers, "the list of a group's members")


def _once(by_broker: Mapping[str, list[_Connection]]) -> tuple[Connection, ...]:
    """Return each client once, with all brokers that report it."""
    seen: dict[str, Connection] = {}
    for name, clients in by_broker.items():
        for client in clients:
            known = seen.get(client.client_id)
            seen[client.client_id] = Connection(
                client_id=client.client_id,
                address=known.address if known else client.client_addr,
                language=client.language or "",
                version=version_text(client.version),
                brokers=(*known.brokers, name) if known else (name,),
            )
    return tuple(seen[client_id] for client_id in sorted(seen))


class _Held(msgspec.Struct, rename="camel"):
    commit_offset: int = 0
    cached_msg_count: int = 0
    locked: bool = False
    last_pull_timestamp: int = 0
    last_consume_timestamp: int = 0


@decodable
class _RunningInfo(msgspec.Struct, rename="camel"):
    properties: dict[str, Any] = {}
    queues: dict[Any, _Held] = msgspec.field(name="mqTable", default_factory=dict)
    jstack: str | None = None


def members(
    cluster: AdminTarget, group: str, *, stack: bool = False
) -> Flow[ClusterReply[list[MemberState]]]:
    """Return the report of each connected member of a consumer group, by client id.

    Failures of members are by client id, those of brokers by broker name.

    Args:
        cluster: the cluster to ask.
        group: the consumer group.
        stack: request stacks of threads too.

    Raises:
        NoRoute: when the name servers know no broker.
        RemoteError, Unavailable, ProtocolError: when no broker answers.
    """
    online = yield from connections(cluster, group)
    failures = dict(online.failures)
    brokers = yield from all_brokers(cluster)
    calls: dict[str, Call] = {}
    for member in online.value.members:
        address = brokers[member.brokers[0]].to_read_from(0) if member.brokers else None
        if address is not None:
            ext = {"consumerGroup": group, "clientId": member.client_id}
            ext["jstackEnable"] = str(stack).lower()
            asked = request(RequestCode.GET_CONSUMER_RUNNING_INFO, ext)
            timeout = cluster.settings.request_timeout_seconds + MEMBER_SECONDS
            calls[member.client_id] = Call(address, asked, timeout)
    states: list[MemberState] = []
    for client_id, answer in zip(calls, (yield from call_all(list(calls.values()))), strict=True):
        try:
            states.append(_read_state(client_id, succeeded(reply_of(answer))))
        except ReliableMQError as error:
            failures[client_id] = error
    return ClusterReply(states, failures)


def _read_state(client_id: str, reply: Command) -> MemberState:
    what = f"the report of {client_id}"
    info = decoded(reply, _RunningInfo, what)
    queues = [
        QueueHeld(
            queue=queue_of(key, what),
            committed=row.commit_offset,
            held=row.cached_msg_count,
            is_locked=row.locked,
            last_pull_ms=row.last_pull_timestamp,
            last_consume_ms=row.last_consume_timestamp,
        )
        for key, row in info.queues.items()
    ]
    return MemberState(
        client_id=client_id,
        properties={name: str(value) for name, value in sorted(info.properties.items())},
        queues=tuple(sorted(queues, key=lambda row: row.queue)),
        stack=info.jstack or "",
    )


def producers(
    cluster: AdminTarget, group: str = ""
) -> Flow[ClusterReply[dict[str, tuple[Connection, ...]]]]:
    """Return the connected producers by producer group; of one group, or of all.

    Raises:
        NotFound: when no broker knows a producer of the group.
        NoRoute: when the name servers know no broker.
        RemoteError, Unavailable, ProtocolError: when no broker answers.
    """
    brokers = yield from all_brokers(cluster)
    answers = yield from (
        _of_group(cluster, brokers, group) if group else _of_all(cluster, brokers)
    )
    if answers.failures and not answers.value:
        raise first_failure(answers.failures)
    groups = sorted({name for table in answers.value.values() for name in table})
    if group and not groups:
        raise FoundNowhere(f"no producer of group {group} is connected")
    value = {
        name: _once({broker: table.get(name, []) for broker, table in answers.value.items()})
        for name in groups
    }
    return ClusterReply(value, answers.failures)


_Table = dict[str, list[_Connection]]


def _of_group(
    cluster: AdminTarget, brokers: Brokers, group: str
) -> Flow[ClusterReply[dict[str, _Table]]]:
    def read(reply: Command) -> _Table:
        return {group: decoded(reply, _Producers, "the list of producers").connection_set}

    asked = request(RequestCode.GET_PRODUCER_CONNECTION_LIST, {"producerGroup": group})
    answers = yield from ask_all(cluster, brokers, asked, read)
    failures = {name: error for name, error in answers.failures.items() if not _knows_none(error)}
    return ClusterReply(answers.value, failures)


def _knows_none(error: ReliableMQError) -> bool:
    """Return whether a broker does not know the producer group. There is no error code for it."""
    return isinstance(error, RemoteError) and error.remark.endswith("] not exist")


def _of_all(cluster: AdminTarget, brokers: Brokers) -> Flow[ClusterReply[dict[str, _Table]]]:
    asked = request(RequestCode.GET_ALL_PRODUCER_INFO)
    return (yield from ask_all(cluster, brokers, asked, _read_all_producers))


def _read_all_producers(reply: Command) -> _Table:
    return {
        group: [
            # Java writes a slash before a socket's address.
            _Connection(each.client_id, each.address.lstrip("/"), each.language, each.version)
            for each in producers_of_group
        ]
        for group, producers_of_group in decoded(
            reply, _AllProducers, "the table of producers"
        ).groups.items()
    }


def version_text(number: int) -> str:
    """Return a client's release from its version number: 493 is "5.4.0".

    Numbers of releases before 4.0 have no regular pattern: then it is "before 4.0".
    """
    if number < _FIRST_REGULAR:
        return "before 4.0"
    if number >= _HIGHER:
        return "after 5.9.9"
    minor, step = divmod(number - _FIRST_REGULAR, _STEPS)
    patch, is_release = divmod(step, 2)
    text = f"{4 + minor // _MINORS}.{minor % _MINORS}.{patch}"
    return text if is_release else f"{text}-SNAPSHOT"
