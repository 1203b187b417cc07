"""Texts of errors keep what explains the fault, and lose the value that a library quotes."""

import enum
import ipaddress
from collections.abc import Callable, Iterator
from datetime import datetime
from fractions import Fraction
from importlib import import_module
from traceback import format_exception
from typing import Any, Literal

import msgspec
import pymysql
import pytest
from pydantic import BaseModel, TypeAdapter, field_validator
from sqlalchemy import Column, Engine, Enum, MetaData, Table, create_engine, text
from sqlalchemy.exc import DBAPIError
from tests.telemetry.raised import raised_by

from reliable_mq.database.sql_faults import fault_line
from reliable_mq.error_texts import choose_error_texts, text_of
from reliable_mq.errors import ConfigurationError, error_text
from reliable_mq.telemetry.written_errors import written_error

ANN = "ann.miller@shop.example"
EMPTY: dict[str, int] = {}
asyncpg: Any = import_module("asyncpg")  # both have no types
adapter: Any = import_module("sqlalchemy.dialects.postgresql.asyncpg").AsyncAdapt_asyncpg_dbapi


RULE = "  Input should be a valid integer, unable to parse string as an integer [type=int_parsing]"


class Colour(enum.Enum):
    RED = "red"


class Row(msgspec.Struct):
    colour: Literal["red"]


class Order(BaseModel):
    amount: int
    email: int = 0

    @field_validator("amount", mode="before")
    @classmethod
    def _read(cls, value: str) -> int:
        return int(value)


@pytest.fixture(autouse=True)
def _as_it_was() -> Iterator[None]:
    yield
    choose_error_texts("masked")


TEXTS: list[tuple[Callable[[], Any], str]] = [
    (lambda: int(ANN), "invalid literal for int() with base 10: …"),
    (lambda: int(ANN, 16), "invalid literal for int() with base 16: …"),
    (lambda: float(ANN), "could not convert string to float: …"),
    (lambda: Fraction(ANN), "Invalid literal for Fraction: …"),
    (lambda: Colour(ANN), "… is not a valid Colour"),
    (lambda: [""].index(ANN), "… is not in list"),
    (lambda: ipaddress.ip_address(ANN), "… does not appear to be an IPv4 or IPv6 address"),
    (lambda: datetime.fromisoformat(ANN), "Invalid isoformat string: …"),
    (lambda: datetime.strptime(ANN, "%Y"), "time data … does not match format '%Y'"),  # noqa: DTZ007
    (lambda: datetime.strptime("2026" + ANN, "%Y"), "unconverted data remains: …"),  # noqa: DTZ007
    (lambda: msgspec.convert({"colour": ANN}, Row), "Invalid enum value … - at `$.colour`"),
    (lambda: msgspec.convert(ANN, Colour), "Invalid enum value …"),
    (lambda: msgspec.convert({}, Row), "Object missing required field `colour`"),
    (lambda: EMPTY[ANN], "…"),
    (lambda: EMPTY["amount"], "'amount'"),
]


@pytest.mark.parametrize(("call", "wanted"), TEXTS, ids=[wanted[:30] for _, wanted in TEXTS])
def test_a_text_loses_the_value_and_nothing_else(call: Callable[[], Any], wanted: str) -> None:
    error = raised_by(call)
    assert text_of(error) == wanted
    choose_error_texts("whole")
    assert text_of(error) == str(error)
    choose_error_texts("types")
    assert error_text(error) == type(error).__name__


@pytest.mark.parametrize(
    "said", ["", "no such order", "the basket is not a valid basket", "time data", "x: y", "…"]
)
def test_what_an_application_says_itself_stays(said: str) -> None:
    assert text_of(ValueError(said)) == said


def test_a_fault_of_a_model_has_its_fields_and_rules() -> None:
    error = raised_by(lambda: Order.model_validate({"amount": ANN, "email": ANN}))
    assert ANN in str(error)
    assert text_of(error).splitlines() == [
        "2 validation errors for Order",
        "amount",
        "  invalid literal for int() with base 10: … [type=value_error]",
        "email",
        RULE,
    ]


def test_what_pydantic_says_of_a_result_has_no_value() -> None:
    error = raised_by(lambda: TypeAdapter(int).dump_json(ANN, warnings="error"))  # type: ignore[arg-type]
    assert ANN in str(error)
    assert ANN not in text_of(error)


def engine_of(url: str) -> Engine:
    """Return an engine of an application that has not thought of this."""
    return create_engine(url)


FAILING = (
    ("INSERT INTO people VALUES (:email, 'x')", "people"),  # twice: the key exists
    ("INSERT INTO people VALUES (:email, NULL)", "name"),
    ("INSERT INTO ages VALUES (:email)", "ages"),
)


@pytest.mark.parametrize(("statement", "told"), FAILING)
def test_a_fault_of_a_database_names_the_rule_and_not_the_row(
    statement: str, told: str, database_url: str
) -> None:
    engine = engine_of(database_url)
    with engine.begin() as connection:
        connection.execute(
            text("CREATE TABLE people (email VARCHAR(90) UNIQUE, name VARCHAR(9) NOT NULL)")
        )
        connection.execute(text("CREATE TABLE ages (age DECIMAL(9) CHECK (age < 1))"))

    def insert() -> None:
        with engine.begin() as connection:
            for _ in range(2):
                connection.execute(text(statement), {"email": ANN})

    error = raised_by(insert)
    engine.dispose()
    assert isinstance(error, DBAPIError)
    assert ANN in str(error)
    for said in (text_of(error), fault_line(error), error_text(error)):
        assert ANN not in said
    assert told in text_of(error)
    assert "[SQL: INSERT INTO" in text_of(error)
    written = written_error(error)
    assert ANN not in f"{written} {written.__cause__}"
    assert type(written).__name__ == type(error).__name__
    assert written.__traceback__ is error.__traceback__


@pytest.mark.parametrize(
    ("code", "said", "wanted"),
    [
        (1062, f"Duplicate entry '{ANN}' for key 'u.email'", "'…' for key 'u.email'"),
        (1062, "Duplicate entry 'O'Neil' for key 'x' for key 'u.email'", "'…' for key 'u.email'"),
        (1366, f"Incorrect integer value: '{ANN}' for column 'age' at row 1", "'…' for column"),
        (1292, f"Truncated incorrect DOUBLE value: '{ANN}'", "DOUBLE value: '…'"),
        (1690, f"BIGINT value is out of range in '({ANN} + 1)'", "range in '…'"),
        (1064, f"… the right syntax to use near '{ANN}' at line 1", "near '…' at line 1"),
        (3140, f'Invalid JSON text: "{ANN}" at position 1 in value for column', '"…" at position'),
        (1451, "a foreign key constraint fails (`a`.`b`)", "fails (`a`.`b`)"),
    ],
)
def test_texts_of_mysql_lose_the_value(code: int, said: str, wanted: str) -> None:
    made = text_of(pymysql.err.IntegrityError(code, said))
    assert wanted in made
    assert str(code) in made
    assert ANN not in made
    assert "Neil" not in made


def test_an_enum_of_sqlalchemy_says_what_is_possible() -> None:
    colours = Table(
        "colours",
        MetaData(),
        Column("name", Enum("red", "blue", name="colour", validate_strings=True)),
    )
    with create_engine("sqlite://").connect() as connection:
        colours.create(connection)
        error = raised_by(lambda: connection.execute(colours.insert().values(name=ANN)))
    assert ANN not in text_of(error)
    assert "Possible values: red, blue" in text_of(error)


def test_causes_and_groups_are_written_without_values_as_well() -> None:
    def chained() -> None:
        try:
            int(ANN)
        except ValueError as error:
            group = ExceptionGroup("several", [error, LookupError("plain")])
            group.add_note("seen today")
            raise RuntimeError("not counted") from group

    error = raised_by(chained)
    written = written_error(error)
    assert isinstance(written.__cause__, ExceptionGroup)
    assert list(map(str, written.__cause__.exceptions)) == [
        "invalid literal for int() with base 10: …",
        "plain",
    ]
    assert written.__cause__.__notes__ == ["seen today"]
    assert isinstance(error.__cause__, ExceptionGroup)
    assert ANN in str(error.__cause__.exceptions[0])  # the application's own is as it was


def failed_again_and_again(times: int) -> BaseException:
    """Return an error with a value, as the oldest of this many causes."""
    error = raised_by(lambda: int(ANN))
    for number in range(times):
        later = RuntimeError(f"attempt {number}")
        later.__cause__ = error
        error = later
    return error


@pytest.mark.parametrize("times", [1, 6, 49, 51, 1_000])
def test_no_cause_is_too_far_away_to_be_written_without_its_value(times: int) -> None:
    written = "".join(format_exception(written_error(failed_again_and_again(times))))
    assert ANN not in written
    assert f"attempt {times - 1}" in written
    assert ("invalid literal" in written) == (times < 51)
    assert ("too many" in written) == (times > 50)


def test_errors_deep_in_groups_are_written_without_values() -> None:
    error = raised_by(lambda: int(ANN))
    for _ in range(60):
        error = ExceptionGroup("several", [error])
    assert ANN not in "".join(format_exception(written_error(error)))


def test_a_circle_of_causes_ends() -> None:
    one, other = (raised_by(lambda: int(ANN)) for _ in range(2))
    one.__cause__, other.__cause__ = other, one
    written = "".join(format_exception(written_error(one)))
    assert ANN not in written
    assert written.count("invalid literal") == 2


def test_a_group_with_a_cause_keeps_the_errors_within() -> None:
    group = ExceptionGroup("several", [LookupError("plain")])
    group.__cause__ = raised_by(lambda: int(ANN))
    written = "".join(format_exception(written_error(group)))
    assert "plain" in written
    assert ANN not in written


def test_an_error_whose_text_cannot_be_read_does_not_show_its_cause() -> None:
    class Unreadable(Exception):
        def __str__(self) -> str:
            raise AttributeError

    error = Unreadable()
    error.__cause__ = raised_by(lambda: int(ANN))
    written = "".join(format_exception(written_error(error)))
    assert "cannot be read" in written
    assert ANN not in written


def test_types_alone_hide_notes_and_names_of_groups() -> None:
    choose_error_texts("types")
    error = ValueError()
    error.add_note(ANN)
    group = ExceptionGroup(ANN, [error])
    written = "".join(format_exception(written_error(group)))
    assert ANN not in written
    assert "ValueError" in written


@pytest.mark.parametrize(
    "error",
    [
        asyncpg.UniqueViolationError(f"the key k exists\nDETAIL:  Key (email)=({ANN})"),
        asyncpg.DataError(f"invalid input for query argument $1: '{ANN}' (expected int, got str)"),
        asyncpg.InvalidTextRepresentationError(f'invalid input for type integer: "{ANN}"'),
        adapter.IntegrityError(f"<class 'asyncpg.X'>: k\nDETAIL:  Key ({ANN})"),
    ],
)
def test_texts_of_asyncpg_lose_the_value(error: Any) -> None:
    if isinstance(error, asyncpg.PostgresError):
        error.sqlstate = type(error).sqlstate
    assert ANN in str(error)
    assert ANN not in text_of(error)
    assert text_of(error)


def test_texts_of_pg8000_are_the_first_line() -> None:
    kind = type("DatabaseError", (Exception,), {"__module__": "pg8000.exceptions"})
    fields = {"C": "23505", "M": "duplicate key in k", "D": f"Key (email)=({ANN}) exists"}
    assert text_of(kind(fields)) == "duplicate key in k"
    assert ANN not in text_of(kind({"C": "22P02", "M": f'invalid input: "{ANN}"'}))


def test_an_error_without_a_value_is_written_as_it_is() -> None:
    error = raised_by(lambda: EMPTY["x"])
    assert written_error(error) is error


def test_our_own_errors_keep_their_text_always() -> None:
    choose_error_texts("types")
    assert text_of(ConfigurationError("the database is away")) == "the database is away"


def test_a_text_that_is_very_long_is_masked_at_once() -> None:
    """Masking must not take long where a peer chooses the text: each step looks once at it."""
    long = "': " * 400_000
    assert text_of(ValueError(f"x{long} is not a valid X")) == f"x{long} is not a valid X"
    assert text_of(ValueError("'" + long + " is not a valid X")) == "… is not a valid X"
