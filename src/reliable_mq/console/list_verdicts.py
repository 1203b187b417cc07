"""The counts of a run's findings: by verdict, topic and group, and by day.

A run and its findings are written in one transaction. So counts are kept for a while: a large run
takes a moment.
"""

from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from typing import Any

from sqlalchemy import (
    ColumnElement,
    Connection,
    Select,
    Table,
    func,
    inspect,
    literal,
    not_,
    select,
    union_all,
)

from reliable_mq.console.list_runs import NO_TABLES
from reliable_mq.console.lists import Field, ListColumn, ListPage, RowList, WantedPage
from reliable_mq.console.sources import ConsoleSources
from reliable_mq.console.sql_pages import part_of
from reliable_mq.database.sql_run_tables import known_tables
from reliable_mq.database.sql_types import has_no_id_time
from reliable_mq.measuring.sql_throughput import first_id

DAYS = 31
"""So many days are counted one by one; all before are one row."""
Count = Callable[[Connection, str, Table, Table], list[dict[str, Any]]]
"""Counts the findings of a run, given the tables of runs and of findings."""


def _by_group(
    connection: Connection, run: str, _runs: Table, findings: Table
) -> list[dict[str, Any]]:
    number, column = func.count(), findings.c
    by = (column.topic, column.consumer_group, column.verdict)
    found = select(*by, number.label("findings")).where(column.run_id == run).group_by(*by)
    ordered = found.order_by(number.desc(), *by)
    return [dict(row._mapping) for row in connection.execute(ordered)]


def _by_day(connection: Connection, run: str, runs: Table, findings: Table) -> list[dict[str, Any]]:
    asked = select(runs.c.as_of).where(runs.c.run_id == run)
    as_of: datetime = connection.execute(asked).scalar_one_or_none() or datetime.now(UTC)
    parts = union_all(*_of_days(findings, run, as_of)).subquery()
    number, by = func.sum(parts.c.findings), (parts.c.day, parts.c.topic, parts.c.verdict)
    found = select(*by, number.label("findings")).group_by(*by).order_by(number.desc(), *by)
    rows = [{**row._mapping, "findings": int(row.findings)} for row in connection.execute(found)]
    return sorted(rows, key=_place_of, reverse=True)


def _place_of(row: dict[str, Any]) -> tuple[bool, bool, str]:
    """Return the place of a row: the newest day last, no day first."""
    day = str(row["day"])
    return day != "", day[:1].isdigit(), day


def _of_days(findings: Table, run: str, as_of: datetime) -> Iterator[Select[Any]]:
    """Yield the counts of each day. The key of findings leads to the ids of a day.

    Ids of Apache's clients begin with an address, and so nearly all sort behind all days. What
    sorts before them is looked at: other senders have ids such as "0001".
    """
    last = as_of.replace(hour=0, minute=0, second=0, microsecond=0) + timedelta(days=1)
    days = [last - timedelta(days=DAYS - number) for number in range(DAYS + 1)]
    message_id = findings.c.message_id
    old, untimed = message_id < first_id(days[0]), has_no_id_time(message_id)
    yield _count(findings, run, f"before {days[0]:%Y-%m-%d}", old, not_(untimed))
    yield _count(findings, run, "", old, untimed)
    for day, after in pairwise(days):
        within = (message_id >= first_id(day), message_id < first_id(after))
        yield _count(findings, run, f"{day:%Y-%m-%d}", *within)
    yield _count(findings, run, "", message_id >= first_id(last))


def _count(findings: Table, run: str, day: str, *where: ColumnElement[bool]) -> Select[Any]:
    by = (findings.c.topic, findings.c.verdict)
    found = select(literal(day).label("day"), *by, func.count().label("findings"))
    return found.where(findings.c.run_id == run, *where).group_by(*by)


def _page(sources: ConsoleSources, wanted: WantedPage, count: Count) -> ListPage:
    with sources.reading(wanted.database) as (database, connection):
        runs, table = known_tables(database.prefix)
        if not inspect(connection).has_table(table.name):
            return ListPage((), away=NO_TABLES)
        run = wanted.text("run")
        if not run:
            run = connection.execute(select(func.max(runs.c.run_id))).scalar_one() or ""
        counted = sources.counts.get(
            (count, wanted.database, run), lambda: count(connection, run, runs, table)
        )
    topic = wanted.text("topic")
    rows = [{"run_id": run, **row} for row in counted if topic in ("", row["topic"])]
    page, after = part_of(rows, wanted.cursor, wanted.limit)
    return ListPage(page, after)


def _list(
    name: str, title: str, summary: str, columns: Sequence[ListColumn], count: Count
) -> RowList:
    return RowList(
        name=name,
        title=title,
        summary=summary,
        empty="No finding matches: the run was clean, or there is no such run.",
        columns=(
            *columns,
            ListColumn("verdict", "Verdict"),
            ListColumn("findings", "Findings", "number"),
            ListColumn("run_id", "Run", "run"),
        ),
        fields=(Field("run", "Run"), Field("topic", "Topic")),
        page=lambda sources, wanted: _page(sources, wanted, count),
        of_database=True,
    )


VERDICTS = _list(
    "verdicts",
    "Verdicts",
    "How many findings of each verdict a run has, by topic and group: of the newest run.",
    (ListColumn("topic", "Topic"), ListColumn("consumer_group", "Group")),
    _by_group,
)
VERDICT_DAYS = _list(
    "verdict-days",
    "Verdicts by day",
    "How many findings of each verdict a run has, by topic and the day of the message (UTC): of the"
    " newest run. Ids of other senders have no time.",
    (ListColumn("day", "Day"), ListColumn("topic", "Topic")),
    _by_day,
)
