"""All that is known about one message, for its page."""

from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any, NamedTuple

import msgspec
from sqlalchemy import select

from reliable_mq.cli.found_messages import NOT_REACHED, records_of
from reliable_mq.cli.message_standing import Standing, standing
from reliable_mq.console.file_records import record_in
from reliable_mq.console.list_runs import json_object
from reliable_mq.console.lists import VALUE_LENGTH_MAX
from reliable_mq.console.payloads import Payload, payload_of
from reliable_mq.console.search import known_of
from reliable_mq.console.sources import PART_SECONDS, ConsoleSources, ask
from reliable_mq.console.sql_order import AheadInOrder, message_ahead
from reliable_mq.console.stations import GroupStory, Station, group_stories, stations
from reliable_mq.database.row_values import LogState
from reliable_mq.escalate.stub_filter import status_text
from reliable_mq.escalate.timeline import MessageHistory, TimelineEntry, timeline
from reliable_mq.measuring.sql_last_run import LastRun
from reliable_mq.message import MessageQueue, ReceivedMessage
from reliable_mq.outbox.correlation import correlation_of
from reliable_mq.plain_text import printable
from reliable_mq.sensitive import MASK, SensitiveFields

SIBLINGS_MAX = 20
_NEAR_ROWS = 200
_TRACE = ("traceparent", "tracestate")
_FACTS = (
    *("topic", "tag", "message_key", "ordering_key", "content_type", "count", "resend_time"),
    *("broker_name", "queue_id", "offset", "deliver_time", "create_date", "update_date"),
    *("owner", "lease_until", "given_up_by", "note"),
)


class Sibling(NamedTuple):
    """Another message of the same key or the same transaction."""

    message_id: str
    topic: str
    key: str
    state: str
    time: datetime | None


class KnownFinding(NamedTuple):
    """What a run of reconciliation found about the message, with all of its evidence."""

    verdict: str
    group: str
    run_id: str
    evidence: dict[str, Any]


class MessageStory(msgspec.Struct, frozen=True, kw_only=True):
    """A message, as its page shows it. `away`: a line for each source that could not be asked.

    `read_from`: what was read from a store's files, in a sentence; "": nothing. `in_list`: the
    filter that finds its stub in the list. `in_correlation`: the filter that finds the stubs with
    its correlation id; empty: it has none. `in_attempts`: for each group that has not consumed it,
    the filter that finds its attempts, where a person can let it be skipped. `ahead`: the message
    of its ordering key behind which it waits.
    """

    message_id: str
    is_known: bool
    standing: Standing
    stations: list[Station]
    groups: list[GroupStory]
    moments: list[TimelineEntry]
    facts: dict[str, Any]
    properties: dict[str, str]
    trace: str
    payload: Payload | None
    of_transaction: list[Sibling]
    of_key: list[Sibling]
    findings: list[KnownFinding]
    away: list[str]
    read_from: str
    in_list: dict[str, str]
    in_correlation: dict[str, str]
    in_attempts: dict[str, dict[str, str]]
    ahead: AheadInOrder | None


def message_story(sources: ConsoleSources, message_id: str) -> MessageStory:
    """Return all that is known about a message."""
    history, away, database, log_places = known_of(sources, message_id)
    lines = list(away)
    answer = ask(
        lambda: records_of(
            *(message_id, history, sources.broker, sources.client_settings, sources.mq.topics)
        )
    )
    records: Sequence[ReceivedMessage] = ()
    if answer.value is None:
        lines.append(f"Broker: {answer.fault}")
    else:
        records, unasked = answer.value
        if unasked:
            lines.append(f"Broker: {unasked.removeprefix(f'{NOT_REACHED}: ')}")
    read_from = ""
    if not records and sources.stores:
        records, read_from = _from_stores(sources, history, message_id)
    stub: Mapping[str, Any] = history.stub or {}
    topic = stub.get("topic") or next((each.topic for each in records), "")
    rows = (*history.logs, *history.findings)
    topic = topic or next((each["topic"] for each in rows if each["topic"]), "")
    fields = sources.mq._declared.sensitive_of(topic)
    properties = fields.masked_headers(_properties(stub, records))
    return MessageStory(
        message_id=message_id,
        is_known=not history.is_empty or bool(records),
        standing=standing(message_id, history, records, ""),
        stations=stations(history, records, _run(sources)),
        groups=list(group_stories(history)),
        moments=timeline(history, records),
        facts={name: stub[name] for name in _FACTS if stub.get(name) not in (None, "")}
        | ({"status": status_text(stub["status"])} if stub else {}),
        properties=properties,
        trace=properties.get(_TRACE[0], ""),
        payload=_payload(stub, records, fields),
        of_transaction=_of_transaction(sources, history),
        of_key=_of_key(sources, history, message_id, lines),
        ahead=message_ahead(sources, history, database, lines),
        findings=_findings(history, fields),
        away=lines,
        read_from=read_from,
        in_list=_in_list(stub, database),
        in_correlation=_in_correlation(properties, database),
        in_attempts={
            row["consumer_group"]: {
                "message": message_id,
                "group": row["consumer_group"],
                "database": log_places[row["consumer_group"]],
            }
            for row in history.logs
            if row["state"] != LogState.CONSUMED
        },
    )


def _in_list(stub: Mapping[str, Any], database: str) -> dict[str, str]:
    """Return the filter that finds a stub: by its key, or by the moment of its transaction."""
    if not stub:
        return {}
    named = {"topic": stub["topic"]} | ({"database": database} if database else {})
    if stub["message_key"]:
        return {"key": stub["message_key"], **named}
    begin = stub["create_date"].astimezone(UTC)
    times = {"since": begin, "until": begin + timedelta(milliseconds=1)}
    return named | {name: f"{each:%Y-%m-%dT%H:%M:%S.%f}" for name, each in times.items()}


def _in_correlation(properties: Mapping[str, str], database: str) -> dict[str, str]:
    """Return the filter that finds the stubs with a message's correlation id, if it is shown."""
    text = correlation_of(properties)
    if text in ("", MASK) or len(text) > VALUE_LENGTH_MAX or "\0" in text:
        return {}
    return {"correlation_id": text} | ({"database": database} if database else {})


def _from_stores(
    sources: ConsoleSources, history: MessageHistory, message_id: str
) -> tuple[Sequence[ReceivedMessage], str]:
    """Return the record from the files of a store, and what was read there, in a sentence."""
    places = [row for row in (history.stub, *history.logs) if row and row["broker_name"]]
    said = ""
    for row in places:
        store = sources.stores.get(row["broker_name"]) or sources.stores.get("")
        if store is None:
            continue
        queue = MessageQueue(sources.whole_name(row["topic"]), row["broker_name"], row["queue_id"])
        answer = ask(partial(record_in, store, queue, row["offset"]), PART_SECONDS)
        if answer.value is None:
            said = f"Not read from a store: {answer.fault}."
        elif answer.value.message_id == message_id:
            return [answer.value], f"What the broker keeps was read from its store, {store}."
    return (), said


def _findings(history: MessageHistory, fields: SensitiveFields) -> list[KnownFinding]:
    """Return the findings of the newest run that has any."""
    newest = max((row["run_id"] for row in history.findings), default="")
    return [
        KnownFinding(
            *(row["verdict"], row["consumer_group"], row["run_id"]),
            fields.masked_evidence(json_object(row["evidence"])),
        )
        for row in history.findings
        if row["run_id"] == newest
    ]


def _run(sources: ConsoleSources) -> LastRun | None:
    runs = [kept.run.look().value for kept in sources.kept.values()]
    known = [each for each in runs if each is not None]
    return max(known, key=lambda each: each.finished, default=None)


def _properties(stub: Mapping[str, Any], records: Sequence[ReceivedMessage]) -> dict[str, str]:
    """Return the properties of the message: as the broker keeps them, else as the stub has them."""
    if records:
        return dict(sorted(records[0].properties.items()))
    try:
        found = msgspec.json.decode(stub.get("properties") or "{}")
    except msgspec.DecodeError:
        return {"properties": printable(str(stub["properties"]), 1_000)}
    known = found if isinstance(found, dict) else {"properties": found}
    return {str(name): str(value) for name, value in sorted(known.items())}


def _payload(
    stub: Mapping[str, Any], records: Sequence[ReceivedMessage], fields: SensitiveFields
) -> Payload | None:
    if stub:
        return payload_of(bytes(stub["content"]), stub["content_type"], fields)
    if records:
        return payload_of(records[0].body, records[0].content_type, fields)
    return None


def _of_transaction(sources: ConsoleSources, history: MessageHistory) -> list[Sibling]:
    """Return the stubs with the same time of their transaction, near the stub.

    PostgreSQL gives all rows of a transaction one time, to the microsecond.
    """
    stub = history.stub
    if stub is None:
        return []
    for name in sources.databases:
        answer = ask(_near(sources, name, stub))
        if answer.value:
            return answer.value
    return []


def _near(
    sources: ConsoleSources, name: str, stub: Mapping[str, Any]
) -> Callable[[], list[Sibling]]:
    def read() -> list[Sibling]:
        with sources.reading(name) as (database, connection):
            column = database.stubs.c
            wanted = (
                select(
                    *(column.message_id, column.topic, column.message_key),
                    *(column.status, column.create_date),
                )
                .where(
                    column.seq.between(stub["seq"] - _NEAR_ROWS, stub["seq"] + _NEAR_ROWS),
                    column.create_date == stub["create_date"],
                )
                .order_by(column.seq)
                .limit(SIBLINGS_MAX + 1)
            )
            rows = connection.execute(wanted).all()
        if stub["message_id"] not in {row.message_id for row in rows}:
            return []  # the stub is in another database
        return [
            Sibling(
                *(row.message_id, row.topic, row.message_key),
                *(status_text(row.status), row.create_date),
            )
            for row in rows
            if row.message_id != stub["message_id"]
        ]

    return read


def _of_key(
    sources: ConsoleSources, history: MessageHistory, message_id: str, away: list[str]
) -> list[Sibling]:
    """Return the other messages of the topic with the same key, from the index of the broker."""
    stub = history.stub
    if stub is None or not stub["message_key"] or away:
        return []
    found = ask(lambda: _by_key(sources, stub["topic"], stub["message_key"]))
    if found.value is None:
        away.append(f"Broker, by key: {found.fault}")
    return [each for each in found.value or () if each.message_id != message_id][:SIBLINGS_MAX]


def _by_key(sources: ConsoleSources, topic: str, key: str) -> list[Sibling]:
    with sources.admin() as admin:
        answers = admin.messages.by_key(sources.whole_name(topic), key)
    siblings = {}
    for each in answers.value:
        time = datetime.fromtimestamp(each.store_time_ms / 1000).astimezone()
        siblings[each.message_id] = Sibling(each.message_id, each.topic, key, "STORED", time)
    return list(siblings.values())
