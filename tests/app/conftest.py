"""What tests of deliveries share: what is left in the database, with and without Redis."""

from collections.abc import Iterator

import pytest
from tests.app.banks import Bank
from tests.app.lives import A, B, C, Ledger
from tests.forked_programs import Programs


@pytest.fixture(scope="session")
def programs() -> Iterator[Programs]:
    with Programs(
        *("psycopg", "redis.asyncio", "reliable_mq.app.application", "reliable_mq.cli.run"),
        *("reliable_mq.cli.broker", "reliable_mq.cli.resend"),
    ) as made:
        yield made


@pytest.fixture
def ledger(database_url: str) -> Iterator[Ledger]:
    made = Ledger(database_url)
    made.create(A, B, C)
    yield made
    made.database.close()


@pytest.fixture(params=["redis", "no redis"])
def redis(request: pytest.FixtureRequest) -> str | None:
    return request.getfixturevalue("redis_url") if request.param == "redis" else None


@pytest.fixture
def bank(database_url: str) -> Iterator[Bank]:
    made = Bank(database_url)
    yield made
    made.mq.close()
