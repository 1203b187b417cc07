"""Reads the findings that a person has chosen, and plans their repairs, some at a time.

Receives the choice of a form. Hands on repairs, each with whether its stub is still as the run saw
it. It changes nothing.
"""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any, NamedTuple

from sqlalchemy import MetaData, Select, Table, func, inspect, select, tuple_

from reliable_mq.console.deeds import Chosen, NothingToDo
from reliable_mq.console.list_runs import (
    FINDINGS,
    finding_key,
    json_object,
    matching_findings,
)
from reliable_mq.console.lists import wanted_of
from reliable_mq.console.sources import ConsoleSources
from reliable_mq.database.sql_run_tables import finding_table, run_table
from reliable_mq.reconcile.judgement.evidence import cut, recorded_row
from reliable_mq.reconcile.judgement.verdict import MEANINGS, Verdict
from reliable_mq.reconcile.repairs.repair import Repair

FINDINGS_MAX = 100_000
"""Most findings of one piece of work."""
_PAGE_ROWS = 1_000

Row = Mapping[str, Any]
Plan = Callable[[Sequence[Row]], Iterator[Repair]]
"""Plans the repairs of findings that are sorted by message; some of them only forbid a repair."""


class JudgedRun(NamedTuple):
    """A run, and a time before which an ended lease had expired by every clock when it judged."""

    run_id: str
    past: datetime


class PlannedRepair(NamedTuple):
    """A repair of a stub, and whether that is as the run saw it. `topic`: of its message."""

    repair: Repair
    topic: str
    is_as_judged: bool

    @property
    def changed_at(self) -> datetime:
        """When its stub was last changed."""
        found: datetime = self.repair.seen["stub_update_date"]
        return found


class PlannedPage(NamedTuple):
    """Repairs, and how many findings of each verdict have none."""

    repairs: list[PlannedRepair]
    without: Counter[str]


def run_of(sources: ConsoleSources, chosen: Chosen) -> JudgedRun:
    """Return the run of the chosen findings.

    Raises:
        NothingToDo: they are of no run, or of several.
    """
    named = {key[0] for key in _keys(chosen)} if chosen.ids else {chosen.query.get("run", "")}
    if len(named) != 1:
        raise NothingToDo("the marked findings are of several runs: take those of one run")
    run = named.pop()
    if not run:
        raise NothingToDo("say of which run: its number in the list Reconciliation leads here")
    with sources.reading(chosen.database) as (database, connection):
        column = run_table(MetaData(), database.prefix).c
        wanted = select(column.as_of, column.grace_seconds).where(column.run_id == run)
        row = connection.execute(wanted).first()
    if row is None:
        raise NothingToDo(f"this database has no run {run}")
    # The clocks of the ledgers differ by at most the grace time, or the run would not say so.
    return JudgedRun(run, row.as_of - timedelta(seconds=float(row.grace_seconds)))


def check_count(sources: ConsoleSources, chosen: Chosen) -> None:
    """Check that there are findings, and not too many.

    Raises:
        NothingToDo: there are none, or too many.
    """
    with sources.reading(chosen.database) as (database, connection):
        table = finding_table(MetaData(), database.prefix)
        found = None
        if inspect(connection).has_table(table.name):
            some = _wanted(sources, table, chosen).limit(FINDINGS_MAX + 1).subquery()
            found = connection.scalar(select(func.count()).select_from(some))
    if not found:
        raise NothingToDo("no finding matches")
    if found > FINDINGS_MAX:
        raise NothingToDo(
            f"more than {FINDINGS_MAX:,} findings match: filter them by verdict, topic or group,"
            " or repair with reliable-mq reconcile --repair apply"
        )


def planned_pages(
    sources: ConsoleSources, chosen: Chosen, run: JudgedRun, plan: Plan
) -> Iterator[PlannedPage]:
    """Yield the repairs of the chosen findings, sorted by message."""
    for rows in _whole_messages(sources, chosen):
        guards = _forbidding(sources, chosen, run, rows)
        ordered = sorted([*rows, *guards], key=lambda row: str(row["message_id"]))
        repairs = [*plan(ordered)]
        done = {(each.message_id, group) for each in repairs for group in each.groups}
        without = Counter[str](
            row["verdict"] for row in rows if (row["message_id"], row["consumer_group"]) not in done
        )
        topics = {row["message_id"]: row["topic"] for row in rows}
        yield PlannedPage([*_compared(sources, repairs, topics)], without)


def _keys(chosen: Chosen) -> list[tuple[str, str, str]]:
    return [key for each in chosen.ids if (key := finding_key(each)) is not None]


def _wanted(sources: ConsoleSources, table: Table, chosen: Chosen) -> Select[Any]:
    if not chosen.ids:
        return matching_findings(
            table, wanted_of(FINDINGS, [*chosen.query.items()], list(sources.databases))
        )
    column = table.c
    key = tuple_(column.run_id, column.message_id, column.consumer_group)
    return select(table).where(key.in_(_keys(chosen)))


def _whole_messages(sources: ConsoleSources, chosen: Chosen) -> Iterator[list[Row]]:
    """Yield the chosen findings in order; those of one message come together."""
    after: tuple[str, str] | None = None
    held: list[Row] = []
    while True:
        page = _page(sources, chosen, after)
        if not page:
            break
        after = page[-1]["message_id"], page[-1]["consumer_group"]
        rows = [*held, *page]
        held = [row for row in rows if row["message_id"] == after[0]]
        if whole := rows[: len(rows) - len(held)]:
            yield whole
    if held:
        yield held


def _page(sources: ConsoleSources, chosen: Chosen, after: tuple[str, str] | None) -> list[Row]:
    with sources.reading(chosen.database) as (database, connection):
        table = finding_table(MetaData(), database.prefix)
        key = (table.c.message_id, table.c.consumer_group)
        found = _wanted(sources, table, chosen).order_by(*key).limit(_PAGE_ROWS)
        if after is not None:
            found = found.where(tuple_(*key) > after)
        rows = [dict(row._mapping) for row in connection.execute(found)]
    return [_judged(row) for row in rows if row["verdict"] in MEANINGS]


def _judged(row: Row) -> Row:
    return recorded_row(row, json_object(row["evidence"]))


def _forbidding(
    sources: ConsoleSources, chosen: Chosen, run: JudgedRun, rows: Sequence[Row]
) -> list[Row]:
    """Return the findings of the same messages that forbid to send them again."""
    ids = sorted({row["message_id"] for row in rows})
    with sources.reading(chosen.database) as (database, connection):
        table = finding_table(MetaData(), database.prefix)
        column = table.c
        wanted = select(table).where(
            column.run_id == run.run_id,
            column.message_id.in_(ids),
            column.verdict == Verdict.CONFIRMED_WITHOUT_LOG.value,
        )
        return [_judged(dict(row._mapping)) for row in connection.execute(wanted)]


def _compared(
    sources: ConsoleSources, repairs: Sequence[Repair], topics: Mapping[str, str]
) -> Iterator[PlannedRepair]:
    """Yield the repairs; one whose stub is as the run saw it gets the exact time of its change."""
    ids = [each.message_id for each in repairs]
    stubs: dict[str, Any] = {}
    for name in sources.databases if ids else ():
        with sources.reading(name) as (database, connection):
            stub = database.stubs.c
            columns = (stub.message_id, stub.status, stub.count.label("sends"), stub.update_date)
            found = connection.execute(select(*columns).where(stub.message_id.in_(ids)))
            stubs |= {row.message_id: row for row in found}
    for repair in repairs:
        seen, now = repair.seen, stubs.get(repair.message_id)
        judged = (seen["stub_status"], seen["stub_count"], seen["stub_update_date"])
        topic = topics.get(repair.message_id, "")
        if now is None or judged != (now.status, now.sends, cut(now.update_date)):
            yield PlannedRepair(repair, topic, is_as_judged=False)
            continue
        exact = {**seen, "stub_update_date": now.update_date}
        yield PlannedRepair(replace(repair, seen=exact), topic, is_as_judged=True)
