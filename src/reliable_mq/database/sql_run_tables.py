"""Reconciliation's own tables (design, section 4): its runs and their findings.

Statements are in `sql_outcome`. Changes by repair are in the common audit table.
"""

from functools import cache

from sqlalchemy import (
    BigInteger,
    Boolean,
    Column,
    ColumnElement,
    MetaData,
    Numeric,
    String,
    Table,
    select,
)

from reliable_mq.database.sql_types import LongText, UtcDateTime


def run_table(metadata: MetaData, prefix: str) -> Table:
    """Return `<prefix>reconcile_run`: one row per run, written when its result is complete.

    `since` and `until` bound the messages' times; null: unbounded. `as_of` is the moment of the
    judgement. `verdicts` and `ledgers` are JSON objects of counts. `report` is the run's folder.

    A run of `kind` increment continues at the end of `previous_run_id`: no two runs can follow one
    run. It has read each database's changes before `read_to`, and each broker's log before
    `log_ends` (JSON objects). `watermark` is the earliest of `read_to`. `carried` counts the open
    messages; their events lie at `state`.

    `whole` is a JSON object: what is missing in each incomplete ledger. `managed` is a JSON list of
    the topics that the run treated as managed.
    """
    return Table(
        f"{prefix}reconcile_run",
        metadata,
        Column("run_id", String(32), primary_key=True),
        Column("as_of", UtcDateTime, nullable=False),
        Column("since", UtcDateTime),
        Column("until", UtcDateTime),
        Column("grace_seconds", Numeric(12, 3), nullable=False),
        Column("store", LongText, nullable=False),
        Column("verdicts", LongText, nullable=False),
        Column("ledgers", LongText, nullable=False),
        Column("findings", BigInteger, nullable=False),
        Column("is_clean", Boolean, nullable=False),
        Column("finish_date", UtcDateTime, nullable=False),
        Column("kind", String(16), nullable=False, server_default="full"),
        Column("previous_run_id", String(32), unique=True),
        Column("read_to", LongText),
        Column("log_ends", LongText),
        Column("watermark", UtcDateTime),
        Column("state", LongText),
        Column("carried", BigInteger),
        Column("whole", LongText),
        Column("managed", LongText),
        Column("report", LongText),
        keep_existing=True,
    )


def finding_table(metadata: MetaData, prefix: str) -> Table:
    """Return `<prefix>reconcile_finding`: one row per finding of a run, with its proof as JSON.

    `first_run_id`: the run that found it first; null if runs do not follow one another.
    """
    return Table(
        f"{prefix}reconcile_finding",
        metadata,
        Column("run_id", String(32), primary_key=True),
        Column("message_id", String(64), primary_key=True),
        Column("consumer_group", String(127), primary_key=True),
        Column("topic", String(255)),
        Column("verdict", String(32), nullable=False),
        Column("evidence", LongText, nullable=False),
        Column("create_date", UtcDateTime, nullable=False),
        Column("first_run_id", String(32)),
        keep_existing=True,
    )


@cache
def known_tables(prefix: str) -> tuple[Table, Table]:
    """Return the tables of runs and of findings, always the same two.

    SQLAlchemy compiles a statement once for a table, and keeps it with the table.
    """
    metadata = MetaData()
    return run_table(metadata, prefix), finding_table(metadata, prefix)


def of_known_runs(findings: Table, runs: Table) -> ColumnElement[bool]:
    """Return the condition that all findings meet: they are of a run.

    The key of findings begins with the run. So this leads to the findings of one message: there
    are few runs. A run and its findings are written in one transaction.
    """
    return findings.c.run_id.in_(select(runs.c.run_id))
