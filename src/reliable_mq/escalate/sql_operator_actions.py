"""Retry or void many stubs for a person: selected by id or by a filter.

Each transaction changes a few hundred stubs, so that the rows are locked for a short time only. The
result is returned part by part, so that the caller can show the progress. `sql_settlement` changes
the stubs of one part.
"""

from collections.abc import Iterator, Sequence
from datetime import datetime
from itertools import islice
from typing import Any

import msgspec
from sqlalchemy import Engine, select

from reliable_mq.database.row_values import StubStatus
from reliable_mq.database.sql_database import Database
from reliable_mq.database.sql_statement_limit import limit_statements
from reliable_mq.errors import UsageError
from reliable_mq.escalate.sql_settlement import NO_STUB, Seen, operator_actions_of
from reliable_mq.escalate.sql_stub_list import PAGE_ROWS, SqlStubList, StubSum
from reliable_mq.escalate.stub_filter import StubFilter, status_text
from reliable_mq.outbox.stub import StubEvent

SEEN_ROWS = 5_000
VERBS = (StubEvent.RETRY, StubEvent.VOID)
SUMS_SECONDS = 7.0
"""The database ends the statement that counts a selection after this time."""


class OperatorActions:
    """Retries stubs, or voids them, for one person.

    Args:
        database: the database of the stubs.
        verb: `StubEvent.RETRY` or `VOID`.
        actor: the person; written to the audit.
        why: the person's reason; written to the audit.
        engine: where the stubs are changed. None: the database's own.
        run_id: identifies the entries of this work in the audit, at most 32 characters.

    Raises:
        UsageError: when the verb is another one.
    """

    def __init__(
        self,
        database: Database,
        verb: StubEvent,
        *,
        actor: str,
        why: str,
        engine: Engine | None = None,
        run_id: str | None = None,
    ) -> None:
        if verb not in VERBS:
            raise UsageError(f"{verb.value}: a person retries or voids; use one of these verbs")
        self._database = database
        self._engine = database.forgiving_engine if engine is None else engine
        self._actor = actor
        self._why = why
        self._run_id = run_id
        operator_actions = operator_actions_of(database)
        self._step = operator_actions.retry if verb is StubEvent.RETRY else operator_actions.void

    def change_ids(self, message_ids: Sequence[str]) -> Iterator[dict[str, bool]]:
        """Change the stubs with these ids. Yield, after each part, which of its stubs changed."""
        for at in range(0, len(message_ids), PAGE_ROWS):
            yield self._do(message_ids[at : at + PAGE_ROWS])

    def change_seen(self, seen: Seen) -> dict[str, bool]:
        """Change the stubs that are as a person saw them, in one transaction.

        Return which of them changed. At most a few hundred at once.
        """
        return self._do(list(seen), seen)

    def reasons(self, message_ids: Sequence[str]) -> dict[str, str]:
        """Return why stubs were not changed: "there is no such stub", or "it is CONFIRMED"."""
        table = self._database.stubs
        column = table.c
        found: dict[str, str] = {}
        for at in range(0, len(message_ids), PAGE_ROWS):
            some = message_ids[at : at + PAGE_ROWS]
            with self._engine.begin() as connection:
                wanted = select(column.message_id, column.status).where(column.message_id.in_(some))
                rows = connection.execute(wanted).all()
            found |= dict.fromkeys(some, NO_STUB)
            found |= {row.message_id: f"it is {status_text(row.status)}" for row in rows}
        return found

    def chosen(self, wanted: StubFilter) -> "SelectedStubs":
        """Return the stubs that match a filter.

        A filter without a status selects only stubs that wait for a person.

        Raises:
            UsageError: when the filter selects confirmed stubs, or without a status only those that
                wait for no person.
        """
        if wanted.status is StubStatus.CONFIRMED:
            raise UsageError("confirmed stubs are not retried or voided: choose another status")
        if wanted.status is None and wanted.escalated is False:
            raise UsageError("without a status, only stubs that wait for a person are taken")
        if wanted.status is None:
            wanted = msgspec.structs.replace(wanted, escalated=True)
        return SelectedStubs(self._database, wanted)

    def change_selected(self, chosen: "SelectedStubs") -> Iterator[dict[str, bool]]:
        """Change the stubs of a selection; see `change_ids`."""
        for ids in chosen.pages():
            yield self._do(ids)

    def _do(self, message_ids: Sequence[str], seen: Seen | None = None) -> dict[str, bool]:
        with self._engine.begin() as connection:
            now = self._database.clock.now_on(connection)
            return self._step(
                *(connection, message_ids, self._actor, self._why, now),
                seen=seen,
                run_id=self._run_id,
            )


class SelectedStubs:
    """The stubs of a database that match a filter. Each method reads their present state."""

    def __init__(self, database: Database, wanted: StubFilter) -> None:
        self._engine = database.forgiving_engine
        self._stubs = SqlStubList(database.stubs, database.logs, wanted)

    def count(self) -> int:
        """Return the number of stubs."""
        with self._engine.begin() as connection:
            return self._stubs.count(connection)

    def first(self, limit: int) -> list[dict[str, Any]]:
        """Return the oldest `limit` stubs, without their content."""
        with self._engine.begin() as connection:
            return self._stubs.page(connection, 0, limit)[0]

    def sums(self, until: datetime) -> list[StubSum]:
        """Return how many there are by topic and groups; see `SqlStubList.sums`."""
        with self._engine.begin() as connection:
            limit_statements(connection, SUMS_SECONDS)
            return self._stubs.sums(connection, until)

    def seen_pages(self, until: datetime, limit: int) -> Iterator[Seen]:
        """Yield when each was last changed, page by page; none that was changed after `until`.

        Some thousands are read at once: each reading sorts all that match.
        """
        at = 0
        while True:
            with self._engine.begin() as connection:
                seen, at = self._stubs.seen(connection, at, until, max(limit, SEEN_ROWS))
            if not seen:
                return
            rows = iter(seen.items())
            while page := dict(islice(rows, limit)):
                yield page

    def pages(self) -> Iterator[list[str]]:
        """Yield the ids page by page. Stubs of earlier pages are not returned again."""
        at = 0
        while True:
            with self._engine.begin() as connection:
                rows, at = self._stubs.page(connection, at)
            if not rows:
                return
            yield [row["message_id"] for row in rows]
