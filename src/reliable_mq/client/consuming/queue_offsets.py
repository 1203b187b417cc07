"""Offsets for an application: it reads a queue's ends, the offset of a time, and commits offsets.

Source: Apache RocketMQ `DefaultLitePullConsumerImpl`, `MQAdminImpl`.
"""

from collections.abc import Callable, Iterable, Mapping
from typing import Literal

from reliable_mq.client.consuming.consumer_group import ConsumerGroup
from reliable_mq.client.consuming.offset_tables import OffsetCommit
from reliable_mq.client.consuming.offsets import offset_in, place_in
from reliable_mq.client.flow import Call, Flow, call_all, reply_of, succeeded
from reliable_mq.errors import NoRoute, ReliableMQError
from reliable_mq.message import MessageQueue
from reliable_mq.wire.codes import RequestCode, ResponseCode
from reliable_mq.wire.command import Command, request
from reliable_mq.wire.headers import ConsumerOffsetHeader, QueueHeader, SearchOffsetHeader

Place = Literal["begin", "end"] | int
"""The first offset of a queue; the offset after its last message; or, for an integer, the first
message stored at this time (milliseconds since the epoch) or later."""


def offsets_at(
    group: ConsumerGroup, queues: Iterable[MessageQueue], place: Place
) -> Flow[dict[MessageQueue, int]]:
    """Return the offset of a place in each queue. For a time after the last message: the end.

    Raises:
        NoRoute: when a topic, or the master of a queue, is not known.
        RemoteError, Unavailable: when a broker fails to answer.
    """
    answers = yield from _ask(group, queues, lambda queue: _question(queue, place))
    return {queue: place_in(answer) for queue, answer in answers.items()}


def committed_offsets(
    group: ConsumerGroup, queues: Iterable[MessageQueue]
) -> Flow[dict[MessageQueue, int | None]]:
    """Return the group's committed offset in each queue; None when there is none.

    Raises:
        NoRoute: when a topic, or the master of a queue, is not known.
        RemoteError, Unavailable: when a broker fails to answer.
    """

    def question(queue: MessageQueue) -> Command:
        header = ConsumerOffsetHeader(
            consumer_group=group.name,
            topic=queue.topic,
            queue_id=queue.queue_id,
            set_zero_if_not_found=False,
        )
        return request(RequestCode.QUERY_CONSUMER_OFFSET, header.to_ext())

    answers = yield from _ask(group, queues, question)
    return {
        queue: None if answer.code == ResponseCode.QUERY_NOT_FOUND else offset_in(answer)
        for queue, answer in answers.items()
    }


def commit_offsets(group: ConsumerGroup, offsets: Mapping[MessageQueue, int]) -> Flow[None]:
    """Commit `offsets`, the next ones to read, and wait until the brokers have stored them.

    Raises:
        NoRoute: when the master of a queue is not known.
        RemoteError, Unavailable: when a broker does not store one. The others are committed,
            except those of the same topic there if the first commit of the group got no answer.
    """
    failures: list[ReliableMQError] = []
    commits: list[OffsetCommit] = []
    for queue, offset in offsets.items():
        address = group.master_of(queue.broker_name)
        if address is None:
            failures.append(NoRoute(f"no master of {queue} is known"))
        else:
            commits.append(OffsetCommit(address, queue, offset))
    answers = yield from group.offset_tables.commit(commits)
    for sent, answer in zip(commits, answers, strict=True):
        try:
            succeeded(reply_of(answer))
        except ReliableMQError as failure:
            failures.append(failure)
            continue
        assigned = group.find(sent.queue)
        if assigned is not None:
            assigned.committed_offset = sent.offset
    if failures:
        raise failures[0]


def _question(queue: MessageQueue, place: Place) -> Command:
    if isinstance(place, int):
        search = SearchOffsetHeader(topic=queue.topic, queue_id=queue.queue_id, timestamp=place)
        return request(RequestCode.SEARCH_OFFSET_BY_TIMESTAMP, search.to_ext())
    code = RequestCode.GET_MIN_OFFSET if place == "begin" else RequestCode.GET_MAX_OFFSET
    return request(code, QueueHeader(topic=queue.topic, queue_id=queue.queue_id).to_ext())


def _ask(
    group: ConsumerGroup,
    queues: Iterable[MessageQueue],
    question: Callable[[MessageQueue], Command],
) -> Flow[dict[MessageQueue, Command]]:
    """Ask the masters of all queues at the same time."""
    wanted = list(queues)
    calls: list[Call] = []
    for topic in {queue.topic for queue in wanted}:
        yield from group.routes.of(topic)
    for queue in wanted:
        address = group.master_of(queue.broker_name)
        if address is None:
            raise NoRoute(f"no master of {queue} is known")
        calls.append(Call(address, question(queue), group.settings.request_timeout_seconds))
    answers = yield from call_all(calls)
    return {queue: reply_of(answer) for queue, answer in zip(wanted, answers, strict=True)}
