"""Faults in ledgers that the real system made: each is found as what it is, and nothing else is."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession
from tests.conftest import new_database
from tests.reconcile import duckdb_rival
from tests.reconcile.corpus.story import Corpus, make_corpus
from tests.reconcile.plain import PlainReconciliation
from tests.reconcile.raw_ledgers import write_ledgers

from reliable_mq.reconcile.spark_run import Options, reconcile
from reliable_mq.testing.local_servers import LocalPostgres, LocalValkey

pytestmark = pytest.mark.processes
ORDERS = 40


@pytest.fixture(scope="module")
def corpus(
    tmp_path_factory: pytest.TempPathFactory,
    postgres_server: LocalPostgres,
    valkey_server: LocalValkey,
) -> Iterator[Corpus]:
    """Give ledgers that were made once for all tests of this module; nobody changes them."""
    valkey_server.flush()
    with new_database(postgres_server) as url:
        folder = tmp_path_factory.mktemp("corpus")
        yield make_corpus(folder, url, valkey_server.url, orders=ORDERS)


def told(corpus: Corpus, found: dict[tuple[str, str], str]) -> list[str]:
    """Return where what was found differs from what happened, a line each."""
    kinds = {identity: kind for kind, ids in corpus.kinds.items() for identity in ids}
    return [
        f"{kinds.get(key[0], 'of nobody')}, {key[1] or 'no group'}:"
        f" {found.get(key)} instead of {corpus.expected.get(key)}"
        for key in sorted(found.keys() | corpus.expected.keys())
        if found.get(key) != corpus.expected.get(key)
    ]


def test_every_fault_that_happened_is_what_a_plain_reading_of_the_rules_finds(
    corpus: Corpus,
) -> None:
    plain = PlainReconciliation(corpus.database, str(corpus.store), corpus.as_of, corpus.grace)

    assert told(corpus, {key: str(each) for key, each in plain.verdicts().items()}) == []


def test_every_fault_that_happened_is_what_a_rival_in_sql_finds(
    corpus: Corpus, tmp_path: Path
) -> None:
    folder = write_ledgers(tmp_path, [corpus.database], {"": str(corpus.store)})

    assert told(corpus, duckdb_rival.verdicts(folder, corpus.as_of, corpus.grace)) == []


@pytest.mark.spark
def test_every_fault_that_happened_is_found_by_spark_and_nothing_else_is(
    corpus: Corpus, spark: SparkSession, tmp_path: Path
) -> None:
    """Given ledgers of the real system with faults of every kind, also two on one message, when
    they are reconciled, then every row has the verdict that the fault brought about."""
    options = Options(
        database=corpus.database,
        store=str(corpus.store),
        out=tmp_path / "out",
        now=corpus.as_of,
        grace=corpus.grace,
    )

    reconcile(options)

    rows = spark.read.parquet(str(tmp_path / "out" / "verdicts.parquet"))
    found = {
        (row["message_id"], row["consumer_group"]): row["verdict"]
        for row in rows.select("message_id", "consumer_group", "verdict").collect()
    }
    assert told(corpus, found) == []
