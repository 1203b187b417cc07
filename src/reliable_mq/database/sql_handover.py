"""The moment of a commit: stubs that were committed go to their relay, whoever committed them.

Receives stubs with the connection they were written on. Hands them over when the driver's COMMIT
on that connection has returned. A session, a Core connection, a session inside the transaction of
a connection, a two-phase commit: all of them end in the dialect's `do_commit`, whereas SQLAlchemy's
events are too early (a connection's "commit" comes before the COMMIT) or tell of less than a commit
(a session inside a connection's transaction says `after_commit` when nothing is committed yet).

What is handed over is a hint and no fact: the relay reads back before it sends. So stubs that a
savepoint took back do no harm, and those of a COMMIT whose answer was lost are handed over, too.
"""

import logging
import sys
import threading
from typing import Any, Protocol, runtime_checkable
from weakref import WeakSet

from sqlalchemy import Connection, Dialect, Engine, PoolProxiedConnection, event
from sqlalchemy.orm import Session, SessionTransaction
from sqlalchemy.pool import ConnectionPoolEntry, PoolResetState

log = logging.getLogger(__name__)

_PENDING = "reliable_mq.pending"
_ROLLED_BACK = "reliable_mq.rolled_back"
_WRITTEN = "reliable_mq.written"

_lock = threading.Lock()
_watched: WeakSet[Dialect] = WeakSet()


class Handover(Protocol):
    """What takes committed stubs over: the relay's thread."""

    def hand(self, stubs: list[Any], written: float) -> None:
        """Take stubs that were written at `written`; must not wait."""
        ...


@runtime_checkable
class RollbackListener(Protocol):
    """What wants to know of stubs that nobody asked to commit before they were rolled back."""

    def lost(self, stubs: list[Any]) -> None:
        """Take stubs that were rolled back; must not wait."""
        ...


def note(
    source: Session | Connection,
    connection: Connection,
    relay: Handover,
    stubs: list[Any],
    written: float,
) -> None:
    """Keep stubs in mind that were just written on a connection, until its transaction ends."""
    connection.info.setdefault(_PENDING, []).append((relay, stubs, written))
    # A session inside a connection's transaction is not the one to commit, or to forget it.
    if isinstance(source, Session) and not isinstance(source.bind, Connection):
        source.info[_WRITTEN] = source.info.get(_WRITTEN, 0) + len(stubs)


def has_pending(connection: Connection) -> bool:
    """Say whether messages were written in a connection's transaction, which goes on."""
    return bool(connection.info.get(_PENDING))


def watch(engine: Engine) -> bool:
    """See the commits and rollbacks of an engine's connections; False: they are seen already."""
    dialect = engine.dialect
    with _lock:
        if dialect in _watched:
            return False
        _watched.add(dialect)
    commit, rollback = dialect.do_commit, dialect.do_rollback
    commit_prepared = dialect.do_commit_twophase

    def do_commit(dbapi_connection: Any) -> None:
        pending = _taken(dbapi_connection)
        try:
            commit(dbapi_connection)
        finally:
            if pending:
                _hand_over(pending)

    def do_commit_twophase(connection: Connection, *given: Any, **named: Any) -> None:
        pending = _taken(connection.connection)
        try:
            commit_prepared(connection, *given, **named)
        finally:
            if pending:
                _hand_over(pending)

    def do_rollback(dbapi_connection: Any) -> None:
        pending = _taken(dbapi_connection)
        if pending:
            lost = sum(len(stubs) for _, stubs, _ in pending)
            dbapi_connection.info[_ROLLED_BACK] = lost
        try:
            rollback(dbapi_connection)
        finally:
            if pending:
                _tell_losers(pending)

    # Documented parts of a dialect, and of this engine's own one: no other engine is touched.
    dialect.do_commit = do_commit  # type: ignore[method-assign]
    dialect.do_commit_twophase = do_commit_twophase  # type: ignore[method-assign]
    dialect.do_rollback = do_rollback  # type: ignore[method-assign]
    event.listen(engine, "reset", _on_reset)
    return True


def _taken(dbapi_connection: Any) -> list[tuple[Handover, list[Any], float]]:
    """Return what a connection's transaction has written, and forget it."""
    if not isinstance(dbapi_connection, PoolProxiedConnection):
        return []
    try:
        info = dbapi_connection.info
    except NotImplementedError:  # what SQLAlchemy asks a server with before it is used
        return []
    info.pop(_ROLLED_BACK, None)
    pending: list[tuple[Handover, list[Any], float]] = info.pop(_PENDING, [])
    return pending


def _hand_over(pending: list[tuple[Handover, list[Any], float]]) -> None:
    """Hand stubs to their relays, in the order of their rows."""
    batches: dict[int, tuple[Handover, list[Any], float]] = {}
    for relay, stubs, written in pending:
        batches.setdefault(id(relay), (relay, [], written))[1].extend(stubs)
    for relay, together, first_written in batches.values():
        relay.hand(together, first_written)


def _tell_losers(pending: list[tuple[Handover, list[Any], float]]) -> None:
    for relay, stubs, _ in pending:
        if isinstance(relay, RollbackListener):
            relay.lost(stubs)


def _on_reset(
    _connection: object, record: ConnectionPoolEntry, reset_state: PoolResetState
) -> None:
    """Tell of stubs that are gone because a connection was closed without commit or rollback."""
    lost = record.info.pop(_ROLLED_BACK, 0)
    if lost and reset_state.transaction_was_reset:
        _tell_forgotten(lost, "connection")


@event.listens_for(Session, "after_commit")
def _on_session_commit(session: Session) -> None:
    if not session.in_nested_transaction():  # a savepoint that is released commits nothing
        session.info.pop(_WRITTEN, None)


@event.listens_for(Session, "after_transaction_end")
def _on_session_end(session: Session, transaction: SessionTransaction) -> None:
    """Tell of stubs that are gone because a session was closed without commit or rollback."""
    if transaction.parent is not None:
        return
    lost = session.info.pop(_WRITTEN, 0)
    was_meant = session.info.pop(_ROLLED_BACK, False)
    if lost and not was_meant:
        _tell_forgotten(lost, "session")


@event.listens_for(Session, "after_rollback")
def _on_session_rollback(session: Session) -> None:
    """Note that somebody decided against the session's transaction, or a part of it."""
    if session.info.get(_WRITTEN):
        session.info[_ROLLED_BACK] = True


def _tell_forgotten(lost: int, kind: str) -> None:
    if sys.exc_info()[0] is None:  # an exception on its way decided against them
        log.error(
            "%d message(s) were written into a transaction that was closed without commit and are "
            "gone with it; the %s was in a transaction before mq.transaction(%s) joined it, so its "
            "owner must call commit()",
            *(lost, kind, kind),
        )
