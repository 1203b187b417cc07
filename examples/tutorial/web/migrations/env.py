"""Migrations of the shop's tables and of reliable_mq's, by one command: `alembic upgrade head`."""

from alembic import context

from shop.messaging import mq
from shop.models import Table


def is_ours(name: str | None, kind: str, _parents: object) -> bool:
    """Leave the tables of reliable_mq out: autogenerate would drop them."""
    return kind != "table" or name is None or not name.startswith(mq.settings.table_prefix)


if not context.is_offline_mode():  # `--sql` only prints
    mq.migrate()  # reliable_mq's own tables, on a connection of its own

with mq.database.engine.connect() as connection:
    context.configure(
        connection=connection,
        target_metadata=Table.metadata,
        include_name=is_ours,
    )
    with context.begin_transaction():
        context.run_migrations()
