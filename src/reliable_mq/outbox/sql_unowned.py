"""Stubs without an owner: their process runs no relay, so any relay of the database sends them.

Receives the time. Claims unsent stubs without an owner for this relay, under a lease. Skips rows
that another relay is claiming now.

After the lease that a stub was written with, the stub is due for the resend scheduler, and only for
the scheduler. The same is true for a stub that a person wants sent again (`missed`). Reason: a
relay knows neither pauses nor which groups have consumed a message.

On PostgreSQL a commit informs relays of other processes by NOTIFY, see `thread_listener`. A lost
NOTIFY only delays the send.
"""

from typing import Any

from sqlalchemy import Connection, Table, bindparam, func, select, update

from reliable_mq.database.sql_stub_table import unowned_rows
from reliable_mq.database.sql_types import ANY_TEXT, is_among, utc_datetime
from reliable_mq.outbox.sql_stub_rows import stub_columns, stub_of
from reliable_mq.outbox.sql_stubs import SqlStubs
from reliable_mq.outbox.stub import Stub


def channel_of(table: Table) -> str:
    """Return the channel that announces commits of unowned stubs: the table's name."""
    return table.name


def announce(connection: Connection, table: Table) -> None:
    """Inform relays of other processes of unowned stubs when this transaction commits."""
    if connection.dialect.name == "postgresql":
        # The server sends equal NOTIFYs of one transaction once. A savepoint rolls back its own.
        connection.execute(select(func.pg_notify(channel_of(table), "")))


class SqlUnowned:
    """Claims unowned stubs for one relay.

    Args:
        stubs: the table.
        owner: the relay's name.
        lease: seconds that a claim lasts.
    """

    def __init__(self, stubs: SqlStubs, *, owner: str, lease: float) -> None:
        self._engine = stubs.engine.execution_options(**ANY_TEXT)
        self._owner = owner
        self._lease = lease
        stub = stubs.table.c
        self._find = (
            select(*stub_columns(stubs.table))
            .where(unowned_rows(stubs.table))
            .order_by(stub.resend_time, stub.seq)
            .limit(bindparam("limit"))
            .with_for_update(skip_locked=True, of=stubs.table)
        )
        self._claim = (
            update(stubs.table)
            .where(is_among(stub.seq, "seqs", stubs.engine.dialect.name))
            .values(owner=owner, lease_until=bindparam("until"), resend_time=bindparam("until"))
        )

    def claim(self, now: float, limit: int) -> list[Stub]:
        """Claim at most `limit` stubs, the earliest written first."""
        with self._engine.begin() as connection:
            rows: list[Any] = list(connection.execute(self._find, {"limit": limit}))
            if rows:
                until = utc_datetime(now + self._lease)
                connection.execute(self._claim, {"seqs": [row.seq for row in rows], "until": until})
        return [stub_of(row) for row in rows]
