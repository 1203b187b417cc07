"""Half messages over a real database, and a broker in memory that keeps halves as brokers do."""

import itertools
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any

import msgspec
from sqlalchemy import event, select, text
from tests.app.kill_switch import Killed, KillSwitch

from reliable_mq.confirm.progress import Progress
from reliable_mq.database.sql_database import Database
from reliable_mq.errors import RemoteError, Unavailable
from reliable_mq.message import (
    CheckBack,
    Decision,
    Half,
    Message,
    MessageQueue,
    ReceivedMessage,
    SendResult,
    SendStatus,
)
from reliable_mq.outbox.check_backs import CheckBacks
from reliable_mq.outbox.half_sender import HalfSender
from reliable_mq.outbox.relay import Relay
from reliable_mq.outbox.resend_policy import ResendPolicy
from reliable_mq.outbox.sql_half import SqlHalves
from reliable_mq.outbox.sql_half_outbox import HalfOutbox
from reliable_mq.outbox.sql_stubs import SqlStubs
from reliable_mq.outbox.sql_transaction import TransactionScope
from reliable_mq.outbox.stub import Stub, message_of
from reliable_mq.outbox.thread_open_halves import OpenHalves
from reliable_mq.resend.scheduler import Scheduler
from reliable_mq.resend.sql_resending import books_of

FAR = 1e10
"""A time at which every lease has passed."""
QUEUE = MessageQueue("orders", "b", 0)
FIRST = 7


class Broker:
    """Keeps messages and halves, in order; its clients may die before or after it did.

    Args:
        commits_again: whether a half that was ended is stored again with each commit, as Apache's
            broker does; ours takes the first word.
    """

    def __init__(self, *, commits_again: bool = False) -> None:
        self.commits_again = commits_again
        self.stored: list[tuple[str, str]] = []  # message id and body
        self.halves: dict[int, Message] = {}
        self.pending: dict[int, Message] = {}
        self.switch = KillSwitch()
        self.is_away = False
        self._offsets = itertools.count(FIRST)

    def send_half(self, message: Message) -> Half:
        if self.is_away:
            raise Unavailable("away")
        self.switch.step("before half")
        offset = next(self._offsets)
        self.halves[offset] = self.pending[offset] = message
        self.switch.step("after half")
        return self.half_at(offset)

    def half_at(self, offset: int, *, asked_by: str = "") -> Half:
        message = self.halves[offset]
        return Half(
            message_id=message.message_id,
            group="shop_half",
            queue=QUEUE,
            ordering_key=message.ordering_key,
            half_offset=offset,
            commit_log_offset=offset,
            asked_by=asked_by,
        )

    def end(self, half: Half, decision: Decision) -> None:
        is_pending = self.pending.pop(half.half_offset, None) is not None
        if half.half_offset not in self.halves:
            raise RemoteError(1, "Find prepared transaction message failed")
        if decision is Decision.COMMIT and (is_pending or self.commits_again):
            self._store(self.halves[half.half_offset])

    def commit_many(self, halves: Sequence[Half]) -> list[SendResult | Exception]:
        self.switch.step("before commit of halves")
        results: list[SendResult | Exception] = []
        for half in halves:
            try:
                self.end(half, Decision.COMMIT)
                results.append(self._result(half.message_id))
            except RemoteError as error:
                results.append(error)
        self.switch.step("after commit of halves")
        return results

    def send_many(self, messages: Sequence[Message]) -> list[SendResult | Exception]:
        self.switch.step("before send")
        for message in messages:
            self._store(message)
        self.switch.step("after send")
        return [self._result(message.message_id) for message in messages]

    def consumer_progress(self, group: str, topic: str) -> Progress:
        raise AssertionError("stubs without required groups need no progress")

    def _store(self, message: Message) -> None:
        self.stored.append((message.message_id, message.body.decode()))

    def _result(self, message_id: str) -> SendResult:
        return SendResult(
            status=SendStatus.SEND_OK,
            message_id=message_id,
            offset_message_id="",
            queue=QUEUE,
            queue_offset=len(self.stored),
        )

    def check_of(self, offset: int) -> CheckBack:
        """Return what it asks of a half."""
        message = self.halves[offset]
        received = ReceivedMessage(
            topic=message.topic,
            body=message.body,
            message_id=message.message_id,
            queue=QUEUE,
            queue_offset=offset,
        )
        return CheckBack(self.half_at(offset, asked_by="b:10911"), received)


class Life:
    """One life of a process with an outbox of halves, its relay, a scheduler and check-backs."""

    def __init__(self, url: str, broker: Broker, switch: KillSwitch, name: str) -> None:
        self.database = Database(url, prefix="rmq_", connections=4)
        self.broker = broker
        self.switch = broker.switch = switch
        switch.watch(self.database.engine)
        self._connections: list[Any] = []
        event.listen(
            self.database.engine, "connect", lambda made, _record: self._connections.append(made)
        )
        self.known = OpenHalves()
        stubs = SqlStubs(self.database.engine, self.database.stubs)
        sender = HalfSender(broker, self.known, broker.commit_many)
        self.relay = Relay(stubs, sender, _next_time, owner=name, lease=FAR)
        self.now = 2.0
        self.outbox = HalfOutbox(
            self,
            stubs,
            self,
            owner=name,
            lease=5.0,
            groups_of_topic=lambda _topic, _tag: (),
            clock=lambda _connection: self.now,
        )
        self.check_backs = CheckBacks(
            SqlHalves(stubs),
            stubs,
            broker.commit_many,
            _next_time,
            owner=f"{name}-h",
            lease=60.0,
            clock=lambda: self.now,
        )
        book = msgspec.structs.replace(books_of(self.database), notice_topic=str, clock=float)
        self.scheduler = Scheduler(
            book,
            broker,
            ResendPolicy(),
            owner=f"{name}-r",
            lease=1.0,
            batch=10,
        )
        self.handed: list[Stub] = []

    def end(self) -> None:
        """Drop all connections, as the kernel would drop them."""
        for connection in self._connections:  # SQLite keeps a lock while a cursor lives on
            with suppress(Exception):
                connection.rollback()
        self.database.close()
        for connection in self._connections:
            with suppress(Exception):
                connection.close()

    # What the outbox needs of halves, and of a relay's thread.
    def send(self, stubs: Sequence[Stub]) -> None:
        for stub in stubs:
            self.known.add(self.broker.send_half(message_of(stub)))

    async def send_async(self, stubs: Sequence[Stub]) -> None:
        self.send(stubs)

    def roll_back(self, stubs: Sequence[Stub]) -> None:
        for half in self.known.roll_back([stub.message_id for stub in stubs]):
            if not self.switch.dead:
                self.broker.end(half, Decision.ROLLBACK)

    def accept_committed(self, stubs: Sequence[Stub]) -> None:
        self.handed += stubs

    def transaction(self, session: Any = None) -> TransactionScope:
        database = self.database
        return TransactionScope(self.outbox, database.session, database.async_session, session)

    def run_relay(self) -> None:
        self.switch.step("hand over")
        self.relay.accept(self.handed, written=self.now)
        self.handed = []
        self.relay.run_once(self.now + 1)

    def answer(self, offset: int) -> Decision | None:
        """Answer the broker's question; the broker hears it."""
        check = self.broker.check_of(offset)
        decision = self.check_backs.answer(check)
        self.switch.step("before answer")
        if decision not in {None, Decision.UNKNOWN}:
            self.broker.end(check.half, decision or Decision.UNKNOWN)
        self.switch.step("after answer")
        return decision

    def answer_all(self) -> None:
        for offset in list(self.broker.pending):
            self.answer(offset)

    def resend(self) -> None:
        """Run the scheduler until it finds nothing more."""
        for turn in itertools.count():
            if not self.scheduler.run_once(self.now + turn).claimed:
                return

    def stubs(self) -> list[Any]:
        table = self.database.stubs
        with self.database.engine.begin() as connection:
            return list(connection.execute(select(table).order_by(table.c.seq)).all())

    def orders(self) -> list[str]:
        with self.database.engine.begin() as connection:
            return list(connection.execute(text("SELECT id FROM orders ORDER BY seq")).scalars())


class HalfWorld:
    """A database and a broker that outlive the processes between them."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.broker = Broker()
        self._names = itertools.count()
        with self.life() as life:
            life.database.create_tables()
            with life.database.engine.begin() as connection:
                connection.execute(text("CREATE TABLE orders (seq INTEGER, id TEXT)"))

    @contextmanager
    def life(self, switch: KillSwitch | None = None) -> Iterator[Life]:
        """Give one life of a process; it ends well, or where the switch says."""
        life = Life(self.url, self.broker, switch or KillSwitch(), f"life-{next(self._names)}")
        try:
            yield life
        except Killed:
            pass
        finally:
            life.end()

    def clean(self, *, commits_again: bool) -> None:
        self.broker = Broker(commits_again=commits_again)
        with self.life() as life, life.database.engine.begin() as connection:
            connection.execute(text("DELETE FROM orders"))
            connection.execute(text("DELETE FROM rmq_message_stub"))

    def check(self) -> None:
        """Hold P1 and P2, the order of the key, and that nothing hangs at the broker."""
        with self.life() as life:
            orders, rows = life.orders(), life.stubs()
        stubs = [row for row in rows if bytes(row.content)]
        assert [bytes(row.content).decode() for row in stubs] == orders  # P1
        assert {row.status for row in stubs} <= {1}  # the broker has acknowledged each
        assert {row.status for row in rows if not bytes(row.content)} <= {2}  # tombstones
        distinct = list(dict.fromkeys(body for _, body in self.broker.stored))
        assert distinct == orders  # P2, nothing that was not committed, in the order of the rows
        assert self.broker.pending == {}
        by_id = {message_id for message_id, _ in self.broker.stored}
        assert by_id == {row.message_id for row in stubs}


def _next_time(_count: int, now: float, _deliver: float | None) -> float:
    return now + 10


def forgotten(half: Half) -> Half:
    """Return a half of which the broker knows nothing."""
    return msgspec.structs.replace(half, half_offset=-1)
