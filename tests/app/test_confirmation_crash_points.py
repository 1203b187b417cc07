"""A stub in one database, its consumer in another: whoever dies at whatever step, both agree.

The walk is cut in two lives. The first one consumes, tells the other database, and writes down that
it has told; the second one reads the notice over there. Each dies at every step that it takes, and
is followed by a life that goes on with what is left.
"""

import asyncio
import logging
from collections.abc import Iterator, Sequence
from typing import Any

import pytest
from sqlalchemy import select
from tests.app.kill_switch import Killed, KillSwitch
from tests.app.lives import A, Ledger, Life, delivery
from tests.steps import last_steps

from reliable_mq.app.thread_resending import notice_consumer
from reliable_mq.confirm.sql_owed_notices import OwedNotice, SqlNotices
from reliable_mq.confirm.thread_notices import Notices
from reliable_mq.consume.sql_consume_transaction import ConsumeTransaction
from reliable_mq.message import (
    CONFIRM_TO,
    Message,
    MessageQueue,
    ReceivedMessage,
    SendResult,
    SendStatus,
)
from reliable_mq.outcomes import CONSUMED, Outcome

FAR = 1e10
"""When every lease has passed."""
STEPS_MAX = 200


class Road:
    """A broker in memory: what it has acknowledged stays, and is delivered until it is settled."""

    def __init__(self) -> None:
        self.stored: list[Message] = []
        self.switch = KillSwitch()

    def send_many(self, messages: Sequence[Message]) -> list[SendResult | Exception]:
        self.switch.step("before send")
        self.stored += messages
        self.switch.step("after send")
        return [
            SendResult(
                status=SendStatus.SEND_OK,
                message_id=message.message_id,
                offset_message_id="",
                queue=MessageQueue(message.topic, "broker-a", 0),
                queue_offset=0,
            )
            for message in messages
        ]


class Telling:
    """Takes over what consumers committed, as the thread does, without a thread."""

    def __init__(self, life_database: Any, road: Road) -> None:
        self.notices = Notices(SqlNotices(life_database.engine, life_database.logs), road)

    def accept_committed(self, owed: Sequence[OwedNotice]) -> None:
        self.notices.accept(owed)

    def look_soon(self) -> None:
        """It looks when it is told to."""


class Crossing:
    """Two databases and the road between them."""

    def __init__(self, stubs_url: str, logs_url: str, redis: str | None) -> None:
        self.here, self.there = Ledger(stubs_url), Ledger(logs_url)
        self.redis = redis
        self.road = Road()

    def begin(self) -> None:
        self.here.create(A)
        self.there.create()
        with self.here.database.engine.begin() as connection:
            connection.execute(self.here.database.confirmations.delete())
        self.road.stored.clear()

    @property
    def topic(self) -> str:
        return self.here.database.identity.notice_topic()

    def consumed(self) -> ReceivedMessage:
        return delivery(A, properties={CONFIRM_TO: f"{self.topic}:payments"})

    async def consume(self, switch: KillSwitch, **options: Any) -> bool:
        """Live until the notice is told; return whether the broker saw an acknowledgement."""
        telling: list[Telling] = []
        self.road.switch = switch

        def make_attempts(consumer: Any, database: Any, **more: Any) -> ConsumeTransaction:
            telling.append(Telling(database, self.road))
            return ConsumeTransaction(consumer, database, notices=telling[0], **more)

        url = self.there.database.url.render_as_string(hide_password=False)
        outcomes: list[Outcome] = []
        async with Life(url, self.redis, switch, make_attempts=make_attempts, **options) as life:
            try:
                outcomes = await life.handle(self.consumed())
                await asyncio.to_thread(telling[0].notices.run_once, 1.0, looks=False)
            except Killed:
                pass
        return outcomes == [CONSUMED]

    async def recover(self, *, was_acknowledged: bool, **options: Any) -> None:
        """Live after the death: what was not acknowledged comes again, what is owed is told."""
        self.road.switch = KillSwitch()
        if not was_acknowledged:
            url = self.there.database.url.render_as_string(hide_password=False)
            async with Life(url, self.redis, **options) as life:
                assert await life.until_settled(self.consumed()) == [CONSUMED]
        Telling(self.there.database, self.road).notices.run_once(FAR, looks=True)

    async def read(self, switch: KillSwitch) -> None:
        """Read every notice that the road holds."""
        url = self.here.database.url.render_as_string(hide_password=False)
        consumer = notice_consumer("main", self.here.database, 0.02)
        async with Life(
            url, self.redis, switch, handler=consumer.plan.function, group=consumer.group
        ) as life:
            for message in self.road.stored:
                try:
                    notice = delivery(message.message_id, message.body)
                    assert await life.until_settled(notice) == [CONSUMED]
                except Killed:
                    return

    def state(self) -> tuple[Any, ...]:
        """Return effects, the stub's status, and what is still owed."""
        logs = self.there.database.logs
        with self.there.database.engine.begin() as connection:
            owed = connection.execute(
                select(logs.c.message_id).where(logs.c.confirm_time.is_not(None))
            ).all()
        return self.there.effects(), self.here.stubs()[A].status, owed


@pytest.fixture
def crossing(
    request: pytest.FixtureRequest,
    database_url: str,
    other_url: str,
    caplog: pytest.LogCaptureFixture,
) -> Iterator[Crossing]:
    """PostgreSQL with Redis, SQLite without."""
    # What is logged of a death keeps its frames, and with them a connection that should be gone.
    caplog.set_level(logging.CRITICAL, "reliable_mq.consume.retry_decider")
    is_sqlite = database_url.startswith("sqlite")
    redis = None if is_sqlite else request.getfixturevalue("redis_url")
    made = Crossing(database_url, other_url, redis)
    yield made
    made.here.database.close()
    made.there.database.close()


@pytest.mark.parametrize("log_receipt", [False, True])
def test_a_consumer_that_dies_at_any_step_leaves_a_stub_that_is_confirmed(
    crossing: Crossing, valkey_server: Any, log_receipt: bool
) -> None:
    for step in last_steps(STEPS_MAX, one_in=8):
        valkey_server.flush()
        crossing.begin()
        switch = KillSwitch(step)
        acknowledged = asyncio.run(crossing.consume(switch, log_receipt=log_receipt))
        asyncio.run(crossing.recover(was_acknowledged=acknowledged, log_receipt=log_receipt))
        asyncio.run(crossing.read(KillSwitch()))

        assert crossing.state() == ([A], 1, []), switch.names
        if not switch.dead:
            assert len(switch.names) > 10
            assert {"before send", "after send"} <= set(switch.names)
            return
    raise AssertionError("a run that never comes through alive")


def test_a_reader_of_notices_that_dies_at_any_step_confirms_once(
    crossing: Crossing, valkey_server: Any
) -> None:
    for step in last_steps(STEPS_MAX, one_in=8):
        valkey_server.flush()
        crossing.begin()
        asyncio.run(crossing.consume(KillSwitch()))
        switch = KillSwitch(step)
        asyncio.run(crossing.read(switch))
        asyncio.run(crossing.read(KillSwitch()))  # what was not acknowledged comes again

        assert crossing.state() == ([A], 1, []), switch.names
        told = crossing.here.database.confirmations
        with crossing.here.database.engine.begin() as connection:
            (row,) = connection.execute(select(told)).all()
        assert (row.message_id, row.consumer_group, row.notices) == (A, "payments", 1)
        if not switch.dead:
            assert len(switch.names) > 5
            return
    raise AssertionError("a run that never comes through alive")


def test_the_matrix_finds_a_consumer_that_tells_from_memory_only(crossing: Crossing) -> None:
    """The canary: without the column that was committed with the effect, a crash loses notices."""
    crossing.begin()
    alive = KillSwitch()
    asyncio.run(crossing.consume(alive))
    logs = crossing.there.database.logs
    for step in reversed(range(len(alive.names))):  # what was acknowledged is what dies late
        crossing.begin()
        if not asyncio.run(crossing.consume(KillSwitch(step))):
            continue
        with crossing.there.database.engine.begin() as connection:
            connection.execute(logs.update().values(confirm_time=None))
        asyncio.run(crossing.recover(was_acknowledged=True))
        asyncio.run(crossing.read(KillSwitch()))
        if crossing.state()[1] == 0:
            return  # it is lost, and that is seen
    raise AssertionError("no death loses a notice")
