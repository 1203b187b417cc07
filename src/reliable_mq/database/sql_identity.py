"""The identity of a database: sixteen random digits in one of our tables, and its notice topic.

Consumer groups with their own database send their notices to that topic (`confirm.notice`). A name
in the settings would not do: several applications share a database, and `resend --db` has no
settings. A copy of a database that is used beside the original needs its own identity: delete the
copy's row, and the next process makes a new one.
"""

import os
from datetime import UTC, datetime

from sqlalchemy import (
    Column,
    Engine,
    MetaData,
    SmallInteger,
    String,
    Table,
    insert,
    select,
)
from sqlalchemy.exc import DBAPIError, IntegrityError

from reliable_mq.database.sql_types import (
    READS_ONLY,
    UtcDateTime,
    is_missing_table,
    missing_table_text,
)
from reliable_mq.errors import ConfigurationError
from reliable_mq.message import NOTICE_TOPIC_PREFIX

_ONLY = 1
_ID_BYTES = 8


def identity_table(metadata: MetaData, prefix: str) -> Table:
    """Return the table `<prefix>identity`, which has one row."""
    return Table(
        f"{prefix}identity",
        metadata,
        Column("number", SmallInteger, primary_key=True, autoincrement=False),
        Column("identity", String(2 * _ID_BYTES), nullable=False),
        Column("create_date", UtcDateTime, nullable=False),
        extend_existing=True,
    )


class SqlIdentity:
    """The identity of one database. The first process that needs it makes it."""

    def __init__(self, engine: Engine, table: Table) -> None:
        self._engine = engine
        self._table = table
        self._known = ""

    def notice_topic(self) -> str:
        """Return the topic from which this database's applications read notices.

        Raises:
            ConfigurationError: the table is missing.
            sqlalchemy.exc.DBAPIError: the database does not answer.
        """
        return NOTICE_TOPIC_PREFIX + self.value()

    def value(self) -> str:
        """Return the identity; the name of half messages' producer group contains it.

        Raises:
            ConfigurationError: the table is missing.
            sqlalchemy.exc.DBAPIError: the database does not answer.
        """
        if not self._known:
            self._known = self._identity()
        return self._known

    def _identity(self) -> str:
        try:
            return self._found() or self._made()
        except IntegrityError:  # another process was faster
            return self._found()
        except DBAPIError as error:
            if is_missing_table(error):
                missing = missing_table_text(self._table.name, self._table.metadata)
                raise ConfigurationError(missing) from error
            raise

    def _found(self) -> str:
        wanted = select(self._table.c.identity).where(self._table.c.number == _ONLY)
        with self._engine.execution_options(**READS_ONLY).begin() as connection:
            found: str | None = connection.execute(wanted).scalar_one_or_none()
        return found or ""

    def _made(self) -> str:
        identity = os.urandom(_ID_BYTES).hex()
        row = {"number": _ONLY, "identity": identity, "create_date": datetime.now(UTC)}
        with self._engine.begin() as connection:
            connection.execute(insert(self._table), row)
        return identity
