"""`reliable-mq reconcile --key`: the verdicts of a run on the messages that a person means."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.console import Console

from reliable_mq.errors import ConfigurationError
from reliable_mq.extras import extra_of
from reliable_mq.plain_text import printable

COLUMNS = ("message_id", "consumer_group", "topic", "verdict", "finding", "message_time")


def check_out(out: str) -> None:
    """Check that verdicts can be read after the run.

    Raises:
        ConfigurationError: they are written to another file system.
    """
    if "://" in out and not out.startswith("file://"):
        raise ConfigurationError(f"--key reads the verdicts after the run: {out} is no local --out")


def verdicts_of_key(
    key: str, urls: Sequence[str], prefix: str, parquet: str
) -> list[dict[str, Any]]:
    """Return the verdicts of a run on the messages with a message id or a business key.

    Args:
        key: the message id or the key.
        urls: the databases whose stubs have the key.
        prefix: the prefix of their tables.
        parquet: the folder of the run's verdicts.
    """
    with extra_of("reconcile"):
        from pyarrow import dataset  # noqa: PLC0415 - an extra
    # Imported late: only this option needs them.
    from reliable_mq.cli.found_messages import ids_by_key  # noqa: PLC0415
    from reliable_mq.database.sql_database import Database  # noqa: PLC0415

    ids = [key]
    for url in urls:
        database = Database(url, prefix=prefix, connections=1)
        try:
            ids += ids_by_key([database], key)
        finally:
            database.close()
    column = dataset.field
    wanted = column("message_id").isin(ids) | (column("message_key") == key)
    verdicts = dataset.dataset(Path(parquet.removeprefix("file://")), format="parquet")
    rows: list[dict[str, Any]] = verdicts.to_table(columns=list(COLUMNS), filter=wanted).to_pylist()
    return rows


def print_verdicts(key: str, rows: Sequence[dict[str, Any]], console: Console) -> None:
    """Print a line for each verdict, or that no ledger knows the key."""
    from reliable_mq.reconcile.judgement.verdict import (  # noqa: PLC0415 - after Spark
        MEANINGS,
        Verdict,
    )

    console.print()
    if not rows:
        console.print(f"key {printable(key)}: no ledger has a message with this id or key")
    for row in rows:
        group = row["consumer_group"] or "-"
        line = f"{row['verdict']}: {row['message_id']} {row['topic']} {group}"
        console.print(printable(f"key {key}: {line}: {MEANINGS[Verdict(row['verdict'])]}"))
