"""A function that is called once for each key: on both databases, def and async def."""

import asyncio
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress

import pytest
from sqlalchemy import create_engine, event, make_url, select, text
from sqlalchemy.ext.asyncio import AsyncSession
from sqlalchemy.orm import Session
from tests.app.banks import Bank, Receipt, elsewhere
from tests.app.kill_switch import Killed, KillSwitch
from tests.steps import last_steps
from tests.waiting import until

from reliable_mq import IdempotentCall, injected
from reliable_mq.database.sql_clock import DatabaseClock
from reliable_mq.errors import CallRunning, KeyInvalid, KeyReused, UsageError


def test_a_second_call_gets_what_the_first_returned_and_has_no_effect(bank: Bank) -> None:
    pay = bank.pay()

    assert [pay("r-1", 5), pay("r-1", amount=5), pay(request="r-2", amount=6)] == [
        Receipt(number=1, amount=5),
        Receipt(number=1, amount=5),
        Receipt(number=2, amount=6),
    ]
    assert bank.effects() == ["r-1", "r-2"]


@pytest.mark.parametrize("style", ["SQL, DMY", "German", "Postgres"])
def test_a_call_runs_once_however_the_database_writes_dates(postgres_url: str, style: str) -> None:
    name = make_url(postgres_url).database
    engine = create_engine(postgres_url)
    with engine.begin() as connection:
        connection.execute(text(f"ALTER DATABASE \"{name}\" SET datestyle = '{style}'"))
    engine.dispose()
    bank = Bank(postgres_url, lease=600.0)  # it does not pass while a call is asked for twice
    pay = bank.pay()
    try:
        assert pay("r-1", 5) == pay("r-1", 5)
        assert bank.effects() == ["r-1"]

        running, over = threading.Event(), threading.Event()

        def work(_call: IdempotentCall) -> str:
            running.set()
            over.wait(60)
            return "done"

        ask = elsewhere(bank, work)
        with ThreadPoolExecutor(1) as pool:
            first = pool.submit(ask, "r-2")
            try:
                assert running.wait(60)
                with pytest.raises(CallRunning):
                    ask("r-2")
            finally:
                over.set()
            assert first.result() == "done"
    finally:
        bank.mq.close()


def test_an_async_function_keeps_the_same_promise(bank: Bank) -> None:
    @bank.mq.idempotent(key="order.id")
    async def pay(order: dict[str, str], session: AsyncSession = injected) -> str:
        await session.execute(text("INSERT INTO effects VALUES (:id)"), order)
        return f"paid {order['id']}"

    async def scenario() -> None:
        order = {"id": "7"}
        assert await asyncio.gather(*(pay(order) for _ in range(5))) == ["paid 7"] * 5
        await bank.mq.database.close_async()

    asyncio.run(scenario())

    assert bank.effects() == ["7"]


def test_a_call_in_its_callers_transaction_needs_no_second_connection(bank: Bank) -> None:
    """It would wait for the caller's locks, in an SQLite file for its only one."""
    pay, engine = bank.pay(), bank.mq.database.engine
    bank.mq.database.clock = DatabaseClock(engine)
    taken: list[object] = []

    with bank.mq.database.session() as session, session.begin():
        session.execute(text("INSERT INTO effects VALUES ('mine')"))
        event.listen(engine, "checkout", lambda *args: taken.append(args))
        pay("r-1", 5, session=session)

    assert taken == []
    assert bank.effects() == ["mine", "r-1"]


def test_calls_at_once_have_one_effect_and_one_result(bank: Bank) -> None:
    pay = bank.pay()

    with ThreadPoolExecutor(8) as threads:
        receipts = set(threads.map(lambda _: pay("r-1", 5).number, range(8)))

    assert len(receipts) == 1
    assert bank.effects() == ["r-1"]


def test_a_call_that_raises_leaves_nothing_and_the_key_free(bank: Bank) -> None:
    pay = bank.pay()

    with pytest.raises(ValueError, match="no such amount"):
        pay("r-1", -1)

    assert bank.rows() == []
    assert pay("r-1", 5).amount == 5
    assert bank.effects() == ["r-1"]


def test_a_session_of_the_caller_decides_over_key_effect_and_result(bank: Bank) -> None:
    pay = bank.pay()

    with Session(bank.mq.database.engine) as session:
        pay("r-1", 5, session=session)
        session.rollback()
        assert (bank.effects(), bank.rows()) == ([], [])
        with pytest.raises(ValueError, match="no such amount"):
            pay("r-1", -1, session=session)  # its part is undone, the caller's is not
        assert pay("r-1", 5, session=session).amount == 5
        session.commit()

    assert bank.effects() == ["r-1"]
    assert pay("r-1", 5).amount == 5


def test_a_message_sent_inside_is_of_the_same_commit(bank: Bank) -> None:
    @bank.mq.idempotent(key="request")
    def order(request: str, session: Session = injected) -> str:
        with bank.mq.transaction(session) as tx:
            return tx.send("orders", {"id": request})

    assert order("r-1") == order("r-1")
    with bank.mq.database.engine.begin() as connection:
        stubs = connection.execute(select(bank.mq.database.stubs.c.message_id)).scalars().all()
    assert stubs == [order("r-1")]


def test_the_function_cannot_commit_its_effect_without_its_key(bank: Bank) -> None:
    @bank.mq.idempotent(key="request")
    def commits(request: str, session: Session = injected) -> None:
        session.execute(text("INSERT INTO effects VALUES ('x')"))
        session.commit()

    with pytest.raises(UsageError, match="must not commit"):
        commits("r-1")

    assert (bank.effects(), bank.rows()) == ([], [])


def test_a_function_that_a_function_called_leaves_its_transaction_held(bank: Bank) -> None:
    @bank.mq.idempotent(key="request")
    def inner(request: str, session: Session = injected) -> None:
        session.execute(text("INSERT INTO effects VALUES ('x')"))

    @bank.mq.idempotent(key="request")
    def commits(request: str, session: Session = injected) -> None:
        inner(request, session)
        session.commit()

    with pytest.raises(UsageError, match="must not commit"):
        commits("r-1")

    assert (bank.effects(), bank.rows()) == ([], [])


def test_an_effect_elsewhere_is_asked_for_once_while_nothing_dies(bank: Bank) -> None:
    calls: list[IdempotentCall] = []

    def work(call: IdempotentCall) -> str:
        calls.append(call)
        return "done"

    ask = elsewhere(bank, work)

    assert [ask("r-1"), ask("r-1")] == ["done", "done"]
    assert calls == [IdempotentCall("r-1", 1, in_doubt=False)]


def test_while_a_call_runs_another_one_is_refused_even_beyond_its_lease(
    database_url: str,
) -> None:
    lease = 6.0  # a busy machine must find the time to renew it
    bank = Bank(database_url, lease)
    inside, go_on = threading.Event(), threading.Event()

    def slow(_call: IdempotentCall) -> str:
        inside.set()
        go_on.wait(60)
        return "done"

    ask = elsewhere(bank, slow)
    with ThreadPoolExecutor(1) as threads:
        running = threads.submit(ask, "r-1")
        inside.wait(60)
        first_end = bank.rows()[0].lease_until

        def is_renewed() -> bool:
            with pytest.raises(CallRunning) as refused:
                ask("r-1")
            assert 0 < refused.value.retry_after <= lease
            return bool(bank.rows()[0].lease_until != first_end)

        until(is_renewed)
        go_on.set()
        assert running.result(60) == "done"

    assert ask("r-1") == "done"
    until(lambda: all(each.name != "reliable-mq-calls" for each in threading.enumerate()))
    bank.mq.close()


def test_a_call_that_died_is_made_again_and_told_of_it(bank: Bank) -> None:
    seen: list[tuple[int, bool]] = []

    def work(call: IdempotentCall) -> str:
        seen.append((call.attempt, call.in_doubt))
        if len(seen) == 1:
            raise Killed  # neither a result nor a failure
        if len(seen) == 2:
            raise ValueError("not yet")
        return "done"

    ask = elsewhere(bank, work)
    with pytest.raises(Killed):
        ask("r-1")
    answers: list[str] = []

    def is_made() -> bool:
        try:
            answers.append(ask("r-1"))
        except CallRunning:
            return False
        return True

    with pytest.raises(ValueError, match="not yet"):
        until(is_made)
    until(is_made)

    assert answers == ["done"]
    assert seen == [(1, False), (2, True), (3, True)]  # the doubt outlives the failure


def test_an_async_effect_elsewhere_is_noted_too(bank: Bank) -> None:
    calls: list[bool] = []

    @bank.mq.idempotent(key="request")
    async def ask(request: str, call: IdempotentCall = injected) -> list[int]:
        calls.append(call.in_doubt)
        if len(calls) == 1:
            raise ValueError("not yet")
        return [1, 2]

    async def scenario() -> None:
        with suppress(ValueError):
            await ask("r-1")
        assert [await ask("r-1"), await ask("r-1")] == [[1, 2], [1, 2]]
        await bank.mq.database.close_async()

    asyncio.run(scenario())

    assert calls == [False, False]


def test_a_key_that_stands_for_other_arguments_is_refused(bank: Bank) -> None:
    pay = bank.pay(compare="amount")

    assert pay("r-1", 5).number == 1
    with pytest.raises(KeyReused, match="'r-1' of pay belongs to other arguments"):
        pay("r-1", 6)
    assert pay("r-1", 5).number == 1


def test_the_failure_of_other_arguments_leaves_the_key_for_these(bank: Bank) -> None:
    tries: list[str] = []

    @bank.mq.idempotent(key="request", compare=["body"])
    def ask(request: str, body: str) -> str:
        tries.append(body)
        if body == "bad":
            raise ValueError(body)
        return body

    with pytest.raises(ValueError, match="bad"):
        ask("r-1", "bad")
    assert ask("r-1", "good") == "good"


@pytest.mark.parametrize("key", [None, "", " "])
def test_a_call_without_a_key_is_refused(bank: Bank, key: str | None) -> None:
    with pytest.raises(KeyInvalid):
        bank.pay()(key, 5)
    assert bank.effects() == []


def test_two_functions_share_keys_only_when_they_share_a_scope(bank: Bank) -> None:
    first, second = bank.pay(scope="one"), bank.pay(scope="two")

    first("r-1", 5)
    second("r-1", 5)

    assert bank.effects() == ["r-1", "r-1"]


STEPS_MAX = 60


def test_the_effect_happens_once_whichever_step_of_the_call_is_the_last(
    bank: Bank, database_url: str
) -> None:
    """The n-th run dies at its n-th step; then the same request comes again."""
    found: dict[str, list[str]] = {}
    for step in last_steps(STEPS_MAX, one_in=3):
        switch = KillSwitch(step)
        dying = Bank(database_url)
        switch.watch(dying.mq.database.engine)
        with suppress(Killed):
            dying.pay()(f"r-{step:03d}", 5)
        dying.mq.close()
        if not switch.dead:
            break
        bank.pay()(f"r-{step:03d}", 5)
        found[f"{step}: {switch.names[-1]}"] = [
            each for each in bank.effects() if each == f"r-{step:03d}"
        ]
    else:
        raise AssertionError("a run that never comes through alive")

    assert len(switch.names) >= 8
    assert {step: effects for step, effects in found.items() if len(effects) != 1} == {}


def test_frameworks_see_what_callers_are_to_give(bank: Bank) -> None:
    import inspect

    pay = bank.pay()

    assert list(inspect.signature(pay).parameters) == ["request", "amount"]
    assert "session" not in pay.__annotations__
    assert pay.__name__ == "pay"


@pytest.mark.parametrize("is_async", [False, True])
@pytest.mark.parametrize("is_overtaken", [False, True])
def test_a_call_that_lost_its_claim_meanwhile_is_told_of_and_no_other(
    bank: Bank, is_async: bool, is_overtaken: bool, caplog: pytest.LogCaptureFixture
) -> None:
    def work() -> str:
        if is_overtaken:
            with bank.mq.database.engine.begin() as connection:
                connection.execute(bank.mq.database.calls.update().values(owner="another"))
        return "done"

    @bank.mq.idempotent(key="request", scope="elsewhere")
    def ask(request: str) -> str:
        return work()

    @bank.mq.idempotent(key="request", scope="elsewhere")
    async def ask_async(request: str) -> str:
        return work()

    answer = asyncio.run(ask_async("r-1")) if is_async else ask("r-1")
    assert answer == "done"
    told = [each for each in caplog.messages if "may have run twice" in each]
    expected = "elsewhere: the call with key 'r-1' lost its claim, so it may have run twice"
    assert told == [expected] * is_overtaken
