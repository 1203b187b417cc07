"""P7 over two databases: a stub holds no row of another one, yet nothing happens twice."""

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest
from sqlalchemy import insert
from tests.app.lives import LONG, A, B, Ledger, Life, delivery

from reliable_mq.database.sql_types import utc_datetime
from reliable_mq.message import CONFIRM_TO, CONSUMED_BY, RESENT, written_before_consumed
from reliable_mq.outbox.stub import Stub, message_of
from reliable_mq.outcomes import CONSUMED

HERE = "rmq_notices_0123456789abcdef:payments"
WRITTEN = 1_000_000_000.0


@pytest.fixture
def there(database_url: str) -> Iterator[Ledger]:
    """The consumer's database, which has forgotten what was consumed before a time."""
    made = Ledger(database_url)
    made.create()
    yield made
    made.database.close()


def forget(there: Ledger, until: float, *, stubs_until: float = WRITTEN + 60.0) -> None:
    """Have removed logs until a time; stubs go earlier, so more of them is gone."""
    duties = there.database.retention_duties
    with there.database.engine.begin() as connection:
        row = {
            "duty": "rows",
            "logs_removed_until": utc_datetime(until),
            "stubs_removed_until": utc_datetime(max(stubs_until, until)),
        }
        connection.execute(insert(duties), row)


def deliver(url: str, redis: str | None, *names: str, said: str, **options: Any) -> None:
    properties = {CONFIRM_TO: HERE, RESENT: "true"} | ({CONSUMED_BY: said} if said else {})

    async def scenario() -> None:
        async with Life(url, redis, lease=LONG, **options) as life:
            messages = [delivery(name, properties=dict(properties)) for name in names]
            assert await life.until_settled(*messages) == [CONSUMED] * len(names)

    asyncio.run(scenario())


@pytest.mark.parametrize("options", [{}, {"log_receipt": True}, {"batch": 2}], ids=str)
def test_what_was_consumed_before_the_log_forgot_it_has_no_second_effect(
    database_url: str, there: Ledger, redis: str | None, options: dict[str, Any]
) -> None:
    forget(there, WRITTEN + 60.0)

    names = (A, B) if "batch" in options else (A,)
    deliver(database_url, redis, *names, said=f"{int(WRITTEN)}:audit,payments", **options)

    assert there.effects() == []
    assert {state for state, _ in there.logs().values()} == {1}
    deliver(database_url, redis, A, said="")  # the row is there again
    assert there.effects() == []


@pytest.mark.parametrize(
    ("said", "forgotten_until"),
    [
        (f"{int(WRITTEN)}:payments", None),  # nothing was ever removed
        (f"{int(WRITTEN)}:payments", WRITTEN - 7200.0),  # what was removed of logs is older
        (f"{int(WRITTEN)}:audit", WRITTEN + 60.0),  # another group has consumed it
        ("", WRITTEN + 60.0),
        ("soon:payments", WRITTEN + 60.0),
        ("payments", WRITTEN + 60.0),
        (f"{'9' * 400}:payments", WRITTEN + 60.0),
    ],
)
def test_a_missing_row_that_was_not_removed_lets_the_effect_happen(
    database_url: str, there: Ledger, said: str, forgotten_until: float | None
) -> None:
    """It may be of a commit that was lost when the database failed over."""
    if forgotten_until is not None:
        forget(there, forgotten_until)

    deliver(database_url, None, A, said=said)

    assert there.effects() == [A]


def test_a_message_says_who_has_consumed_it_when_that_is_known() -> None:
    stub = Stub(
        seq=1, message_id=A, topic="t", content=b"x", required_groups=("a", "b"), create_time=7.9
    )

    properties = message_of(stub, is_missed=True, consumed_by=["b", "a"]).properties

    assert properties[CONSUMED_BY] == "7:a,b"
    assert written_before_consumed(properties, "b") == 7.0
    assert written_before_consumed(properties, "c") is None
    many = [f"{number:0120d}" for number in range(40)]
    assert CONSUMED_BY not in message_of(stub, consumed_by=many).properties
