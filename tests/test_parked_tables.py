"""What a test leaves in its database of PostgreSQL is not there for the next one."""

import pytest
from sqlalchemy import text
from tests.postgres_databases import new_database

from reliable_mq.database.sql_database import Database
from reliable_mq.testing.local_servers import LocalPostgres

STUBS = "SELECT 'public.rmq_message_stub'::regclass::oid"
COUNTED = "SELECT nextval(pg_get_serial_sequence('rmq_message_stub', 'seq'))"


def in_database(server: LocalPostgres, *statements: str, module: str = __name__) -> list[object]:
    """Create our tables as a test of a module does; return the one value of each statement."""
    with new_database(server, module) as url:
        database = Database(url, prefix="rmq_", connections=1)
        database.create_tables()
        with database.engine.begin() as connection:
            results = [connection.execute(text(each)) for each in statements]
            found = [result.scalar() if result.returns_rows else None for result in results]
        database.close()
    return found


def test_tables_come_back_empty_and_count_from_one(postgres_server: LocalPostgres) -> None:
    first, *_ = in_database(
        postgres_server,
        STUBS,
        "INSERT INTO rmq_resend_topic (topic, update_date) VALUES ('orders', now())",
        COUNTED,
        COUNTED,
        "CREATE TABLE effects (id INT)",
        "CREATE SCHEMA more",
    )

    assert in_database(
        postgres_server,
        STUBS,
        "SELECT count(*) FROM rmq_resend_topic",
        COUNTED,
        "SELECT to_regclass('effects')",
        "SELECT to_regnamespace('more')",
        "SELECT to_regnamespace('parked')",
    ) == [first, 0, 1, None, None, None]


@pytest.mark.parametrize(
    "change",
    [
        "ALTER TABLE rmq_message_stub ADD COLUMN more INT",
        "ALTER TABLE rmq_message_stub SET (fillfactor = 50)",
        "ALTER TABLE rmq_message_stub ENABLE ROW LEVEL SECURITY",
        "ALTER SEQUENCE rmq_message_stub_seq_seq INCREMENT BY 2",
        "ANALYZE rmq_message_stub",
        "CREATE FUNCTION more() RETURNS INT LANGUAGE SQL AS 'SELECT 1'",
        "CREATE INDEX more ON rmq_message_stub (topic)",
        "CREATE VIEW more AS SELECT * FROM rmq_message_stub",
        "DROP TABLE rmq_audit",
        "GRANT SELECT ON rmq_message_stub TO PUBLIC",
        "GRANT SELECT (topic) ON rmq_message_stub TO PUBLIC",
        "GRANT CREATE ON SCHEMA public TO PUBLIC",
    ],
)
def test_tables_that_were_changed_do_not_come_back(
    postgres_server: LocalPostgres, change: str
) -> None:
    first, _ = in_database(postgres_server, STUBS, change)

    assert in_database(postgres_server, STUBS) != [first]


def test_another_module_finds_nothing_of_them(postgres_server: LocalPostgres) -> None:
    in_database(postgres_server)

    with new_database(postgres_server, "another") as url:
        database = Database(url, prefix="rmq_", connections=1)
        with database.engine.begin() as connection:
            place = connection.scalar(text("SELECT to_regnamespace('parked')"))
        database.close()
    assert place is None
