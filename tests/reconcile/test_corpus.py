"""Faults in ledgers that the real system made: each is found as what it is, and nothing else is."""

from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import duckdb
import pyarrow as pa
import pytest
from pyarrow import parquet
from pyspark.sql import SparkSession
from tests.postgres_databases import new_database
from tests.reconcile import duckdb_rival
from tests.reconcile.corpus.story import Corpus, make_corpus
from tests.reconcile.judging_files import judged
from tests.reconcile.raw_ledgers import write_ledgers
from tests.reconcile.seeded import drawn, plant

from reliable_mq.reconcile.runs.spark_run import RunOptions, reconcile
from reliable_mq.testing.local_servers import LocalPostgres, LocalValkey

pytestmark = pytest.mark.processes
ORDERS = 200
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


@pytest.fixture(scope="module")
def raw(corpus: Corpus, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Give the same ledgers as Parquet, by the plainest reading there is."""
    folder = tmp_path_factory.mktemp("raw")
    return write_ledgers(folder, corpus.databases, {"broker-a": str(corpus.store)})


def test_every_fault_that_happened_is_what_a_rival_in_sql_finds(corpus: Corpus, raw: Path) -> None:
    assert told(corpus, duckdb_rival.verdicts(raw, corpus.as_of, corpus.grace)) == []


def test_every_fault_that_happened_is_found_and_nothing_else_is(corpus: Corpus, raw: Path) -> None:
    """Given ledgers of the real system with faults of every kind, also two on one message, when
    they are judged, then every row has the verdict that the fault brought about."""
    assert told(corpus, as_verdicts(judged(raw, corpus.as_of, corpus.grace))) == []


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_seeded_faults_are_found_and_nothing_else_is(
    corpus: Corpus, raw: Path, tmp_path: Path, seed: int
) -> None:
    """Given faults drawn by a seed on messages of the real system, several on one of them, when the
    product and its rival judge, then both find each of them, and nothing else."""
    moment = (corpus.as_of, corpus.grace)
    faults = list(drawn(corpus.kinds["good"], seed, share=0.9))
    plant(raw, tmp_path, faults, *moment)
    touched = {each.message_id for each in faults}
    expected = {key: value for key, value in corpus.expected.items() if key[0] not in touched}
    for each in faults:
        expected |= each.expected()
    planted = replace(corpus, expected=expected)

    assert told(planted, as_verdicts(judged(tmp_path, *moment))) == []
    assert told(planted, duckdb_rival.verdicts(tmp_path, *moment)) == []
    assert len(set(expected.values())) > 14


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


@pytest.mark.long
@pytest.mark.spark
def test_spark_comes_to_the_same_from_the_ledgers_and_from_their_export(
    corpus: Corpus, raw: Path, spark: SparkSession, tmp_path: Path
) -> None:
    """Given the same ledgers, when they are exported and reconciled, then every row has the verdict
    that the fault brought about; the export holds what a plain reading of tables and files finds;
    and reconciled once more, with neither database nor broker, it comes to the same."""
    options = RunOptions(
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
        RunOptions(
            database="",
            store="",
            out=tmp_path / "again",
            now=datetime.now(UTC),
            grace=corpus.grace,
            ledgers=options.export,
        )
    )

    assert differing_rows(tmp_path / "export", raw) == []
    assert told(corpus, verdicts_in(tmp_path / "out")) == []
    assert told(corpus, verdicts_in(tmp_path / "again")) == []


def verdicts_in(out: Path) -> dict[tuple[str, str], str]:
    files = sorted(out.glob("run-*/verdicts.parquet/*.parquet"))
    columns = ["message_id", "consumer_group", "verdict"]
    return as_verdicts(
        pa.concat_tables([parquet.read_table(each, columns=columns) for each in files])
    )


def as_verdicts(rows: pa.Table) -> dict[tuple[str, str], str]:
    found = {
        (row["message_id"], row["consumer_group"]): str(row["verdict"]) for row in rows.to_pylist()
    }
    assert len(found) == rows.num_rows, "a message and group has two verdicts"
    return found
