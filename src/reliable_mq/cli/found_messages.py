"""Finds the messages that a person means: by message id, business key, correlation id or header.

Receives one text. Asks the databases first, and the brokers for what no database knows. The
searches for headers are in `found_headers`.
"""

from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from sqlalchemy import Connection, select

from reliable_mq.cli.database_options import OpenedDatabase
from reliable_mq.cli.found_headers import (
    MATCHES_MAX,
    PATIENT_SECONDS,
    CorrelationSearch,
    ids_by_header,
)
from reliable_mq.client.settings import ClientSettings
from reliable_mq.database.sql_database import Database
from reliable_mq.database.sql_run_tables import known_tables
from reliable_mq.database.sql_statement_limit import limit_statements
from reliable_mq.errors import FoundNowhere, NoRoute, ReliableMQError
from reliable_mq.escalate.sql_history import SqlHistory
from reliable_mq.escalate.sql_stub_list import SqlStubList
from reliable_mq.escalate.stub_filter import StubFilter
from reliable_mq.escalate.timeline import MessageHistory, merged
from reliable_mq.message import ReceivedMessage
from reliable_mq.names import DEAD_LETTER_PREFIX, RETRY_PREFIX
from reliable_mq.outbox.stub import groups_of
from reliable_mq.settings import EMBEDDED
from reliable_mq.wire.pop_handle import RETRY, RETRY_V2, stored_topic

if TYPE_CHECKING:
    from reliable_mq.client.administering.thread_admin import Admin


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
    of_request = CorrelationSearch(text, found.topics, found.sensitive_of).ids(databases)
    ours = dict.fromkeys([*ids_by_key(databases, text), *of_request])
    known = list(ours) or ids_at_brokers(found, text)
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
