"""A saga: a trip is a flight, a hotel and a payment, and what was booked is undone if one fails.

Each step is one message and one transaction. The transaction has the effect of the step, its result
and the next message. So a step is done exactly once, and the saga goes on whatever process dies.

    DoStep 0 flight → DoStep 1 hotel → DoStep 2 payment → booked
                                            ↓ refused
                      UndoStep 0 flight ← UndoStep 1 hotel
"""

import json
from collections.abc import Callable
from threading import Event
from typing import NamedTuple

from pydantic import BaseModel
from sqlalchemy import select
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column

from reliable_mq import ReliableMQ

mq = ReliableMQ("travel", broker="embedded:broker", database="sqlite:///travel.db")


class Table(DeclarativeBase):
    """What the application's tables have in common."""


class Trip(Table):
    """A trip, and how far it is."""

    __tablename__ = "trip"
    name: Mapped[str] = mapped_column(primary_key=True)
    money: Mapped[int]
    state: Mapped[str] = mapped_column(default="booking")


class StepResult(Table):
    """What a step of a trip gave, for the steps after it and for its compensation."""

    __tablename__ = "step_result"
    trip: Mapped[str] = mapped_column(primary_key=True)
    step: Mapped[int] = mapped_column(primary_key=True)
    result: Mapped[str]
    is_undone: Mapped[bool] = mapped_column(default=False)


class Stock(Table):
    """How many seats and rooms are left."""

    __tablename__ = "stock"
    what: Mapped[str] = mapped_column(primary_key=True)
    left: Mapped[int]


class StepRefused(Exception):
    """A step is not possible, now or later: the steps before it must be undone."""


class DoStep(BaseModel):
    """Do a step of a trip."""

    trip: str
    step: int


class UndoStep(BaseModel):
    """Undo a step of a trip, and the ones before it."""

    trip: str
    step: int
    why: str


Results = dict[str, dict[str, int]]
Result = dict[str, int]


def take(what: str, session: Session) -> int:
    """Take one of what is left; return its number."""
    stock = session.get_one(Stock, what)
    if stock.left == 0:
        raise StepRefused(f"no {what} is left")
    stock.left -= 1
    return stock.left


def give_back(what: str, session: Session) -> None:
    """Give one back."""
    session.get_one(Stock, what).left += 1


def pay(trip: Trip, results: Results) -> Result:
    """Pay what the steps before have booked."""
    price = results["flight"]["price"] + results["hotel"]["price"]
    if trip.money < price:
        raise StepRefused(f"{price} is more than {trip.money}")
    trip.money -= price
    return {"paid": price}


class Step(NamedTuple):
    """A step: how it is done, from the results before it, and how it is undone."""

    name: str
    do: Callable[[Trip, Results, Session], Result]
    undo: Callable[[Result, Session], None]


STEPS = (
    Step(
        "flight",
        lambda _trip, _results, session: {"seat": take("seat", session), "price": 200},
        lambda _result, session: give_back("seat", session),
    ),
    Step(
        "hotel",
        lambda _trip, _results, session: {"room": take("room", session), "price": 100},
        lambda _result, session: give_back("room", session),
    ),
    Step(
        "payment",
        lambda trip, results, _session: pay(trip, results),
        lambda _result, _session: None,  # nothing comes after it that could fail
    ),
)


def results_of(trip: str, session: Session) -> Results:
    """Return the results of the steps that are done, by their names."""
    done = select(StepResult).where(StepResult.trip == trip, ~StepResult.is_undone)
    return {STEPS[each.step].name: json.loads(each.result) for each in session.scalars(done)}


fails_once = {("rich", 1)}
"""A step whose process fails in its middle: its transaction is rolled back, it is done again."""


@mq.consumer("trip_steps", group="travel_agent", retry_waits=(0.1,))
def do_step(command: DoStep, session: Session) -> None:
    """Do a step, keep its result, and send the next message, all in one transaction."""
    trip = session.get_one(Trip, command.trip)
    with mq.transaction(session) as tx:
        try:
            with session.begin_nested():  # a refused step leaves nothing behind
                result = STEPS[command.step].do(trip, results_of(trip.name, session), session)
        except StepRefused as refused:
            undo = UndoStep(trip=trip.name, step=command.step - 1, why=str(refused))
            trip.state = "undoing"
            tx.send("trip_undos", undo, ordering_key=trip.name)
            return
        kept = StepResult(trip=trip.name, step=command.step, result=json.dumps(result))
        session.add(kept)
        if (trip.name, command.step) in fails_once:
            fails_once.clear()
            raise ConnectionError("the process fails here")
        if command.step + 1 < len(STEPS):
            following = DoStep(trip=trip.name, step=command.step + 1)
            tx.send("trip_steps", following, ordering_key=trip.name)
        else:
            trip.state = "booked"
            tx.send("trip_ends", trip.name)


@mq.consumer("trip_undos", group="travel_agent_undo")
def undo_step(command: UndoStep, session: Session) -> None:
    """Undo a step by its result, then the step before it."""
    with mq.transaction(session) as tx:
        if command.step < 0:
            session.get_one(Trip, command.trip).state = f"cancelled: {command.why}"
            tx.send("trip_ends", command.trip)
            return
        done = session.get_one(StepResult, (command.trip, command.step))
        STEPS[command.step].undo(json.loads(done.result), session)
        done.is_undone = True
        earlier = command.model_copy(update={"step": command.step - 1})
        tx.send("trip_undos", earlier, ordering_key=command.trip)


TRIPS = {"poor": 250, "rich": 1000, "late": 1000}
"""The trips and their money. The hotel has no room for the last one."""


ended = {name: Event() for name in TRIPS}


@mq.consumer("trip_ends", group="printer")
def note_end(name: str) -> None:
    """Tell the program below that a trip has ended."""
    ended[name].set()


mq.create_tables()
Table.metadata.create_all(mq.database.engine)
with Session(mq.database.engine) as session, session.begin():
    session.add_all([Stock(what="seat", left=3), Stock(what="room", left=1)])
with mq:
    for name, money in TRIPS.items():
        with mq.transaction() as tx:
            tx.session.add(Trip(name=name, money=money))
            tx.send("trip_steps", DoStep(trip=name, step=0), ordering_key=name)
        ended[name].wait(timeout=60)
with Session(mq.database.engine) as session:
    for trip in session.scalars(select(Trip).order_by(Trip.name)):
        print(f"{trip.name}: {trip.state}; money {trip.money}; {results_of(trip.name, session)}")
    stocks = session.scalars(select(Stock).order_by(Stock.what))
    print("left:", {stock.what: stock.left for stock in stocks})
