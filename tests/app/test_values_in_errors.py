"""What our processes write of a failure has nothing of a payload, unless somebody asks for it."""

import asyncio
import enum
import io
import json
import logging
from collections.abc import Callable, Iterator
from pathlib import Path
from traceback import format_exception
from typing import Any, Literal

import pytest
from pydantic import BaseModel
from sqlalchemy import create_engine, select, text
from sqlalchemy.exc import DBAPIError, IntegrityError
from sqlalchemy.orm import Session
from tests.waiting import until

from reliable_mq import ReliableMQ
from reliable_mq.database.sql_database import Database
from reliable_mq.error_texts import ErrorTexts, choose_error_texts
from reliable_mq.telemetry.json_lines import JsonFormatter

PLANTED = "ann.miller@shop.example"
ORDER = {"id": 7, "email": PLANTED}


class Colour(enum.Enum):
    RED = "red"


class Customer(BaseModel):
    email: int
    name: Colour


class Strict(BaseModel):
    id: int
    email: Literal["nobody"]


class Clash(Exception):
    """Of an application that repeats what a library said."""


def look_up(order: dict[str, Any], session: Session) -> None:
    {"somebody": 1}[order["email"]]


def count(order: dict[str, Any], session: Session) -> None:
    int(order["email"])


def choose(order: dict[str, Any], session: Session) -> None:
    Colour(order["email"])


def model(order: dict[str, Any], session: Session) -> None:
    Customer(email=order["email"], name=order["email"])


def unique(order: dict[str, Any], session: Session) -> None:
    for _ in range(2):
        session.execute(text("INSERT INTO customers VALUES (:email, 'a')"), order)


def no_null(order: dict[str, Any], session: Session) -> None:
    session.execute(text("INSERT INTO customers VALUES (:email, NULL)"), order)


def too_long(order: dict[str, Any], session: Session) -> None:
    session.execute(text("INSERT INTO ages VALUES (:email)"), order)


def no_table(order: dict[str, Any], session: Session) -> None:
    session.execute(text("INSERT INTO nowhere VALUES (:email)"), order)


def own_engine(order: dict[str, Any], session: Session) -> None:
    with create_engine("sqlite://").connect() as connection:
        connection.execute(text("INSERT INTO nowhere VALUES (:email)"), order)


def chained(order: dict[str, Any], session: Session) -> None:
    try:
        model(order, session)
    except ValueError as error:
        raise LookupError("no such customer") from error


def grouped(order: dict[str, Any], session: Session) -> None:
    found = []
    for each in (look_up, count, model, own_engine):
        try:
            each(order, session)
        except Exception as error:  # noqa: BLE001 - any of them
            found.append(error)
    raise ExceptionGroup("several", found)


def repeated(order: dict[str, Any], session: Session) -> None:
    try:
        count(order, session)
    except ValueError as error:
        raise Clash(f"not counted: {error}") from None


HANDLERS: list[Callable[..., None]] = [
    *(look_up, count, choose, model, unique, no_null, too_long, no_table),
    *(own_engine, chained, grouped, repeated),
]


@pytest.fixture(autouse=True)
def _masked() -> Iterator[None]:
    yield
    choose_error_texts("masked")


@pytest.fixture
def written(caplog: pytest.LogCaptureFixture) -> Iterator[io.StringIO]:
    """Give all that is logged, as text and as JSON, of each level."""
    caplog.set_level(logging.DEBUG)
    made, handlers = io.StringIO(), []
    for formatter in (logging.Formatter("%(name)s %(message)s"), JsonFormatter()):
        handlers.append(logging.StreamHandler(made))
        handlers[-1].setFormatter(formatter)
        logging.getLogger().addHandler(handlers[-1])
    yield made
    for handler in handlers:
        logging.getLogger().removeHandler(handler)


def make(url: str, folder: Path, **more: Any) -> ReliableMQ:
    more = {"broker": f"embedded:{folder / 'broker'}", "retry_waits_seconds": [0.01], **more}
    made = ReliableMQ("shop", database=url, **more)
    made.create_tables()
    with made.database.engine.begin() as connection:
        connection.execute(
            text("CREATE TABLE customers (email VARCHAR(90) UNIQUE, name VARCHAR(9) NOT NULL)")
        )
        connection.execute(text("CREATE TABLE ages (age DECIMAL(9) CHECK (age < 1))"))
    return made


def kept(database: Database) -> str:
    """Return the rows in which reasons are kept, as text."""
    rows: list[Any] = []
    with database.engine.connect() as connection:
        for table in (database.logs, database.escalations, database.audit):
            rows += [dict(row._mapping) for row in connection.execute(select(table))]
    return json.dumps(rows, default=str)


def fail_all(mq: ReliableMQ) -> None:
    """Send one message to a topic of each handler, and wait until all are dead letters."""
    topics = []
    for handler in HANDLERS:
        for kind in ("thread", "task"):
            topic = f"{handler.__name__.replace('_', '-')}-{kind}"
            topics.append(topic)
            consumer = mq.consumer(topic, group=f"of-{topic}", max_attempts=2)
            consumer(_as_task(handler) if kind == "task" else _as_call(handler))

    def misfit(order: Strict) -> None:
        raise AssertionError

    topics.append("misfit")
    mq.consumer("misfit", group="of-misfit", max_attempts=2)(misfit)
    with mq:
        with mq.transaction() as tx:
            for topic in topics:
                tx.send(topic, ORDER, key=7)
        until(lambda: _escalated(mq.database) == len(topics), seconds=60)


def _as_call(handler: Callable[..., None]) -> Callable[..., None]:
    def called(order: dict[str, Any], session: Session) -> None:
        handler(order, session)

    return called


def _as_task(handler: Callable[..., None]) -> Callable[..., Any]:
    async def called(order: dict[str, Any]) -> None:
        await asyncio.sleep(0)
        if handler in (look_up, count, choose, model, chained, repeated, own_engine):
            handler(order, None)
        Colour(order["email"])

    return called


def _escalated(database: Database) -> int:
    with database.engine.connect() as connection:
        return len(connection.execute(select(database.escalations)).all())


def test_no_line_and_no_row_about_a_failure_has_a_value_of_the_payload(
    database_url: str, tmp_path: Path, written: io.StringIO
) -> None:
    mq = make(database_url, tmp_path)
    fail_all(mq)
    said, rows = written.getvalue(), kept(mq.database)
    refused = "IntegrityError" if database_url.startswith("sqlite") else "UniqueViolation"
    for fault in ("ValidationError", refused, "ExceptionGroup", "KeyError", "Clash"):
        assert fault in said
    for fault in ("ValidationError", "KeyError", "is not a valid Colour"):
        assert fault in rows
    assert "INSERT INTO customers" in said
    assert [line for line in said.splitlines() if PLANTED in line] == []
    assert PLANTED not in rows


def test_whole_texts_have_the_values(
    database_url: str, tmp_path: Path, written: io.StringIO
) -> None:
    mq = make(database_url, tmp_path, error_texts="whole")
    fail_all(mq)
    assert f"input_value='{PLANTED}'" in written.getvalue()
    assert "[parameters: " in written.getvalue()
    assert PLANTED in kept(mq.database)


def test_types_alone_have_no_text_of_an_error(
    database_url: str, tmp_path: Path, written: io.StringIO
) -> None:
    mq = make(database_url, tmp_path, error_texts="types")
    fail_all(mq)
    said, rows = written.getvalue(), kept(mq.database)
    for told in (PLANTED, "input_value", "is not a valid", "Clash: not", "LookupError: no"):
        assert told not in said
        assert told not in rows
    assert "Clash" in said
    assert "Clash" in rows


def test_a_relay_a_resend_and_a_refused_send_say_nothing_of_the_payload(
    database_url: str, tmp_path: Path, written: io.StringIO
) -> None:
    mq = make(database_url, tmp_path, broker="127.0.0.1:1", resend_waits_seconds=[0.001])
    mq.topic("orders", groups=["billing"])
    stubs = mq.database.stubs
    for number in (7, 8):
        with mq.transaction() as tx:
            tx.send("orders", ORDER, key=number)
    with mq.database.engine.begin() as connection:  # nobody can read this stub any more
        connection.execute(stubs.update().where(stubs.c.seq == 1).values(properties="{"))
    until(lambda: sum(_counts(mq.resend_once())) > 0, seconds=30)
    with mq.database.engine.begin() as connection:
        connection.execute(text(f"ALTER TABLE {stubs.name} RENAME COLUMN content TO elsewhere"))
    with pytest.raises(DBAPIError) as raised, mq.transaction() as tx:
        tx.send("orders", ORDER, key=9)
    with pytest.raises(DBAPIError) as again:
        until(lambda: mq.resend_once() is None, seconds=30)  # when something is due
    for each in (raised, again):
        assert PLANTED not in "".join(format_exception(each.value))
    mq.close()
    assert "127.0.0.1:1" in written.getvalue()
    assert PLANTED not in written.getvalue()


def _counts(found: Any) -> Iterator[int]:
    for value in found.values():
        yield from _counts(value) if isinstance(value, dict) else [value]


@pytest.mark.parametrize(("chosen", "is_shown"), [("masked", False), ("whole", True)])
def test_only_whole_texts_let_an_error_of_our_engines_show_parameters(
    chosen: ErrorTexts, is_shown: bool, database_url: str, tmp_path: Path
) -> None:
    mq = make(database_url, tmp_path, error_texts=chosen)

    async def add() -> None:
        statement = text("INSERT INTO customers VALUES (:email, :name)")
        with pytest.raises(IntegrityError) as raised:
            async with mq.database.async_engine.begin() as connection:
                await connection.execute(statement, {"email": "x", "name": None})
        assert ("None" in str(raised.value)) is is_shown
        await mq.database.close_async()

    with pytest.raises(DBAPIError) as raised, mq.database.session() as session:
        session.execute(text("INSERT INTO nowhere VALUES (:email)"), ORDER)
    assert (PLANTED in str(raised.value)) is is_shown
    if not database_url.startswith("sqlite"):
        asyncio.run(add())
    mq.close()
