"""Open the ledgers of a run: databases and logs, or an export of them.

Receives the options of a run. Returns the locations of its ledgers, and the small facts that are
read before the job. Errors of the ledgers are found here, before anything is written.
"""

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import datetime

from pyspark.sql import SparkSession

from reliable_mq.database.sql_clock import measure
from reliable_mq.database.sql_urls import shown_url
from reliable_mq.errors import ConfigurationError
from reliable_mq.reconcile.brokers.spark_brokers import (
    UNNAMED,
    BrokerLogs,
    check_named_brokers,
    named_stores,
    open_logs,
)
from reliable_mq.reconcile.clocks import LedgerClock, largest_difference
from reliable_mq.reconcile.databases import sql_ledger
from reliable_mq.reconcile.databases.sql_changed_names import ChangedNames, changed_names
from reliable_mq.reconcile.databases.sql_connection import connected
from reliable_mq.reconcile.moments import first_id
from reliable_mq.reconcile.report.summary import LOG, OLD_STUBS
from reliable_mq.reconcile.runs.run_options import RunOptions, judged_since, managed_topics
from reliable_mq.reconcile.runs.spark_export import export_ledgers
from reliable_mq.reconcile.runs.spark_import import exported_ledgers, open_export
from reliable_mq.reconcile.runs.spark_job import Ledgers
from reliable_mq.reconcile.runs.sql_outcome import remembered_topics

_SMALL_LOG_SIZE = 512 * 1024 * 1024
_SMALL_STUB_COUNT = 250_000


def removed_until(options: RunOptions) -> datetime | None:
    """Return the time before which retention may have removed rows of a database. None: none."""
    marks = [sql_ledger.removed_until(url, options.prefix) for url in options.databases]
    return max((each for each in marks if each is not None), default=None)


def hidden_by_retention(asked: RunOptions, judged: RunOptions) -> dict[str, str]:
    """Return the number of stubs that exist but are not judged: unsettled, before retention's mark.

    They cannot be judged, because retention has removed other rows of the same time.
    """
    if judged.since is None or judged.since == asked.since:
        return {}
    urls, bounds = judged.databases, (asked.since, judged.since)
    count = sum(sql_ledger.unsettled_between(url, judged.prefix, *bounds) for url in urls)
    why = "are from a time range in which retention has removed messages, and are not judged"
    return {OLD_STUBS: f"{count:,} that are not settled {why}"} if count else {}


def whole_of(options: RunOptions, logs: BrokerLogs) -> dict[str, str | None]:
    """Return ledger -> why it could not be read, or None. With a reason the run is partial."""
    if options.ledgers is not None:
        return {f"export {options.ledgers}": None}
    tables = (f"tables of {shown_url(url)}" for url in options.databases)
    whole: dict[str, str | None] = dict.fromkeys((*tables, LOG, "consumer progress"))
    return whole | {f"log of broker {name}": why for name, why in sorted(logs.missing.items())}


def export_if_asked(spark: SparkSession, options: RunOptions, ledgers: Ledgers) -> Ledgers:
    """Export the ledgers if the options say so; return the ledgers to read."""
    if options.export is None:
        return ledgers
    unnamed = options.broker_name or UNNAMED
    export_ledgers(
        *(spark, options.export),
        urls=options.databases,
        prefix=options.prefix,
        stores={name or unnamed: path for name, path in ledgers.logs.stores.items()},
        progress={
            (broker or unnamed, group, topic): queues
            for (broker, group, topic), queues in ledgers.logs.progress.items()
        },
        now=options.now,
        skew_seconds=ledgers.skew_seconds,
        removed_until=removed_until(options),
        managed=ledgers.managed,
        db_share=options.db_share,
    )
    return replace(ledgers, export=options.export)


def open_exported(spark: SparkSession, options: RunOptions) -> tuple[RunOptions, Ledgers]:
    """Return the options and ledgers to judge an export, as of its time.

    Raises:
        ConfigurationError: it is no complete export, or has nothing of the requested time.
    """
    uri = options.ledgers or ""
    export = open_export(spark, uri)
    if options.since is not None and options.since >= export.exported:
        raise ConfigurationError(
            f"--since {options.since.isoformat()}: the export at {uri} ends before it, at"
            f" {export.exported.isoformat()}"
        )
    options = replace(options, now=export.exported, store=uri)
    ledgers = exported_ledgers(spark, uri)
    managed = managed_topics(options, ledgers.managed, export.managed)
    return judged_since(options, export.removed_until), replace(ledgers, managed=managed)


@dataclass(frozen=True)
class OpenedLedgers:
    """Ledgers, whether they are small, and the brokers that the tables name."""

    ledgers: Ledgers
    is_small: bool
    brokers: frozenset[str]


def open_ledgers(options: RunOptions, changed_since: datetime | None = None) -> OpenedLedgers:
    """Open databases and logs, and check them.

    Args:
        options: the options of the run.
        changed_since: the moment from which an increment reads. None: everything is read. Topics
            and brokers are searched in the same rows.

    Raises:
        ConfigurationError, StoreError: a database or a log cannot be used.
        Unavailable, RemoteError, ProtocolError: a broker cannot be read.
        sqlalchemy.exc.SQLAlchemyError: a database cannot be reached.
    """
    stores = named_stores(each for each in (options.store, *options.stores) if each)
    logs = open_logs(stores, options.cluster, is_partial=options.partial, now=options.now)
    for url in options.databases:
        sql_ledger.check_tables(url, options.prefix)
    clocks = [*database_clocks(options.databases), *logs.clocks]
    skew_seconds = largest_difference(clocks, options.grace)
    window = sql_ledger.IdWindow(
        first_id(options.since) if options.since else None,
        first_id(options.until) if options.until else None,
    )
    names = _names(options, window, changed_since)
    counts = (sql_ledger.stub_count_at_most(url, options.prefix) for url in options.databases)
    stubs = sum(counts)
    is_small = logs.size <= _SMALL_LOG_SIZE and stubs <= _SMALL_STUB_COUNT
    ledgers = Ledgers(
        urls=options.databases,
        prefix=options.prefix,
        logs=logs,
        window=window,
        managed=managed_topics(
            options, names.topics, remembered_topics(options.database, options.prefix)
        ),
        groups_with_notices=sql_ledger.groups_with_notices(options.databases, options.prefix),
        stub_count_max=stubs,
        db_share=options.db_share,
        log_size=logs.size,
        skew_seconds=skew_seconds,
    )
    return OpenedLedgers(ledgers, is_small, names.brokers)


def _names(
    options: RunOptions, window: sql_ledger.IdWindow, changed_since: datetime | None
) -> ChangedNames:
    if changed_since is not None:
        return changed_names(options.databases, options.prefix, changed_since)
    topics: set[str] = set()
    brokers: set[str] = set()
    for url in options.databases:
        topics.update(sql_ledger.managed_topics(url, options.prefix))
        brokers |= sql_ledger.broker_names(url, options.prefix, window, options.db_share)
    return ChangedNames(frozenset(topics), frozenset(brokers))


def of_its_brokers(options: RunOptions, opened: OpenedLedgers) -> tuple[RunOptions, Ledgers]:
    """Compare the logs with the brokers that the tables name; see `check_named_brokers`."""
    logs, claimed = check_named_brokers(
        opened.ledgers.logs,
        opened.brokers,
        claimed=options.broker_name,
        is_partial=options.partial,
    )
    return replace(options, broker_name=claimed), replace(opened.ledgers, logs=logs)


def database_clocks(
    urls: Sequence[str], local: Callable[[], float] = time.time
) -> Iterator[LedgerClock]:
    """Yield the clock of each database.

    Args:
        urls: the databases. An SQLite file has no clock of its own, so it does not differ.
        local: this machine's clock, seconds since the epoch.

    Raises:
        sqlalchemy.exc.SQLAlchemyError: when a database cannot be reached.
    """
    for url in urls:
        with connected(url) as connection:
            ahead, took = measure(connection, local)
        yield LedgerClock(f"the database {shown_url(url)}", ahead, took / 2)
