"""A group's tables of offsets at brokers, and the commits that go to them.

Receives offsets and where each one goes; hands on what brokers answer. Refuses to know what may be
committed.

Apache's broker makes a table for a topic's queues with the group's first commit, and of two that
come at once each may make one: both are answered with success, and one is lost (7 of 600 new
groups that committed four queues). So the first commit to a table goes alone, and the others when
it is answered. What other processes commit for the group cannot be held.

Source: Apache RocketMQ `ConsumerOffsetManager.commitOffset`.
"""

from collections.abc import Iterable, Sequence
from functools import partial
from typing import NamedTuple

from reliable_mq.client.flow import Call, Flow, call_all, once, together
from reliable_mq.errors import ReliableMQError
from reliable_mq.message import MessageQueue
from reliable_mq.wire.codes import RequestCode, ResponseCode
from reliable_mq.wire.command import Command, request
from reliable_mq.wire.headers import UpdateConsumerOffsetHeader


class OffsetCommit(NamedTuple):
    """An offset, that of the next message to be read, and the address ("host:port") it goes to."""

    address: str
    queue: MessageQueue
    offset: int


class _Table(NamedTuple):
    broker_name: str
    address: str
    topic: str


class OffsetTables:
    """Commits for one group, and remembers which tables brokers have.

    Args:
        group: its whole name.
        timeout: seconds to wait for an answer.
    """

    def __init__(self, group: str, timeout: float) -> None:
        self._group = group
        self._timeout = timeout
        self._known: set[_Table] = set()

    def commit(self, commits: Sequence[OffsetCommit]) -> Flow[list[Command | ReliableMQError]]:
        """Commit, and return the answers, or what went wrong, in the order of `commits`.

        When the first commit to a table gets no answer, the others are not sent and have its
        failure: it may still be on its way, and nobody waits for one time-out after the other.
        """
        tables = [
            _Table(each.queue.broker_name, each.address, each.queue.topic) for each in commits
        ]
        calls = [
            Call(each.address, commit_command(self._group, each.queue, each.offset), self._timeout)
            for each in commits
        ]
        if self._known.issuperset(tables):
            answers = yield from call_all(calls)
        else:
            of_table: dict[_Table, list[Call]] = {}
            for table, call in zip(tables, calls, strict=True):
                of_table.setdefault(table, []).append(call)
            flows = [self._commit_to(table, its) for table, its in of_table.items()]
            parts = yield from together(flows)
            left = {table: iter(part) for table, part in zip(of_table, parts, strict=True)}
            answers = [next(left[table]) for table in tables]
        for table, answer in zip(tables, answers, strict=True):
            if isinstance(answer, ReliableMQError):
                self._known.discard(table)
        return answers

    def forget(self, broker_names: Iterable[str]) -> None:
        """Trust no table of these brokers: one that restarts may not have kept it."""
        names = set(broker_names)
        self._known = {table for table in self._known if table.broker_name not in names}

    def _commit_to(
        self, table: _Table, calls: Sequence[Call]
    ) -> Flow[list[Command | ReliableMQError]]:
        answers: list[Command | ReliableMQError] = []
        rest = list(calls)
        while rest and table not in self._known:
            key = ("the first commit", self._group, *table)
            call, answer = yield from once(key, partial(self._first, table, rest[0]))
            if isinstance(answer, ReliableMQError):
                return answers + [answer] * len(rest)
            if call is rest[0]:  # else somebody else's went first
                answers.append(answer)
                del rest[0]
        return answers + (yield from call_all(rest))

    def _first(self, table: _Table, call: Call) -> Flow[tuple[Call, Command | ReliableMQError]]:
        (answer,) = yield from call_all([call])
        if not isinstance(answer, ReliableMQError) and _has_made_table(answer):
            self._known.add(table)
        return call, answer


def _has_made_table(answer: Command) -> bool:
    """Whether a commit was stored: while members have a reset before them it is passed over."""
    return answer.code == ResponseCode.SUCCESS and not answer.remark


def commit_command(group: str, queue: MessageQueue, offset: int) -> Command:
    """Return the request that commits `offset`, the next one to be read, for a group."""
    header = UpdateConsumerOffsetHeader(
        consumer_group=group, topic=queue.topic, queue_id=queue.queue_id, commit_offset=offset
    )
    return request(RequestCode.UPDATE_CONSUMER_OFFSET, header.to_ext())
