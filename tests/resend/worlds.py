"""A world for the resend scheduler: a real database, and a broker and notifiers in memory."""

import itertools
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any

import msgspec
from sqlalchemy import Table, event, insert, select, update
from tests.app.kill_switch import Killed, KillSwitch
from tests.resend.watching import watched_retention

from reliable_mq.confirm.progress import Progress
from reliable_mq.confirm.sql_confirmation import confirmation_of
from reliable_mq.database.sql_database import Database
from reliable_mq.database.sql_types import utc_datetime
from reliable_mq.errors import ConnectionLost, MessageRefused, NotSent
from reliable_mq.escalate.alerts import Alerts
from reliable_mq.escalate.escalation import Digest
from reliable_mq.escalate.sql_alerts import SqlAlerts
from reliable_mq.escalate.sql_audit import SqlAudit
from reliable_mq.escalate.sql_escalations import escalations_of
from reliable_mq.escalate.sql_settlement import operator_actions_of
from reliable_mq.escalate.sql_stuck import stuck_of
from reliable_mq.message import Message, MessageQueue, SendResult, SendStatus
from reliable_mq.outbox.resend_policy import ResendPolicy, ladder
from reliable_mq.outbox.sql_stubs import SqlStubs
from reliable_mq.outbox.stub import Stub
from reliable_mq.resend.scheduler import Scheduler
from reliable_mq.resend.sql_due import SqlDue
from reliable_mq.resend.sql_resending import books_of
from reliable_mq.resend.sql_topics import SqlTopics

QUEUE = MessageQueue("orders", "broker-a", 1)
MAX = 3
KEPT = 30 * 86_400.0

_digests = itertools.count(1)


class MemoryBroker:
    """Stores what is sent; knows how far groups have come; may be away."""

    def __init__(self) -> None:
        self.sent: list[str] = []
        self.messages: list[Message] = []
        self.progress: dict[str, Progress] = {}
        self.failure: Exception | None = None
        self.unasked: Exception | None = None
        self.on_send: Callable[[list[str]], None] | None = None
        self.on_asked: Callable[[str, str], None] | None = None
        self.refused: set[str] = set()
        self.away = False

    def send_many(self, messages: Sequence[Message]) -> list[SendResult | Exception]:
        if self.failure is not None:
            raise self.failure
        if self.on_send is not None:
            self.on_send([message.message_id.rstrip("0") for message in messages])
        results: list[SendResult | Exception] = []
        failed: set[str] = set()
        for message in messages:
            if message.message_id.rstrip("0") in self.refused:
                results.append(MessageRefused("too large"))
                failed.add(message.ordering_key)
                continue
            if message.ordering_key and message.ordering_key in failed:
                results.append(NotSent("an earlier one"))
                continue
            if self.away:
                results.append(ConnectionLost("gone"))
                failed.add(message.ordering_key)
                continue
            results.append(
                SendResult(
                    status=SendStatus.SEND_OK,
                    message_id=message.message_id,
                    offset_message_id="",
                    queue=QUEUE,
                    queue_offset=len(self.sent),
                )
            )
            self.sent.append(message.message_id.rstrip("0"))
            self.messages.append(message)
        return results

    def consumer_progress(self, group: str, topic: str) -> Progress:
        if self.unasked is not None:
            raise self.unasked
        if self.on_asked is not None:
            self.on_asked(group, topic)
        return self.progress[group]


class MemoryNotifier:
    """Keeps what it tells; may be away, or fail after it has told."""

    def __init__(self, name: str = "mail", cooldown: float = 0.0) -> None:
        self.name = name
        self.cooldown = cooldown
        self.digests: list[Digest] = []
        self.is_down = False
        self.answers = True

    def tell(self, digest: Digest) -> None:
        if self.is_down:
            raise OSError("mail server")
        self.digests.append(digest)
        if not self.answers:
            raise TimeoutError("no answer")

    @property
    def told(self) -> list[list[str]]:
        return [[each.message_id.rstrip("0") for each in d.items] for d in self.digests]


class World:
    def __init__(self, url: str, *, is_new: bool = True) -> None:
        self.database = Database(url, prefix="rmq_", connections=4)
        if is_new:
            self.database.create_tables()
        self.stubs = SqlStubs(self.database.engine, self.database.stubs)
        self.topics = SqlTopics(self.database.engine, self.database.resend_topics)
        self.broker = MemoryBroker()
        self.escalations = escalations_of(self.database)
        self.stuck = stuck_of(self.database)
        self.audit = SqlAudit(self.database.audit)
        self.hands = operator_actions_of(self.database)
        self.notifier = MemoryNotifier()
        self.scheduler = self.new_scheduler("one")

    def new_due(self) -> SqlDue:
        database = self.database
        return SqlDue(self.stubs, database.logs, confirmation_of(database))

    @contextmanager
    def mortal(self) -> Iterator["MortalWorld"]:
        """Give another process's view of this world, one that can die again and again."""
        life = MortalWorld(self.database.url.render_as_string(hide_password=False), is_new=False)
        yield life
        life.database.close()

    def new_scheduler(
        self,
        owner: str,
        batch: int = 100,
        notice_topic: Callable[[], str] = str,
        clock: Callable[[], float] = float,
        count_max: int = MAX,
    ) -> Scheduler:
        book = msgspec.structs.replace(
            books_of(self.database), notice_topic=notice_topic, clock=clock
        )
        return Scheduler(
            book,
            self.broker,
            ResendPolicy(wait=ladder(10.0, 20.0), count_max=count_max, backlog_wait=4.0),
            owner=owner,
            lease=60.0,
            batch=batch,
        )

    def forget(self, now: float) -> int:
        """Remove the escalations that were closed long enough ago; return how many."""
        retention = watched_retention(
            self.database, owner="keeper", stub_retention=KEPT, log_retention=KEPT
        )
        return retention.run_once(now).escalations

    def alerts(self, *notifiers: MemoryNotifier, owner: str = "one", **more: Any) -> Alerts:
        database = self.database
        book = SqlAlerts(
            database.engine, database.escalations, database.alerts, database.notifiers, "shop"
        )
        return Alerts(
            book,
            self.stuck,
            notifiers or (self.notifier,),
            owner=owner,
            lease=60.0,
            stuck_after=86_400.0,
            new_id=lambda: f"{next(_digests):032x}",
            **more,
        )

    def open_escalations(self) -> list[tuple[str, str]]:
        """Return (kind, name) of what a person must know."""
        table = self.database.escalations
        wanted = select(table).where(table.c.open_key.is_not(None)).order_by(table.c.seq)
        with self.database.engine.begin() as connection:
            return [(row.kind, row.message_id.rstrip("0")) for row in connection.execute(wanted)]

    def rows(self, table: Table) -> list[Any]:
        with self.database.engine.begin() as connection:
            return [row._mapping for row in connection.execute(select(table)).all()]

    def write(
        self,
        name: str,
        *,
        key: str = "",
        groups: tuple[str, ...] = ("g",),
        deliver_time: float | None = None,
        topic: str = "orders",
    ) -> str:
        """Write a stub at 100 whose relay died; it is due at 105."""
        stub = Stub(
            seq=0,
            message_id=name.ljust(32, "0"),
            topic=topic,
            content=b"x",
            ordering_key=key,
            required_groups=groups,
            deliver_time=deliver_time,
        )
        with self.database.engine.begin() as connection:
            self.stubs.insert(connection, [stub], "relay", 100.0, 5.0)
        return stub.message_id

    def sent(self, name: str, *, offset: int = 5, **more: Any) -> str:
        """Write a stub that was sent to an offset of the queue, due again at 105."""
        message_id = self.write(name, **more)
        self.change(
            message_id, count=1, broker_name="broker-a", queue_id=1, offset=offset, owner=None
        )
        return message_id

    def change(self, message_id: str, **values: Any) -> None:
        table = self.database.stubs
        with self.database.engine.begin() as connection:
            connection.execute(
                update(table).where(table.c.message_id == message_id).values(**values)
            )

    def log(
        self, message_id: str, *, group: str = "g", state: int = 1, until: float | None = None
    ) -> None:
        with self.database.engine.begin() as connection:
            connection.execute(
                insert(self.database.logs).values(
                    consumer_group=group,
                    message_id=message_id,
                    topic="orders",
                    broker_name="broker-a",
                    queue_id=1,
                    offset=5,
                    state=state,
                    attempt=1,
                    lease_until=utc_datetime(until) if until is not None else None,
                    create_date=utc_datetime(100.0),
                )
            )

    def row(self, message_id: str) -> Any:
        table = self.database.stubs
        with self.database.engine.begin() as connection:
            return (
                connection.execute(select(table).where(table.c.message_id == message_id))
                .one()
                ._mapping
            )


class MortalWorld(World):
    """Processes one after the other; what one leaves open the kernel closes.

    They share what SQLAlchemy has compiled: a process that begins anew compiles for half a second.
    """

    def __init__(self, url: str, *, is_new: bool = True) -> None:
        super().__init__(url, is_new=is_new)
        self._connections: list[Any] = []
        self._switch: KillSwitch | None = None
        event.listen(
            self.database.engine, "connect", lambda _, record: self._connections.append(record)
        )
        KillSwitch.watch(self, self.database.engine)  # type: ignore[arg-type]  # it has `step`

    def step(self, name: str) -> None:
        """Take a step of the process that lives, if one does."""
        if self._switch is not None:
            self._switch.step(name)

    @contextmanager
    def dying_of(self, switch: KillSwitch) -> Iterator[None]:
        """Live until the switch says no, or to the end."""
        self._switch = switch
        with suppress(Killed):
            yield
        self._switch = None
        for record in self._connections:
            if record.dbapi_connection is not None:
                record.dbapi_connection.rollback()
                record.invalidate()
        self._connections.clear()
