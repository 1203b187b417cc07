"""`mq.transaction()`: the business transaction whose messages are stubs in the same commit.

Receives a session, or makes one. Hands on a block that sends into its transaction. Refuses to
decide over a transaction that somebody else began.
"""

from collections.abc import Callable, Coroutine, Generator
from types import TracebackType
from typing import Any, TypeVar, Unpack

from sqlalchemy.ext.asyncio import AsyncSession
from sqlalchemy.orm import Session

from reliable_mq.errors import InvariantBroken, UsageError
from reliable_mq.outbox.sql_outbox import SqlOutbox, StubOptions


class _Block:
    """Whether the block of a transaction still runs: after it nothing would be committed."""

    is_open = True

    def _check_open(self) -> None:
        if not self.is_open:
            raise UsageError("this transaction has ended: send within its `with` block")


class Transaction(_Block):
    """What `with mq.transaction() as tx` gives: the session, and `send` into its transaction."""

    def __init__(self, outbox: SqlOutbox, session: Session) -> None:
        self._outbox = outbox
        self.session = session

    def send(self, topic: str, payload: Any, **options: Unpack[StubOptions]) -> str:
        """Send `payload` if and only if this transaction commits; return the message id.

        Args:
            topic: the topic; it is created at the broker when nobody has.
            payload: a pydantic model, dataclass, dict, list, str or bytes.
            tag: what consumers may filter by.
            key: the message key, to find the message by (an order number, say).
            ordering_key: messages with one ordering key are handled one at a time, in the order of
                their rows; a row is drawn when this is called, so lock what the key stands for
                before. With a delay a message keeps its delay, and later ones may overtake it.
            delay: deliver so much later; rounded up to the broker's next delay level, 2 h at most.
            properties: user properties.
            required_groups: the consumer groups that must have handled the message before it is
                confirmed. None: those that this application registered for the topic, or
                `mq.topic(…, groups=…)` named. Empty: the broker's acknowledgement confirms.
            message_id: 32 characters of a-z A-Z 0-9 _ - to use instead of a new time-ordered id.

        Only topic and payload must be given.

        Raises:
            MessageRefused: when the payload, the topic's name or another part cannot be sent. Tag
                and keys have 255 printable characters at most.
            UsageError: when the delay is too long or no timedelta, the id or a group's name
                malformed, or the session bound to another database than the application's.
            ConfigurationError: when our table is missing in the session's database.
        """
        self._check_open()
        return self._outbox.write(self.session, topic, payload, **options)


class AsyncTransaction(_Block):
    """What `async with mq.transaction() as tx` gives: an `AsyncSession`, and `await tx.send(…)`."""

    def __init__(self, outbox: SqlOutbox, session: AsyncSession) -> None:
        self._outbox = outbox
        self.session = session

        self._unawaited: set[Sending] = set()

    def send(
        self, topic: str, payload: Any, **options: Unpack[StubOptions]
    ) -> Coroutine[Any, Any, str]:
        """Send `payload` if and only if this transaction commits; see `Transaction.send`.

        To be awaited; a block with one that was not raises at its end and is rolled back.
        """
        self._check_open()
        return Sending(
            self.session.run_sync(
                lambda session: self._outbox.write(session, topic, payload, **options)
            ),
            self._unawaited,
        )

    def check_sent(self) -> None:
        """Raise when a `send` of this block was never awaited.

        Raises:
            UsageError: one was not.
        """
        if self._unawaited:
            for each in list(self._unawaited):
                each.close()
            raise UsageError("tx.send(…) was not awaited in this block: write `await tx.send(…)`")


class Sending(Coroutine[Any, Any, str]):
    """A `send` on its way; knows whether anybody has awaited it."""

    def __init__(self, work: Coroutine[Any, Any, str], unawaited: "set[Sending]") -> None:
        self._work = work
        self._unawaited = unawaited
        unawaited.add(self)

    def __await__(self) -> Generator[Any, Any, str]:
        self._unawaited.discard(self)
        return self._work.__await__()

    def send(self, value: Any) -> Any:
        """Go on with it; what a task does."""
        self._unawaited.discard(self)
        return self._work.send(value)

    def throw(self, *error: Any) -> Any:
        """Let it fail; what a task does."""
        self._unawaited.discard(self)
        return self._work.throw(*error)

    def close(self) -> None:
        """Let it be."""
        self._unawaited.discard(self)
        self._work.close()


B = TypeVar("B", bound=_Block)


class TransactionScope:
    """The block of `mq.transaction(…)`, for `with` and `async with`.

    Without a session it makes one, commits when the block ends well, rolls back when it raises,
    and closes it. With a session that is in no transaction it begins one and ends it the same way.
    With a session that is already in a transaction it joins: who began it commits it. A query or
    an `add` begins one too, so after these the session's owner calls `commit()`, or puts all of it
    into `with session.begin():`. An error line tells of messages whose owner did neither.
    """

    def __init__(
        self,
        outbox: SqlOutbox,
        new_session: Callable[[], Session],
        new_async_session: Callable[[], AsyncSession],
        session: Session | AsyncSession | None,
    ) -> None:
        self._outbox = outbox
        self._new_session = new_session
        self._new_async_session = new_async_session
        self._given = session
        self._joined = False
        self._block: _Block | None = None

    def _ended(self, kind: type[B]) -> B:
        """Return the block, which is to send nothing more."""
        block = self._block
        if not isinstance(block, kind):
            raise InvariantBroken("a block ends as it began, with or without async")
        block.is_open = False
        return block

    def __enter__(self) -> Transaction:
        if isinstance(self._given, AsyncSession):
            raise UsageError("an AsyncSession takes `async with mq.transaction(session)`")
        session = self._given or self._new_session()
        self._joined = session.in_transaction()
        if not self._joined:
            session.begin()
        self._block = block = Transaction(self._outbox, session)
        return block

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        session = self._ended(Transaction).session
        if self._joined:
            return
        try:
            if error is None:
                session.commit()
            else:
                session.rollback()
        except BaseException:
            session.rollback()
            raise
        finally:
            if self._given is None:
                session.close()

    async def __aenter__(self) -> AsyncTransaction:
        if isinstance(self._given, Session):
            raise UsageError("a Session takes `with mq.transaction(session)`, without async")
        session = self._given or self._new_async_session()
        self._joined = session.in_transaction()
        if not self._joined:
            await session.begin()
        self._block = block = AsyncTransaction(self._outbox, session)
        return block

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        block = self._ended(AsyncTransaction)
        session = block.session
        if self._joined:
            if error is None:
                block.check_sent()
            return
        try:
            if error is None:
                block.check_sent()
                await session.commit()
            else:
                await session.rollback()
        except BaseException:
            await session.rollback()
            raise
        finally:
            if self._given is None:
                await session.close()
