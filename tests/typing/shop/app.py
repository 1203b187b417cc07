"""The application: settings, topics, consumers of every kind, idempotent functions."""

from collections.abc import Mapping
from datetime import UTC, datetime, timedelta

from sqlalchemy.ext.asyncio import AsyncSession
from sqlalchemy.orm import Session
from tenacity.wait import wait_fixed

from reliable_mq import (
    TLS,
    ClientSettings,
    CloudEvent,
    Consumed,
    Credentials,
    Decision,
    Delivery,
    Ending,
    IdempotentCall,
    LoggingMiddleware,
    Message,
    MessageTraceMiddleware,
    Middleware,
    OpenTelemetryMiddleware,
    PeriodicState,
    PrometheusMiddleware,
    Recall,
    ReceivedMessage,
    Reject,
    ReliableMQ,
    Retry,
    Sending,
    Skip,
    Tick,
    Topic,
    injected,
)
from reliable_mq.errors import CallRunning, ConfigurationError, ReliableMQError, UsageError
from reliable_mq.escalate.escalation import Digest
from reliable_mq.settings import Settings
from shop.models import Order, OrderPlaced, Refund


class Region(Middleware):
    """A middleware that uses every hook."""

    failed = 0
    ended: list[bool]

    def before_send(self, sending: Sending) -> None:
        """Refuse nothing."""
        print(sending.verb, [message.topic for message in sending.messages], sending.group)

    def after_send(self, sending: Sending) -> None:
        """Show how it went."""
        print(sending.results, sending.seconds, sending.tries)

    def after_end(self, ending: Ending) -> None:
        """Note the end of a half message."""
        self.ended = [ending.decision is Decision.COMMIT, ending.error is None]

    def after_recall(self, recall: Recall) -> None:
        """Show a recall."""
        print(recall.topic, recall.message_id, recall.group, recall.error)

    def before_consume(self, delivery: Delivery) -> None:
        """Skip what is not ours."""
        if delivery.group == "others":
            raise Skip(Retry(5.0))

    def after_consume(self, delivery: Delivery) -> None:
        """Count failures."""
        self.failed += delivery.error is not None


class Pager:
    """A notifier."""

    name = "pager"
    cooldown = 60.0

    def tell(self, digest: Digest) -> None:
        """Page somebody."""
        print(digest.headline, digest.total)


mq = ReliableMQ(
    "shop",
    broker="127.0.0.1:9876",
    database="sqlite:///shop.db",
    databases={"billing": "sqlite:///billing.db"},
    redis="redis://127.0.0.1",
    client=ClientSettings(
        credentials=Credentials(access_key="shop", secret_key="s"), tls=TLS(ca="ca.pem"), retries=3
    ),
    notifiers=[Pager()],
    resend_wait=wait_fixed(5),
    middleware=[
        Region(),
        LoggingMiddleware(),
        MessageTraceMiddleware(),
        OpenTelemetryMiddleware(),
        PrometheusMiddleware(),
    ],
    resend_batch_count=100,
    retry_waits_seconds=[1, 5.0],
    relay="shared",
    retention="off",
    signing_keys="k:0123456789abcdef",
)
by_object = ReliableMQ("shop", settings=Settings(broker="127.0.0.1:9876"))
by_fields = ReliableMQ("shop", client={"retries": 3})

ORDERS = mq.topic("orders", payload=OrderPlaced, groups=["payments"])
REFUNDS: Topic[Refund] = mq.topic("refunds", payload=Refund)
STOCK = mq.topic("stock", payload=dict[str, int])
NOTES: str = mq.topic("notes", groups=[])
groups: tuple[str, ...] = mq.groups_of(ORDERS, tag="paid")


@mq.consumer(ORDERS, group="payments", tag="placed", batch=64, concurrency=2)
def take_payment(placed: OrderPlaced, session: Session) -> None:
    """A `def` with payload and session, of a topic with a payload type."""
    session.get_one(Order, placed.id).is_paid = True


@mq.consumer(ORDERS, group="mails", ordered=False, log_receipt=True, max_attempts=3, lease=5.0)
async def send_mail(
    placed: OrderPlaced, message: ReceivedMessage, session: AsyncSession
) -> Consumed | Retry | Reject:
    """An `async def` with everything, which returns outcomes."""
    if message.in_doubt:
        return Retry(after=5, reason="in doubt")
    if await session.get(Order, placed.id) is None:
        return Reject("no such order")
    return Consumed()


@mq.consumer(ORDERS, group="audit", database="billing")
def audit(message: ReceivedMessage) -> type[Retry] | None:
    """A `def` without payload."""
    return Retry if not message.body else None


@mq.consumer(ORDERS, group="nothing")
async def count_orders() -> None:
    """An `async def` without parameters."""


@mq.consumer("orders", group="statistics", idempotent_by="id")
def count(message: ReceivedMessage, session: Session, placed: Mapping[str, object]) -> None:
    """A `def` with everything in another order, of a topic that is a name."""
    print(message.keys, session, placed["id"])


def key_of(refund: Refund) -> int:
    """The business key of a refund."""
    return refund.order


@mq.consumer("refunds", group="refunds", idempotent_by=key_of)
async def refund(given: Refund, session: AsyncSession) -> None:
    """An `async def` with payload and session, of a topic that is a name."""
    print(given.order, session)


@mq.consumer("refunds", group="by lambda", idempotent_by=lambda given: given.order)
def refund_again(given: Refund, retries: int = 3) -> None:
    """A parameter with a default is not filled."""
    print(given.order, retries)


def place(number: int) -> str:
    """Send in a transaction."""
    with mq.transaction() as tx:
        tx.session.add(Order(id=number))
        first = tx.send(ORDERS, OrderPlaced(id=number, amount=7), tag="placed", key=number)
        tx.send_many(REFUNDS, [Refund(number)], key=lambda refund: refund.order)
        tx.send(STOCK, {"tea": 1}, delay=timedelta(seconds=5))
        tx.send("notes", {"anything": 1}, deliver_at=datetime.now(UTC), required_groups=())
    return first


async def place_async(number: int, session: AsyncSession) -> str:
    """Send in an asyncio transaction."""
    async with mq.transaction(session) as tx:
        await tx.send_many(ORDERS, [OrderPlaced(id=number, amount=7)], ordering_key=number)
        return await tx.send(REFUNDS, Refund(number), properties={"region": "eu"})


async def send_at_once() -> None:
    """Send without a stub."""
    stored = mq.producer.send(REFUNDS, Refund(7))
    stored = await mq.producer.send_async(ORDERS, OrderPlaced(id=1, amount=1), delay=None)
    print(stored.message_id, stored.queue.topic, stored.queue_offset)
    ended = mq.producer.send_in_transaction(REFUNDS, Refund(7), argument=7)
    print(ended.decision is Decision.UNKNOWN)


@mq.transaction_listener(REFUNDS)
class Refunds:
    """Decides about half messages."""

    def execute(self, message: Message, argument: object) -> Decision:
        """Run the local transaction."""
        print(message.body, argument)
        return Decision.COMMIT

    async def check(self, message: ReceivedMessage) -> Decision:
        """Answer a check-back."""
        return Decision.COMMIT if message.body else Decision.ROLLBACK


@mq.idempotent(key="request", compare=["amount"], window=timedelta(hours=1))
def pay(
    request: str, amount: int, *, session: Session = injected, call: IdempotentCall = injected
) -> int:
    """A `def` whose session and facts are filled."""
    print(session, call.attempt, call.in_doubt)
    return amount if request else 0


def key_of_request(request: str) -> str:
    """The key of a request."""
    return request.lower()


@mq.idempotent(key=key_of_request)
async def pay_async(request: str, session: AsyncSession = injected) -> str:
    """An `async def` whose session is filled."""
    print(session)
    return request


async def use_calls(session: Session) -> None:
    """Call them, with and without a session."""
    amount: int = pay("r-1", 7)
    amount = pay("r-2", amount=7, session=session)
    text: str = await pay_async("r-3")
    print(amount, text)
    try:
        pay("r-4", 8)
    except CallRunning as error:
        print(error.retry_after)
    except (UsageError, ConfigurationError, ReliableMQError) as error:
        print(error.retryable)


def operate() -> None:
    """Use the rest of the application."""
    mq.create_tables()
    mq.migrate()
    print([finding.text for finding in mq.examine()], mq.resend_once(), mq.name)
    mq.resending.pause(ORDERS, note="the provider is away")
    mq.resending.resume("orders")
    print(mq.resending.topics(), mq.settings.resend_batch_count)
    mq.scheduler().run_once(0.0)
    mq.alerts(database="billing").run_once(0.0)
    print(mq.database.engine.url, mq.databases["billing"].async_engine.url)
    with mq:
        take_payment(OrderPlaced(id=1, amount=1), Session(mq.database.engine))
    mq.start()
    mq.run()
    mq.close()


@mq.periodic("0 3 * * *", topic="nightly", time_zone="Europe/Berlin")
def nightly(tick: Tick, session: Session) -> dict[str, str]:
    """Make the payload of a tick."""
    session.flush()
    return {"day": tick.time.isoformat()}


def overdue() -> list[PeriodicState]:
    """Return the periodic messages that fail."""
    return [each for each in mq.periodic_messages() if each.failures]


EVENTS = mq.topic("events", envelope="cloudevents")


@mq.consumer(EVENTS, group="auditors", retry_waits=(1.0, 5.0))
def read_event(message: ReceivedMessage) -> None:
    """Read the attributes of an event."""
    event = CloudEvent.of(message)
    print(event.source if event is not None else "no event")
