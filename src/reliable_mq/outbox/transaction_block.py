"""What both blocks of `mq.transaction()` have in common, and the errors of their wrong uses.

Receives a session or a Core connection; says whether it may be used now. Knows no table.
"""

from typing import TYPE_CHECKING, Any, Generic, TypeVar

from sqlalchemy import Connection
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncSession, async_scoped_session
from sqlalchemy.orm import Session, scoped_session

from reliable_mq.errors import UsageError
from reliable_mq.outbox.calls_apart import innermost_call, outlives

Source = Session | Connection | AsyncSession | AsyncConnection
"""What a transaction can run on."""
Given = Source | scoped_session[Session] | async_scoped_session[AsyncSession]
"""What `mq.transaction(…)` accepts."""

_SENDS = frozenset(
    {"send", "asend", "send_async", "send_message", "send_event", "send_task", "publish"}
    | {"emit", "enqueue", "produce", "dispatch", "delay", "apply_async"}
)
"""The words of other libraries for a send."""
_HANDLES = frozenset(
    {"task", "shared_task", "actor", "subscriber", "subscribe", "handler", "handle", "listener"}
    | {"listen", "consume", "on", "agent", "receiver"}
)
"""Those for a handler."""

S = TypeVar("S")
C = TypeVar("C")


class TransactionBlock(Generic[S, C]):
    """The block of one transaction. After its end it refuses sends: nothing would commit them.

    Invariant: it has a session or a connection, never both.
    """

    is_open = True

    def __init__(self, *, session: S | None, connection: C | None) -> None:
        self._call = innermost_call()
        self._session = session
        self._connection = connection

    @property
    def session(self) -> S:
        """The session of this transaction.

        Raises:
            UsageError: the transaction runs on a connection, or an idempotent function must not
                use it.
        """
        if self._session is None:
            raise UsageError("this transaction has a connection, not a session: use tx.connection")
        self._check_call()
        return self._session

    @property
    def connection(self) -> C:
        """The Core connection that was passed to `mq.transaction`.

        Raises:
            UsageError: a session was passed, or nothing; or an idempotent function must not use it.
        """
        if self._connection is None:
            raise UsageError("this transaction has a session: use tx.session.connection()")
        self._check_call()
        return self._connection

    @property
    def source(self) -> S | C:
        """The session or the connection of this transaction.

        Raises:
            UsageError: the block has ended, or an idempotent function must not use it.
        """
        self._check_open()
        return self.connection if self._session is None else self._session

    if not TYPE_CHECKING:  # a type checker must see that there is no such method

        def __enter__(self) -> Any:
            raise _begun_already()

        __aenter__ = __enter__

        def __exit__(self, *_raised: object) -> None:
            """Do nothing: no block begins."""

        __aexit__ = __exit__

        @classmethod
        def __get_pydantic_core_schema__(cls, *_given: object) -> Any:
            """Refuse to be a part of a model: a parameter of an endpoint that nobody fills."""
            call = "transaction" if cls.__name__.startswith("Async") else "sync_transaction"
            raise UsageError(
                f"{cls.__name__} is no value of a request: write "
                f"tx: Annotated[{cls.__name__}, {call}(mq)]"
            )

    def _check_open(self) -> None:
        if not self.is_open:
            raise ended()
        self._check_call()

    def _check_call(self) -> None:
        call = innermost_call()
        if call is not None and call is not self._call and call.is_running:
            raise outlives(call.name)


def source_of(given: Given) -> Source:
    """Return the session or connection that a block runs on.

    Raises:
        UsageError: `given` is neither a session nor a connection.
    """
    if isinstance(given, scoped_session | async_scoped_session):
        given = given()  # the session of this thread or task
    if isinstance(given, Session | Connection | AsyncSession | AsyncConnection):
        return given
    raise UsageError(
        f"mq.transaction({type(given).__name__}): pass a Session, AsyncSession, Connection or "
        "AsyncConnection, or nothing"
    )


def refuse_commit() -> None:
    """Refuse a commit within the block that made the session.

    Raises:
        UsageError: always.
    """
    raise UsageError(
        "tx.session.commit() within mq.transaction(): the block commits rows and messages together"
        " at its end; leave the call out, or pass a session of your own"
    )


def taken_back(lost: int) -> UsageError:
    """Return the error of a block that would succeed, though its session has lost messages."""
    return UsageError(
        f"tx.session.rollback() within mq.transaction() has taken back {lost} message(s) of the "
        "block, and nothing of it is committed: raise an exception instead, or undo a part with "
        "`with tx.session.begin_nested():`"
    )


def missing_attribute(owner: object, name: str) -> AttributeError:
    """Return the error for an attribute that there is not; for that of a block, how to get one."""
    text = f"{type(owner).__name__!r} object has no attribute {name!r}"
    if name in _SENDS and not hasattr(type(owner), "send"):
        text += ": write `with mq.transaction() as tx: tx.send(…)`"
    elif name in _SENDS:
        text += ": write mq.send(…) in a transaction; it is not awaited"
    elif name in _HANDLES:
        text += ': write @mq.consumer("orders", group="payments") before a handler'
    elif name in ("send_many", "session", "connection"):
        call = f"{name}(…)" if name.startswith("send") else name
        text += f": write `with mq.transaction() as tx: tx.{call}`"
    return AttributeError(text, name=name, obj=owner)


def argument_for(given: object) -> str:
    """Return the word for a session or a connection in an error."""
    return "connection" if isinstance(given, Connection | AsyncConnection) else "session"


def _begun_already() -> UsageError:
    return UsageError("this transaction has begun already: write tx.send(…) without a `with tx:`")


def ended() -> UsageError:
    """Return the error of a send after the end of its block."""
    return UsageError(
        "this transaction has ended: send inside its `with` block; in a web application before the "
        "endpoint returns, or within `with mq.transaction()` in the background task or stream"
    )
