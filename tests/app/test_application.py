"""The face of the framework, with the bundled broker inside this process."""

import asyncio
import itertools
import logging
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import select, text
from sqlalchemy.ext.asyncio import AsyncSession
from sqlalchemy.orm import Session
from tests.waiting import until

from reliable_mq import ReceivedMessage, Reject, ReliableMQ, Retry, SendResult
from reliable_mq.app.loading import load_application
from reliable_mq.consume.consumer import plan_of
from reliable_mq.errors import ConfigurationError, UsageError
from reliable_mq.outbox.asyncio_producer import SentOutsideTransaction

# A consumer looks for a topic that is not there yet once a second; the tests need not wait for it.
Orders = Callable[[], list[Any]]


@dataclass
class OrderPlaced:
    id: int
    customer: str


@pytest.fixture
def shop(database_url: str, tmp_path: Path) -> Iterator[ReliableMQ]:
    mq = ReliableMQ("shop", broker=f"embedded:{tmp_path / 'store'}", database=database_url)
    mq.create_tables()
    with mq.database.engine.begin() as connection:
        connection.execute(
            text("CREATE TABLE effects (consumer_group TEXT, id INTEGER, step INTEGER)")
        )
    yield mq
    mq.close()


STEPS = itertools.count()  # a table alone keeps no order


def effects(mq: ReliableMQ) -> list[tuple[str, int]]:
    with mq.database.engine.begin() as connection:
        rows = connection.execute(text("SELECT consumer_group, id FROM effects ORDER BY step"))
        return [(row[0], row[1]) for row in rows]


def record(session: Session, group: str, number: int) -> None:
    values = {"g": group, "n": number, "step": next(STEPS)}
    session.execute(text("INSERT INTO effects VALUES (:g, :n, :step)"), values)


def statuses(mq: ReliableMQ) -> list[int]:
    with mq.database.engine.begin() as connection:
        return list(connection.execute(select(mq.database.stubs.c.status)).scalars())


def test_an_order_reaches_both_groups_once_in_order_and_is_confirmed(shop: ReliableMQ) -> None:
    @shop.consumer("orders", group="payments", tag="paid")
    def pay(order: OrderPlaced, session: Session) -> None:
        record(session, "payments", order.id)

    @shop.consumer("orders", group="loyalty")
    def points(order: OrderPlaced, session: Session, message: ReceivedMessage) -> None:
        assert message.keys == (str(order.id),)
        if order.id == 2 and message.reconsume_times == 0:
            raise Retry(after=0.1)  # the later ones of the customer wait
        record(session, "loyalty", order.id)

    with shop:
        for number in range(5):
            with shop.transaction() as tx:
                tx.send(
                    "orders",
                    OrderPlaced(number, "c1"),
                    tag="paid",
                    key=number,
                    ordering_key="c1",
                )
        until(lambda: statuses(shop) == [1] * 5)

    for group in ("payments", "loyalty"):
        assert [number for name, number in effects(shop) if name == group] == [0, 1, 2, 3, 4]


def test_what_a_handler_sends_is_committed_with_its_effect(shop: ReliableMQ) -> None:
    @shop.consumer("orders", group="payments")
    def pay(order: dict[str, int], session: Session) -> None:
        record(session, "payments", order["id"])
        with shop.transaction(session) as tx:
            tx.send("receipts", {"id": order["id"]})

    @shop.consumer("receipts", group="mail")
    async def mail(receipt: dict[str, int], message: ReceivedMessage) -> None:
        mailed.append(receipt["id"])

    mailed: list[int] = []
    with shop:
        with shop.transaction() as tx:
            tx.send("orders", {"id": 7})
        until(lambda: statuses(shop) == [1, 1])

    assert (effects(shop), mailed) == ([("payments", 7)], [7])


def test_a_rejected_message_ends_in_the_dead_letters_with_its_reason(shop: ReliableMQ) -> None:
    @shop.consumer("orders", group="payments")
    def pay(order: OrderPlaced) -> None:
        raise Reject("no such customer")

    @shop.consumer("%DLQ%payments", group="undertaker")
    def bury(message: ReceivedMessage) -> None:
        buried.append(message)

    buried: list[ReceivedMessage] = []
    with shop:
        with shop.transaction() as tx:
            message_id = tx.send("orders", OrderPlaced(1, "c1"))
        until(lambda: buried)

    assert buried[0].message_id == message_id
    assert buried[0].properties["DEAD_LETTER_REASON"] == "no such customer"
    assert statuses(shop) == [0]


def send_at_once(mq: ReliableMQ) -> SendResult:
    return mq.producer.send("orders", {})


def send_in_a_task(mq: ReliableMQ) -> SendResult:
    async def task() -> SendResult:
        return await mq.producer.send_async("orders", {})

    return asyncio.run(task())


def test_a_managed_topic_outside_a_transaction_warns_raises_or_passes(
    database_url: str, tmp_path: Path
) -> None:
    for policy in ("warn", "raise", "allow"):
        mq = ReliableMQ(
            "shop",
            broker=f"embedded:{tmp_path / policy}",
            database=database_url,
            send_outside_transaction=policy,
        )
        mq.topic("orders")
        try:
            with warnings.catch_warnings(record=True) as caught:
                warnings.simplefilter("always")
                for send in (send_at_once, send_in_a_task):
                    if policy == "raise":
                        with pytest.raises(UsageError, match=r"use mq\.transaction"):
                            send(mq)
                    else:
                        assert send(mq).queue.topic == "orders"
                mq.producer.send("free", {})
            kinds = [each.category for each in caught if each.filename == __file__]
            assert kinds == ([SentOutsideTransaction] * 2 if policy == "warn" else [])
        finally:
            mq.close()


def test_a_producer_sends_from_any_event_loop(shop: ReliableMQ) -> None:
    result = asyncio.run(shop.producer.send_async("free", {"n": 1}))

    assert result.queue.topic == "free"


def test_a_transaction_neither_waits_for_nor_fails_with_a_broker_that_is_away(
    database_url: str,
) -> None:
    mq = ReliableMQ("shop", broker="127.0.0.1:9", database=database_url)
    mq.create_tables()

    with mq.transaction() as tx:
        tx.send("orders", {"id": 1})

    def noted() -> object:
        with mq.database.engine.begin() as connection:
            return connection.execute(select(mq.database.stubs.c.note)).scalar_one()

    until(noted)
    mq.close()


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"database": ""}, "no database is set"),
        ({"database": "not a url"}, "is not an SQLAlchemy URL"),
        ({"database": "postgresql://u:pa55@h:abc/db"}, "a port is a number from 1 to 65535"),
        ({"database": "sqlite:///:memory:"}, "an SQLite database in memory is lost with its"),
        ({"database": "sqlite:///file::memory:?uri=true"}, "an SQLite database in memory is lost"),
        (
            {"database": "sqlite:///file:shared?mode=memory&cache=shared&uri=true"},
            "an SQLite database in memory is lost with its connection; use a file",
        ),
        ({"database": "sqlite:///file:/x?vfs=memdb&uri=true"}, "an SQLite database in memory is"),
        *(
            ({"database": f"sqlite:///{spelt}"}, "an SQLite database in memory is lost with its")
            for spelt in (
                "file:///:memory:?uri=true",
                "file://localhost/:memory:?uri=true",
                "file:%253Amemory%253A?uri=true",
                "file::memory:%23x?uri=true",
                "file:///?uri=true",
                "file:x?mode=MEMORY&uri=true",
                "file:x?mode=ro&mode=memory&uri=true",
                "file:x%3Fmode=memory?uri=true",
                "file:/x?vfs=MEMDB&uri=true",
            )
        ),
        (
            {"database": "sqlite+pysqlcipher://:pa55@/x.db"},
            r"sqlite\+pysqlcipher:// is not support",
        ),
        ({"database": "sqlite://u:pa55@h/x.db"}, "Invalid SQLite URL"),
        ({"database": "sqlite+libsql://h:80/"}, "and asks no server; use sqlite:///file.db"),
        ({"database": "mysql://u:pa55@h:70000/db"}, "a port is a number from 1 to 65535"),
        ({"database": "mssql://u@h/d"}, "not supported"),
        ({"database": "sqlite://"}, "use a file"),
        ({"claim_lease_seconds": 0}, "setting claim_lease_seconds: it must be greater than 0"),
        ({"resend_waits_seconds": (5.0, 1.0)}, "resend_waits_seconds must be positive seconds"),
        ({"no_such_setting": 1}, "no_such_setting"),
        ({"send_outside_transaction": "shout"}, "'warn', 'raise' or 'allow'"),
    ],
)
def test_a_wrong_setting_is_one_line_that_says_which(given: dict[str, Any], says: str) -> None:
    with pytest.raises(ConfigurationError, match=says) as caught:
        _ = ReliableMQ("shop", **given).database

    assert "\n" not in str(caught.value)
    assert "pa55" not in str(caught.value)


def test_settings_come_from_the_environment_and_code_wins(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RELIABLE_MQ_BROKER", "there:1")
    monkeypatch.setenv("RELIABLE_MQ_CLAIM_LEASE_SECONDS", "7.5")

    assert ReliableMQ("shop").settings.claim_lease_seconds == 7.5
    assert ReliableMQ("shop").settings.broker == "there:1"
    assert ReliableMQ("shop", broker="here:2").settings.broker == "here:2"


def test_a_missing_table_says_what_to_do(database_url: str, tmp_path: Path) -> None:
    mq = ReliableMQ("shop", broker=f"embedded:{tmp_path / 'store'}", database=database_url)

    @mq.consumer("orders", group="payments")
    def pay(order: dict[str, int]) -> None: ...

    with pytest.raises(ConfigurationError, match=r"rmq_\w+ is missing: call"):
        mq.start()
    with (
        pytest.raises(ConfigurationError, match="rmq_message_stub is missing: call"),
        mq.transaction() as tx,
    ):
        tx.send("orders", {"id": 1})
    mq.close()


def nothing(first: int, second: int) -> None: ...


async def wrong_session(session: Session) -> None: ...


def rest(*args: int) -> None: ...


@pytest.mark.parametrize(
    ("function", "says"),
    [
        (nothing, "'first' and 'second' would both get the payload"),
        (wrong_session, "an async def takes an AsyncSession"),
        (rest, "cannot be filled"),
    ],
)
def test_a_handler_that_cannot_be_called_is_refused_when_it_is_registered(
    function: Callable[..., Any], says: str
) -> None:
    with pytest.raises(UsageError, match=says):
        plan_of(function)


def test_options_of_a_consumer_that_cannot_work_are_refused() -> None:
    mq = ReliableMQ("shop")

    @mq.consumer("orders", group="payments")
    def pay(order: dict[str, int]) -> None: ...

    for options in (
        *({"batch": 0}, {"max_attempts": 0}, {"concurrency": 0}),
        *({"lease": 0.0}, {"lease": 86_400.0}, {"lease": float("nan")}),
    ):
        with pytest.raises(UsageError):
            mq.consumer("orders", group="other", **options)(pay)
    with pytest.raises(UsageError, match=r" has the handler .* already: give "):
        mq.consumer("orders", group="payments")(pay)
    with pytest.raises(UsageError, match="no consumers"):
        ReliableMQ("empty", database="sqlite:///x.db").start()


@pytest.mark.parametrize(
    ("path", "says"),
    [
        ("examples.shop", "not MODULE:OBJECT"),
        ("no_such_module_here:mq", "no module"),
        ("examples.shop:nothing", "has no 'nothing'"),
        ("json:loads", "not a ReliableMQ"),
    ],
)
def test_an_application_that_cannot_be_loaded_is_named(path: str, says: str) -> None:
    with pytest.raises(UsageError, match=says):
        load_application(path)


def test_required_groups_are_those_registered_and_those_named() -> None:
    mq = ReliableMQ("shop")
    for groups in (["audit"], ["audit", "loyalty"], None):  # declarations add up
        mq.topic("orders", groups=groups)

    @mq.consumer("orders", group="payments")
    def pay(order: dict[str, int]) -> None: ...

    assert mq.groups_of("orders") == ("audit", "loyalty", "payments")
    assert mq.groups_of("elsewhere") == ()


def test_a_group_whose_tags_leave_a_message_out_is_not_waited_for() -> None:
    mq = ReliableMQ("shop")

    @mq.consumer("orders", group="payments", tag="paid || refunded")
    def pay(order: dict[str, int]) -> None: ...

    @mq.consumer("orders", group="audit")
    def note(order: dict[str, int]) -> None: ...

    assert mq.groups_of("orders", "paid") == ("audit", "payments")
    assert mq.groups_of("orders", "cancelled") == ("audit",)


def test_one_name_where_several_are_meant_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="a list of names"):
        ReliableMQ("shop").topic("orders", groups="payments")


@pytest.mark.parametrize("is_async", [False, True])
def test_a_transaction_of_its_own_inside_a_handler_is_refused_and_the_handlers_session_taken(
    shop: ReliableMQ, is_async: bool
) -> None:
    """It would be committed though the handler fails, and its message doubled by the next try."""
    said: list[str] = []

    def handle(order: dict[str, int], session: Session) -> None:
        try:
            shop.transaction()
        except UsageError as error:
            said.append(str(error))
        with shop.transaction(session) as tx:
            tx.send("receipts", order)

    async def handle_async(order: dict[str, int], session: AsyncSession) -> None:
        await session.run_sync(lambda inner: handle(order, inner))

    shop.consumer("orders", group="payments")(handle_async if is_async else handle)

    with shop:
        with shop.transaction() as tx:
            tx.send("orders", {"id": 1})
        until(lambda: statuses(shop) == [1, 1])

    (line,) = said
    assert "write mq.transaction(session)" in line


def test_an_application_says_when_it_is_ready_and_what_it_consumes(
    shop: ReliableMQ, caplog: pytest.LogCaptureFixture
) -> None:
    @shop.consumer("orders", group="payments")
    def pay(order: dict[str, int]) -> None: ...

    @shop.consumer("orders", group="loyalty")
    def points(order: dict[str, int]) -> None: ...

    wanted = (
        "application shop: resend looks every 1 s",
        "application shop is ready and consumes orders as payments, orders as loyalty",
    )
    with caplog.at_level(logging.INFO), shop:
        until(lambda: {*wanted} <= {each.getMessage() for each in caplog.records})
