"""Faults in ledgers that the real system made: each is found as what it is, and nothing else is."""

from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import duckdb
import pyarrow as pa
import pytest
from pyarrow import parquet
from pyspark.sql import SparkSession
from tests.conftest import new_database
from tests.reconcile import duckdb_rival
from tests.reconcile.corpus.story import Corpus, make_corpus
from tests.reconcile.raw_ledgers import write_ledgers

from reliable_mq.reconcile.spark_run import Options, reconcile
from reliable_mq.testing.local_servers import LocalPostgres, LocalValkey

pytestmark = pytest.mark.processes
ORDERS = 40
LEDGERS = ("stubs", "consume_logs", "confirmations", "records", "progress", "queue_begins")


@pytest.fixture(scope="module")
def corpus(
    tmp_path_factory: pytest.TempPathFactory,
    postgres_server: LocalPostgres,
    valkey_server: LocalValkey,
) -> Iterator[Corpus]:
    """Give ledgers that were made once for all tests of this module; nobody changes them."""
    valkey_server.flush()
    with new_database(postgres_server) as first, new_database(postgres_server) as second:
        folder = tmp_path_factory.mktemp("corpus")
        yield make_corpus(folder, (first, second), valkey_server.url, orders=ORDERS)


def told(corpus: Corpus, found: dict[tuple[str, str], str]) -> list[str]:
    """Return where what was found differs from what happened, a line each."""
    kinds = {identity: kind for kind, ids in corpus.kinds.items() for identity in ids}
    return [
        f"{kinds.get(key[0], 'of nobody')}, {key[1] or 'no group'}:"
        f" {found.get(key)} instead of {corpus.expected.get(key)}"
        for key in sorted(found.keys() | corpus.expected.keys())
        if found.get(key) != corpus.expected.get(key)
    ]


def test_every_fault_that_happened_is_what_a_rival_in_sql_finds(
    corpus: Corpus, tmp_path: Path
) -> None:
    folder = write_ledgers(tmp_path, corpus.databases, {"": str(corpus.store)})

    assert told(corpus, duckdb_rival.verdicts(folder, corpus.as_of, corpus.grace)) == []


def differing_rows(one: Path, other: Path) -> list[str]:
    """Return of which ledgers two folders hold different rows, in any column of the first."""
    found = []
    with duckdb.connect() as connection:
        for name in LEDGERS:
            here, there = (f"read_parquet('{folder}/{name}/*.parquet')" for folder in (one, other))
            described = connection.execute(f"DESCRIBE SELECT * FROM {here}").fetchall()
            columns = ", ".join(f'"{column[0]}"' for column in described)
            for first, second in ((here, there), (there, here)):
                statement = (
                    f"SELECT {columns} FROM {first} EXCEPT ALL SELECT {columns} FROM {second}"
                )
                if connection.execute(statement).fetchall():
                    found.append(name)
    return found


@pytest.mark.spark
def test_every_fault_that_happened_is_found_by_spark_and_nothing_else_is(
    corpus: Corpus, spark: SparkSession, tmp_path: Path
) -> None:
    """Given ledgers of the real system with faults of every kind, also two on one message, when
    they are exported and reconciled, then every row has the verdict that the fault brought about;
    the export holds what a plain reading of tables and files finds; and reconciled once more, with
    neither database nor broker, it comes to the same."""
    options = Options(
        database=corpus.databases[0],
        others=corpus.databases[1:],
        store=str(corpus.store),
        out=tmp_path / "out",
        now=corpus.as_of,
        grace=corpus.grace,
        export=(tmp_path / "export").as_uri(),
    )

    reconcile(options)
    reconcile(
        Options(
            database="",
            store="",
            out=tmp_path / "again",
            now=datetime.now(UTC),
            grace=corpus.grace,
            ledgers=options.export,
        )
    )

    raw = write_ledgers(tmp_path / "raw", corpus.databases, {"broker-a": str(corpus.store)})
    assert differing_rows(tmp_path / "export", raw) == []
    assert told(corpus, verdicts_in(tmp_path / "out")) == []
    assert told(corpus, verdicts_in(tmp_path / "again")) == []


def verdicts_in(out: Path) -> dict[tuple[str, str], str]:
    files = sorted(out.glob("run-*/verdicts.parquet/*.parquet"))
    rows = pa.concat_tables(
        [
            parquet.read_table(file, columns=["message_id", "consumer_group", "verdict"])
            for file in files
        ]
    ).to_pylist()
    return {(row["message_id"], row["consumer_group"]): str(row["verdict"]) for row in rows}
