"""The local servers are real: what is committed survives a kill, what is cached does not."""

import socket
import sys
from pathlib import Path

import psycopg
import pytest
import redis

from reliable_mq.testing import local_servers
from reliable_mq.testing.local_servers import LocalPostgres, LocalValkey, free_port

pytestmark = pytest.mark.processes


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere its server could not have it either")
def test_a_free_port_is_kept_for_its_server_also_while_that_is_down() -> None:
    place = ("127.0.0.1", free_port())
    for _ in range(2):
        with socket.socket() as other, pytest.raises(OSError, match="in use"):
            other.bind(place)
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection(place)
        with socket.create_server(place), socket.create_connection(place):
            pass


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


@pytest.mark.parametrize(
    ("told", "first"), [("32768\t60999\n", 32_768), ("1024 65535", 65_536), ("nonsense", 49_152)]
)
def test_no_connection_takes_the_port_of_a_server_that_is_down(
    told: str, first: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Connections get ports from where the system says; it may leave none to others."""
    (tmp_path / "range").write_text(told)
    monkeypatch.setattr(local_servers, "_EPHEMERAL_PORTS", tmp_path / "range")

    ports = {free_port() for _ in range(20)}

    assert max(ports) < first
    assert len(ports) > 1
