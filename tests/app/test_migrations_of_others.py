"""Our migrations beside a history of Alembic's that is the application's own."""

from pathlib import Path

from alembic import command
from alembic.config import Config
from sqlalchemy import Column, Integer, MetaData, Table, inspect

from reliable_mq.database.sql_database import Database
from reliable_mq.database.sql_schema import REVISION, differences, revision_of
from reliable_mq.migrations.sql_upgrade import migrate

THEIR_ENVIRONMENT = """
from alembic import context
from sqlalchemy import create_engine

given = context.config.attributes
mine = lambda name, kind, _: kind != "table" or not name.startswith("rmq_")
engine = create_engine(context.config.get_main_option("sqlalchemy.url"))
with engine.connect() as connection:
    context.configure(
        connection=connection, target_metadata=given["metadata"], include_name=mine
    )
    with context.begin_transaction():
        context.run_migrations()
engine.dispose()
"""
THEIR_TEMPLATE = """
from alembic import context, op
import sqlalchemy as sa

revision, down_revision = ${repr(up_revision)}, ${repr(down_revision)}

def upgrade():
    given = context.config.attributes
    given["migrated"].append(given["migrate"]())
    ${upgrades}
"""


def test_a_migration_of_the_applications_own_may_run_ours_and_goes_on(
    database_url: str, tmp_path: Path
) -> None:
    database = Database(database_url, prefix="rmq_", connections=2)
    (tmp_path / "versions").mkdir()
    (tmp_path / "env.py").write_text(THEIR_ENVIRONMENT)
    (tmp_path / "script.py.mako").write_text(THEIR_TEMPLATE)
    theirs, migrated = MetaData(), list[list[str]]()
    Table("orders", theirs, Column("id", Integer, primary_key=True))
    given = {"metadata": theirs, "migrate": lambda: migrate(database), "migrated": migrated}
    config = Config(attributes=given)
    config.set_main_option("script_location", str(tmp_path))
    url = database.engine.url.render_as_string(hide_password=False)
    config.set_main_option("sqlalchemy.url", url.replace("%", "%%"))
    config.set_main_option("path_separator", "os")

    command.revision(config, "orders", autogenerate=True)
    command.upgrade(config, "head")

    (made,) = migrated
    assert made[-1] == REVISION
    with database.engine.connect() as connection:
        assert inspect(connection).has_table("orders")
        assert revision_of(connection, "rmq_") == REVISION
        assert differences(connection, database.metadata) == []
    command.check(config)  # and nothing of ours is to be dropped
    database.close()
