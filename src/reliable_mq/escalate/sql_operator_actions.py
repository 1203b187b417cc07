"""What a person does to many stubs: chosen by id or by a filter, a few hundred in a transaction.

Receives ids or a filter; hands on what was done, part by part, so that whoever asked can show how
far it is and nobody waits long for the rows. `sql_settlement` does it to those of one part.
"""

from collections.abc import Iterator, Sequence
from typing import Any

import msgspec

from reliable_mq.database.row_values import StubStatus
from reliable_mq.database.sql_database import Database
from reliable_mq.errors import UsageError
from reliable_mq.escalate.sql_settlement import hands_of
from reliable_mq.escalate.sql_stub_list import PAGE_ROWS, SqlStubList
from reliable_mq.escalate.stub_filter import StubFilter
from reliable_mq.outbox.stub import StubEvent

VERBS = (StubEvent.RETRY, StubEvent.VOID)


class OperatorActions:
    """Retries stubs, or voids them, for one person.

    Args:
        database: where they are.
        verb: `StubEvent.RETRY` or `VOID`.
        actor: who; written to the audit.
        why: why; so too.

    Raises:
        UsageError: when the verb is none of a person's.
    """

    def __init__(self, database: Database, verb: StubEvent, *, actor: str, why: str) -> None:
        if verb not in VERBS:
            raise UsageError(f"{verb.value}: a person retries or voids")
        self._database = database
        self._actor = actor
        self._why = why
        hands = hands_of(database)
        self._step = hands.retry if verb is StubEvent.RETRY else hands.void

    def these(self, message_ids: Sequence[str]) -> Iterator[dict[str, bool]]:
        """Do it to stubs; yield for each of a part whether it was done, as soon as it is."""
        for at in range(0, len(message_ids), PAGE_ROWS):
            yield self._do(message_ids[at : at + PAGE_ROWS])

    def chosen(self, wanted: StubFilter) -> "SelectedStubs":
        """Return the stubs that a filter means: those that wait for a person, or in its status.

        Raises:
            UsageError: when it means what is confirmed.
        """
        if wanted.status is StubStatus.CONFIRMED:
            raise UsageError("what is confirmed is neither sent again nor voided")
        if wanted.status is None:
            wanted = msgspec.structs.replace(wanted, escalated=True)
        return SelectedStubs(self._database, wanted)

    def each_of(self, chosen: "SelectedStubs") -> Iterator[dict[str, bool]]:
        """Do it to what was chosen; see `these`."""
        for ids in chosen.pages():
            yield self._do(ids)

    def _do(self, message_ids: Sequence[str]) -> dict[str, bool]:
        now = self._database.clock.measured_now()
        with self._database.forgiving_engine.begin() as connection:
            return self._step(connection, message_ids, self._actor, self._why, now)


class SelectedStubs:
    """The stubs of a database that fit a filter, as they are at the moment of asking."""

    def __init__(self, database: Database, wanted: StubFilter) -> None:
        self._engine = database.forgiving_engine
        self._stubs = SqlStubList(database.stubs, database.logs, wanted)

    def count(self) -> int:
        """Return how many there are."""
        with self._engine.begin() as connection:
            return self._stubs.count(connection)

    def first(self, limit: int) -> list[dict[str, Any]]:
        """Return the oldest, without their content."""
        with self._engine.begin() as connection:
            return self._stubs.page(connection, 0, limit)[0]

    def pages(self) -> Iterator[list[str]]:
        """Yield the ids page by page; what was done no longer fits, or lies behind."""
        at = 0
        while True:
            with self._engine.begin() as connection:
                rows, at = self._stubs.page(connection, at)
            if not rows:
                return
            yield [row["message_id"] for row in rows]
