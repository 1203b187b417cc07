"""Skip messages for a consumer group, for one person: in the database of the group's consume log.

Receives databases, a group and message ids. The command and the console use it alike.
"""

from collections.abc import Iterator, Mapping, Sequence

from reliable_mq.confirm.sql_confirmation import confirmation_of
from reliable_mq.database.sql_database import Database
from reliable_mq.errors import UsageError
from reliable_mq.escalate.sql_audit import SqlAudit
from reliable_mq.escalate.sql_skips import SkipCase, SkipView, SqlSkips

PAGE_ROWS = 500


class SkipActions:
    """Looks at messages of a group, and skips them.

    Args:
        databases: those that may have the consume log of the group, by name.
        group: the consumer group.
        actor: the person; written to the audit.
        why: the person's reason; written to the audit.
        run_id: identifies the entries of this work in the audit, at most 32 characters.
    """

    def __init__(
        self,
        databases: Mapping[str, Database],
        group: str,
        *,
        actor: str = "",
        why: str = "",
        run_id: str | None = None,
    ) -> None:
        self._databases = databases
        self._group = group
        self._actor = actor
        self._why = why
        self._run_id = run_id
        self._skips = {name: _skips_of(each) for name, each in databases.items()}

    def check_group(self, known: frozenset[str] | None = None) -> None:
        """Check that a consume log here is of the group.

        Args:
            known: the groups of the application; None: there is none.

        Raises:
            UsageError: no database has a row of it.
        """
        for name, database in self._databases.items():
            with database.forgiving_engine.begin() as connection:
                if self._skips[name].knows(connection, self._group):
                    return
        if known is None or self._group in known:
            names = ", ".join(self._databases)
            raise UsageError(
                f"group {self._group} has no row in the consume logs of {names}: it has received"
                " nothing, or its consume log is in another database; give that one"
            )
        raise UsageError(
            f"there is no group {self._group}; this application knows"
            f" {', '.join(sorted(known)) or 'none'}"
        )

    def views(self, message_ids: Sequence[str]) -> dict[str, SkipView]:
        """Return what there is to be skipped, by message id."""
        found: dict[str, SkipView] = {}
        for name, ids in self._placed(message_ids):
            database = self._databases[name]
            with database.forgiving_engine.begin() as connection:
                now = database.clock.now_on(connection)
                found |= self._skips[name].views(connection, self._group, ids, now)
        return {each: found[each] for each in message_ids}

    def skip(self, message_ids: Sequence[str]) -> Iterator[dict[str, str]]:
        """Skip messages. Yield, after each part, why each was not skipped; "": it was."""
        for name, ids in self._placed(message_ids):
            database = self._databases[name]
            with database.forgiving_engine.begin() as connection:
                yield self._skips[name].skip(
                    *(connection, self._group, ids),
                    actor=self._actor,
                    why=self._why,
                    now=database.clock.now_on(connection),
                    run_id=self._run_id,
                )

    def _placed(self, message_ids: Sequence[str]) -> Iterator[tuple[str, list[str]]]:
        """Yield messages part by part, each with the database that has their rows.

        A message that no database has goes to the first one, whose audit notes that.
        """
        for at in range(0, len(message_ids), PAGE_ROWS):
            left = list(dict.fromkeys(message_ids[at : at + PAGE_ROWS]))
            places: dict[str, list[str]] = {}
            for name, database in self._databases.items():
                if len(self._databases) == 1:
                    break
                with database.forgiving_engine.begin() as connection:
                    now = database.clock.now_on(connection)
                    views = self._skips[name].views(connection, self._group, left, now)
                here = [each for each in left if views[each].case is not SkipCase.NOT_RECEIVED]
                places[name] = here
                left = [each for each in left if each not in here]
            first = next(iter(self._databases))
            places[first] = [*places.get(first, ()), *left]
            yield from ((name, ids) for name, ids in places.items() if ids)


def _skips_of(database: Database) -> SqlSkips:
    audit, confirmation = SqlAudit(database.audit), confirmation_of(database)
    return SqlSkips(database.logs, confirmation, audit, database.dialect)
