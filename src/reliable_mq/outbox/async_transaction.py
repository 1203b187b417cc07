"""`AsyncTransaction`: the `tx` of `async with mq.transaction()`, whose sends must be awaited.

Receives the session or connection of the block; writes stubs by the outbox. Refuses the end of a
block with a `send` that nobody awaited: its message would be missing.
"""

from collections.abc import Callable, Coroutine, Generator, Iterable
from contextlib import AbstractAsyncContextManager
from typing import Any, Protocol, TypeVar, Unpack

from sqlalchemy import Connection
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncSession
from sqlalchemy.orm import Session

from reliable_mq.errors import UsageError
from reliable_mq.outbox.message_options import ManyOptions, StubOptions
from reliable_mq.outbox.transaction_block import TransactionBlock, ended
from reliable_mq.topic import Topic, name_of

T = TypeVar("T")


class StubWriter(Protocol):
    """Writes stubs into the transaction of a session or a connection; see `SqlOutbox`."""

    def write_stub(
        self,
        source: Session | Connection,
        topic: str,
        payload: Any,
        **options: Unpack[StubOptions],
    ) -> str: ...

    def write_many(
        self,
        source: Session | Connection,
        topic: str,
        payloads: Iterable[Any],
        **options: Unpack[ManyOptions[Any]],
    ) -> list[str]: ...


class AsyncTransaction(TransactionBlock[AsyncSession, AsyncConnection]):
    """The `tx` of `async with mq.transaction() as tx`: its session, and `await tx.send(…)`."""

    def __init__(
        self,
        outbox: StubWriter,
        turn: AbstractAsyncContextManager[object],
        *,
        session: AsyncSession | None,
        connection: AsyncConnection | None,
    ) -> None:
        super().__init__(session=session, connection=connection)
        self._outbox = outbox
        self._unawaited: set[SendAwaitable[Any]] = set()
        self._turn = turn  # a lock of the loop

    def send(
        self, topic: str | Topic[T], payload: T, **options: Unpack[StubOptions]
    ) -> Coroutine[Any, Any, str]:
        """Send `payload` if and only if this transaction commits; see `Transaction.send`.

        You must await it. A block with an unawaited `send` raises at its end and is rolled back.
        Sends that are gathered run one after another.
        """
        name = name_of(topic)
        return self._sending(
            lambda source: self._outbox.write_stub(source, name, payload, **options)
        )

    def send_many(
        self, topic: str | Topic[T], payloads: Iterable[T], **options: Unpack[ManyOptions[T]]
    ) -> Coroutine[Any, Any, list[str]]:
        """Send every payload in few statements; see `Transaction.send_many`. You must await it."""
        name = name_of(topic)
        return self._sending(
            lambda source: self._outbox.write_many(source, name, payloads, **options)
        )

    def _sending(self, write: Callable[[Session | Connection], T]) -> "SendAwaitable[T]":
        self._check_open()
        source = self.session if self._connection is None else self._connection
        return SendAwaitable(self._in_turn(source, write), self._unawaited)

    async def _in_turn(
        self, source: AsyncSession | AsyncConnection, write: Callable[[Session | Connection], T]
    ) -> T:
        async with self._turn:  # a session does one thing at a time, and tasks may be gathered
            self._check_open()
            return await source.run_sync(write)

    async def end(self) -> None:
        """Take no more sends, and let the one that runs end: another task may have begun it."""
        self.is_open = False
        async with self._turn:
            pass

    def check_sent(self) -> None:
        """Check that every `send` of this block was awaited.

        Raises:
            UsageError: a `send` was not awaited.
        """
        if self._unawaited:
            for each in list(self._unawaited):
                each.close()
            raise UsageError(
                "tx.send(…) was not awaited in this block: write `await tx.send(…)`; in a def "
                "endpoint take sync_transaction(mq)"
            )


class SendAwaitable(Coroutine[Any, Any, T]):
    """A started `send`. It remembers whether it was awaited."""

    def __init__(self, work: Coroutine[Any, Any, T], unawaited: "set[SendAwaitable[Any]]") -> None:
        self._work = work
        self._unawaited = unawaited
        self._is_closed = False
        unawaited.add(self)

    def __await__(self) -> Generator[Any, Any, T]:
        self._unawaited.discard(self)
        return self._work.__await__()

    def send(self, value: Any) -> Any:
        """Continue the coroutine; called by the task that runs it."""
        if self._is_closed:  # a task that begins after the block
            raise ended()
        self._unawaited.discard(self)
        return self._work.send(value)

    def throw(self, *error: Any) -> Any:
        """Throw an error into the coroutine; called by the task that runs it."""
        self._unawaited.discard(self)
        return self._work.throw(*error)

    def close(self) -> None:
        """Close the coroutine; it no longer counts as unawaited."""
        self._unawaited.discard(self)
        self._is_closed = True
        self._work.close()
