"""Assignments: which queues a member of a group consumes, and whether it pulls or pops them.

A group that pops shares all queues, unless its mode says with how many members a queue is shared.
Source: Apache RocketMQ `QueryAssignmentProcessor`, `AllocateMessageQueueAveragely`,
`AllocateMessageQueueAveragelyByCircle`.
"""

from collections.abc import Sequence
from typing import Literal

import msgspec

from reliable_mq.broker_core.names import is_retry_topic
from reliable_mq.broker_core.request_modes import RequestMode
from reliable_mq.broker_core.requests.queue_stats import QueueKey
from reliable_mq.broker_core.requests.refusal import QUEUES_ASKED_MAX, body_of, refuse_above
from reliable_mq.broker_core.state import BrokerState, Request
from reliable_mq.broker_core.topic_brokers import Places
from reliable_mq.broker_core.topics import READ
from reliable_mq.decodable import decodable
from reliable_mq.wire import fastjson
from reliable_mq.wire.command import Command, reply
from reliable_mq.wire.peer_texts import read_json_as

_POP: Literal["POP"] = "POP"
_AVERAGE, _BY_CIRCLE = "AVG", "AVG_BY_CIRCLE"
_ALL_QUEUES = -1


@decodable
class _AskedAssignment(msgspec.Struct, rename="camel", kw_only=True):
    topic: str
    consumer_group: str
    client_id: str | None = None
    strategy_name: str | None = None
    message_model: Literal["BROADCASTING", "CLUSTERING"] = "CLUSTERING"


def query_assignment(state: BrokerState, request: Request) -> Command | None:
    """QUERY_ASSIGNMENT. Without a list, the client keeps what it has."""
    asked = read_json_as(body_of(request.command), _AskedAssignment)
    mode = state.request_modes.mode_of(asked.topic, asked.consumer_group)
    if mode is None or is_retry_topic(asked.topic):
        mode = RequestMode(topic=asked.topic, consumer_group=asked.consumer_group)
    places = state.topic_brokers.places(asked.topic, request, request.now_ms)
    if places is None:
        return None  # the request comes again when this is known
    queues = _assigned(state, asked, mode, places)
    if queues is None:
        return reply(request.command, body=b"{}")
    rows = [{"messageQueue": dict(queue), "mode": mode.mode} for queue in queues]
    return reply(request.command, body=fastjson.dumps({"messageQueueAssignments": rows}))


def _queues(state: BrokerState, name: str, places: Places) -> list[QueueKey]:
    """Return all queues of a topic, sorted by broker and number."""
    brokers = dict(places)
    topic = state.topics.get(name)
    if topic is not None:
        brokers[state.config.broker_name] = topic.read_queue_nums if topic.perm & READ else 0
    refuse_above(sum(brokers.values()), QUEUES_ASKED_MAX, "queues")
    return [
        _key(broker, name, queue_id)
        for broker in sorted(brokers)
        for queue_id in range(brokers[broker])
    ]


def _key(broker: str, topic: str, queue_id: int) -> QueueKey:
    return (("brokerName", broker), ("queueId", queue_id), ("topic", topic))


def _assigned(
    state: BrokerState, asked: _AskedAssignment, mode: RequestMode, places: Places
) -> list[QueueKey] | None:
    """Return the queues of one member; None: nobody can say."""
    queues = _queues(state, asked.topic, places)
    if not queues:
        return None
    if asked.message_model == "BROADCASTING":
        return queues
    group = state.clients.consumer_group(asked.consumer_group)
    if group is None or asked.strategy_name not in (_AVERAGE, _BY_CIRCLE):
        return None
    members = sorted({member.client_id for member in group.members.values()})
    client = asked.client_id or ""
    if mode.mode == _POP:
        shared = mode.pop_share_queue_num
        if shared <= 0 or shared >= len(members) - 1:
            brokers = dict.fromkeys(str(dict(queue)["brokerName"]) for queue in queues)
            return [_key(broker, asked.topic, _ALL_QUEUES) for broker in brokers]
        return _shared(asked.strategy_name, queues, members, client, shared)
    return _allocated(asked.strategy_name, queues, members, client)


def _shared(
    strategy: str, queues: Sequence[QueueKey], members: Sequence[str], client: str, shared: int
) -> list[QueueKey]:
    """Return the queues of a member, and those of the members after it whose work it shares."""
    if client not in members:
        return []
    index = members.index(client)
    if len(members) > len(queues):
        return [queues[index % len(queues)]] if queues else []
    names = [members[(index + step) % len(members)] for step in range(shared + 1)]
    found = [queue for name in names for queue in _allocated(strategy, queues, members, name)]
    return list(dict.fromkeys(found))


def _allocated(
    strategy: str, queues: Sequence[QueueKey], members: Sequence[str], client: str
) -> list[QueueKey]:
    """Return the part of the queues that one member gets."""
    if client not in members:
        return []
    index, count = members.index(client), len(members)
    if strategy == _BY_CIRCLE:
        return list(queues[index::count])
    share, more = divmod(len(queues), count)
    begin = index * share + min(index, more)
    return list(queues[begin : begin + share + (index < more)])
