"""What tests of the outbox share."""

from collections.abc import Iterator

import pytest
from tests.outbox.benches import Bench


@pytest.fixture
def bench(database_url: str) -> Iterator[Bench]:
    made = Bench(database_url)
    yield made
    made.database.close()
