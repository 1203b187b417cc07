"""What can be seen by now: everything from before the oldest transaction under way."""

from collections.abc import Iterator
from datetime import UTC, timedelta
from pathlib import Path

import pytest
from sqlalchemy import Engine, create_engine, make_url, text
from sqlalchemy.pool import NullPool
from tests.reconcile.ledgers import TableWriter, message_id
from tests.waiting import until

from reliable_mq.errors import ConfigurationError, Unavailable
from reliable_mq.reconcile.databases import sql_visibility
from reliable_mq.reconcile.databases.sql_adbc import APPLICATION
from reliable_mq.reconcile.databases.sql_visibility import visible_until

A_MOMENT = timedelta(seconds=2)  # MySQL tells when a transaction began in whole seconds


@pytest.fixture
def engine(database_url: str) -> Iterator[Engine]:
    TableWriter(database_url).write()
    made = create_engine(database_url, poolclass=NullPool)
    yield made
    made.dispose()


def test_without_a_transaction_it_is_now_and_it_moves(database_url: str, engine: Engine) -> None:
    first = visible_until(database_url)
    second = visible_until(database_url)

    assert first <= second
    assert second.utcoffset() == timedelta(0)


@pytest.mark.parametrize(
    ("server_url", "clock"), [("postgres_url", "now()"), ("mysql_url", "utc_timestamp(6)")]
)
def test_a_transaction_under_way_holds_it_back(
    server_url: str, clock: str, request: pytest.FixtureRequest
) -> None:
    """Given a transaction that has only read, then it counts: it may write a row of a time ago."""
    url: str = request.getfixturevalue(server_url)
    TableWriter(url).write()
    engine = create_engine(url)
    with engine.connect() as connection:
        connection.execute(text("SELECT count(*) FROM rmq_message_stub")).one()
        began = connection.scalar(text(f"SELECT {clock}")).replace(tzinfo=UTC)

        assert began - A_MOMENT <= visible_until(url) <= began
        assert visible_until(url) <= began
    engine.dispose()
    # MySQL makes its list anew when nobody has asked for a tenth of a second.
    until(lambda: visible_until(url) > began, look_seconds=0.2)


def test_readers_of_ledgers_hold_nothing_back(postgres_url: str) -> None:
    url = make_url(postgres_url).update_query_dict({"application_name": APPLICATION})
    reader = create_engine(url)
    with reader.connect() as connection:
        began = connection.scalar(text("SELECT now()"))
        connection.execute(text("SELECT 1"))

        assert visible_until(postgres_url) > began
    reader.dispose()


def test_who_may_not_see_other_sessions_is_told_which_right_is_missing(postgres_url: str) -> None:
    admin = create_engine(postgres_url)
    with admin.connect() as connection:
        connection.execute(text("SELECT 1"))
        other = create_engine(postgres_url, isolation_level="AUTOCOMMIT", poolclass=NullPool)
        with other.connect() as maker:
            maker.execute(text("DROP ROLE IF EXISTS onlooker"))
            maker.execute(text("CREATE ROLE onlooker LOGIN"))
        onlooker = make_url(postgres_url).set(username="onlooker")

        with pytest.raises(ConfigurationError, match="GRANT pg_read_all_stats TO onlooker"):
            visible_until(onlooker.render_as_string(hide_password=False))
        with other.connect() as maker:
            maker.execute(text("GRANT pg_read_all_stats TO onlooker"))
        assert visible_until(onlooker.render_as_string(hide_password=False))
        with other.connect() as maker:
            maker.execute(text("DROP ROLE onlooker"))
    admin.dispose()


def test_a_sqlite_file_that_somebody_writes_to_is_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sql_visibility, "SQLITE_WAIT_SECONDS", 0)
    tables = TableWriter(f"sqlite:///{tmp_path}/a.db")
    tables.stub(message_id(1))
    url = tables.write()
    engine = create_engine(url)
    with engine.connect() as connection:
        connection.exec_driver_sql("BEGIN IMMEDIATE")

        with pytest.raises(Unavailable, match="writing to the SQLite file"):
            visible_until(url)
        connection.rollback()
    assert visible_until(url)
    engine.dispose()
