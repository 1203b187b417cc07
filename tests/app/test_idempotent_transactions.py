"""`@mq.idempotent` and transactions of its callers: no result is stored before its effect."""

import asyncio
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Annotated, Any

import pytest
from sqlalchemy import Connection, text
from sqlalchemy.ext.asyncio import AsyncSession
from sqlalchemy.orm import Session, scoped_session, sessionmaker
from tests.app.banks import Bank

from reliable_mq import AsyncTransaction, Transaction, injected
from reliable_mq.errors import UsageError
from reliable_mq.idempotency.claim import RowState

CONSUMED = RowState.CONSUMED.value
INSERT = text("INSERT INTO effects VALUES ('r-1')")


@pytest.fixture
def bank(postgres_url: str) -> Iterator[Bank]:
    """A bank on PostgreSQL: an open transaction does not keep others from writing there."""
    made = Bank(postgres_url)
    yield made
    made.mq.close()


def kept(bank: Bank) -> tuple[list[str], int, int]:
    """Return the effects, and how many keys and messages there are."""
    with bank.mq.database.reading_engine.connect() as connection:
        stubs = connection.exec_driver_sql("SELECT count(*) FROM rmq_message_stub").scalar_one()
    return bank.effects(), len(bank.rows()), stubs


def pays(bank: Bank) -> Callable[..., str]:
    @bank.mq.idempotent(key="request")
    def pay(request: str, tx: Annotated[Transaction, "a dependency of FastAPI"]) -> str:
        tx.session.execute(INSERT)
        tx.send("paid", {"id": request}, required_groups=())
        return f"paid {request}"

    return pay


def test_key_result_and_effect_are_in_the_transaction_that_the_caller_passes(bank: Bank) -> None:
    pay = pays(bank)

    def fails() -> None:
        with bank.mq.transaction() as tx:
            assert pay("r-1", tx) == "paid r-1"
            raise LookupError

    with pytest.raises(LookupError):
        fails()
    assert kept(bank) == ([], 0, 0)

    for _ in range(2):
        with bank.mq.transaction() as tx:
            assert pay("r-1", tx=tx) == "paid r-1"
    assert kept(bank) == (["r-1"], 1, 1)


def test_the_same_holds_in_an_async_def(bank: Bank) -> None:
    @bank.mq.idempotent(key="request")
    async def pay(request: str, tx: AsyncTransaction | None) -> str:
        assert tx is not None
        await tx.session.execute(INSERT)
        await tx.send("paid", {"id": request}, required_groups=())
        return f"paid {request}"

    async def fails() -> None:
        async with bank.mq.transaction() as tx:
            await pay("r-1", tx)
            raise LookupError

    async def scenario() -> None:
        with pytest.raises(LookupError):
            await fails()
        assert kept(bank) == ([], 0, 0)
        for _ in range(2):
            async with bank.mq.transaction() as tx:
                assert await pay("r-1", tx) == "paid r-1"
        engine = bank.mq.database.async_engine
        async with engine.begin() as connection, bank.mq.transaction(connection) as tx:
            assert await pay("r-1", tx) == "paid r-1"
        await bank.mq.database.close_async()

    asyncio.run(scenario())
    assert kept(bank) == (["r-1"], 1, 1)


def test_a_transaction_on_a_connection_and_a_bare_connection_count_too(bank: Bank) -> None:
    @bank.mq.idempotent(key="request", scope="pay")
    def pay(request: str, tx: Transaction) -> str:
        tx.connection.execute(INSERT)
        return request

    @bank.mq.idempotent(key="request", scope="pay")
    def pay_bare(request: str, connection: Connection) -> str:
        connection.execute(INSERT)
        return request

    with bank.mq.database.engine.connect() as connection:
        with bank.mq.transaction(connection) as tx:
            pay("r-1", tx)
            connection.rollback()
        assert kept(bank) == ([], 0, 0)
        with connection.begin():
            pay_bare("r-1", connection)
        with bank.mq.transaction(connection) as tx:
            pay("r-1", tx)
    assert kept(bank) == (["r-1"], 1, 0)


def test_a_session_may_be_optional_or_scoped(bank: Bank) -> None:
    @bank.mq.idempotent(key="request", scope="pay")
    def pay(request: str, session: Session | None = None) -> str:
        assert session is not None
        session.execute(INSERT)
        return request

    @bank.mq.idempotent(key="request", scope="pay")
    def pay_scoped(request: str, session: scoped_session[Session] = injected) -> str:
        return pay.__wrapped__(request, session)  # type: ignore[attr-defined, no-any-return]

    scoped = scoped_session(sessionmaker(bank.mq.database.engine))
    pay_scoped("r-1", scoped)
    scoped.rollback()
    assert kept(bank) == ([], 0, 0)
    pay("r-1")
    pay_scoped("r-1")
    assert kept(bank) == (["r-1"], 1, 0)


@dataclass
class Order:
    """An argument that brings a transaction with it."""

    request: str
    tx: Any


class Payments:
    """A service that keeps its session."""

    def __init__(self, session: Any) -> None:
        self.session = session

    def pay(self, request: str) -> None:
        """Have an effect."""
        self.session.execute(INSERT)


class Slotted(Payments):
    """One without a dictionary."""

    __slots__ = ("other",)


def _of_tx(tx: Transaction) -> dict[str, Callable[[Any], Any]]:
    """Return the ways in which a function may get a transaction that its decorator cannot see."""
    service = Payments(tx.session)
    slotted = Slotted(None)
    slotted.other = tx  # type: ignore[attr-defined]

    def send(**more: Any) -> None:
        next(iter(more.values())).send("paid", {}, required_groups=())

    def bound(request: str, *given: Any, **named: Any) -> None: ...

    return {
        "an argument without an annotation": lambda f: f(bound)("r-1", tx),
        "a session without an annotation": lambda f: f(bound)("r-1", tx.session),
        "a keyword": lambda f: f(bound)("r-1", tx=tx),
        "a dataclass": lambda f: f(bound)("r-1", Order("r-1", tx)),
        "a list": lambda f: f(bound)("r-1", [tx.session]),
        "a service": lambda f: f(bound)("r-1", service),
        "a service with slots": lambda f: f(bound)("r-1", slotted),
        "a bound method": lambda f: f(bound)("r-1", service.pay),
        "a method of a service": lambda f: f(Payments.pay)(service, "r-1"),
        "a partial": lambda f: f(bound)("r-1", partial(send, tx=tx)),
        "a closure": lambda f: f(lambda request: send(tx=tx))("r-1"),
        "a closure over its session": lambda f: f(lambda request: tx.session.execute(INSERT))(
            "r-1"
        ),
    }


WAYS = [
    "an argument without an annotation",
    "a session without an annotation",
    "a keyword",
    "a dataclass",
    "a list",
    "a service",
    "a service with slots",
    "a bound method",
    "a method of a service",
    "a partial",
    "a closure",
    "a closure over its session",
]


@pytest.mark.parametrize("way", WAYS)
def test_a_transaction_that_gets_in_by_another_way_is_refused(bank: Bank, way: str) -> None:
    def decorate(function: Any) -> Any:
        return bank.mq.idempotent(key=lambda *given, **named: "r-1", scope="pay")(function)

    with bank.mq.transaction() as tx:
        tx.session.execute(text("SELECT 1"))
        with pytest.raises(UsageError, match="committed before the transaction around it"):
            _of_tx(tx)[way](decorate)
    assert kept(bank)[2] == 0
    assert all(row.state != CONSUMED for row in bank.rows())


def test_a_session_that_the_function_leaves_open_is_refused_and_its_key_is_free(
    bank: Bank,
) -> None:
    @bank.mq.idempotent(key="request")
    def pay(request: str, session: Any, *, commits: bool) -> str:
        session.execute(INSERT)
        if commits:
            session.commit()
            session.execute(text("SELECT 1"))
        return request

    with Session(bank.mq.database.engine) as session:
        with pytest.raises(UsageError, match="committed before the transaction around it"):
            pay("r-1", session, commits=False)
        session.rollback()
        assert pay("r-1", session, commits=True) == "r-1"
    assert kept(bank) == (["r-1"], 1, 0)


def test_a_block_that_ends_later_than_the_function_is_refused(bank: Bank) -> None:
    blocks: list[Any] = []

    @bank.mq.idempotent(key="request")
    def pay(request: str, source: Callable[[], Any]) -> None:
        block = bank.mq.transaction(source())
        blocks.append(block)
        block.__enter__().session.execute(INSERT)

    @bank.mq.idempotent(key="request")
    def join(request: str, source: Callable[[], Any]) -> None:
        with bank.mq.transaction(source()) as tx:
            tx.session.execute(INSERT)

    refused = pytest.raises(UsageError, match="committed before the transaction around it")
    with refused:
        pay("r-1", lambda: None)
    blocks[0].__exit__(LookupError, LookupError(), None)
    with refused, Session(bank.mq.database.engine) as session, session.begin():
        join("r-1", lambda: session)
    join("r-1", lambda: None)
    assert bank.effects() == ["r-1"]


def test_a_function_may_use_transactions_of_its_own(bank: Bank) -> None:
    @bank.mq.idempotent(key="request")
    def pay(request: str) -> None:
        with bank.mq.transaction() as tx:
            tx.session.execute(INSERT)
            tx.send("paid", {}, required_groups=())
            pays(bank)("inner", tx)
        own = Session(bank.mq.database.engine)
        with own as session, session.begin(), bank.mq.transaction(session) as tx:
            tx.send("paid", {}, required_groups=())

    pay("r-1")
    assert kept(bank) == (["r-1", "r-1"], 2, 3)


def both(request: str, tx: Transaction, session: Session) -> None: ...
def wrong(request: str, tx: AsyncTransaction) -> None: ...
async def other_wrong(request: str, tx: Transaction) -> None: ...


@pytest.mark.parametrize(
    ("function", "reason"),
    [
        (both, "'tx' has a session already: leave 'session' out"),
        (wrong, "a def takes a Transaction"),
        (other_wrong, "an async def takes an AsyncTransaction"),
        (partial(both, "r-1"), "decorate a def or an async def"),
    ],
)
def test_parameters_that_contradict_each_other_are_refused(
    bank: Bank, function: Any, reason: str
) -> None:
    with pytest.raises(UsageError, match=reason):
        bank.mq.idempotent(key="request", scope="pay")(function)


def test_what_is_passed_instead_of_a_transaction_is_named(bank: Bank) -> None:
    with pytest.raises(UsageError, match="tx=7 is not of type Transaction or Connection"):
        pays(bank)("r-1", 7)
    with bank.mq.transaction() as tx:
        pass
    with pytest.raises(UsageError, match="ended"):
        pays(bank)("r-1", tx)


def test_an_async_session_in_a_transaction_is_refused_without_an_annotation(bank: Bank) -> None:
    @bank.mq.idempotent(key="request")
    async def pay(request: str, session: Any) -> None: ...

    async def scenario() -> None:
        async with AsyncSession(bank.mq.database.async_engine) as session, session.begin():
            with pytest.raises(UsageError, match="committed before the transaction around it"):
                await pay("r-1", session)
        await bank.mq.database.close_async()

    asyncio.run(scenario())
