"""A world for the resend scheduler: a real database, and a broker and a notifier in memory."""

from collections.abc import Callable, Sequence
from typing import Any

from sqlalchemy import insert, select, update

from reliable_mq.app.sql_database import Database
from reliable_mq.errors import MessageRefused, NotSent
from reliable_mq.message import Message, MessageQueue, SendResult, SendStatus
from reliable_mq.outbox.sql_stubs import SqlStubs
from reliable_mq.outbox.stub import Stub
from reliable_mq.resend.policy import ResendPolicy, ladder
from reliable_mq.resend.progress import Progress
from reliable_mq.resend.scheduler import Backlog, Scheduler
from reliable_mq.resend.sql_due import SqlDue
from reliable_mq.resend.sql_topics import SqlTopics
from reliable_mq.sql_types import utc_datetime

QUEUE = MessageQueue("orders", "broker-a", 1)
MAX = 3


class MemoryBroker:
    """Stores what is sent; knows how far groups have come; may be away."""

    def __init__(self) -> None:
        self.sent: list[str] = []
        self.messages: list[Message] = []
        self.progress: dict[str, Progress] = {}
        self.failure: Exception | None = None
        self.unasked: Exception | None = None
        self.on_send: Callable[[list[str]], None] | None = None
        self.refused: set[str] = set()

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
        return self.progress[group]


class MemoryNotifier:
    def __init__(self) -> None:
        self.told: list[str] = []
        self.backlogs: list[Backlog] = []
        self.is_down = False

    def escalated(self, stubs: Sequence[Stub]) -> None:
        if self.is_down:
            raise OSError("mail server")
        self.told += [stub.message_id.rstrip("0") for stub in stubs]

    def behind(self, backlogs: Sequence[Backlog]) -> None:
        if self.is_down:
            raise OSError("mail server")
        self.backlogs += backlogs


class World:
    def __init__(self, url: str) -> None:
        self.database = Database(url, prefix="rmq_", connections=4)
        self.database.create_tables()
        self.stubs = SqlStubs(self.database.engine, self.database.stubs)
        self.topics = SqlTopics(self.database.engine, self.database.resend_topics)
        self.broker = MemoryBroker()
        self.notifier = MemoryNotifier()
        self.scheduler = self.new_scheduler("one")

    def new_due(self) -> SqlDue:
        database = self.database
        return SqlDue(self.stubs, database.logs, database.confirmation(), MAX)

    def new_scheduler(
        self, owner: str, batch: int = 100, confirm_to: Callable[[], str] = str
    ) -> Scheduler:
        return Scheduler(
            self.new_due(),
            self.stubs,
            self.topics,
            self.broker,
            ResendPolicy(wait=ladder(10.0, 20.0), count_max=MAX, backlog_wait=4.0),
            self.notifier,
            owner=owner,
            lease=60.0,
            batch=batch,
            confirm_to=confirm_to,
        )

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
            self.stubs.write(connection, [stub], "relay", 100.0, 5.0)
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
