"""The first commit of a group's topic at a broker goes alone.

Apache's broker makes the table of a topic's offsets with it, without a lock: of 600 new groups that
committed four queues at once, 7 lost one, though all were answered with success.
"""

import asyncio
from collections.abc import Callable
from typing import Any, NamedTuple

import pytest
from tests.client.masters import by_broker, cluster, table, world
from tests.client.script import NAME_SERVER, World, group_of, route_body, says
from tests.waiting import run_scene

from reliable_mq.client.administering import offset_resets
from reliable_mq.client.asyncio_engine import AsyncEngine
from reliable_mq.client.consuming.assignment import give_all_back, give_back
from reliable_mq.client.consuming.consumer_group import ConsumerGroup
from reliable_mq.client.consuming.offset_tables import OffsetCommit, OffsetTables
from reliable_mq.client.consuming.offsets import commit
from reliable_mq.client.consuming.queue_offsets import commit_offsets
from reliable_mq.client.consuming.subscription import Subscription
from reliable_mq.client.flow import Call, Flow
from reliable_mq.client.settings import ClientSettings
from reliable_mq.errors import ConnectionLost, ReliableMQError, RequestTimeout
from reliable_mq.message import MessageQueue
from reliable_mq.wire.codes import RequestCode, ResponseCode
from reliable_mq.wire.command import Command, reply

COMMIT = RequestCode.UPDATE_CONSUMER_OFFSET
QUEUES = [MessageQueue("t", "a", number) for number in range(4)]
ALL = ["a:10911 t 0", "a:10911 t 1", "a:10911 t 2", "a:10911 t 3"]
TURNS = 100


class Asked(NamedTuple):
    call: Call
    answer: asyncio.Future[Command]

    def __str__(self) -> str:
        fields = self.call.command.ext_fields
        return f"{self.call.address} {fields['topic']} {fields['queueId']}"


class Brokers(AsyncEngine):
    """A client whose brokers answer commits when they are told to, and all else at once."""

    def __init__(self, others: World | None = None) -> None:
        super().__init__(NAME_SERVER, ClientSettings())
        self._others = others
        self._asked: list[Asked] = []

    async def asked(self) -> list[str]:
        """Return what was committed and has no answer yet: addresses, topics, queues."""
        for _ in range(TURNS):
            await asyncio.sleep(0)
        return sorted(map(str, self._asked))

    def say(self, code: int = ResponseCode.SUCCESS, remark: str = "", at: str = "") -> None:
        """Say this to all that was asked, or to what was asked at one broker."""
        for each in self._taken(at):
            each.answer.set_result(reply(each.call.command, code, remark or None))

    def fail(self, error: ReliableMQError, at: str = "") -> None:
        """Let all that was asked fail, or what was asked at one broker."""
        for each in self._taken(at):
            each.answer.set_exception(error)

    def _taken(self, at: str) -> list[Asked]:
        taken = [each for each in self._asked if each.call.address.startswith(at)]
        self._asked = [each for each in self._asked if each not in taken]
        return taken

    async def _call(self, step: Call) -> Command:
        if step.command.code != COMMIT:
            assert self._others is not None
            return self._others.play(_one(step))
        asked = Asked(step, asyncio.get_running_loop().create_future())
        self._asked.append(asked)
        return await asked.answer


def _one(step: Call) -> Flow[Command]:
    answer: Command = yield step
    return answer


def started(client: Brokers, flow: Flow[Any]) -> asyncio.Task[Any]:
    return asyncio.create_task(client.run(flow))


def tables(group: str = "g") -> OffsetTables:
    return OffsetTables(group, timeout=3.0)


def commits(*queues: MessageQueue) -> list[OffsetCommit]:
    return [OffsetCommit(f"{queue.broker_name}:10911", queue, 7) for queue in queues or QUEUES]


def group_with_offsets(others: World) -> ConsumerGroup:
    """Return a group that has handled something of each queue, and committed nothing yet."""
    wanted = Subscription(group="g", topics={"t": "*"}, ordered=False)
    group = group_of(others, wanted, queues={"a": len(QUEUES)})
    for queue in QUEUES:
        group.assign(queue).start_at(7)
    return group


def in_all(flow: Callable[[ConsumerGroup], Flow[Any]]) -> Callable[[Brokers, World], list[Any]]:
    return lambda client, others: [started(client, flow(group_with_offsets(others)))]


def reset(client: Brokers, others: World) -> list[Any]:
    """An administrator moves a group that is offline, at a broker that has no resets."""
    rows = {number: {"brokerOffset": 9, "consumerOffset": 0} for number in range(len(QUEUES))}
    others.answers |= world(
        {
            RequestCode.GET_ROUTEINFO_BY_TOPIC: says(body=route_body({"a": len(QUEUES)})),
            RequestCode.GET_CONSUME_STATS: by_broker(table({"a": rows})),
            RequestCode.INVOKE_BROKER_TO_RESET_OFFSET: says(ResponseCode.CONSUMER_NOT_ONLINE),
            RequestCode.SEARCH_OFFSET_BY_TIMESTAMP: says(ext={"offset": "7"}),
        }
    ).answers
    return [started(client, offset_resets.to_time(cluster(), "g", "t", 1234))]


def queue_by_queue(client: Brokers, others: World) -> list[Any]:
    group = group_with_offsets(others)
    left = [group.leave(queue) for queue in QUEUES]
    return [started(client, give_back(group, assigned)) for assigned in left]


@pytest.mark.parametrize(
    "verb",
    [
        pytest.param(in_all(lambda group: commit(group, group.all_queues)), id="a commit"),
        pytest.param(
            in_all(lambda group: commit_offsets(group, dict.fromkeys(QUEUES, 7))),
            id="a commit of the application's",
        ),
        pytest.param(in_all(give_all_back), id="the last commit"),
        pytest.param(queue_by_queue, id="queues that move at the same time"),
        pytest.param(reset, id="a reset that is written"),
    ],
)
def test_others_wait_for_the_answer_to_the_first_and_leave_together(
    verb: Callable[[Brokers, World], list[Any]],
) -> None:
    async def scene() -> None:
        others = World()
        client = Brokers(others)
        tasks = verb(client, others)
        assert await client.asked() == ALL[:1]
        client.say()
        assert await client.asked() == ALL[1:]
        client.say()
        await asyncio.gather(*tasks)
        assert await client.asked() == []

    run_scene(scene())


def test_each_topic_and_each_broker_has_a_first_of_its_own() -> None:
    async def scene() -> None:
        client = Brokers()
        places = [(topic, name) for topic in ("t", "u") for name in ("a", "b")]
        queues = [MessageQueue(topic, name, at) for at in (0, 1) for topic, name in places]
        task = started(client, tables().commit(commits(*queues)))
        firsts = ["a:10911 t 0", "a:10911 u 0", "b:10911 t 0", "b:10911 u 0"]
        assert await client.asked() == firsts
        client.say(at="b")
        assert await client.asked() == ["a:10911 t 0", "a:10911 u 0", "b:10911 t 1", "b:10911 u 1"]
        client.fail(RequestTimeout("no answer"), at="a")
        client.say(at="b")
        failed = [isinstance(answer, RequestTimeout) for answer in await task]
        assert failed == [queue.broker_name == "a" for queue in queues]

    run_scene(scene())


async def committed_first(client: Brokers, known: OffsetTables, *queues: MessageQueue) -> None:
    """Commit queues, the first of which goes alone."""
    task = started(client, known.commit(commits(*queues)))
    assert await client.asked() == ALL[:1]
    client.say()
    await client.asked()
    client.say()
    await task


def test_later_commits_leave_together() -> None:
    async def scene() -> None:
        client, known = Brokers(), tables()
        await committed_first(client, known, QUEUES[0])
        task = started(client, known.commit(commits()))
        assert await client.asked() == ALL
        client.say()
        assert all(isinstance(answer, Command) for answer in await task)

    run_scene(scene())


def test_who_gets_no_answer_to_the_first_sends_no_other_until_the_next_time() -> None:
    async def scene() -> None:
        client, known = Brokers(), tables()
        task = started(client, known.commit(commits()))
        await client.asked()
        client.fail(RequestTimeout("no answer"))
        assert [type(answer) for answer in await task] == [RequestTimeout] * 4
        await committed_first(client, known, *QUEUES)

    run_scene(scene())


@pytest.mark.parametrize(
    ("code", "remark"),
    [
        pytest.param(ResponseCode.NO_PERMISSION, "not you", id="refused"),
        pytest.param(ResponseCode.SUCCESS, "Offset has been previously reset", id="behind a reset"),
    ],
)
def test_a_first_that_is_not_stored_is_followed_by_another_one_alone(
    code: int, remark: str
) -> None:
    async def scene() -> None:
        client = Brokers()
        task = started(client, tables().commit(commits()))
        assert await client.asked() == ALL[:1]
        client.say(code, remark)
        assert await client.asked() == ALL[1:2]
        client.say()
        assert await client.asked() == ALL[2:]
        client.say()
        codes = [answer.code for answer in await task]
        assert codes == [code, *[ResponseCode.SUCCESS] * 3]

    run_scene(scene())


def test_consumers_of_one_group_in_a_client_wait_for_each_others_first() -> None:
    async def scene() -> None:
        client = Brokers()
        one = started(client, tables().commit(commits(QUEUES[0])))
        another = started(client, tables().commit(commits(QUEUES[1])))
        third = started(client, tables("of another group").commit(commits(QUEUES[2])))
        assert await client.asked() == [ALL[0], ALL[2]]
        client.say()
        assert await client.asked() == ALL[1:2]
        client.say()
        await asyncio.gather(one, another, third)

    run_scene(scene())


def test_a_broker_that_does_not_answer_keeps_many_commits_waiting_once() -> None:
    async def scene() -> None:
        client, known = Brokers(), tables()
        tasks = [started(client, known.commit(commits(queue))) for queue in QUEUES]
        assert await client.asked() == ALL[:1]
        client.fail(RequestTimeout("no answer"))
        assert not await client.asked()
        answers = [answer for task in tasks for answer in await task]
        assert [type(answer) for answer in answers] == [RequestTimeout] * 4

    run_scene(scene())


def test_a_commit_after_one_that_failed_goes_alone_again() -> None:
    async def scene() -> None:
        client, known = Brokers(), tables()
        await committed_first(client, known, QUEUES[0])
        task = started(client, known.commit(commits(*QUEUES[:2])))
        await client.asked()
        client.fail(ConnectionLost("gone"))
        await task
        await committed_first(client, known, *QUEUES)

    run_scene(scene())


def test_a_commit_after_the_brokers_connection_was_lost_goes_alone_again() -> None:
    """It may have been killed before it wrote the first commit to its disk."""

    async def scene() -> None:
        client, others = Brokers(), World()
        group = group_with_offsets(others)
        elsewhere = MessageQueue("t", "b", 0)
        task = started(client, group.offset_tables.commit(commits(QUEUES[0], elsewhere)))
        await client.asked()
        client.say()
        await task
        group.broker_lost({"a"})
        queues = [*QUEUES, elsewhere, MessageQueue("t", "b", 1)]
        again = started(client, group.offset_tables.commit(commits(*queues)))
        assert await client.asked() == [ALL[0], "b:10911 t 0", "b:10911 t 1"]
        client.say()
        assert await client.asked() == ALL[1:]
        client.say()
        await again

    run_scene(scene())
