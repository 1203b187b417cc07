"""What an idempotent call leaves: its result for a while, and what is refused at once."""

import math
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from decimal import Decimal
from typing import Any

import pytest
from pydantic import BaseModel, ConfigDict, Field
from pydantic.alias_generators import to_camel
from sqlalchemy import event, text
from sqlalchemy.orm import Session
from tests.app.banks import Bank, elsewhere
from tests.app.kill_switch import Killed
from tests.waiting import until

from reliable_mq import IdempotentCall, injected
from reliable_mq.database.sql_clock import DatabaseClock
from reliable_mq.errors import UsageError

DAY = 86_400.0


def test_a_result_is_forgotten_after_its_window_and_removed(bank: Bank) -> None:
    pay = bank.pay(window=timedelta(seconds=60))
    pay("r-1", 5)
    later = bank.mq.database.clock.now() + 61
    with bank.mq.database.engine.begin() as connection:
        table = bank.mq._calls.table
        assert table.remove_expired(connection, later - 30, 10) == 0
        assert table.remove_expired(connection, later, 10) == 1
    assert bank.rows() == []

    assert pay("r-1", 5).number == 2


def test_a_call_in_doubt_is_not_removed_whatever_its_window(bank: Bank) -> None:
    def dies(_call: IdempotentCall) -> str:
        raise Killed

    with pytest.raises(Killed):
        elsewhere(bank, dies)("r-1")

    with bank.mq.database.engine.begin() as connection:
        far = bank.mq.database.clock.now() + 10**7
        assert bank.mq._calls.table.remove_expired(connection, far, 10) == 0


def test_a_key_whose_window_has_passed_may_be_used_anew_before_it_is_removed(bank: Bank) -> None:
    pay = bank.pay(window=timedelta(milliseconds=1))
    pay("r-1", 5)
    (first,) = bank.rows()
    until(lambda: bank.mq.database.clock.now() > first.expire_date.timestamp())

    assert pay("r-1", 6).number == 2


class Machine:
    """A machine whose clock may be wrong, and its processes, one after another."""

    def __init__(self, bank: Bank, monkeypatch: pytest.MonkeyPatch) -> None:
        self.bank = bank
        self.passed = self.ahead = 0.0
        self.began = time.time()
        self._monkeypatch = monkeypatch
        # The database's clock is this machine's.
        monkeypatch.setattr("reliable_mq.database.sql_clock.measure", lambda *_: (0.0, 0.0))
        self.start()

    def start(self) -> None:
        """Let a process start: it has not seen the clock before."""
        database = self.bank.mq.database
        database.clock = DatabaseClock(
            database.engine, lambda: self.began + self.passed + self.ahead, lambda: self.passed
        )

    def boot(self) -> None:
        """Let the machine start."""
        self._monkeypatch.setattr("reliable_mq.database.sql_clock.ticks_run", lambda: "another run")
        self.start()

    def look(self) -> None:
        """Let retention look at the clocks."""
        self.bank.mq.retention().run_once(self.bank.mq.database.clock.now())


@pytest.fixture
def machine(bank: Bank, monkeypatch: pytest.MonkeyPatch) -> Machine:
    return Machine(bank, monkeypatch)


def test_a_clock_that_jumps_forgets_no_key_before_its_window_was_watched(machine: Machine) -> None:
    bank = machine.bank
    pay = bank.pay(window=timedelta(days=1))
    first = pay("r-1", 5)
    machine.look()
    machine.ahead = 40 * DAY
    assert pay("r-1", 5) == first
    machine.passed = 50.0
    machine.look()
    machine.start()  # another process, which knows this clock only
    assert pay("r-1", 5) == first
    assert bank.effects() == ["r-1"]


@pytest.mark.parametrize("is_booted", [False, True])
def test_a_process_that_starts_after_a_jump_believes_who_looked_before(
    machine: Machine, is_booted: bool
) -> None:
    pay = machine.bank.pay(window=timedelta(days=1))
    first = pay("r-1", 5)
    machine.look()  # for the last time: no scheduler runs any more
    machine.passed, machine.ahead = 3600.0, 40 * DAY

    machine.boot() if is_booted else machine.start()

    assert pay("r-1", 5) == first
    assert machine.bank.effects() == ["r-1"]


def test_a_key_is_forgotten_by_a_process_that_watched_its_window_itself(machine: Machine) -> None:
    # Given a machine that was off for ten days, and no scheduler since
    pay = machine.bank.pay(window=timedelta(days=1))
    machine.look()
    machine.passed = 10 * DAY
    machine.boot()
    machine.bank.mq.database.clock.watched()
    first = pay("r-1", 5)

    # When the process has seen the window pass, Then the key stands for a new call some days later
    machine.passed += 0.9 * DAY
    assert pay("r-1", 5) == first
    machine.passed += 11 * DAY
    assert pay("r-1", 6).number == first.number + 1


def test_a_wait_for_a_rival_is_no_clock_that_jumped(machine: Machine) -> None:
    database = machine.bank.mq.database
    pay = machine.bank.pay(window=timedelta(seconds=10))
    database.clock.measured_now()
    pay("r-1", 5)
    machine.passed = 30.0

    def wait(_connection: Any, _cursor: Any, statement: str, *_: Any) -> None:
        if "idempotent_call" in statement:
            machine.passed += 6.0

    event.listen(database.engine, "before_cursor_execute", wait)
    assert pay("r-1", 6).number == 2
    assert len(database.clock.watched().stretches) == 1


def test_a_result_that_cannot_be_stored_is_told_and_the_effect_not_repeated(bank: Bank) -> None:
    calls: list[int] = []

    @bank.mq.idempotent(key="request")
    def ask(request: str) -> Any:
        calls.append(1)
        return object()

    for _ in range(2):
        with pytest.raises(UsageError, match="result"):
            ask("r-1")
    assert calls == [1]


@dataclass
class Point:
    x: int


class Camel(BaseModel):
    model_config = ConfigDict(alias_generator=to_camel)
    order_id: int


@pytest.mark.parametrize(
    ("annotation", "result"),
    [
        (Point, Point(1)),
        (Camel, Camel(orderId=1)),
        (bytes, b"\xff\0"),
        (None, None),
        (tuple[int, str], (1, "a")),
        (Any, [1]),
    ],
)
def test_what_comes_back_is_of_the_type_that_went_in(
    bank: Bank, annotation: Any, result: Any
) -> None:
    def give(request: str) -> Any:
        return result

    give.__annotations__["return"] = annotation
    give = bank.mq.idempotent(key="request")(give)

    assert [give("r-1"), give("r-1")] == [result, result]


class Measured(BaseModel):
    value: float | None
    text: str | None = None


@pytest.mark.parametrize(
    ("annotation", "result"),
    [
        (float, math.nan),
        (float | None, -math.inf),
        (Any, {"a": [None, 1.0, math.inf]}),
        (Measured, Measured(value=math.nan)),
        (list[Measured], [Measured(value=1), Measured(value=math.nan)]),
    ],
)
def test_a_number_that_json_does_not_know_is_refused_as_a_result(
    bank: Bank, annotation: Any, result: Any
) -> None:
    """It would come back as None, or not at all."""

    def inside(request: str, session: Session) -> Any:
        session.execute(text("INSERT INTO effects VALUES ('x')"))
        return result

    def outside(request: str) -> Any:
        return result

    for function in (inside, outside):
        function.__annotations__["return"] = annotation
        give = bank.mq.idempotent(key="request", scope=function.__name__)(function)
        with pytest.raises(UsageError, match="cannot be stored: JSON has no NaN"):
            give("r-1")
    assert bank.effects() == []


class Priced(BaseModel):
    price: Decimal


class Unbounded(BaseModel):
    price: Decimal = Field(allow_inf_nan=True)


@pytest.mark.parametrize(
    ("annotation", "result"),
    [
        (Decimal, Decimal("NaN")),
        (list[Decimal], [Decimal("-Infinity")]),
        (Priced, Priced.model_construct(price=Decimal("sNaN"))),
    ],
)
def test_a_decimal_that_would_not_read_is_refused_as_a_result(
    bank: Bank, annotation: Any, result: Any
) -> None:
    def give(request: str, session: Session = injected) -> Any:
        session.execute(text("INSERT INTO effects VALUES ('x')"))
        return result

    give.__annotations__["return"] = annotation
    with pytest.raises(
        UsageError, match=r"cannot be stored, it could not be read:[^:]*finite number"
    ):
        bank.mq.idempotent(key="request")(give)("r-1")
    assert bank.effects() == []


def test_a_text_that_says_nan_and_a_decimal_that_may_be_infinite_come_back(bank: Bank) -> None:
    unbounded = Unbounded(price=Decimal("Infinity"))
    for result in ("NaN", unbounded, ["-Infinity"]):

        def give(request: str, result: Any = result) -> Any:
            return result

        give.__annotations__["return"] = type(result)
        function = bank.mq.idempotent(key="request", scope=type(result).__name__)(give)
        assert [function("r-1"), function("r-1")] == [result] * 2


class Spelled(BaseModel):
    model_config = ConfigDict(ser_json_inf_nan="strings")
    value: float
    nothing: None = None


def test_a_number_that_its_model_writes_as_text_comes_back(bank: Bank) -> None:
    @bank.mq.idempotent(key="request")
    def give(request: str) -> Spelled:
        return Spelled(value=math.inf)

    assert [give("r-1"), give("r-1")] == [Spelled(value=math.inf)] * 2


def test_what_cannot_work_is_refused_when_it_is_declared(bank: Bank) -> None:
    def plain(request: str) -> int:
        return 1

    def yields(request: str) -> Any:
        yield 1

    def unknown(request: str) -> threading.Lock:
        return threading.Lock()

    async def wrong(request: str, session: Session) -> int:
        return 1

    refused: list[tuple[Callable[..., Any], dict[str, Any], str]] = [
        (plain, {"key": "id"}, "key='id' is not a parameter; use request"),
        (plain, {"key": "request", "compare": "amount"}, "compare='amount' is not a parameter"),
        (plain, {"key": "request", "window": timedelta(0)}, "must be positive"),
        (plain, {"key": "request", "window": timedelta(-1)}, "must be positive"),
        (plain, {"key": "request", "window": 60}, "window=60: a timedelta is needed"),
        (plain, {"key": None}, "key=None is not a parameter or a function"),
        (plain, {"key": "request", "scope": "x" * 128}, "must have 1..127"),
        (yields, {"key": "request"}, "it yields"),
        (unknown, {"key": "request"}, "a result of type"),
        (wrong, {"key": "request"}, "an async def takes an AsyncSession"),
    ]
    for function, options, why in refused:
        with pytest.raises(UsageError, match=why):
            bank.mq.idempotent(**options)(function)
