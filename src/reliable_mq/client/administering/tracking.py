"""Tracks which consumer groups have consumed a stored message, by their committed offsets.

Source: Apache RocketMQ `DefaultMQAdminExtImpl.messageTrackDetail`, which includes only online
groups.
"""

import msgspec

from reliable_mq.client.administering.cluster_reply import (
    AdminTarget,
    ClusterReply,
    all_brokers,
    decoded,
)
from reliable_mq.client.administering.members import Consumers
from reliable_mq.client.administering.progress import read_progress
from reliable_mq.client.administering.topics import consumers
from reliable_mq.client.flow import Call, Flow, call_all, reply_of, succeeded
from reliable_mq.errors import NoRoute, ReliableMQError
from reliable_mq.message import ReceivedMessage
from reliable_mq.names import EVERY_TAG, tags_of
from reliable_mq.wire.codes import RequestCode, ResponseCode
from reliable_mq.wire.command import Command, request

DONE, WAITS, FILTERED, UNKNOWN = "done", "waits", "filtered", "unknown"


class Track(msgspec.Struct, frozen=True):
    """The state of a message in a consumer group.

    `state`: "done": the group has committed an offset after it; "waits": it has not; "filtered":
    the members do not want the message's tag; "unknown": it broadcasts, and brokers have no
    offsets.
    """

    group: str
    state: str


def tracks(cluster: AdminTarget, message: ReceivedMessage) -> Flow[ClusterReply[list[Track]]]:
    """Return the state of a message in each group of its topic, sorted by group.

    A failed message counts as done: it is in the retry topic, or is a dead letter.

    Args:
        cluster: the cluster to ask.
        message: the message as it was read from its queue.

    Raises:
        UsageError: when the name servers do not know its broker.
        RemoteError, Unavailable, ProtocolError: when no broker returns the list of groups.
    """
    name, topic = message.queue.broker_name, message.queue.topic
    try:
        groups = yield from consumers(cluster, topic)
    except NoRoute:  # no group reads topics in which brokers keep delayed messages
        return ClusterReply([])
    address = (yield from all_brokers(cluster, [name]))[name].to_read_from(0)
    if address is None:
        raise NoRoute(f"no name server knows an address of broker {name}")
    calls: list[Call] = []
    for group in groups.value:
        asked = {"consumerGroup": group}
        whole = {**asked, "topic": topic, "topicList": topic}
        for code, ext in (
            (RequestCode.GET_CONSUME_STATS, whole),
            (RequestCode.GET_CONSUMER_CONNECTION_LIST, asked),
        ):
            calls.append(
                Call(address, request(code, ext), cluster.settings.request_timeout_seconds)
            )
    answers = yield from call_all(calls)
    failures = dict(groups.failures)
    found: list[Track] = []
    for at, group in enumerate(groups.value):
        try:
            committed = _committed(reply_of(answers[2 * at]), message)
            online = _online(reply_of(answers[2 * at + 1]))
        except ReliableMQError as error:
            failures[f"{name}, group {group}"] = error
            continue
        found.append(Track(group, _state(message, committed, online)))
    return ClusterReply(found, failures)


def _committed(reply: Command, message: ReceivedMessage) -> int:
    rows = read_progress(succeeded(reply)).queues
    return next((row.committed for row in rows if row.queue == message.queue), 0)


def _online(reply: Command) -> Consumers | None:
    if reply.code == ResponseCode.CONSUMER_NOT_ONLINE:
        return None
    return decoded(succeeded(reply), Consumers, "the list of a group's members")


def _state(message: ReceivedMessage, committed: int, online: Consumers | None) -> str:
    if online is not None:
        if online.message_model == "BROADCASTING":
            return UNKNOWN
        wanted = (online.subscription_table or {}).get(message.queue.topic)
        if wanted is not None and wanted.expression_type == "TAG":
            tags = tags_of(wanted.sub_string or EVERY_TAG)
            if tags and message.tag not in tags:
                return FILTERED
    return DONE if committed > message.queue_offset else WAITS
