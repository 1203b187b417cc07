"""Finds what a person types into the one search box: messages, topics and consumer groups.

A message is found by its id, its business key, its correlation id, its offset id or another header.
What is away is named, and what the others know is shown.
"""

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime
from functools import partial
from typing import NamedTuple

from reliable_mq.cli.found_headers import CorrelationSearch, ids_by_header
from reliable_mq.cli.found_messages import (
    history_of,
    ids_by_key,
    ids_by_key_at,
    overview,
)
from reliable_mq.cli.message_standing import Standing, standing
from reliable_mq.client.administering.thread_all_progress import GroupLine
from reliable_mq.console.sources import STATEMENT_SECONDS, ClusterState, ConsoleSources, ask
from reliable_mq.database.sql_database import Database
from reliable_mq.errors import NotFound, UsageError
from reliable_mq.escalate.timeline import MessageHistory, merged

TEXT_LENGTH_MAX = 300
KEY_SECONDS = 2.0
"""A database looks for a key for this time at most."""
_OFFSET_ID = re.compile(r"[0-9A-Fa-f]{32}|[0-9A-Fa-f]{56}")


class Match(NamedTuple):
    """A message that was found."""

    message_id: str
    topic: str
    key: str
    groups: tuple[str, ...]
    time: datetime | None
    standing: Standing


class SearchResult(NamedTuple):
    """What was found. `away`: a line for each source that could not be asked.

    `by_header`: the messages have the text as a header, and no ledger knows it as an id or a key.
    `elsewhere`: topics of the brokers that the application does not declare.
    """

    messages: tuple[Match, ...]
    topics: tuple[str, ...]
    groups: tuple[str, ...]
    away: tuple[str, ...]
    by_header: bool = False
    elsewhere: tuple[str, ...] = ()

    @property
    def only_one(self) -> bool:
        """Whether a single message was found, and nothing else."""
        return len(self.messages) == 1 and not (self.topics or self.groups or self.elsewhere)


class Known(NamedTuple):
    """What databases know of a message, and a line for each that is away.

    `database`: the one that has its stub, if there are several; "": none, or there is only one.
    `log_places`: the database that has the consume log of each group.
    """

    history: MessageHistory
    away: tuple[str, ...]
    database: str = ""
    log_places: Mapping[str, str] = {}


def known_of(sources: ConsoleSources, message_id: str) -> Known:
    """Return what all databases know about a message."""
    histories, away, place = [], [], ""
    log_places: dict[str, str] = {}
    for name in sources.databases:
        answer = ask(_history(sources, name, message_id))
        if answer.value is None:
            away.append(f"Database {name}: {answer.fault}")
        else:
            histories.append(answer.value)
            log_places |= {row["consumer_group"]: name for row in answer.value.logs}
            if answer.value.stub is not None and len(sources.databases) > 1:
                place = name
    return Known(merged(histories), tuple(away), place, log_places)


def _history(sources: ConsoleSources, name: str, message_id: str) -> Callable[[], MessageHistory]:
    def read() -> MessageHistory:
        with sources.place(name):
            return history_of([sources.databases[name]], message_id, STATEMENT_SECONDS)

    return read


def search(sources: ConsoleSources, typed: str) -> SearchResult:
    """Return all that has a text as its id, key or name.

    Blanks at its ends are left out. A key or a correlation id that has them is found, too.
    """
    text = typed.strip()
    known = known_of(sources, text)
    away = dict.fromkeys(known.away)
    histories = {} if known.history.is_empty else {text: known.history}
    others = [] if typed == text else _ids_in_databases(sources, typed, away)
    by_header: list[str] = []
    elsewhere: list[str] = []
    if histories:  # an id of the first message may be the correlation id of those that follow
        others += _correlated(sources, text, away)
    else:
        others += _ids(sources, text, away)
        by_header = [] if others else _ids_by_header(sources, text, away)
        elsewhere = _topics_elsewhere(sources, text, away)
    for each in dict.fromkeys(others or by_header):
        if each not in histories:
            found = known_of(sources, each)
            away |= dict.fromkeys(found.away)
            histories[each] = found.history
    matches = [_match(each, history) for each, history in histories.items()]
    cluster = sources.cluster.look()
    groups = {*(sources.mq._declared.groups), *(each.group for each in _lines(cluster.value))}
    return SearchResult(
        tuple(matches),
        tuple(_named(sources.mq.topics, text)),
        tuple(_named(groups, text)),
        tuple(away),
        bool(by_header),
        tuple(elsewhere),
    )


def _topics_elsewhere(sources: ConsoleSources, text: str, away: dict[str, None]) -> list[str]:
    """Return the topics of the brokers that have the text in their names, without our own."""
    if any(each.startswith("Broker:") for each in away):
        return []  # brokers do not answer, or cannot be asked

    def read() -> list[str]:
        with sources.admin() as admin:
            return admin.topics.names().value

    answer = ask(read)
    if answer.value is None:
        away[f"Broker: {answer.fault}"] = None
    return _named({*(answer.value or ())} - {*map(sources.whole_name, sources.mq.topics)}, text)


def _lines(state: ClusterState | None) -> Sequence[GroupLine]:
    return state.groups if state is not None else ()


def _named(names: Iterable[str], text: str) -> list[str]:
    wanted = text.casefold()
    return sorted(each for each in names if wanted in each.casefold())[:20]


def _ids(sources: ConsoleSources, text: str, away: dict[str, None]) -> list[str]:
    """Return the ids of the messages with a key, a correlation id or an offset id."""
    found = dict.fromkeys(_ids_in_databases(sources, text, away))
    if sources.why_no_cluster:
        away[f"Broker: {sources.why_no_cluster}"] = None
        return list(found)
    if _OFFSET_ID.fullmatch(text):
        offset = ask(lambda: _by_offset_id(sources, text))
        found |= dict.fromkeys(offset.value or ())
        if offset.value is None:
            away[f"Broker: {offset.fault}"] = None
    if not found:
        answer = ask(lambda: _at_brokers(sources, text))
        found |= dict.fromkeys(answer.value or ())
        if answer.value is None:
            away[f"Broker: {answer.fault}"] = None
    return list(found)


def _ids_in_databases(sources: ConsoleSources, text: str, away: dict[str, None]) -> list[str]:
    """Return the ids of the messages with a key or a correlation id, in all databases."""

    def by_key(database: Database) -> list[str]:
        return ids_by_key([database], text, KEY_SECONDS, everywhere=False)

    keyed = _in_each(sources, "key", by_key, away)
    return [*keyed, *_correlated(sources, text, away)]


def _correlated(sources: ConsoleSources, text: str, away: dict[str, None]) -> list[str]:
    """Return the ids of the messages with a correlation id, in all databases.

    One database may have the messages of this release, and another those of the release before.
    """
    mq = sources.mq
    wanted = CorrelationSearch(text, mq.topics, mq._declared.sensitive_of, KEY_SECONDS)
    found = _in_each(sources, "correlation id", wanted.by_index, away)
    if wanted.may_have_older(found):
        found += _in_each(sources, "correlation id", wanted.without_column, away)
    return found


def _in_each(
    sources: ConsoleSources,
    what: str,
    read: Callable[[Database], list[str]],
    away: dict[str, None],
) -> list[str]:
    """Return the ids that each database has, and note those that cannot be asked."""
    found: dict[str, None] = {}
    for name in sources.databases:
        answer = ask(partial(_read_in, sources, name, read))
        if answer.value is None:
            away[f"Database {name}, by {what}: {answer.fault}"] = None
        found |= dict.fromkeys(answer.value or ())
    return list(found)


def _read_in(
    sources: ConsoleSources, name: str, read: Callable[[Database], list[str]]
) -> list[str]:
    with sources.place(name):
        return read(sources.databases[name])


def _ids_by_header(sources: ConsoleSources, text: str, away: dict[str, None]) -> list[str]:
    """Return the ids of the newest messages with a text as a header, in all databases."""

    def by_header(database: Database) -> list[str]:
        return ids_by_header([database], text, sources.mq._declared.sensitive_of, KEY_SECONDS)

    return _in_each(sources, "header", by_header, away)


def _at_brokers(sources: ConsoleSources, text: str) -> list[str]:
    """Return the ids of the messages with a key, from the brokers' index; the client is kept."""
    with sources.admin() as admin:
        topics = [sources.whole_name(each) for each in sources.mq.topics]
        return ids_by_key_at(admin, topics, text)


def _by_offset_id(sources: ConsoleSources, text: str) -> list[str]:
    with sources.admin() as admin:
        try:
            return [admin.messages.by_offset_id(text).message_id]
        except (NotFound, UsageError):
            return []


def _match(message_id: str, history: MessageHistory) -> Match:
    row = overview(history, message_id)
    return Match(
        message_id,
        str(row["topic"]),
        str(row["key"]),
        tuple(row["groups"]),
        row["time"],
        standing(message_id, history),
    )
