"""Finds the messages that a person means: by message id, business key, correlation id or header.

Receives one text. Asks the databases first, and the brokers for what no database knows.
"""

import json
from collections.abc import Collection, Iterable, Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from sqlalchemy import Connection, Select, Table, select

from reliable_mq.cli.database_options import OpenedDatabase, SensitiveOf
from reliable_mq.client.settings import ClientSettings
from reliable_mq.database.sql_database import Database
from reliable_mq.database.sql_run_tables import known_tables
from reliable_mq.database.sql_statement_limit import limit_statements
from reliable_mq.database.sql_stub_table import correlated_rows
from reliable_mq.errors import FoundNowhere, NoRoute, ReliableMQError
from reliable_mq.escalate.sql_history import SqlHistory
from reliable_mq.escalate.sql_stub_list import SqlStubList
from reliable_mq.escalate.stub_filter import StubFilter, is_correlation_masked
from reliable_mq.escalate.timeline import MessageHistory, merged
from reliable_mq.message import ReceivedMessage
from reliable_mq.names import DEAD_LETTER_PREFIX, RETRY_PREFIX
from reliable_mq.outbox.correlation import correlation_of, kept_correlation
from reliable_mq.outbox.stub import groups_of
from reliable_mq.sensitive import SensitiveFields
from reliable_mq.settings import EMBEDDED
from reliable_mq.wire.pop_handle import RETRY, RETRY_V2, stored_topic

if TYPE_CHECKING:
    from reliable_mq.client.administering.thread_admin import Admin

MATCHES_MAX = 50
PATIENT_SECONDS = 600.0
"""A person at a terminal can end a command that takes too long."""


def history_of(
    databases: Iterable[Database], message_id: str, seconds: float = PATIENT_SECONDS
) -> MessageHistory:
    """Return all that the databases know about a message; it is empty if they know nothing.

    Args:
        databases: those that are asked.
        message_id: the message.
        seconds: the database ends a statement after this time.
    """
    return merged([_history(each, message_id, seconds) for each in databases])


def _history(database: Database, message_id: str, seconds: float) -> MessageHistory:
    runs, findings = known_tables(database.prefix)
    ledgers = SqlHistory(
        stubs=database.stubs,
        logs=database.logs,
        confirmations=database.confirmations,
        escalations=database.escalations,
        alerts=database.alerts,
        notifiers=database.notifiers,
        audit=database.audit,
        findings=findings,
        runs=runs,
    )
    with database.forgiving_engine.begin() as connection:
        limit_statements(connection, seconds)
        return ledgers.read(connection, message_id)


def ids_of(databases: Sequence[Database], found: OpenedDatabase, text: str) -> list[str]:
    """Return the ids of the messages with an id, a key, a correlation id or another header.

    None: no ledger knows one.

    Args:
        databases: those that are asked.
        found: says which brokers are asked for what no database knows.
        text: what a person has typed.
    """
    if not history_of(databases, text).is_empty:
        return [text]
    ours = [*ids_by_key(databases, text), *ids_by_correlation(databases, text, found.sensitive_of)]
    known = list(dict.fromkeys(ours)) or ids_at_brokers(found, text)
    return known or ids_by_header(databases, text, found.sensitive_of)


def ids_by_key(
    databases: Iterable[Database],
    key: str,
    seconds: float = PATIENT_SECONDS,
    *,
    everywhere: bool = True,
) -> list[str]:
    """Return the ids of the messages with a business key, as the databases know them.

    A message key is looked up first, in stubs and escalations. If there is none, an ordering key:
    it has no index.

    Args:
        databases: those that are asked.
        key: the key.
        seconds: the database ends a statement after this time.
        everywhere: whether an ordering key is looked for in all stubs, not only in the newest.
    """
    found: dict[str, None] = {}
    for database in databases:
        with database.forgiving_engine.begin() as connection:
            limit_statements(connection, seconds)
            for wanted in (StubFilter(key=key), StubFilter(ordering_key=key)):
                stubs = SqlStubList(database.stubs, database.logs, wanted)
                if everywhere:
                    rows = stubs.newest(connection, MATCHES_MAX)
                else:
                    rows, _ = stubs.newest_before(connection, None, MATCHES_MAX)
                found |= dict.fromkeys(row["message_id"] for row in rows)
                if rows:
                    break
            found |= dict.fromkeys(_escalated(connection, database, key))
    return list(found)[:MATCHES_MAX]


def _escalated(connection: Connection, database: Database, key: str) -> list[str]:
    column = database.escalations.c
    wanted = select(column.message_id).where(column.message_key == key).limit(MATCHES_MAX)
    return list(connection.execute(wanted).scalars())


def ids_by_correlation(
    databases: Collection[Database],
    text: str,
    sensitive_of: SensitiveOf,
    seconds: float = PATIENT_SECONDS,
) -> list[str]:
    """Return the ids of the newest messages with a correlation id, by its index.

    Stubs of the release before, and of plain SQL, have none in the column of the index. If there
    are others with the id, the newest `HEADER_STUBS` of each database are looked at for them:
    processes of both releases may send messages of one request. If there are none, a search for
    headers finds them. An id that is masked is not found: a match would say that a guess is right.

    Args:
        databases: those that are asked.
        text: the whole correlation id.
        sensitive_of: returns the sensitive fields of a topic.
        seconds: the database ends a statement after this time.
    """
    found: dict[str, None] = {}
    for database in databases:
        with database.forgiving_engine.begin() as connection:
            limit_statements(connection, seconds)
            rows = connection.execute(newest_correlated(database.stubs, text)).all()
        _note(found, rows, sensitive_of, text)
    if 0 < len(found) < MATCHES_MAX:
        for database in databases:
            older = _with_header(database, text, seconds, column_is_null=True)
            named = [row for row in older if correlation_of(_headers(row.properties)) == text]
            _note(found, named, sensitive_of, text)
    return list(found)[:MATCHES_MAX]


def _note(
    found: dict[str, None], rows: Iterable[Any], sensitive_of: SensitiveOf, text: str
) -> None:
    """Note the ids of rows where a correlation id is not masked."""
    for row in rows:
        if not is_correlation_masked(sensitive_of(row.topic), text):
            found[row.message_id] = None


def newest_correlated(stubs: Table, text: str) -> Select[tuple[str, str]]:
    """Return the statement for id and topic of the newest stubs with a correlation id.

    The index has them in this order: as many rows are read as are wanted, however many there are.
    The condition is a range of one value. If it were equal, PostgreSQL could walk the table by its
    key instead, until it has found enough: it does not know that all of them may be old.
    """
    column, kept = stubs.c, kept_correlation(text)
    return (
        select(column.message_id, column.topic)
        .where(correlated_rows(stubs), column.correlation_id.between(kept, kept))
        .order_by(column.correlation_id.desc(), column.seq.desc())
        .limit(2 * MATCHES_MAX)
    )


HEADER_STUBS, HEADER_LENGTH_MIN = 20_000, 6
"""A header is looked for in so many of the newest stubs, if it has so many characters."""
_OF_HEADERS = ("message_id", "topic", "properties")


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
    database: Database, text: str, seconds: float, *, column_is_null: bool = False
) -> Sequence[Any]:
    """Return id, topic and properties of the newest stubs with a text in their properties.

    Args:
        database: it is asked for its newest `HEADER_STUBS`.
        text: none is looked for if it is shorter than `HEADER_LENGTH_MIN`.
        seconds: the database ends the statement after this time.
        column_is_null: only stubs without a correlation id in its column.
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
    if column_is_null:
        wanted = wanted.where(newest.c.correlation_id.is_(None))
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


def ids_at_brokers(found: OpenedDatabase, key: str) -> list[str]:
    """Return the ids of the messages with a key in the topics of an application, at its brokers.

    The application may only consume: then other databases have the stubs. "": no broker is known,
    or none answers.
    """
    if not found.topics or why_not_asked(found.broker):
        return []
    # Imported late: most commands on stubs need no client.
    from reliable_mq.client.thread_client import Client  # noqa: PLC0415

    try:
        with Client(found.broker, settings=found.client) as client:
            return ids_by_key_at(client.admin, found.topics, key)
    except ReliableMQError:  # `records_of` says why
        return []


def ids_by_key_at(admin: "Admin", topics: Iterable[str], key: str) -> list[str]:
    """Return the ids of the messages with a key in some topics, from the indexes of brokers."""
    ids: dict[str, None] = {}
    for topic in topics:
        try:
            answers = admin.messages.by_key(topic, key)
        except (NoRoute, FoundNowhere):
            continue
        ids |= dict.fromkeys(each.message_id for each in answers.value)
    return list(ids)[:MATCHES_MAX]


NOT_REACHED = "could not be asked"


def why_not_asked(name_servers: str) -> str:
    """Return why the broker cannot be asked; "": it can be."""
    if not name_servers:
        return "not asked: give --app or --broker"
    if name_servers.startswith(EMBEDDED):
        return "not asked: it runs inside the application's process"
    return ""


def records_of(
    message_id: str,
    history: MessageHistory,
    name_servers: str,
    client: ClientSettings,
    more_topics: Sequence[str] = (),
) -> tuple[list[ReceivedMessage], str]:
    """Return the broker's records of a message, or why it was not asked.

    Args:
        message_id: the message.
        history: what the databases know; it names topics and consumer groups.
        name_servers: "host:port;host:port"; "": unknown.
        client: the settings to connect to them.
        more_topics: topics to look into, if the databases know none.
    """
    if why := why_not_asked(name_servers):
        return [], why
    # Imported late: most commands on stubs need no client.
    from reliable_mq.client.administering.thread_browser import Browser  # noqa: PLC0415

    topics = {row["topic"] for row in (*history.logs, *history.escalations)}
    groups = {row["consumer_group"] for row in history.logs}
    if history.stub is not None:
        topics.add(history.stub["topic"])
        groups.update(groups_of(history.stub["required_groups"]))
    sent_to = set(topics)
    for group in groups:
        topics |= {f"{RETRY_PREFIX}{group}", f"{DEAD_LETTER_PREFIX}{group}"}
        # A group that consumes by the message has a retry topic for each topic.
        topics |= {
            stored_topic(topic, group, each) for topic in sent_to for each in (RETRY, RETRY_V2)
        }
    try:
        with Browser(name_servers, client) as browser:
            found = [
                browser.find(topic, message_id) for topic in sorted(topics or set(more_topics))
            ]
    except ReliableMQError as error:
        return [], f"{NOT_REACHED}: {error}"
    return [record for records in found for record in records], ""


def overview(history: MessageHistory, message_id: str) -> dict[str, Any]:
    """Return a message as a row of a list of matches."""
    stub: Any = history.stub or {}
    first: Any = next(iter((*history.logs, *history.escalations)), {})
    return {
        "message_id": message_id,
        "topic": stub.get("topic") or first.get("topic", ""),
        "tag": stub.get("tag", ""),
        "key": stub.get("message_key") or first.get("message_key", ""),
        "groups": sorted(
            {*groups_of(stub.get("required_groups", ""))}
            | {row["consumer_group"] for row in history.logs}
        ),
        "time": stub.get("create_date") or first.get("create_date"),
    }


def utc_now() -> datetime:
    """Return the present time of this machine."""
    return datetime.now(UTC)
