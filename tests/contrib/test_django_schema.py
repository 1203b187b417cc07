"""`manage.py migrate` makes the tables that `create_tables` makes."""

import importlib
import pkgutil
from io import StringIO
from typing import Any

import pytest
from django.core.management import call_command
from django.db import transaction
from sqlalchemy import Engine, create_engine, inspect
from tests.contrib.django_project import project, set_up

from reliable_mq.app.application import ReliableMQ
from reliable_mq.contrib.django import migrations
from reliable_mq.database.sql_database import Database
from reliable_mq.database.sql_schema import REVISION, revision_of, version_table
from reliable_mq.errors import ConfigurationError
from reliable_mq.migrations.sql_upgrade import migrate

set_up()

from reliable_mq.contrib.django.models import (  # noqa: E402 - after Django was configured
    AuditRow,
    ConsumeLog,
    EscalationRow,
    MessageStub,
)


def shape(engine: Engine) -> dict[str, Any]:
    """Return what a database says of each of our tables."""
    found = {}
    inspector = inspect(engine)
    for name in inspector.get_table_names():
        if not name.startswith("rmq_"):
            continue
        columns = [
            (each["name"], str(each["type"]), each["nullable"], str(each["default"]))
            for each in inspector.get_columns(name)
        ]
        indexes = sorted(
            (str(each["name"]), tuple(each["column_names"]), bool(each["unique"]))
            for each in inspector.get_indexes(name)
        )
        keys = inspector.get_pk_constraint(name)["constrained_columns"]
        unique = sorted(
            tuple(each["column_names"]) for each in inspector.get_unique_constraints(name)
        )
        found[name] = (columns, indexes, keys, unique)
    return found


def test_the_tables_of_django_are_those_of_create_tables(database_url: str) -> None:
    ours = Database(database_url, prefix="rmq_", connections=1)
    ours.create_tables()
    wanted = shape(ours.engine)
    ours.metadata.drop_all(ours.engine)
    version_table("rmq_").drop(ours.engine)
    ours.close()

    with project(database_url) as mq:
        assert shape(mq.database.engine) == wanted
        assert len(wanted) > 10
        mq.databases.check_tables()
        assert migrate(mq.database) == []
        assert mq.create_tables() == []


def test_tables_that_are_there_are_taken_over(database_url: str) -> None:
    mq = ReliableMQ("shop", database=database_url)
    mq.create_tables()
    mq.close()

    with project(database_url) as made:
        made.databases.check_tables()


def test_tables_of_an_older_release_are_brought_to_this_one(database_url: str) -> None:
    old = Database(database_url, prefix="rmq_", connections=1)
    migrate(old)
    with old.engine.begin() as connection:
        connection.exec_driver_sql("DROP TABLE rmq_watched_time")
        connection.exec_driver_sql("UPDATE rmq_schema_version SET version_num = '0001'")
    old.close()

    with project(database_url) as mq:
        with mq.database.engine.connect() as connection:
            assert revision_of(connection, "rmq_") == REVISION
        mq.databases.check_tables()


def test_a_database_that_is_not_named_gets_no_tables(database_url: str, other_url: str) -> None:
    with project(database_url, other=other_url):
        call_command("migrate", "reliable_mq", database="other", verbosity=0)

        engine = create_engine(other_url)
        assert shape(engine) == {}
        engine.dispose()


def test_there_is_a_migration_for_each_revision_since_the_first_one() -> None:
    names = [name for _, name, _ in pkgutil.iter_modules(migrations.__path__)]
    last = importlib.import_module(f"{migrations.__name__}.{max(names)}").Migration.operations[0]

    assert last._revision == REVISION, "add a migration of Django with ToRevision of the new one"


def test_makemigrations_finds_nothing_to_do(database_url: str) -> None:
    with project(database_url):
        call_command("makemigrations", "reliable_mq", check=True, dry_run=True, verbosity=0)


@pytest.mark.parametrize("model", [MessageStub, ConsumeLog, EscalationRow, AuditRow])
def test_each_model_has_columns_that_are_there(model: Any) -> None:
    tables = Database("sqlite:///none.db", prefix="rmq_", connections=1).metadata.tables
    columns = tables[model._meta.db_table].c

    assert {field.column for field in model._meta.fields} <= set(columns.keys())
    for field in model._meta.fields:
        assert field.null == bool(columns[field.column].nullable), field


def test_rows_are_read_but_not_written_by_django(database_url: str) -> None:
    with project(database_url) as mq:
        with mq.transaction() as tx:
            tx.send("orders", {"id": 1}, key="4711")
        stub = MessageStub.objects.get(message_key="4711")

        assert (stub.topic, stub.get_status_display()) == ("orders", "UNCONFIRMED")
        assert stub.create_date.tzinfo is not None
        with pytest.raises(TypeError, match="operator actions"):
            stub.save()
        with pytest.raises(TypeError, match="operator actions"):
            stub.delete()


@pytest.mark.parametrize(
    ("change", "line"),
    [
        ({"BROKR": "x:1"}, "there is no setting brokr; did you mean broker?"),
        ({"broker": "x:1"}, "RELIABLE_MQ['broker']: write its keys in capitals"),
        ({"DATABASE": "sqlite:///x"}, "name its alias, RELIABLE_MQ['DATABASES'] = ['default']"),
        ({"DATABASES": ["orders"]}, "names 'orders'; DATABASES has default"),
        ({"DATABASES": "default"}, "must be a list of aliases: ['default']"),
        ({"BROKER": "x:y:z"}, "'x:y:z'"),
    ],
)
def test_a_wrong_setting_is_one_line_of_manage_check(
    tmp_path: Any, change: dict[str, Any], line: str
) -> None:
    from django.test import override_settings

    from reliable_mq.contrib.django import application

    with project(f"sqlite:///{tmp_path}/shop.db", migrated=False):
        application._made.clear()
        with (
            override_settings(RELIABLE_MQ={"NAME": "shop", **change}),
            pytest.raises(Exception, match=r"reliable_mq\.E001") as raised,
        ):
            call_command("check", stderr=StringIO())
        assert line in str(raised.value)


def test_a_database_in_memory_is_refused_with_what_to_write(tmp_path: Any) -> None:
    with (
        pytest.raises(ConfigurationError, match=r"is in memory, .*: use a file"),
        project("sqlite:///:memory:", migrated=False),
    ):
        pass


def test_a_missing_table_names_the_command_of_django(tmp_path: Any) -> None:
    with project(f"sqlite:///{tmp_path}/shop.db", migrated=False) as mq:
        with pytest.raises(ConfigurationError, match=r"missing: run python manage\.py migrate$"):
            mq.databases.check_tables()
        with (
            transaction.atomic(),
            pytest.raises(ConfigurationError, match="missing: run python"),
        ):
            mq.send("orders", {})
