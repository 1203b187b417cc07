"""Facts of a cluster: settings, state and clocks of its brokers, its topics and consumers.

For administrators; sending and consuming do not use it.
"""

import re
from collections.abc import Sequence
from typing import Any, TypeGuard

import msgspec

from reliable_mq.client.connecting.name_servers import NameServers
from reliable_mq.client.connecting.routes import MASTER_ID, Broker, decode_cluster
from reliable_mq.client.flow import Call, Flow, Instant, call_all, now, reply_of, succeeded
from reliable_mq.client.settings import ClientSettings
from reliable_mq.errors import ProtocolError, ReliableMQError
from reliable_mq.names import RETRY_PREFIX
from reliable_mq.wire import fastjson
from reliable_mq.wire.codes import RequestCode
from reliable_mq.wire.command import Command, request
from reliable_mq.wire.java_properties import parse_properties

_UPTIME = re.compile(r"\[ (\d+) days, (\d+) hours, (\d+) minutes, (\d+) seconds \]")
_SECONDS_OF = (86_400, 3_600, 60, 1)
_FACTS = (
    RequestCode.GET_BROKER_RUNTIME_INFO,
    RequestCode.GET_BROKER_CONFIG,
    RequestCode.GET_BROKER_HA_STATUS,
)
_MEMBERS_ASKED = 50
"""Most members of a group that are asked for their topics."""


class BrokerFacts(msgspec.Struct, frozen=True, kw_only=True):
    """The answers of one broker.

    `broker_id`: 0 for a master. `config`: its properties, by Apache's names. `runtime`: its state,
    by Apache's names. `replication`: what it says of its slaves or its master, by Apache's names;
    empty for a broker that does not know the request.
    `clock_ahead`: seconds by which its clock is ahead of this machine's; None if unknown.
    `clock_error`: maximum error of that number. `failure`: why it did not answer; "" if it did.
    """

    name: str
    address: str
    broker_id: int = MASTER_ID
    config: dict[str, str] = {}
    runtime: dict[str, str] = {}
    replication: dict[str, Any] = {}
    clock_ahead: float | None = None
    clock_error: float = 0.0
    failure: str = ""


class ClusterFacts(msgspec.Struct, frozen=True):
    """The facts of a whole cluster.

    Attributes:
        brokers: every master.
        topics: the topics that the name servers know.
        consumed: the requested groups that have a connected consumer.
        subscriptions: for each of these, its topics and their tags ("*", or tags joined by "||");
            None for a filter that is not by tags.
        readers: for each requested topic, the groups that subscribe to it or have ever committed
            an offset in it. Topics for which a broker did not answer are left out.
        members: for each requested group with several members, the topics of each by client id,
            as it says itself. Members that do not answer are left out.
        slaves: every slave, also those whose master is away.
        rivals: the masters of one name, if the name servers know different ones, by name.
    """

    brokers: tuple[BrokerFacts, ...]
    topics: frozenset[str]
    consumed: frozenset[str]
    subscriptions: dict[str, dict[str, str | None]] = {}
    readers: dict[str, frozenset[str]] = {}
    members: dict[str, dict[str, frozenset[str]]] = {}
    slaves: tuple[BrokerFacts, ...] = ()
    rivals: dict[str, frozenset[str]] = {}


def cluster_facts(
    name_servers: NameServers,
    settings: ClientSettings,
    groups: Sequence[str],
    topics: Sequence[str] = (),
) -> Flow[ClusterFacts]:
    """Ask the name servers and every master, also about these consumer groups and topics.

    Raises:
        Unavailable: when no name server answers. The facts have the failures of brokers.
        RemoteError, ProtocolError: when a name server refuses, or its answer is invalid.
    """
    reply = yield from name_servers.ask(request(RequestCode.GET_BROKER_CLUSTER_INFO))
    members_of = decode_cluster(succeeded(reply).body)
    masters = [broker for broker in members_of if broker.master]
    reply = yield from name_servers.ask(request(RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER))
    known = frozenset(_field(succeeded(reply).body, "topicList") or ())
    brokers: list[BrokerFacts] = []
    subscriptions: dict[str, dict[str, str | None]] = {}
    readers: dict[str, set[str]] = {topic: set() for topic in topics}
    untold: set[str] = set()
    members: dict[str, dict[str, frozenset[str]]] = {}
    timeout = settings.request_timeout_seconds
    for broker in masters:
        brokers.append((yield from _broker_facts(broker, MASTER_ID, timeout)))
        asked = [
            _ask(
                broker, RequestCode.GET_CONSUMER_CONNECTION_LIST, settings, {"consumerGroup": group}
            )
            for group in groups
        ]
        for group, answer in zip(groups, (yield from call_all(asked)), strict=True):
            if _is_success(answer) and _field(answer.body, "connectionSet"):
                table = _field(answer.body, "subscriptionTable") or {}
                subscriptions.setdefault(group, {}).update(_tags_by_topic(table))
                told = members.setdefault(group, {})
                ids = [each for each in _member_ids(answer.body) if each not in told]
                told.update((yield from _topics_of_members(broker, settings, group, ids)))
        asked = [
            _ask(broker, RequestCode.QUERY_TOPIC_CONSUME_BY_WHO, settings, {"topic": topic})
            for topic in topics
        ]
        for topic, answer in zip(topics, (yield from call_all(asked)), strict=True):
            if _is_success(answer):
                readers[topic].update(_field(answer.body, "groupList") or ())
            else:
                untold.add(topic)
    slaves = yield from _slaves(members_of, timeout)
    rivals = yield from _rivals(name_servers, timeout)
    return ClusterFacts(
        brokers=tuple(brokers),
        topics=known,
        consumed=frozenset(subscriptions),
        subscriptions=subscriptions,
        readers={
            topic: frozenset(found)
            for topic, found in readers.items()
            if masters and topic not in untold
        },
        members={group: found for group, found in members.items() if len(found) > 1},
        slaves=slaves,
        rivals=rivals,
    )


def _is_success(answer: Command | Exception) -> TypeGuard[Command]:
    return isinstance(answer, Command) and answer.code == 0


def _tags_by_topic(table: Any) -> dict[str, str | None]:
    """Return a group's tags for each topic; None for another kind of filter."""
    try:
        return {
            str(topic): str(each.get("subString") or "*")
            if each.get("expressionType") in (None, "", "TAG")
            else None
            for topic, each in table.items()
        }
    except AttributeError as error:
        raise ProtocolError(f"an answer cannot be decoded: {error!r}") from error


def _member_ids(body: bytes) -> list[str]:
    try:
        return [str(each["clientId"]) for each in _field(body, "connectionSet")]
    except (TypeError, KeyError) as error:
        raise ProtocolError(f"an answer cannot be decoded: {error!r}") from error


def _topics_of_members(
    broker: Broker, settings: ClientSettings, group: str, ids: Sequence[str]
) -> Flow[dict[str, frozenset[str]]]:
    """Ask members for their topics. A broker keeps one table for a group: that of the last beat."""
    asked = [
        _ask(
            broker,
            RequestCode.GET_CONSUMER_RUNNING_INFO,
            settings,
            {"consumerGroup": group, "clientId": each, "jstackEnable": "false"},
        )
        for each in ids[:_MEMBERS_ASKED]
    ]
    found: dict[str, frozenset[str]] = {}
    for client_id, answer in zip(ids, (yield from call_all(asked)), strict=False):
        rows = _field(answer.body, "subscriptionSet") if _is_success(answer) else None
        if isinstance(rows, list):
            topics = (str(row.get("topic", "")) for row in rows if isinstance(row, dict))
            found[client_id] = frozenset(
                each for each in topics if each and not each.startswith(RETRY_PREFIX)
            )
    return found


def _ask(
    broker: Broker, code: RequestCode, settings: ClientSettings, ext: dict[str, str] | None = None
) -> Call:
    return Call(str(broker.master), request(code, ext or {}), settings.request_timeout_seconds)


def _broker_facts(broker: Broker, broker_id: int, timeout: float) -> Flow[BrokerFacts]:
    address = broker.addresses[broker_id]
    before = yield from now()
    answers = yield from call_all([Call(address, request(code), timeout) for code in _FACTS])
    after = yield from now()
    try:
        state, config = [succeeded(reply_of(answer)).body for answer in answers[:2]]
        runtime = {str(name): str(value) for name, value in _field(state, "table").items()}
        ahead, error = _clock(runtime, before, after)
        return BrokerFacts(
            name=broker.name,
            address=address,
            broker_id=broker_id,
            replication=_replication(answers[2]),
            config=dict(parse_properties(config.decode())),
            runtime=runtime,
            clock_ahead=ahead,
            clock_error=error,
        )
    except (ReliableMQError, AttributeError, UnicodeDecodeError) as failure:
        return BrokerFacts(
            name=broker.name, address=address, broker_id=broker_id, failure=str(failure)
        )


def _slaves(brokers: Sequence[Broker], timeout: float) -> Flow[tuple[BrokerFacts, ...]]:
    found: list[BrokerFacts] = []
    for broker in brokers:
        for broker_id in sorted(broker.addresses.keys() - {MASTER_ID}):
            facts = yield from _broker_facts(broker, broker_id, timeout)
            found.append(facts)
    return tuple(found)


def _replication(answer: Command | Exception) -> dict[str, Any]:
    try:
        table = fastjson.loads(answer.body) if _is_success(answer) else {}
    except ValueError:
        table = {}
    return table if isinstance(table, dict) else {}


def _rivals(name_servers: NameServers, timeout: float) -> Flow[dict[str, frozenset[str]]]:
    """Return the masters of each name for which the name servers do not agree."""
    asked = request(RequestCode.GET_BROKER_CLUSTER_INFO)
    calls = [Call(address, asked, timeout) for address in name_servers.addresses]
    masters: dict[str, set[str]] = {}
    for answer in (yield from call_all(calls if len(calls) > 1 else [])):
        for broker in decode_cluster(answer.body) if _is_success(answer) else ():
            if broker.master:
                masters.setdefault(broker.name, set()).add(broker.master)
    return {name: frozenset(found) for name, found in masters.items() if len(found) > 1}


def _clock(runtime: dict[str, str], before: Instant, after: Instant) -> tuple[float | None, float]:
    """Return how far a broker's clock is ahead, and the maximum error, in seconds.

    A broker reports its start time and its uptime, in whole seconds.
    """
    found = _UPTIME.search(runtime.get("runtime", ""))
    started = runtime.get("bootTimestamp", "")
    if found is None or not started.isdecimal():
        return None, 0.0
    uptime = sum(int(part) * size for part, size in zip(found.groups(), _SECONDS_OF, strict=True))
    theirs = int(started) / 1000 + uptime + 0.5
    ours = (before.epoch_ms + after.epoch_ms) / 2000
    return theirs - ours, 0.5 + after.seconds - before.seconds


def _field(body: bytes, name: str) -> Any:
    try:
        return fastjson.loads(body).get(name)
    except (ValueError, AttributeError) as error:
        raise ProtocolError(f"an answer cannot be decoded: {error!r}") from error
