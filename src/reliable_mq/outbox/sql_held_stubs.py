"""New stubs that wait for the next statement of their transaction, or for its COMMIT.

Usually a message is the last thing that a transaction writes. Then its row and the COMMIT are one
round trip. Many messages that follow each other are written by one statement. The rows are there
for every later statement, because each statement writes them first.

A stub waits only where nobody can commit without that: in the session that `mq.transaction()` has
made, as long as nobody has asked for its connection, and nobody listens for its begin or for
statements.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

from msgspec.structs import replace
from sqlalchemy import Connection, Table
from sqlalchemy.orm import Session

from reliable_mq.database.sql_held_rows import insert_held
from reliable_mq.database.sql_prepared import WithCommit
from reliable_mq.database.sql_transactions import Handover, remember_pending
from reliable_mq.outbox.stub import Stub

HELD_MAX = 256
HELD_SIZE_MAX = 256 * 1024
"""The most stubs, and bytes of their content, that wait."""
_HOLDS = "reliable_mq.holds_stubs"

Write = Callable[[Connection, list[Stub], float], list[Stub]]
"""Inserts stubs at a time; returns them as they are in the table."""


class HeldStubs:
    """The stubs of one transaction that wait.

    Args:
        connection: where they will be written.
        relay: gets them after the COMMIT.
        first: inserts the first one, and commits; None: it is written before the COMMIT.
        write: inserts several.
    """

    def __init__(
        self, connection: Connection, relay: Handover, first: WithCommit | None, write: Write
    ) -> None:
        self._connection = connection
        self._relay = relay
        self._first = first
        self._write = write
        self._stubs: list[Stub] = []
        self._size = 0
        self._now = 0.0

    def add(self, stub: Stub, now: float) -> None:
        """Let one more stub wait, written at `now`."""
        self._stubs.append(replace(stub, create_time=now))
        self._size += len(stub.content)
        self._now = now

    @property
    def is_full(self) -> bool:
        """Whether no more stubs should wait."""
        return len(self._stubs) >= HELD_MAX or self._size > HELD_SIZE_MAX

    @property
    def pending(self) -> tuple[Handover, list[Stub]]:
        """The relay, and the stubs that it gets. Without a number: they have no ordering key."""
        return self._relay, self._stubs

    def insert(self) -> None:
        """Insert the stubs."""
        written = self._write(self._connection, self._stubs, self._now)
        remember_pending(self._connection, self._relay, written)

    def commit(self, commit: Callable[[], None]) -> None:
        """Insert the stubs and commit; `commit` sends a COMMIT alone."""
        if len(self._stubs) == 1 and self._first is not None:
            self._first.commit()
        else:
            self._write(self._connection, self._stubs, self._now)
            commit()


def begin_holding(session: Session) -> None:
    """Let stubs of a new session wait, until somebody asks for its connection."""
    if session.dispatch.after_begin:  # listeners get the connection
        return
    session.info[_HOLDS] = True
    session.connection = partial(_shown, session)  # type: ignore[method-assign]


def may_hold(session: Session, stub: Stub) -> bool:
    """Return whether a stub may wait: it has no time, and no key whose order it would miss."""
    return (
        _HOLDS in session.info
        and not stub.ordering_key
        and stub.deliver_time is None
        and not session.in_nested_transaction()
        and len(stub.content) <= HELD_SIZE_MAX
    )


def connection_of(session: Session, table: Table) -> Connection:
    """Return the connection of a session for a table, which nobody else gets by that."""
    return type(session).connection(session, bind_arguments={"clause": table})


def _shown(session: Session, *given: Any, **named: Any) -> Connection:
    """Return the connection of a session to the application. From now on no stub waits."""
    session.info.pop(_HOLDS, None)
    vars(session).pop("connection", None)
    connection = session.connection(*given, **named)
    insert_held(connection)
    return connection
