"""The outbox of `mq.transaction(half=True)`: the broker gets the message before the row is written.

Receives what the outbox receives. Sends a half to the broker, then writes the stub into the
transaction. After the commit, the relay commits the half. If the broker refuses the half, the send
raises here, while the business can still be rolled back.
"""

from collections.abc import Coroutine, Sequence
from typing import Any, NamedTuple, Protocol

from sqlalchemy import Connection
from sqlalchemy.exc import DBAPIError, IntegrityError
from sqlalchemy.util import await_only

from reliable_mq.database.sql_transactions import Handover
from reliable_mq.errors import HalfRolledBack, MessageRefused
from reliable_mq.outbox.sql_outbox import SqlOutbox
from reliable_mq.outbox.sql_stubs import SqlStubs
from reliable_mq.outbox.stub import Stub

_TIME_DIGITS = 12  # of an id that this library made, see `message.new_message_id`


class HalfBroker(Protocol):
    """Sends and rolls back halves."""

    def send(self, stubs: Sequence[Stub]) -> None: ...

    def send_async(self, stubs: Sequence[Stub]) -> Coroutine[Any, Any, None]: ...

    def roll_back(self, stubs: Sequence[Stub]) -> None: ...


class HalfHandover(NamedTuple):
    """Hands committed stubs to the relay, and rolls back the halves of rolled-back stubs."""

    relay: Handover
    halves: HalfBroker

    def accept_committed(self, stubs: list[Stub]) -> None:
        """Hand over committed stubs."""
        self.relay.accept_committed(stubs)

    def accept_rolled_back(self, stubs: list[Stub]) -> None:
        """Roll back the halves of stubs that were rolled back."""
        self.halves.roll_back(stubs)


class HalfOutbox(SqlOutbox):
    """Writes stubs whose messages wait at a broker as halves.

    Args:
        halves: sends and rolls back the halves.
        stubs, relay, **named: see `SqlOutbox`.
    """

    _may_hold = False  # a half refers to a row that is there

    def __init__(self, halves: HalfBroker, stubs: SqlStubs, relay: Handover, **named: Any) -> None:
        super().__init__(stubs, HalfHandover(relay, halves), **named)
        self._halves = halves

    def _before_insert(self, connection: Connection, stubs: Sequence[Stub]) -> None:
        if any(stub.deliver_time is not None for stub in stubs):
            raise MessageRefused("a half message cannot be delayed: send it without half=True")
        if connection.dialect.is_async:
            await_only(self._halves.send_async(stubs))
        else:
            self._halves.send(stubs)

    def _not_inserted(self, stubs: Sequence[Stub], now: float, error: DBAPIError) -> None:
        self._halves.roll_back(stubs)
        made = f"{int(now * 1000):0{_TIME_DIGITS}X}"
        if isinstance(error, IntegrityError) and all(s.message_id.startswith(made) for s in stubs):
            raise HalfRolledBack(
                "a broker checked back on the half message before its stub was written, and the "
                "answer was: no stub. This took longer than the broker's transactionTimeOut; run "
                "the transaction again"
            ) from error
        super()._not_inserted(stubs, now, error)
