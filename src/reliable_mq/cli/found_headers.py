"""Finds messages by a header: their correlation id, by its index, or any other one of the newest.

Receives the whole text of the header. A header that is masked is not found: a match would say that
a guess is right.
"""

import json
from collections.abc import Iterable, Sequence, Sized
from typing import Any, NamedTuple

from sqlalchemy import Select, Table, select

from reliable_mq.cli.database_options import SensitiveOf
from reliable_mq.database.sql_database import Database
from reliable_mq.database.sql_statement_limit import limit_statements
from reliable_mq.database.sql_stub_table import correlated_rows
from reliable_mq.errors import UsageError
from reliable_mq.escalate.stub_filter import StubFilter, is_correlation_masked, without_masked
from reliable_mq.outbox.correlation import correlation_of, kept_correlation
from reliable_mq.sensitive import SensitiveFields

MATCHES_MAX = 50
PATIENT_SECONDS = 600.0
"""A person at a terminal can end a command that takes too long."""
HEADER_STUBS, HEADER_LENGTH_MIN = 20_000, 6
"""A header is looked for in so many of the newest stubs, if it has so many characters."""
_OF_HEADERS = ("message_id", "topic", "properties")


class CorrelationSearch(NamedTuple):
    """A search for the newest messages with a correlation id.

    `text`: the whole id. `topics`: those that the application declares. `sensitive_of`: returns the
    sensitive fields of a topic. `seconds`: a database ends a statement after this time.
    """

    text: str
    topics: Sequence[str]
    sensitive_of: SensitiveOf
    seconds: float = PATIENT_SECONDS

    def ids(self, databases: Iterable[Database]) -> list[str]:
        """Return the ids of the messages in all databases.

        Those without a column are looked for if there are others with the id: processes of both
        releases may send messages of one request. If there are none, `ids_by_header` finds them.
        """
        asked = list(databases)
        found = dict.fromkeys(each for database in asked for each in self.by_index(database))
        if self.may_have_older(found):
            found |= dict.fromkeys(each for one in asked for each in self.without_column(one))
        return list(found)[:MATCHES_MAX]

    @staticmethod
    def may_have_older(found: Sized) -> bool:
        """Return whether messages without a column are looked for, too."""
        return 0 < len(found) < MATCHES_MAX

    def by_index(self, database: Database) -> list[str]:
        """Return the ids of the messages of a database, by the index of correlation ids."""
        hidden = self._hidden_topics()
        if hidden is None:
            return []
        with database.forgiving_engine.begin() as connection:
            limit_statements(connection, self.seconds)
            wanted = newest_correlated(database.stubs, self.text, hidden)
            return self._shown(connection.execute(wanted).all())

    def without_column(self, database: Database) -> list[str]:
        """Return the ids of messages without a correlation id in the column of the index.

        They are of the release before, or of plain SQL. The newest `HEADER_STUBS` are looked at.
        """
        hidden = self._hidden_topics()
        if hidden is None:
            return []
        rows = _with_header(database, self.text, self.seconds, hidden)
        return self._shown(
            row for row in rows if correlation_of(_headers(row.properties)) == self.text
        )

    def _hidden_topics(self) -> tuple[str, ...] | None:
        """Return the topics that mask the id; None: all topics do."""
        wanted = StubFilter(correlation_id=self.text)
        try:
            return without_masked(wanted, self.topics, self.sensitive_of).hidden_topics
        except UsageError:
            return None

    def _shown(self, rows: Iterable[Any]) -> list[str]:
        """Return the ids of the rows whose correlation id is not masked."""
        return [
            row.message_id
            for row in rows
            if not is_correlation_masked(self.sensitive_of(row.topic), self.text)
        ]


def newest_correlated(
    stubs: Table, text: str, hidden: Sequence[str] = ()
) -> Select[tuple[str, str]]:
    """Return the statement for id and topic of the newest stubs with a correlation id.

    The index has them in this order: as many rows are read as are wanted, however many there are.
    With topics that mask the id, the newest `HEADER_STUBS` are looked at for others. The condition
    is a range of one value. If it were equal, PostgreSQL could walk the table by its key instead,
    until it has found enough: it does not know that all of them may be old.
    """
    column, kept, most = stubs.c, kept_correlation(text), 2 * MATCHES_MAX
    newest = (
        select(column.message_id, column.topic)
        .where(correlated_rows(stubs), column.correlation_id.between(kept, kept))
        .order_by(column.correlation_id.desc(), column.seq.desc())
    )
    if not hidden:
        return newest.limit(most)
    looked = newest.add_columns(column.seq).limit(HEADER_STUBS).subquery().c
    wanted = select(looked.message_id, looked.topic).where(looked.topic.not_in(hidden))
    return wanted.order_by(looked.seq.desc()).limit(most)


def ids_by_header(
    databases: Iterable[Database],
    text: str,
    sensitive_of: SensitiveOf,
    seconds: float = PATIENT_SECONDS,
) -> list[str]:
    """Return the ids of the newest messages that have a text as a header, as a request id.

    A trace id is found, too, in `traceparent`. No index has these headers: so only the newest
    `HEADER_STUBS` of each database are looked at. A header that is masked is not found: a match
    would say that a guess is right.

    Args:
        databases: those that are asked.
        text: the whole value of a header, or a trace id.
        sensitive_of: returns the sensitive fields of a topic.
        seconds: the database ends a statement after this time.
    """
    found: dict[str, None] = {}
    for database in databases:
        found |= dict.fromkeys(
            row.message_id
            for row in _with_header(database, text, seconds)
            if _has_header(_headers(row.properties), text, sensitive_of(row.topic))
        )
    return list(found)[:MATCHES_MAX]


def _with_header(
    database: Database, text: str, seconds: float, without_column: Sequence[str] | None = None
) -> Sequence[Any]:
    """Return id, topic and properties of the newest stubs with a text in their properties.

    Args:
        database: it is asked for its newest `HEADER_STUBS`.
        text: none is looked for if it is shorter than `HEADER_LENGTH_MIN`.
        seconds: the database ends the statement after this time.
        without_column: only stubs without a correlation id in its column, and not of these topics.
            None: all stubs.
    """
    if len(text) < HEADER_LENGTH_MIN:
        return []
    column = database.stubs.c
    newest = (
        select(column.seq, *(column[name] for name in _OF_HEADERS), column.correlation_id)
        .order_by(column.seq.desc())
        .limit(HEADER_STUBS)
        .subquery()
    )
    wanted = (
        select(*(newest.c[name] for name in _OF_HEADERS))
        .where(newest.c.properties.contains(json.dumps(text)[1:-1], autoescape=True))
        .order_by(newest.c.seq.desc())
        .limit(2 * MATCHES_MAX)
    )
    if without_column is not None:
        is_older = newest.c.correlation_id.is_(None)
        wanted = wanted.where(is_older, newest.c.topic.not_in(without_column))
    with database.forgiving_engine.begin() as connection:
        limit_statements(connection, seconds)
        return connection.execute(wanted).all()


def _headers(properties: str) -> dict[str, Any]:
    """Return the properties of a stub; empty if plain SQL wrote what is none."""
    try:
        headers = json.loads(properties)
    except ValueError:
        return {}
    return headers if isinstance(headers, dict) else {}


def _has_header(headers: dict[str, Any], text: str, fields: SensitiveFields) -> bool:
    seen = fields.masked_headers(headers)
    is_header = any(value == text and seen[name] == text for name, value in headers.items())
    return is_header or f"-{text}-" in str(seen.get("traceparent", ""))
