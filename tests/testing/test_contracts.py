"""Our own stores keep the contracts that third parties are given."""

import asyncio
from pathlib import Path

import pytest
from redis import Redis
from sqlalchemy import inspect, text
from sqlalchemy.dialects import registry

from reliable_mq.database.sql_database import Database
from reliable_mq.database.sql_schema import differences
from reliable_mq.database.sql_types import register_like_postgresql
from reliable_mq.errors import ConfigurationError, UsageError
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
        return RedisLeases(self.url, duplicate_window=60.0, timeout=60.0)

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


class TestElephant(DatabaseContract):
    """A third party's: PostgreSQL's SQL under a name of its own."""

    @pytest.fixture
    def database(self, postgres_url: str) -> Database:
        registry.register("elephant.psycopg", "tests.testing.elephant", "Elephant")
        driver = "elephant+psycopg"
        register_like_postgresql("elephant", driver=driver, async_driver=driver)
        url = postgres_url.replace("postgresql+psycopg", "elephant")
        return Database(url, prefix="rmq_", connections=4)

    def test_it_has_the_tables_of_postgresql(self) -> None:
        dialect = self.tables.engine.dialect
        with self.tables.engine.begin() as connection:
            assert differences(connection, self.tables.metadata) == []
            indexes = inspect(connection).get_indexes(self.tables.stubs.name)

        assert "rmq_message_stub_unowned" in {each["name"] for each in indexes}  # a partial one
        assert (dialect.name, self.tables.dialect) == ("elephant", "postgresql")

    def test_its_async_sessions_have_its_dialect_too(self) -> None:
        async def scenario() -> str:
            async with self.tables.async_session() as session:
                assert await session.scalar(text("SELECT 1")) == 1
            await self.tables.close_async()
            return session.get_bind().dialect.name

        assert asyncio.run(scenario()) == "elephant"

    def test_it_has_no_partitions_by_day(self) -> None:
        with pytest.raises(ConfigurationError, match="'partitions' is for PostgreSQL"):
            Database("elephant://host/name", prefix="rmq_", connections=4, by_day=True)


@pytest.mark.parametrize("name", ["postgresql", "mysql", "mariadb", "sqlite"])
def test_a_database_that_we_know_cannot_be_registered_as_another(name: str) -> None:
    with pytest.raises(UsageError, match="is supported already"):
        register_like_postgresql(name, driver=f"{name}+x", async_driver=f"{name}+x")


def test_the_drivers_of_another_dialect_are_refused() -> None:
    with pytest.raises(UsageError, match="not drivers of the dialect 'mammoth'"):
        register_like_postgresql("mammoth", driver="mammoth+x", async_driver="elephant+x")


def test_a_database_that_nobody_registered_is_refused_by_its_name() -> None:
    with pytest.raises(ConfigurationError, match="database 'oracle' is not supported"):
        Database("oracle://h/x", prefix="rmq_", connections=4)
