"""Progress of consumer groups by queue, over all brokers. Retries are a separate topic.

Source: Apache RocketMQ `ConsumeStats`, `ConsumerProgressSubCommand`.
"""

from collections.abc import Sequence
from typing import Any

import msgspec

from reliable_mq.client.administering.cluster_reply import (
    AdminTarget,
    Brokers,
    ClusterReply,
    all_brokers,
    ask_all,
    decoded,
    merged,
    queue_of,
)
from reliable_mq.client.administering.groups import settings
from reliable_mq.client.consuming.offsets import offset_in
from reliable_mq.client.flow import Call, Flow, call_all, reply_of
from reliable_mq.decodable import decodable
from reliable_mq.errors import NoRoute
from reliable_mq.message import MessageQueue
from reliable_mq.wire.codes import RequestCode, ResponseCode
from reliable_mq.wire.command import Command, request
from reliable_mq.wire.headers import ConsumerOffsetHeader, QueueHeader

NO_COMMITTED_OFFSET = -1


class QueueProgress(msgspec.Struct, frozen=True, kw_only=True):
    """A group's progress in a queue.

    `end`: the offset after the newest message. `committed`: messages before this offset are
    consumed; 0 also when the group has committed nothing. `pulled`: messages before it were
    delivered. `last_consumed_ms`: when the newest consumed message was stored, ms since the epoch;
    None if there is none, or it is deleted.
    """

    queue: MessageQueue
    end: int
    committed: int
    pulled: int
    last_consumed_ms: int | None

    @property
    def lag(self) -> int:
        """Number of messages that are not consumed."""
        return self.end - self.committed

    @property
    def in_flight(self) -> int:
        """Number of messages that were delivered and are not consumed."""
        return self.pulled - self.committed


class GroupProgress(msgspec.Struct, frozen=True):
    """The queues in order, and the messages per second that the group got in the last minute."""

    queues: list[QueueProgress]
    per_second: float

    @property
    def lag(self) -> int:
        """Number of messages that are not consumed, in all queues."""
        return sum(row.lag for row in self.queues)

    @property
    def in_flight(self) -> int:
        """Number of messages that were delivered and are not consumed, in all queues."""
        return sum(row.in_flight for row in self.queues)


class _Offsets(msgspec.Struct, rename="camel"):
    broker_offset: int
    consumer_offset: int
    pull_offset: int = 0
    last_timestamp: int = 0


@decodable
class _ConsumeStats(msgspec.Struct, rename="camel"):
    offset_table: dict[Any, _Offsets]
    consume_tps: float = 0.0


def progress(
    cluster: AdminTarget, group: str, topic: str = ""
) -> Flow[ClusterReply[GroupProgress]]:
    """Return a consumer group's progress in its topics, including its retry topic.

    While it is online, brokers leave out topics to which it does not subscribe any more. An empty
    result means: the group exists, and has committed nothing.

    Args:
        cluster: the cluster to ask.
        group: the consumer group.
        topic: only this topic; "": all.

    Raises:
        NotFound: when no broker has offsets or settings of the group.
        NoRoute: when the name servers know no broker.
        RemoteError, Unavailable, ProtocolError: when no broker answers.
    """
    brokers = yield from all_brokers(cluster)
    ext = {"consumerGroup": group} | ({"topic": topic} if topic else {})
    asked = request(RequestCode.GET_CONSUME_STATS, ext)
    answers = merged((yield from ask_all(cluster, brokers, asked, read_progress)), _one)
    if not answers.value.queues and not answers.failures:
        yield from settings(cluster, group)
    return answers


def offsets_in(
    cluster: AdminTarget, brokers: Brokers, group: str, topic: str
) -> Flow[ClusterReply[dict[str, list[QueueProgress]]]]:
    """Return a group's progress in one topic, subscribed or not, by broker name."""
    ext = {"consumerGroup": group, "topic": topic, "topicList": topic}
    asked = request(RequestCode.GET_CONSUME_STATS, ext)
    answers = yield from ask_all(cluster, brokers, asked, read_progress)
    queues = {
        name: [row for row in part.queues if row.queue.topic == topic]
        for name, part in answers.value.items()
    }
    return ClusterReply(queues, answers.failures)


def read_progress_of(
    cluster: AdminTarget, group: str, topic: str
) -> Flow[dict[MessageQueue, tuple[int, int]]]:
    """Return (committed offset, maximum offset) of a group in each readable queue of a topic.

    The committed offset is -1 in a queue where the group has committed nothing.

    Raises:
        NoRoute: when the name servers do not know the topic.
        RemoteError, Unavailable: when a broker fails to answer.
    """
    route = yield from cluster.routes.of(topic)
    calls: list[Call] = []
    for queue in route.readable:
        address = route.brokers[queue.broker_name].to_read_from(0)
        if address is None:
            raise NoRoute(f"no broker of {queue} is known")
        committed = ConsumerOffsetHeader(
            consumer_group=group,
            topic=topic,
            queue_id=queue.queue_id,
            set_zero_if_not_found=False,
        )
        maximum = QueueHeader(topic=topic, queue_id=queue.queue_id)
        for code, ext in (
            (RequestCode.QUERY_CONSUMER_OFFSET, committed.to_ext()),
            (RequestCode.GET_MAX_OFFSET, maximum.to_ext()),
        ):
            calls.append(
                Call(address, request(code, ext), cluster.settings.request_timeout_seconds)
            )
    answers = yield from call_all(calls)
    return {
        queue: (_committed(reply_of(answers[2 * at])), offset_in(reply_of(answers[2 * at + 1])))
        for at, queue in enumerate(route.readable)
    }


def _committed(reply: Command) -> int:
    return NO_COMMITTED_OFFSET if reply.code == ResponseCode.QUERY_NOT_FOUND else offset_in(reply)


def read_progress(reply: Command) -> GroupProgress:
    """Return a group's progress in one broker's reply to GET_CONSUME_STATS.

    Raises:
        ProtocolError: when it cannot be decoded.
    """
    what = "the progress of a group"
    stats = decoded(reply, _ConsumeStats, what)
    queues = [
        QueueProgress(
            queue=queue_of(key, what),
            end=row.broker_offset,
            committed=row.consumer_offset,
            pulled=max(row.pull_offset, row.consumer_offset),
            last_consumed_ms=row.last_timestamp or None,
        )
        for key, row in stats.offset_table.items()
    ]
    return GroupProgress(queues, stats.consume_tps)


def _one(parts: Sequence[GroupProgress]) -> GroupProgress:
    queues = [row for part in parts for row in part.queues]
    queues.sort(key=lambda row: row.queue)
    return GroupProgress(queues, sum(part.per_second for part in parts))
