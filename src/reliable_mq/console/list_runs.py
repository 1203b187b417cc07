"""The lists of reconciliation, from the tables of a database: its runs, and their findings.

`list_verdicts` counts the findings.
"""

import json
from collections.abc import Mapping
from typing import Any

from sqlalchemy import Select, Table, func, inspect, select

from reliable_mq.console.lists import Field, ListColumn, ListPage, RowList, WantedPage
from reliable_mq.console.sources import ConsoleSources
from reliable_mq.console.sql_pages import Window, can_be_stored, page_of, where_equal
from reliable_mq.database.sql_run_tables import known_tables, of_known_runs
from reliable_mq.reconcile.judgement.verdict import Verdict

NO_TABLES = (
    "no reconciliation has written to this database: begin one with reliable-mq reconcile",
)
"""Why a list of a database has no rows: the line that its page shows."""
_TOLD_FIRST = ("dead_letter_reason", "note")
"""What a person asks for first in the evidence of a finding."""


def json_object(text: str | None) -> dict[str, Any]:
    """Return the JSON object that a column has; empty: it has none."""
    try:
        found = json.loads(text or "{}")
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}


def _runs(sources: ConsoleSources, wanted: WantedPage) -> ListPage:
    with sources.reading(wanted.database) as (database, connection):
        table, _ = known_tables(database.prefix)
        if not inspect(connection).has_table(table.name):
            return ListPage((), away=NO_TABLES)
        column = table.c
        found = select(
            *(column.run_id, column.kind, column.previous_run_id, column.as_of, column.since),
            *(column.until, column.finish_date, column.is_clean, column.findings),
            *(column.verdicts, column.whole),
        )
        if wanted.values.get("findings") is not None:
            has_some = column.findings > 0
            found = found.where(has_some if wanted.values["findings"] else column.findings == 0)
        if wanted.values.get("since"):
            found = found.where(column.finish_date >= wanted.values["since"])
        rows, after = page_of(connection, found, (column.run_id,), wanted.cursor, wanted.limit)
    return ListPage([_run_row(row) for row in rows], after)


def _run_row(row: dict[str, Any]) -> dict[str, Any]:
    verdicts, missing = json_object(row["verdicts"]), json_object(row["whole"])
    said = said_of_run(verdicts, missing, is_clean=row["is_clean"], has_findings=row["findings"])
    return {**row, "verdicts": verdicts, "whole": missing, **said}


def said_of_run(
    verdicts: Mapping[str, Any], whole: Mapping[str, Any], *, is_clean: bool, has_findings: bool
) -> dict[str, Any]:
    """Return what a list says of a run: its result, its verdicts, and what is missing.

    Args:
        verdicts: how many messages have each verdict.
        whole: why a ledger is not whole, by its name; "": it is.
        is_clean: whether it has no findings, and all ledgers are whole.
        has_findings: whether it has findings.
    """
    return {
        "state": "clean" if is_clean else "has findings" if has_findings else "incomplete",
        "shown_verdicts": [f"{name}: {count}" for name, count in verdicts.items()],
        "missing": "; ".join(f"{name}: {why}" for name, why in whole.items() if why),
    }


RUN_COLUMNS = (
    ListColumn("state", "Result", "state"),
    ListColumn("findings", "Findings", "number"),
    ListColumn("finish_date", "Ended", "time"),
    ListColumn("shown_verdicts", "Verdicts", "words"),
    ListColumn("as_of", "As of", "time"),
    ListColumn("since", "Messages since", "time"),
    ListColumn("until", "Until", "time"),
)
"""Of each run, wherever it is written."""
RUN_FIELDS = (
    Field("findings", "Has findings", "flag"),
    Field("since", "Ended since", "moment", hint="-7d or a UTC time"),
)


RUNS = RowList(
    name="runs",
    title="Reconciliation",
    summary="Runs of reconciliation, the newest first. The number of a run leads to its findings.",
    empty="No run matches. Begin one with: reliable-mq reconcile",
    columns=(
        ListColumn("run_id", "Run", "run"),
        *RUN_COLUMNS,
        ListColumn("kind", "Kind"),
        ListColumn("missing", "What is missing"),
    ),
    fields=RUN_FIELDS,
    page=_runs,
    of_database=True,
)


def _findings(sources: ConsoleSources, wanted: WantedPage) -> ListPage:
    with sources.reading(wanted.database) as (database, connection):
        runs, table = known_tables(database.prefix)
        if not inspect(connection).has_table(table.name):
            return ListPage((), away=NO_TABLES)
        column = table.c
        found = matching_findings(table, wanted)
        run, is_costly = wanted.text("run"), bool(wanted.text("not_in"))
        key = [column.run_id, column.message_id, column.consumer_group]
        if run:  # else PostgreSQL would compare the run of each finding, from its first one on
            del key[0]
        window: Window | None = Window(key, [column.run_id == run] if run else [], is_costly)
        if wanted.text("message"):
            found, window = found.where(of_known_runs(table, runs)), None
        rows, after = page_of(connection, found, key, wanted.cursor, wanted.limit, window)
    return ListPage([_finding_row(sources, row) for row in rows], after)


def matching_findings(table: Table, wanted: WantedPage) -> Select[Any]:
    """Return the statement that selects the findings that a filter matches, in no order."""
    column = table.c
    found = where_equal(
        select(table),
        wanted,
        run=column.run_id,
        verdict=column.verdict,
        topic=column.topic,
        group=column.consumer_group,
        message=column.message_id,
    )
    if wanted.text("not_in"):
        other = table.alias()
        there = select(other.c.verdict).where(
            other.c.run_id == wanted.text("not_in"),
            other.c.message_id == column.message_id,
            other.c.consumer_group == column.consumer_group,
        )
        # A value, so that its key is looked up for each finding: PostgreSQL would join all of the
        # other run, as it takes a window for larger than it is.
        found = found.where(func.coalesce(there.scalar_subquery(), "") != column.verdict)
    return found


def finding_id(row: Mapping[str, Any]) -> str:
    """Return the text by which a form names a finding."""
    key = [row["run_id"], row["message_id"], row["consumer_group"]]
    return json.dumps(key, ensure_ascii=False)


def finding_key(text: str) -> tuple[str, str, str] | None:
    """Return run, message and group of such a text; None: it is none."""
    try:
        run, message_id, group = json.loads(text)
    except (ValueError, TypeError, RecursionError):
        return None
    key = (run, message_id, group)
    return key if all(isinstance(each, str) and can_be_stored(each) for each in key) else None


def _finding_row(sources: ConsoleSources, row: dict[str, Any]) -> dict[str, Any]:
    fields = sources.mq._declared.sensitive_of(row["topic"] or "")
    evidence = fields.masked_evidence(json_object(row["evidence"]))
    told = {name: evidence[name] for name in _TOLD_FIRST if evidence.get(name)} | evidence
    said = evidence.get("sentence") or ", ".join(
        f"{name.replace('_', ' ')}: {value}" for name, value in told.items()
    )
    return {**row, "evidence": evidence, "said": str(said)}


FINDINGS = RowList(
    name="findings",
    title="Findings",
    summary="Messages that reconciliation found not to be settled, of the newest run first. The"
    " page of a message has the whole evidence.",
    empty="No finding matches. Without a condition: every run was clean.",
    columns=(
        ListColumn("verdict", "Verdict"),
        ListColumn("message_id", "Message", "message"),
        ListColumn("consumer_group", "Group"),
        ListColumn("topic", "Topic"),
        ListColumn("said", "Evidence", "long"),
        ListColumn("run_id", "Run", "run"),
        ListColumn("first_run_id", "First found by", "run"),
    ),
    fields=(
        Field("verdict", "Verdict", "choice", tuple(each.value for each in Verdict)),
        Field("run", "Run"),
        Field("topic", "Topic"),
        Field("group", "Consumer group"),
        Field("message", "Message id"),
        Field("not_in", "That this run does not have"),
    ),
    page=_findings,
    of_database=True,
    id_of=finding_id,
)
