"""Our own stores keep the contracts that third parties are given."""

from pathlib import Path

import pytest
from redis import Redis

from reliable_mq.app.sql_database import Database
from reliable_mq.idempotency.lease_store import LeaseStore
from reliable_mq.idempotency.redis_leases import RedisLeases
from reliable_mq.testing.contracts import LeaseStoreContract
from reliable_mq.testing.database_contract import DatabaseContract
from reliable_mq.testing.memory_leases import LeaseTable, MemoryLeases


class TestMemoryLeases(LeaseStoreContract):
    table = LeaseTable()

    def open_store(self) -> LeaseStore:
        return MemoryLeases(self.table)

    def forget(self) -> None:
        self.table.flush()


class TestRedisLeases(LeaseStoreContract):
    @pytest.fixture(autouse=True)
    def _server(self, redis_url: str) -> None:
        self.url = redis_url

    def open_store(self) -> LeaseStore:
        return RedisLeases(self.url, duplicate_window=60.0)

    def forget(self) -> None:
        Redis.from_url(self.url).flushall()


class TestSqlite(DatabaseContract):
    @pytest.fixture
    def database(self, tmp_path: Path) -> Database:
        return Database(f"sqlite:///{tmp_path / 'contract.db'}", prefix="rmq_", connections=4)


class TestPostgres(DatabaseContract):
    @pytest.fixture
    def database(self, postgres_url: str) -> Database:
        return Database(postgres_url, prefix="rmq_", connections=4)


class TestMySQL(DatabaseContract):
    @pytest.fixture
    def database(self, mysql_url: str) -> Database:
        return Database(mysql_url, prefix="rmq_", connections=4)
