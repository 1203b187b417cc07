"""The doctor looks at how the server keeps what is committed, so here it keeps it."""

from collections.abc import Iterator

import pytest
from tests.conftest import UNSYNCED, configure

from reliable_mq.testing.local_servers import LocalPostgres


@pytest.fixture(scope="module", autouse=True)
def synced(postgres_server: LocalPostgres) -> Iterator[None]:
    """Let PostgreSQL sync, as it does by itself."""
    configure(postgres_server, "RESET ALL")
    yield
    configure(postgres_server, *UNSYNCED)
