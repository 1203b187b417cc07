"""What Alembic runs: with our connection, or without one to print the SQL.

`config.attributes` are set by `sql_upgrade`: `prefix`, and `connection` or `dialect`.
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
        # Our engines begin a transaction of SQLite where SQLAlchemy does, so that DDL is in it.
        transactional_ddl=given["connection"].dialect.name in ("postgresql", "sqlite"),
    )

with context.begin_transaction():
    context.run_migrations(prefix=given["prefix"])
