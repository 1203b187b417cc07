"""Prepare a run as an increment: its plan, and its ledgers.

Receives the options of a run and its ledgers. Returns the plan, and the ledgers limited to what the
increment reads. The carried events are in the run's own folder, so they are complete exactly if the
run is.
"""

from dataclasses import replace
from datetime import datetime

from pyspark.errors import AnalysisException
from pyspark.sql import SparkSession
from sqlalchemy import make_url

from reliable_mq.errors import ConfigurationError
from reliable_mq.reconcile.brokers.spark_brokers import pulled_size
from reliable_mq.reconcile.databases import sql_ledger
from reliable_mq.reconcile.databases.sql_visibility import visible_until
from reliable_mq.reconcile.runs.run_folder import CARRIED
from reliable_mq.reconcile.runs.run_plan import (
    LedgerEnds,
    LogBounds,
    PreviousIncrement,
    RunPlan,
    plan_of,
)
from reliable_mq.reconcile.runs.spark_job import Ledgers

_EVENTS_OF_A_MESSAGE = 4
_MESSAGE_SIZE = 1_000  # approximate bytes of a message in the log


def increment_plan(
    previous: PreviousIncrement, ledgers: Ledgers, as_of: datetime, mark: datetime | None
) -> RunPlan:
    """Plan the increment after `previous`: find how far the ledgers can be read now.

    Raises:
        ConfigurationError: when the ledgers are not those of the last increment.
    """
    read_to: dict[str, datetime] = {}
    for url in dict.fromkeys(ledgers.urls):
        place = _place(url)  # the same for two URLs that differ only in their options
        read_to[place] = min(visible_until(url), read_to.get(place, as_of))
    logs, queues = ledgers.logs.bounds, ledgers.logs.queues
    queue_ends = {
        name: {queue: end for queue, (_, end) in each.items()} for name, each in queues.items()
    }
    ends = LedgerEnds(read_to, {name: max(logs[name]) for name in logs}, queue_ends)
    bounds = LogBounds({name: begin for name, (begin, _) in logs.items()}, queues)
    return plan_of(previous, ends, bounds, mark, frozenset(ledgers.managed))


def _place(url: str) -> str:
    """Return a database's URL for the table of runs: without password and options."""
    return make_url(url).set(query={}, password=None).render_as_string()


def increment_ledgers(spark: SparkSession, ledgers: Ledgers, plan: RunPlan) -> Ledgers:
    """Return the ledgers, limited to what an increment reads.

    Raises:
        ConfigurationError: when the carried events of the last increment are missing.
    """
    size = sum(high - low for low, high in plan.log_ranges.values())
    size += sum(map(pulled_size, plan.queue_ranges.values()))
    ledgers = replace(
        ledgers,
        logs=replace(ledgers.logs, queue_ranges=plan.queue_ranges),
        increment=plan.increment,
        log_ranges=plan.log_ranges,
        log_size=size,
        window=sql_ledger.IdWindow(),
    )
    if plan.previous.ends is None:
        return ledgers
    state = f"{plan.previous.state}/{CARRIED}"
    try:
        carried = spark.read.parquet(state).count()
    except AnalysisException as error:
        raise ConfigurationError(
            f"the carried events of the last increment are not at {state}: --increment --full reads"
            " everything, and later increments continue from there"
        ) from error
    read = size // _MESSAGE_SIZE + carried // _EVENTS_OF_A_MESSAGE
    return replace(ledgers, carried=state, stub_count_max=min(read, ledgers.stub_count_max))
