"""Refuse a transaction of SQLite that would wait for itself.

An SQLite file has one writer. A second writing transaction of the same thread and task waits until
the first one has ended, and the first one cannot end meanwhile. Who waits for others is served: so
a transaction counts only where its own context has begun it.
"""

import asyncio
import sqlite3
import threading
from contextvars import ContextVar
from typing import Any

from sqlalchemy import Connection

from reliable_mq.errors import UsageError


class _Writer:
    """A transaction: its file, the thread and task that began it, and its connection."""

    def __init__(self, connection: Connection) -> None:
        self.place = (connection.engine.url.database, *_here())
        self._driver: Any = connection.connection.driver_connection
        self._info = connection.connection.info  # of the driver's connection, as long as it lives
        self._info[_NEWEST] = self

    @property
    def is_open(self) -> bool:
        """Whether the transaction has not ended: its connection has no newer one."""
        try:
            return self._info.get(_NEWEST) is self and bool(self._driver.in_transaction)
        except (sqlite3.Error, ValueError):  # it is closed
            return False


_NEWEST = "reliable_mq.newest_writer"
_begun: ContextVar[tuple[_Writer, ...]] = ContextVar("writers", default=())


def begin_writing(connection: Connection) -> None:
    """Begin a transaction that writes.

    Raises:
        UsageError: another one is open where this one begins.
    """
    others = [each for each in _begun.get() if each.is_open]
    own = _Writer(connection)
    if any(each.place == own.place for each in others):
        raise UsageError(
            "a transaction inside another one of the same SQLite file would wait for itself: use "
            "the session of the outer one, mq.transaction(tx.session), or let it end first"
        )
    connection.exec_driver_sql("BEGIN IMMEDIATE")
    _begun.set((*others, own))


def _here() -> tuple[int, int]:
    try:
        task = asyncio.current_task()
    except RuntimeError:  # no loop runs in this thread
        task = None
    return threading.get_ident(), id(task)
