"""The lists of what waits at brokers: halves, and messages that wait for a time."""

from datetime import UTC, datetime
from typing import Any

from sqlalchemy import select

from reliable_mq.cli.remote_words import words_of
from reliable_mq.console.kept import Reading
from reliable_mq.console.lists import Field, ListColumn, ListPage, RowList, WantedPage
from reliable_mq.console.sources import PART_SECONDS, ConsoleSources, ask
from reliable_mq.console.sql_pages import part_of
from reliable_mq.console.waiting_at_brokers import (
    WaitingHalf,
    WaitingRows,
    WaitingTimer,
)
from reliable_mq.database.sql_stub_table import waiting_rows

_STUBS_MAX = 500


def _matches(row: dict[str, Any], wanted: WantedPage, *names: str) -> bool:
    return all(wanted.text(name) in ("", row[name]) for name in names)


def _away(found: WaitingRows) -> tuple[str, ...]:
    return tuple(f"broker {name}: {words_of(error)}" for name, error in found.failures.items())


def _stale(reading: Reading[WaitingRows]) -> tuple[str, ...]:
    """Return why brokers did not answer now, and how old the rows are; empty: they did."""
    if not reading.fault:
        return ()
    shown = f"; the rows are {reading.age:.0f} s old" if reading.value is not None else ""
    return (f"Broker: {reading.fault}{shown}",)


def _halves(sources: ConsoleSources, wanted: WantedPage) -> ListPage:
    sources.check_cluster()
    reading = sources.halves.look()
    found = reading.value
    if found is None:
        return ListPage((), away=_stale(reading))
    rows = [_half_row(each) for each in found.rows if isinstance(each, WaitingHalf)]
    rows = [row for row in rows if _matches(row, wanted, "topic", "producer")]
    if wanted.values.get("until"):
        rows = [row for row in rows if row["stored"] < wanted.values["until"]]
    page, after = part_of(rows, wanted.cursor, wanted.limit)
    return ListPage(page, after, (*_stale(reading), *_away(found)), found.notes)


def _half_row(half: WaitingHalf) -> dict[str, Any]:
    return {
        "message_id": half.message.message_id,
        "topic": half.topic,
        "key": " ".join(half.message.keys),
        "producer": half.group,
        "stored": half.stored,
        "checks": half.checks,
        "broker": half.message.queue.broker_name,
    }


HALVES = RowList(
    name="halves",
    title="Halves",
    summary="Half messages at brokers: their transaction has neither committed nor been rolled"
    " back, or the broker does not know it yet. The oldest first.",
    empty="No half waits here: each transaction has ended, or none was begun with half=True.",
    columns=(
        ListColumn("message_id", "Message", "message"),
        ListColumn("topic", "Topic"),
        ListColumn("key", "Key"),
        ListColumn("producer", "Producer group"),
        ListColumn("stored", "Stored", "time"),
        ListColumn("checks", "Asked back", "number"),
        ListColumn("broker", "Broker"),
    ),
    fields=(
        Field("topic", "Topic"),
        Field("producer", "Producer group"),
        Field("until", "Stored until", "moment", hint="-5m or a UTC time"),
    ),
    page=_halves,
)


def _timers(sources: ConsoleSources, wanted: WantedPage) -> ListPage:
    now = datetime.now(UTC)
    stubs = ask(lambda: _stub_rows(sources, wanted.database, now), PART_SECONDS)
    away = [f"Database {wanted.database}: {stubs.fault}"] if stubs.value is None else []
    notes: list[str] = []
    rows = {row["message_id"]: row for row in stubs.value or ()}
    if len(rows) >= _STUBS_MAX:
        notes.append(f"the next {_STUBS_MAX} stubs of the database were looked at")
    if sources.why_no_cluster:
        away.append(f"Broker: {sources.why_no_cluster}")
    else:
        reading = sources.timers.look()
        away += _stale(reading)
        if reading.value is not None:
            away += _away(reading.value)
            notes += reading.value.notes
            timers = [each for each in reading.value.rows if isinstance(each, WaitingTimer)]
            rows |= {each.message.message_id: _timer_row(each) for each in timers}
    found = [row for row in rows.values() if _matches(row, wanted, "topic", "consumer_group")]
    if wanted.values.get("until"):
        found = [row for row in found if row["due"] < wanted.values["until"]]
    found = [row for row in found if wanted.agrees("retries", row["consumer_group"])]
    found.sort(key=lambda row: (row["due"], row["message_id"]))
    page, after = part_of(found, wanted.cursor, wanted.limit)
    return ListPage(page, after, tuple(away), tuple(notes))


def _timer_row(timer: WaitingTimer) -> dict[str, Any]:
    return {
        "message_id": timer.message.message_id,
        "topic": timer.topic,
        "key": " ".join(timer.message.keys),
        "consumer_group": timer.group,
        "due": timer.due,
        "where": timer.where,
    }


def _stub_rows(sources: ConsoleSources, name: str, now: datetime) -> list[dict[str, Any]]:
    with sources.reading(name) as (database, connection):
        column = database.stubs.c
        wanted = (
            select(column.message_id, column.topic, column.message_key, column.deliver_time)
            .where(waiting_rows(database.stubs), column.deliver_time > now)
            .order_by(column.deliver_time)
            .limit(_STUBS_MAX)
        )
        rows = connection.execute(wanted).all()
    return [
        {
            "message_id": row.message_id,
            "topic": row.topic,
            "key": row.message_key,
            "consumer_group": "",
            "due": row.deliver_time,
            "where": f"database {name}",
        }
        for row in rows
    ]


TIMERS = RowList(
    name="timers",
    title="Timers",
    summary="Messages that wait for a time, the next one first: delayed messages, and the next"
    " attempts of consumer groups.",
    empty="Nothing waits for a time here.",
    columns=(
        ListColumn("message_id", "Message", "message"),
        ListColumn("due", "Due", "time"),
        ListColumn("topic", "Topic"),
        ListColumn("key", "Key"),
        ListColumn("consumer_group", "Next attempt of group"),
        ListColumn("where", "Waits at"),
    ),
    fields=(
        Field("topic", "Topic"),
        Field("consumer_group", "Consumer group"),
        Field("until", "Due until", "moment", hint="a UTC time"),
        Field("retries", "Only next attempts", "flag"),
    ),
    page=_timers,
    of_database=True,
)
