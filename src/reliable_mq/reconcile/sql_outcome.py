"""Writes a finished run and its findings into reconciliation's tables, in one transaction."""

import json
from collections.abc import Collection, Iterable, Mapping
from datetime import datetime
from itertools import islice
from typing import Any

from sqlalchemy import MetaData, insert, inspect, select

from reliable_mq.reconcile.sql_ledger import open_engine
from reliable_mq.reconcile.sql_tables import finding_table, run_table
from reliable_mq.sql_types import let_tables_be_alike

_BATCH = 1_000


def write_outcome(
    url: str,
    prefix: str,
    run: Mapping[str, Any],
    findings: Iterable[tuple[Mapping[str, Any], Mapping[str, Any]]],
    now: datetime,
) -> None:
    """Insert the run's row and a row for each of `findings`, given as (finding, its evidence)."""
    metadata = let_tables_be_alike(MetaData())
    runs, rows = run_table(metadata, prefix), finding_table(metadata, prefix)
    engine = open_engine(url)
    metadata.create_all(engine)
    with engine.begin() as connection:
        connection.execute(insert(runs), dict(run))
        rest = iter(findings)
        while batch := list(islice(rest, _BATCH)):
            connection.execute(
                insert(rows),
                [
                    {
                        "run_id": run["run_id"],
                        "message_id": finding["message_id"],
                        "consumer_group": finding["consumer_group"],
                        "topic": finding["topic"],
                        "verdict": finding["verdict"],
                        "evidence": json.dumps(evidence),
                        "create_date": now,
                    }
                    for finding, evidence in batch
                ],
            )
    engine.dispose()


def recorded_runs(url: str, prefix: str, run_ids: Collection[str]) -> set[str]:
    """Return those of `run_ids` that have a row: these runs are whole."""
    runs = run_table(MetaData(), prefix)
    engine = open_engine(url)
    try:
        with engine.connect() as connection:
            if not inspect(connection).has_table(runs.name):
                return set()
            return set(connection.scalars(select(runs.c.run_id).where(runs.c.run_id.in_(run_ids))))
    finally:
        engine.dispose()
