"""The environment that Alembic runs: with our connection, or without one to print the SQL.

`sql_upgrade` sets `config.attributes`: `prefix`, and `connection` or `dialect`.
"""

from alembic import context

from reliable_mq.database.sql_schema import version_table

given = context.config.attributes
versions = version_table(given["prefix"]).name

if context.is_offline_mode():
    context.configure(
        dialect_name=given["dialect"],
        version_table=versions,
        literal_binds=True,
        dialect_opts={"paramstyle": "named"},
    )
else:
    context.configure(
        connection=given["connection"],
        version_table=versions,
        transaction_per_migration=True,
        # On SQLite, our engines begin a transaction where SQLAlchemy does. So it includes the DDL.
        transactional_ddl=given["connection"].dialect.name in ("postgresql", "sqlite"),
    )

with context.begin_transaction():
    context.run_migrations(prefix=given["prefix"])
