"""Commits of a group's offsets, and the tables of offsets that brokers have.

It receives offsets with the address of each, and returns brokers' answers. It must not know which
offsets may be committed.

Apache's broker creates the table of a topic's queues with the group's first commit. Two concurrent
first commits may each create one: both succeed, but one table is lost (7 of 600 new groups that
committed four queues). So the first commit to a table is sent alone, and the others after its
answer. Commits of other processes for the same group cannot be delayed.

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
    """The next offset to read, its queue, and the address ("host:port") of the commit."""

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
        """Commit; return the answers or errors in the order of `commits`.

        If the first commit to a table gets no answer, the others are not sent and fail with the
        same error. The first one may still be in flight, and more timeouts would take too long.
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
        """Forget the tables of these brokers: after a restart they may be lost."""
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
            if call is rest[0]:  # otherwise another caller's commit was first
                answers.append(answer)
                del rest[0]
        return answers + (yield from call_all(rest))

    def _first(self, table: _Table, call: Call) -> Flow[tuple[Call, Command | ReliableMQError]]:
        (answer,) = yield from call_all([call])
        if not isinstance(answer, ReliableMQError) and _has_made_table(answer):
            self._known.add(table)
        return call, answer


def _has_made_table(answer: Command) -> bool:
    """Whether a commit was stored. A broker ignores commits of members that have a reset to do."""
    return answer.code == ResponseCode.SUCCESS and not answer.remark


def commit_command(group: str, queue: MessageQueue, offset: int) -> Command:
    """Return the request that commits `offset`, the next one to read, for a group."""
    header = UpdateConsumerOffsetHeader(
        consumer_group=group, topic=queue.topic, queue_id=queue.queue_id, commit_offset=offset
    )
    return request(RequestCode.UPDATE_CONSUMER_OFFSET, header.to_ext())
