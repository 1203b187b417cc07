"""P1 and P2: a stub exists exactly when its transaction committed, and every stub is sent.

The n-th run dies at the n-th step of the business transaction and its relay; a scheduler of
another process follows, and dies too, at each of its own steps, before a last one may live.
"""

import itertools
from collections.abc import Sequence

import pytest
from sqlalchemy import text
from tests.app.kill_switch import Killed, KillSwitch

from reliable_mq.app.sql_database import Database
from reliable_mq.message import Message, MessageQueue, SendResult, SendStatus
from reliable_mq.outbox.relay import Relay
from reliable_mq.outbox.sql_outbox import SqlOutbox
from reliable_mq.outbox.sql_stubs import SqlStubs
from reliable_mq.outbox.sql_transaction import TransactionScope
from reliable_mq.outbox.stub import Stub
from reliable_mq.resend.policy import ResendPolicy
from reliable_mq.resend.progress import Progress
from reliable_mq.resend.scheduler import Scheduler
from reliable_mq.resend.sql_due import SqlDue
from reliable_mq.resend.sql_topics import SqlTopics

STEPS_MAX = 100
FAR = 1e10
"""A time at which every lease has passed."""


class Broker:
    """Keeps what was sent, in order; its clients may die before or after it did."""

    def __init__(self) -> None:
        self.stored: list[str] = []
        self.switch = KillSwitch()

    def send_many(self, messages: Sequence[Message]) -> list[SendResult | Exception]:
        self.switch.step("before send")
        results: list[SendResult | Exception] = []
        for message in messages:
            queue = MessageQueue(message.topic, "b", 0)
            results.append(
                SendResult(
                    status=SendStatus.SEND_OK,
                    message_id=message.message_id,
                    offset_message_id="",
                    queue=queue,
                    queue_offset=len(self.stored),
                )
            )
            self.stored.append(message.body.decode())
        self.switch.step("after send")
        return results

    def consumer_progress(self, group: str, topic: str) -> Progress:
        raise AssertionError("stubs without required groups need no progress")


class World:
    def __init__(self, url: str) -> None:
        self.url = url
        self.broker = Broker()
        with Database(url, prefix="rmq_", connections=1).engine.begin() as connection:
            connection.execute(text("CREATE TABLE IF NOT EXISTS orders (id TEXT)"))

    def open(self, switch: KillSwitch) -> Database:
        """Return the database of a new process's life."""
        database = Database(self.url, prefix="rmq_", connections=2)
        self.broker.switch = switch
        switch.watch(database.engine)
        return database

    def clean(self) -> None:
        database = self.open(KillSwitch())
        database.create_tables()
        with database.engine.begin() as connection:
            connection.execute(text("DELETE FROM orders"))
            connection.execute(text("DELETE FROM rmq_message_stub"))
        database.close()
        self.broker.stored.clear()

    def produce(self, switch: KillSwitch) -> None:
        """Commit three orders with one key, one of them in a savepoint that is rolled back."""
        database = self.open(switch)
        stubs = SqlStubs(database.engine, database.stubs)
        relay = Relay(stubs, self.broker, lambda _c, now, _d: now + 10, owner="relay", lease=FAR)

        handed: list[Stub] = []

        class Handover:
            def hand(self, stubs: list[Stub], written: float) -> None:
                handed.extend(stubs)

        outbox = SqlOutbox(
            stubs, Handover(), owner="relay", lease=5.0, groups_of_topic=lambda _topic, _tag: ()
        )
        try:
            for names in (("first", "lost"), ("second",)):
                with TransactionScope(outbox, database.session, database.async_session, None) as tx:
                    for name in names:
                        savepoint = tx.session.begin_nested()
                        tx.session.execute(text("INSERT INTO orders VALUES (:id)"), {"id": name})
                        tx.send("orders", name, ordering_key="k")
                        (savepoint.rollback if name == "lost" else savepoint.commit)()
                switch.step("hand over")
                relay.accept(handed, written=1.0)
                handed.clear()
                relay.run_once(2.0)
        except Killed:
            pass
        database.close()

    def resend(self, switch: KillSwitch, now: float = FAR) -> None:
        """Run a scheduler until it finds nothing more."""
        database = self.open(switch)
        stubs = SqlStubs(database.engine, database.stubs)
        confirmation = database.confirmation()
        scheduler = Scheduler(
            SqlDue(stubs, database.logs, confirmation, 16),
            stubs,
            SqlTopics(database.engine, database.resend_topics),
            self.broker,
            ResendPolicy(),
            database.escalating(),
            owner=f"scheduler-{id(switch)}",
            lease=1.0,
            batch=10,
        )
        try:
            for turn in itertools.count():
                if not scheduler.run_once(now + turn).claimed:
                    break
        except Killed:
            pass
        database.close()

    def check(self) -> None:
        database = self.open(KillSwitch())
        with database.engine.begin() as connection:
            orders = list(connection.execute(text("SELECT id FROM orders ORDER BY id")).scalars())
            stubs = connection.execute(
                text("SELECT content, status FROM rmq_message_stub ORDER BY seq")
            ).all()
        database.close()
        assert [bytes(content).decode() for content, _ in stubs] == orders  # P1
        assert {status for _, status in stubs} <= {1}  # the broker has acknowledged each
        distinct = list(dict.fromkeys(self.broker.stored))
        assert distinct == orders  # P2, nothing that was not committed, and in the order of rows


@pytest.fixture
def world(database_url: str) -> World:
    return World(database_url)


def test_every_committed_stub_is_sent_whichever_step_of_the_producer_is_the_last(
    world: World,
) -> None:
    for step in range(STEPS_MAX):
        world.clean()
        switch = KillSwitch(step)
        world.produce(switch)
        world.resend(KillSwitch())
        world.check()
        if not switch.dead:
            break
    assert step >= 20


def test_every_committed_stub_is_sent_whichever_step_of_the_scheduler_is_the_last(
    world: World,
) -> None:
    for step in range(STEPS_MAX):
        world.clean()
        world.produce(DiesAt("hand over"))  # everything committed, nothing sent
        switch = KillSwitch(step)
        world.resend(switch)
        world.resend(KillSwitch(), now=FAR + 100)  # the dead one's lease has passed
        world.check()
        if not switch.dead:
            break
    assert step >= 8


class DiesAt(KillSwitch):
    """Dies at the first step of a name."""

    def __init__(self, name: str) -> None:
        super().__init__()
        self._name = name

    def step(self, name: str) -> None:
        if name == self._name:
            self.at = len(self.names)
        super().step(name)
