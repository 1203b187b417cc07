"""The local servers are real: what is committed survives a kill, what is cached does not."""

from pathlib import Path

import psycopg
import pytest
import redis

from reliable_mq.testing.local_servers import LocalPostgres, LocalValkey

pytestmark = pytest.mark.processes


def test_a_committed_row_survives_sigkill_of_postgres(server_directory: Path) -> None:
    server = LocalPostgres(server_directory / "postgres-killed")
    url = server.start()
    address = url.replace("+psycopg", "")
    with psycopg.connect(address) as connection:
        connection.execute("CREATE TABLE kept AS SELECT 7 AS number")

    server.kill()

    assert not server.is_running
    assert server.start() == url
    with psycopg.connect(address) as connection:
        assert connection.execute("SELECT number FROM kept").fetchone() == (7,)
        assert connection.execute("SHOW fsync").fetchone() == ("on",)
    server.stop()
    assert server.pid is None


def test_valkey_is_empty_after_a_restart_and_after_a_flush(server_directory: Path) -> None:
    server = LocalValkey(server_directory / "valkey-killed")
    url = server.start()
    client = redis.Redis.from_url(url)
    client.set("lease", "owner")

    server.flush()
    assert client.get("lease") is None

    client.set("lease", "owner")
    server.kill()
    assert server.start() == url
    assert client.get("lease") is None
    client.close()
    server.stop()


def test_each_test_has_a_database_of_its_own(postgres_url: str, redis_url: str) -> None:
    with psycopg.connect(postgres_url.replace("+psycopg", "")) as connection:
        tables = connection.execute(
            "SELECT count(*) FROM information_schema.tables WHERE table_schema = 'public'"
        )
        assert tables.fetchone() == (0,)
    with redis.Redis.from_url(redis_url) as client:
        assert client.dbsize() == 0
