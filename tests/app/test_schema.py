"""The tables: one shape by two ways, on every database, however often somebody was killed."""

import json
import sqlite3
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from alembic.config import Config
from alembic.script import ScriptDirectory
from sqlalchemy import (
    Column,
    Connection,
    Integer,
    String,
    Table,
    create_engine,
    event,
    inspect,
    text,
)
from sqlalchemy.dialects import mysql
from sqlalchemy.schema import CreateIndex, CreateTable
from tests.steps import last_steps

import reliable_mq.migrations
from reliable_mq.cli.main import run
from reliable_mq.database.sql_database import Database
from reliable_mq.database.sql_schema import REVISION, differences, revision_of, version_table
from reliable_mq.database.sql_types import PlainText, is_on, table_options
from reliable_mq.errors import ConfigurationError
from reliable_mq.migrations.sql_upgrade import migrate, script_text

REVISIONS = [f"{number:04}" for number in range(1, int(REVISION) + 1)]
DEATHS_MAX = 500
KEY_SIZE_MAX = 3072  # InnoDB's, of an index, bytes
BYTES_OF_A_LETTER = 4


@pytest.fixture
def database(database_url: str) -> Iterator[Database]:
    made = Database(database_url, prefix="rmq_", connections=2)
    yield made
    made.close()


def shape(database: Database) -> dict[str, Any]:
    """Return everything that the database says of its tables."""
    inspector = inspect(database.engine)
    return {
        name: {
            "columns": [
                {**column, "type": str(column["type"])} for column in inspector.get_columns(name)
            ],
            "key": inspector.get_pk_constraint(name)["constrained_columns"],
            "unique": sorted(map(str, inspector.get_unique_constraints(name))),
            "indexes": sorted(map(_text_of, inspector.get_indexes(name))),
            "options": inspector.get_table_options(name),
        }
        for name in inspector.get_table_names()
    }


def _text_of(index: Any) -> str:
    options = {name: str(value) for name, value in index.get("dialect_options", {}).items()}
    return str({**index, "dialect_options": options})


def clear(database: Database) -> None:
    """Remove every table."""
    with database.engine.begin() as connection:
        for name in inspect(connection).get_table_names():
            connection.execute(text(f"DROP TABLE {name}"))


def test_migrated_tables_are_those_that_are_created_without_alembic(database: Database) -> None:
    database.create_tables()
    created = shape(database)
    clear(database)

    assert migrate(database) == REVISIONS

    migrated = shape(database)
    assert created.keys() == migrated.keys() > database.metadata.tables.keys()
    assert {name: migrated[name] for name in created} == created
    with database.engine.connect() as connection:
        assert differences(connection, database.metadata) == []
        assert revision_of(connection, "rmq_") == REVISION


def test_tables_of_the_first_release_are_brought_to_this_one(database: Database) -> None:
    database.create_tables()
    wanted = shape(database)
    with database.engine.begin() as connection:
        log, stub = "consume_log", "message_stub"
        drops = [f"DROP TABLE rmq_{each}" for each in ("watched_time", "periodic", "periodic_tick")]
        if database.dialect == "sqlite":  # it drops no column that an index names
            drops += [f"DROP INDEX rmq_{log}_failed", f"DROP INDEX rmq_{stub}_correlation"]
        lost = ((log, "failure"), (log, "failures"), (stub, "correlation_id"))
        drops += [f"ALTER TABLE rmq_{table} DROP COLUMN {name}" for table, name in lost]
        for each in drops:
            connection.execute(text(each))
        connection.execute(version_table("rmq_").update().values(version_num="0001"))
    with pytest.raises(ConfigurationError, match="run reliable-mq migrate"):
        database.check_tables()
    assert migrate(database) == REVISIONS[1:]
    assert shape(database) == wanted


def test_a_database_at_this_revision_is_left_alone_by_both_ways(database: Database) -> None:
    database.create_tables()
    before = shape(database)

    assert migrate(database) == []
    database.create_tables()

    assert shape(database) == before
    database.check_tables()


def test_the_newest_migration_is_the_revision_of_the_release_and_they_form_a_line() -> None:
    config = Config()
    config.set_main_option("script_location", str(Path(reliable_mq.migrations.__file__).parent))
    script = ScriptDirectory.from_config(config)

    revisions = [each.revision for each in script.walk_revisions()]

    assert script.get_heads() == [REVISION]
    assert revisions == sorted(revisions, reverse=True)
    assert all(len(each) == 4 and each.isdecimal() for each in revisions)


class Killed(BaseException):
    """SIGKILL; nobody catches it."""


WAYS: dict[str, Callable[[Database], object]] = {
    "migrate": migrate,
    "create_tables": Database.create_tables,
}


@pytest.mark.parametrize("way", WAYS)
def test_whoever_dies_between_two_statements_is_followed_by_one_who_ends_it(
    database_url: str, way: str
) -> None:
    one_in = 1 if database_url.startswith("mysql") else 10  # there a life goes on where one died
    lives = (life + 1 for life in last_steps(DEATHS_MAX, one_in))
    deaths = next(life for life in lives if _ends(database_url, way, life))
    database = Database(database_url, prefix="rmq_", connections=1)

    assert deaths > len(database.metadata.tables)
    with database.engine.connect() as connection:
        assert differences(connection, database.metadata) == []
        assert revision_of(connection, "rmq_") == REVISION
    database.close()


def _ends(url: str, way: str, life: int) -> bool:
    """Live until a statement that makes something is over; return whether it came to an end.

    On MySQL each DDL statement stays, so each life dies at its first. Elsewhere nothing stays of
    a life that was killed, so each dies one statement later.
    """
    database = Database(url, prefix="rmq_", connections=1)
    is_mysql = database.dialect == "mysql"
    left = 1 if is_mysql else life
    mortal = ("CREATE",) if is_mysql else ("CREATE", "INSERT")

    def count(_connection: Any, _cursor: Any, statement: str, *_: Any) -> None:
        nonlocal left
        if statement.lstrip().upper().startswith(mortal):
            left -= 1
            if left == 0:
                raise Killed

    event.listen(database.engine, "after_cursor_execute", count)
    try:
        WAYS[way](database)
    except Killed:
        return False
    finally:
        database.close()
    return True


def test_two_processes_at_once_make_one_schema(database_url: str) -> None:
    databases = [Database(database_url, prefix="rmq_", connections=1) for _ in range(4)]

    with ThreadPoolExecutor(len(databases)) as pool:
        for running in [
            pool.submit(way, database)
            for way, database in zip([*WAYS.values()] * 2, databases, strict=True)
        ]:
            running.result(60)

    with databases[0].engine.connect() as connection:
        assert differences(connection, databases[0].metadata) == []
        versions = version_table("rmq_")
        assert connection.execute(versions.select()).all() == [(REVISION,)]
    for each in databases:
        each.close()


def test_on_sqlite_no_process_sees_the_tables_of_a_migration_that_goes_on(
    tmp_path: Path,
) -> None:
    url = f"sqlite:///{tmp_path / 'application.db'}"
    migrated = Database(url, prefix="rmq_", connections=1)
    reader = create_engine(url)
    seen: set[str | None] = set()

    def look(*_: object) -> None:
        with reader.connect() as connection:
            seen.add(revision_of(connection, "rmq_"))

    event.listen(migrated.engine, "before_cursor_execute", look)
    assert migrate(migrated) == REVISIONS
    event.remove(migrated.engine, "before_cursor_execute", look)
    look()

    assert seen == {None, REVISION}
    migrated.close()
    reader.dispose()


def test_tables_of_an_older_release_are_refused_with_what_to_do(database: Database) -> None:
    database.create_tables()
    with database.engine.begin() as connection:
        connection.execute(text("UPDATE rmq_schema_version SET version_num = '0000'"))

    for step in (database.check_tables, database.create_tables):
        with pytest.raises(ConfigurationError, match=r"revision 0000.*reliable-mq migrate"):
            step()


def test_tables_of_a_newer_release_are_used(database: Database) -> None:
    database.create_tables()
    with database.engine.begin() as connection:
        connection.execute(text("UPDATE rmq_schema_version SET version_num = '9999'"))

    database.check_tables()
    assert migrate(database) == []


def test_tables_that_nobody_of_ours_made_are_neither_created_around_nor_taken_for_ours(
    database: Database,
) -> None:
    theirs = Table("rmq_message_stub", type(database.metadata)(), Column("seq", Integer))
    theirs.create(database.engine)

    for way in (database.create_tables, lambda: migrate(database)):
        with pytest.raises(ConfigurationError, match="rmq_message_stub has no column message_id"):
            way()
        assert inspect(database.engine).get_table_names()[:1] == ["rmq_message_stub"]


def test_an_index_that_somebody_removed_comes_back(database: Database) -> None:
    database.create_tables()
    before = shape(database)
    drop = "DROP INDEX rmq_message_stub_settled"
    on = " ON rmq_message_stub" if database.dialect == "mysql" else ""
    with database.engine.begin() as connection:
        connection.execute(text(drop + on))
        assert [str(each) for each in differences(connection, database.metadata)] == [
            "table rmq_message_stub has no index rmq_message_stub_settled (update_date)"
        ]

    database.create_tables()

    assert shape(database) == before


def test_the_printed_sql_makes_the_same_tables(database: Database) -> None:
    database.create_tables()
    wanted = shape(database)
    clear(database)
    dialect = database.engine.dialect
    name = "mariadb" if getattr(dialect, "is_mariadb", False) else dialect.name

    printed = script_text(name, "rmq_")

    with database.engine.begin() as connection:
        _execute_script(connection, printed)
    assert shape(database) == wanted


def _execute_script(connection: Connection, script: str) -> None:
    lines = [line for line in script.splitlines() if not line.startswith("--")]
    for statement in "\n".join(lines).split(";\n"):
        if statement.strip() and statement.strip().upper() not in ("BEGIN", "COMMIT"):
            connection.exec_driver_sql(statement.strip().rstrip(";").replace("%", "%%"))


def test_another_prefix_makes_other_tables_beside_them(database_url: str) -> None:
    for prefix in ("rmq_", "audit_"):
        database = Database(database_url, prefix=prefix, connections=1)
        assert migrate(database) == REVISIONS
        database.close()

    names = set(inspect(database.engine).get_table_names())
    assert {"rmq_message_stub", "audit_message_stub", "audit_schema_version"} <= names
    database.close()


@pytest.mark.parametrize("is_mariadb", [False, True])
def test_no_table_asks_of_mysql_what_it_does_not_have(is_mariadb: bool, tmp_path: Path) -> None:
    """Holds every table, also where no such server is installed."""
    database = Database(f"sqlite:///{tmp_path / 'x.db'}", prefix="a" * 32, connections=1)
    dialect = mysql.dialect()
    dialect.is_mariadb = is_mariadb

    for table in database.metadata.sorted_tables:
        table.dialect_kwargs.update(table_options(dialect))
        made = str(CreateTable(table).compile(dialect=dialect))
        for line in made.splitlines():
            words = line.split()
            assert "BLOB" not in words, f"{line}: ends at 64 KiB, take sql_types.Body"
            assert "TEXT" not in words, f"{line}: ends at 64 KiB, take sql_types.LongText"
            if "MEDIUMTEXT" in words and "DEFAULT" in words:
                assert "DEFAULT (" in line, f"{line}: a default in parentheses is needed"
            if "DATETIME" in line:
                assert "DATETIME(6)" in line, f"{line}: take sql_types.UtcDateTime"
        exact = "utf8mb4_nopad_bin" if is_mariadb else "utf8mb4_0900_bin"
        assert f"COLLATE {exact}" in made
        for index in table.indexes:
            if is_on(index, "mysql"):
                assert len(str(index.name)) <= 64
                size = sum(_bytes_of(column) for column in index.columns)
                assert size <= KEY_SIZE_MAX, f"{index.name}: {size} bytes"
                str(CreateIndex(index).compile(dialect=dialect))
    database.close()


def _bytes_of(column: Column[Any]) -> int:
    if isinstance(column.type, String):
        assert column.type.length, f"{column}: an index needs a length"
        return column.type.length * BYTES_OF_A_LETTER + 2
    return 9


def call(*words: str) -> int:
    with pytest.raises(SystemExit) as end:
        run(words)
    return int(str(end.value.code or 0))


def test_the_command_migrates_and_says_what_it_did(
    database_url: str, capsys: pytest.CaptureFixture[str]
) -> None:
    if database_url.startswith("sqlite"):
        sqlite3.connect(database_url.removeprefix("sqlite:///")).close()

    assert call("migrate", "--db", database_url, "--check") == 1
    assert capsys.readouterr().out == f"the database lacks {', '.join(REVISIONS)}\n"
    assert call("migrate", "--db", database_url) == 0
    assert capsys.readouterr().out == f"the database has run {', '.join(REVISIONS)}\n"
    assert call("migrate", "--db", database_url, "--check", "--json") == 0
    assert json.loads(capsys.readouterr().out) == {"revision": REVISION, "lacks": []}
    assert call("migrate", "--db", database_url, "--sql") == 0
    assert "CREATE TABLE rmq_message_stub" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "says", "code"),
    [
        ((), "give either --app MODULE:OBJECT or --db URL", 2),
        (("--db", "sqlite:///x.db", "--from-revision", "0001"), "--from-revision needs --sql", 2),
        (("--db", "sqlite:///x.db", "--sql", "--check"), "--sql cannot be used with", 2),
        (("--db", "sqlite:///typo.db", "--check"), "there is no file typo.db", 2),
        (("--db", "sqlite:///x.db", "--table-prefix", "1_"), "prefix '1_'", 2),
        (("--db", "oracle://x"), "not supported", 2),
        (("--db", "mysql://root@127.0.0.1"), "names a MySQL server, but no database", 2),
        (("--db", "mysql://root@127.0.0.1:9/x"), "database: ", 1),
    ],
)
def test_a_mistake_at_the_command_is_one_line(
    words: tuple[str, ...], says: str, code: int, capsys: pytest.CaptureFixture[str]
) -> None:
    assert call("migrate", *words) == code

    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("error: ")
    assert says in line
    assert not Path("typo.db").exists()


def test_what_others_said_in_free_words_is_written_down_whatever_it_holds() -> None:
    tables = Database("sqlite:///unused.db", prefix="rmq_", connections=1).metadata.tables.values()

    said = [
        column for table in tables for column in table.columns if column.name in ("note", "reason")
    ]

    assert len(said) >= 5
    assert [str(column) for column in said if not isinstance(column.type, PlainText)] == []
