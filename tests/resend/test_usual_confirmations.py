"""One message of one group is confirmed by one statement; the rows do not show it."""

import random
from collections.abc import Iterator
from typing import Any

import pytest
from sqlalchemy import Connection, event, insert, select

from reliable_mq.confirm.sql_confirmation import SqlConfirmation, StoredCopy, confirmation_of
from reliable_mq.database.sql_database import Database
from reliable_mq.database.sql_types import utc_datetime

NOW = utc_datetime(100.0)
PLACE = {"broker_name": "known", "queue_id": 1, "offset": 7}
HERE = StoredCopy("orders", "broker-a", 3, 70_000)
KINDS: dict[str, dict[str, Any] | None] = {
    "unrecorded": {},
    "recorded": PLACE | {"count": 1, "owner": None, "lease_until": None},
    "failed once": {"count": 1, "owner": None, "note": "no answer"},
    "left to the scheduler": {"missed": True},
    "of two groups": {"required_groups": "mails,payments"},
    "of another group": {"required_groups": "mails"},
    "settled": {"status": 1, "resend_time": None},
    "of another topic": {"topic": "other"},
    "without a stub": None,
}
"""What differs from a stub that its relay has written and not recorded yet."""
USUAL: dict[str, Any] = {
    "topic": "orders",
    "content": b"",
    "required_groups": "payments",
    "resend_time": NOW,
    "create_date": NOW,
    "update_date": NOW,
    "owner": "relay",
    "lease_until": NOW,
}


@pytest.fixture
def database(database_url: str) -> Iterator[Database]:
    made = Database(database_url, prefix="rmq_", connections=2)
    made.create_tables()
    yield made
    made.close()


def write(connection: Connection, database: Database, name: str, kind: str) -> None:
    differs = KINDS[kind]
    if differs is not None:
        values = USUAL | {"message_id": name} | differs
        connection.execute(insert(database.stubs).values(values))


def rows_of(connection: Connection, database: Database, prefix: str) -> list[tuple[object, ...]]:
    stub = database.stubs.c
    said = [each for each in stub if each.name not in ("seq", "message_id")]
    found = select(*said).where(stub.message_id.startswith(prefix)).order_by(stub.message_id)
    return list(map(tuple, connection.execute(found)))


@pytest.mark.parametrize("seed", range(4))
def test_in_any_order_a_row_becomes_what_the_general_statement_makes_of_it(
    database: Database, seed: int
) -> None:
    """Given messages of all kinds in any order, with and without a known place, when each is
    confirmed alone, then the rows are those of confirmations of several at once."""
    rng = random.Random(seed)
    kinds = [rng.choice(sorted(KINDS)) for _ in range(60)]
    places = [rng.choice([HERE, HERE, HERE, None]) for _ in kinds]
    one, several = confirmation_of(database), confirmation_of(database)
    with database.engine.begin() as connection:
        for number, (kind, place) in enumerate(zip(kinds, places, strict=True)):
            alone, other = f"a{number:03}", f"b{number:03}"
            write(connection, database, alone, kind)
            write(connection, database, other, kind)
            known = {} if place is None else dict.fromkeys((alone, other), place)
            one.confirm(connection, "payments", [alone], 120.0, known)
            several.confirm(connection, "payments", [other, "none"], 120.0, known)

        assert rows_of(connection, database, "a") == rows_of(connection, database, "b")


def statements(database: Database, confirmation: SqlConfirmation, kinds: list[str]) -> list[int]:
    """Return how many statements the confirmation of each message took."""
    said: list[str] = []

    def note(_connection: Any, _cursor: Any, statement: str, *_: Any) -> None:
        said.append(statement)

    took = []
    event.listen(database.engine, "before_cursor_execute", note)
    with database.engine.begin() as connection:
        for number, kind in enumerate(kinds):
            write(connection, database, f"{number:03}", kind)
            said.clear()
            known = {f"{number:03}": HERE}
            confirmation.confirm(connection, "payments", [f"{number:03}"], 120.0, known)
            took.append(len(said))
    return took


def test_a_recorded_and_an_unrecorded_send_take_one_statement(postgres_url: str) -> None:
    database = Database(postgres_url, prefix="rmq_", connections=2)
    database.create_tables()
    kinds = ["unrecorded", "unrecorded", *["recorded"] * 2, "unrecorded", *["without a stub"] * 2]

    took = statements(database, confirmation_of(database), kinds)

    assert took == [1, 1, 1, 1, 1, 2, 2]
    database.close()
