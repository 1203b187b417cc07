"""What an application hears of queues that come and go, over a scripted world."""

import asyncio
import contextlib
import threading

import pytest
from tests.client.script import in_turn
from tests.client.scripted_consumer import (
    found,
    members,
    play,
    record,
    world_with,
)
from tests.client.scripted_pulls import (
    NOTHING_NEW,
    PATIENT,
    QUEUE,
    PullingClient,
    committed,
    pulled_from,
)
from tests.waiting import eventually

from reliable_mq.client.consuming.asyncio_pull_consumer import AsyncPullConsumer, PullOptions
from reliable_mq.message import MessageQueue
from reliable_mq.wire.codes import RequestCode


def test_an_application_that_fails_when_it_is_told_of_queues_reads_them_all_the_same(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def ends_the_program(_: list[MessageQueue]) -> None:
        raise SystemExit(1)

    async def scene() -> None:
        pulled = pulled_from(
            world_with(in_turn(found(1, record(0)), NOTHING_NEW)), on_assigned=ends_the_program
        )
        pulled.start()
        assert len(await pulled.poll(60.0, 10)) == 1
        await pulled.close()
        assert "the application's callback for queues failed" in caplog.text

    play(scene())


class Hangs:
    """Is told of queues and does not come back until it may, not for being cancelled either."""

    def __init__(self) -> None:
        self.may_go_on = asyncio.Event()

    async def __call__(self, _: list[MessageQueue]) -> None:
        while not self.may_go_on.is_set():
            with contextlib.suppress(asyncio.CancelledError):
                await self.may_go_on.wait()


def test_an_application_that_hangs_when_it_is_told_of_queues_reads_them_all_the_same(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def scene() -> None:
        hangs = Hangs()
        world = world_with(in_turn(found(1, record(0)), NOTHING_NEW))
        pulled = pulled_from(world, on_assigned=hangs)
        try:
            pulled.start()
            assert len(await pulled.poll(60.0, 10)) == 1
            assert "callback for queues takes longer than 0.05 s" in caplog.text
            await pulled.close()
        finally:
            hangs.may_go_on.set()

    play(scene())


def test_an_application_that_hangs_when_queues_leave_keeps_none_and_holds_up_no_end() -> None:
    async def scene() -> None:
        hangs = Hangs()
        world = world_with(in_turn(found(1, record(0)), NOTHING_NEW))
        pulled = pulled_from(world, on_revoked=hangs)
        try:
            pulled.start()
            await pulled.poll(60.0, 10)
            pulled.positions.poll_begins()
            world.answers[RequestCode.GET_CONSUMER_LIST_BY_GROUP] = members("a", "client-a")
            pulled.rebalance_soon()
            await eventually(lambda: not pulled.group.all_queues)
            assert committed(world) == [1]
            world.answers[RequestCode.GET_CONSUMER_LIST_BY_GROUP] = members("client-a")
            pulled.rebalance_soon()
            await eventually(lambda: pulled.group.all_queues)
            await pulled.close()
        finally:
            hangs.may_go_on.set()

    play(scene())


def test_a_thread_that_hangs_as_it_is_told_of_queues_hears_of_the_rest_afterwards() -> None:
    async def scene() -> None:
        may_go_on = threading.Event()
        heard: list[str] = []

        def assigned(_: list[MessageQueue]) -> None:
            heard.append("assigned")
            may_go_on.wait()

        world = world_with(in_turn(found(1, record(0)), NOTHING_NEW))
        pull = AsyncPullConsumer(PullingClient(world), PullOptions(group="g"))
        try:
            await pull.subscribe(
                {"t": "*"}, on_assigned=assigned, on_revoked=lambda _: heard.append("revoked")
            )
            assert len(await pull.poll(60.0, 10)) == 1
            await eventually(lambda: heard == ["assigned"])
            world.answers[RequestCode.GET_CONSUMER_LIST_BY_GROUP] = members("a", "client-a")
            pulled = pull._pulled
            assert pulled is not None
            pulled.rebalance_soon()
            await eventually(lambda: not pulled.group.all_queues)
            assert heard == ["assigned"]
        finally:
            may_go_on.set()
        await eventually(lambda: heard == ["assigned", "revoked"])
        await pull.close()

    play(scene())


def test_closing_waits_until_the_application_has_heard_of_queues_before_it_hears_that_they_go() -> (
    None
):
    heard: list[str] = []

    async def scene() -> None:
        may_go_on = asyncio.Event()

        async def assigned(_: list[MessageQueue]) -> None:
            heard.append("assigning")
            await may_go_on.wait()
            heard.append("assigned")

        async def revoked(_: list[MessageQueue]) -> None:
            heard.append("revoked")

        pulled = pulled_from(
            world_with(NOTHING_NEW), on_assigned=assigned, on_revoked=revoked, settings=PATIENT
        )
        pulled.start()
        await eventually(lambda: heard)
        closing = asyncio.create_task(pulled.close())
        await eventually(pulled.reader.tasks[0].cancelled)
        may_go_on.set()
        await closing

    play(scene())
    assert heard == ["assigning", "assigned", "revoked"]


def test_a_thread_that_hangs_until_the_consumer_is_closed_hears_of_that_afterwards() -> None:
    async def scene() -> None:
        may_go_on = threading.Event()
        heard: list[str] = []

        def assigned(_: list[MessageQueue]) -> None:
            heard.append("assigned")
            may_go_on.wait()

        pull = AsyncPullConsumer(PullingClient(world_with(NOTHING_NEW)), PullOptions(group="g"))
        try:
            await pull.subscribe(
                {"t": "*"}, on_assigned=assigned, on_revoked=lambda _: heard.append("revoked")
            )
            await eventually(lambda: heard)
            await pull.close()
            assert heard == ["assigned"]
        finally:
            may_go_on.set()
        await eventually(lambda: heard == ["assigned", "revoked"])

    play(scene())


def test_a_coroutine_hears_that_queues_go_when_the_thread_has_heard_that_they_came() -> None:
    heard: list[str] = []

    async def scene() -> None:
        begun, may_go_on = threading.Event(), threading.Event()

        def assigned(_: list[MessageQueue]) -> None:
            begun.set()
            may_go_on.wait(60)
            heard.append("assigned")

        async def revoked(_: list[MessageQueue]) -> None:
            heard.append("revoked")

        pull = AsyncPullConsumer(
            PullingClient(world_with(NOTHING_NEW), PATIENT), PullOptions(group="g")
        )
        await pull.subscribe({"t": "*"}, on_assigned=assigned, on_revoked=revoked)
        await asyncio.to_thread(begun.wait)
        closing = asyncio.create_task(pull.close())
        pulled = pull._pulled
        assert pulled is not None
        await eventually(pulled.reader.tasks[0].cancelled)
        may_go_on.set()
        await closing

    play(scene())
    assert heard == ["assigned", "revoked"]


def test_of_queues_that_the_application_has_not_heard_of_it_does_not_hear_that_they_go() -> None:
    heard: list[list[MessageQueue]] = []

    async def revoked(queues: list[MessageQueue]) -> None:
        heard.append(queues)

    async def scene() -> None:
        pulled = pulled_from(world_with(NOTHING_NEW), on_revoked=revoked)
        pulled.group.assign(QUEUE)  # as a rebalance does that the end comes upon
        await pulled.close()

    play(scene())
    assert heard == []


def test_an_application_hears_of_queues_that_go_before_it_hears_of_those_that_come() -> None:
    heard: list[tuple[str, list[int]]] = []

    async def assigned(queues: list[MessageQueue]) -> None:
        heard.append(("assigned", [queue.queue_id for queue in queues]))

    async def revoked(queues: list[MessageQueue]) -> None:
        heard.append(("revoked", [queue.queue_id for queue in queues]))

    async def scene() -> None:
        world = world_with(NOTHING_NEW)
        world.answers[RequestCode.GET_CONSUMER_LIST_BY_GROUP] = members("client-a", "z")
        pulled = pulled_from(world, on_assigned=assigned, on_revoked=revoked, queues=2)
        pulled.start()
        await eventually(lambda: heard)
        world.answers[RequestCode.GET_CONSUMER_LIST_BY_GROUP] = members("a", "client-a")
        pulled.rebalance_soon()
        await eventually(lambda: len(heard) == 3)
        assert heard == [("assigned", [0]), ("revoked", [0]), ("assigned", [1])]
        await pulled.close()

    play(scene())


def test_a_commit_when_queues_go_commits_what_polls_returned_of_them() -> None:
    async def scene() -> None:
        async def revoked(_: list[MessageQueue]) -> None:
            await pulled.commit(None)

        world = world_with(in_turn(found(1, record(0)), NOTHING_NEW))
        pulled = pulled_from(world, on_revoked=revoked)
        pulled.start()
        assert len(await pulled.poll(60.0, 10)) == 1
        world.answers[RequestCode.GET_CONSUMER_LIST_BY_GROUP] = members("a", "client-a")
        pulled.rebalance_soon()
        await eventually(lambda: not pulled.group.all_queues)
        assert committed(world)[-1] == 1
        await pulled.close()

    play(scene())


def test_what_is_sought_while_the_consumer_closes_is_not_pulled_any_more() -> None:
    async def scene() -> None:
        may_go_on = asyncio.Event()
        told: list[MessageQueue] = []

        async def assigned(queues: list[MessageQueue]) -> None:
            told.extend(queues)
            await may_go_on.wait()
            pulled.seek(QUEUE, 40)

        async def revoked(_: list[MessageQueue]) -> None:
            return None

        world = world_with(NOTHING_NEW)
        pulled = pulled_from(world, on_assigned=assigned, on_revoked=revoked, settings=PATIENT)
        pulled.start()
        await eventually(lambda: told)
        closing = asyncio.create_task(pulled.close())
        await eventually(pulled.reader.tasks[0].cancelled)
        may_go_on.set()
        await closing
        assert world.calls_of(RequestCode.PULL_MESSAGE) == []

    play(scene())


def test_closing_waits_for_what_is_told_of_queues_although_who_tells_it_is_cancelled() -> None:
    heard: list[str] = []

    async def scene() -> None:
        may_go_on = asyncio.Event()

        async def revoked(_: list[MessageQueue]) -> None:
            heard.append("revoking")
            await may_go_on.wait()
            heard.append("revoked")

        pulled = pulled_from(world_with(NOTHING_NEW), on_revoked=revoked, settings=PATIENT)
        pulled.start()
        await eventually(lambda: pulled.queues)
        telling = asyncio.create_task(pulled.on_revoked([pulled.group.leave(QUEUE)]))
        await eventually(lambda: heard)
        telling.cancel()
        closing = asyncio.create_task(pulled.close())
        await eventually(pulled.reader.tasks[0].cancelled)
        for _ in range(20):
            await asyncio.sleep(0)
        assert not closing.done()
        may_go_on.set()
        await closing
        assert heard == ["revoking", "revoked"]

    play(scene())
