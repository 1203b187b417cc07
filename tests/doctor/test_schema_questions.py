"""How often a database is asked about our tables: `doctor` and `create-tables` wait each time."""

from sqlalchemy import event

from reliable_mq.database.sql_database import Database
from reliable_mq.database.sql_schema import SchemaDifference, differences


def asked_for(database: Database) -> tuple[list[SchemaDifference], int]:
    """Return what our tables lack, and how many statements it took to know."""
    statements: list[str] = []
    with database.engine.connect() as connection:
        event.listen(
            connection, "before_cursor_execute", lambda *given: statements.append(given[2])
        )
        return differences(connection, database.metadata), len(statements)


def test_postgresql_is_asked_about_all_tables_at_once(postgres_url: str) -> None:
    database = Database(postgres_url, prefix="rmq_", connections=1)
    tables = sorted(database.metadata.tables)
    nothing, first = asked_for(database)
    database.create_tables()
    found, then = asked_for(database)
    database.close()

    assert [(each.kind, each.table) for each in sorted(nothing)] == [("table", x) for x in tables]
    assert found == []
    assert first < then <= 10 < len(tables)
