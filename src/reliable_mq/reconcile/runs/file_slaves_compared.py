"""The comparison of slaves with their masters, as a part of a run.

Receives the options of a run. Returns what is not whole, and what the summary tells of each slave.
The records that a slave lacks, or has differently, go to a file of the run.
"""

import csv
import io
from collections.abc import Mapping, Sequence
from typing import Any

from reliable_mq.reconcile.brokers.file_slave import COLUMNS, SlaveComparison, compare_with_slave
from reliable_mq.reconcile.brokers.spark_brokers import named_slaves, named_stores
from reliable_mq.reconcile.runs.run_folder import RunFolder
from reliable_mq.reconcile.runs.run_options import RunOptions

SLAVES = "slaves.csv"


def slaves_of(options: RunOptions) -> list[tuple[str, str]]:
    """Return the broker's name and the store directory of each slave of a run.

    Raises:
        ConfigurationError: when the store of a slave's master is not given, or is the same.
    """
    return named_slaves(options.slaves, _masters(options)) if options.slaves else []


def compare_slaves(options: RunOptions, folder: RunFolder) -> Sequence[SlaveComparison]:
    """Compare each slave with its master, and write what they lack into the folder of the run.

    Raises:
        StoreError: when a directory is no store.
    """
    masters, young_since = _masters(options), options.now - options.grace
    compared = [
        compare_with_slave(name, masters[name], path, young_since, options.findings_max)
        for name, path in slaves_of(options)
    ]
    if any(each.rows for each in compared):
        folder.write(SLAVES, _table(compared))
    return compared


def flaws_of(compared: Sequence[SlaveComparison]) -> Mapping[str, str | None]:
    """Return ledger -> what is missing of it, or None, for each slave."""
    return {f"log of slave {each.store}": each.flaw() for each in compared}


def summary_of(compared: Sequence[SlaveComparison], folder: RunFolder) -> list[dict[str, Any]]:
    """Return what the summary of the run tells of each slave."""
    listed = f"{folder.place}/{SLAVES}"
    return [{**each.to_json(), "listed": listed if each.rows else None} for each in compared]


def _masters(options: RunOptions) -> dict[str, str]:
    return named_stores(each for each in (options.store, *options.stores) if each)


def _table(compared: Sequence[SlaveComparison]) -> str:
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(("broker", "slave", "kind", *COLUMNS))
    for each in compared:
        for kind, *values in each.rows:
            shown = (v.isoformat() if hasattr(v, "isoformat") else v for v in values)
            writer.writerow((each.broker, each.store, kind, *shown))
    return text.getvalue()
