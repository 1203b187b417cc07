"""Ledgers of the real system at any size, and faults planted into them by many seeds.

    python -m tests.reconcile.corpus make --orders 1000000 --directory DIRECTORY
    python -m tests.reconcile.corpus seeds --seeds 50 --directory DIRECTORY

The first lets the application work with a real broker, PostgreSQL and Valkey, half an hour for a
million orders on two cores, and leaves the ledgers as Parquet. The second plants faults on a share
of the messages for each seed, lets product and rival judge, and compares both with what is true.
"""

import argparse
import json
import shutil
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import ExitStack
from datetime import datetime, timedelta
from pathlib import Path

import duckdb
import psycopg
import pyarrow as pa
from pyarrow import parquet
from tests.reconcile import duckdb_rival
from tests.reconcile.corpus.scene import Expected
from tests.reconcile.corpus.story import make_corpus
from tests.reconcile.judging_files import judged
from tests.reconcile.raw_ledgers import write_ledgers
from tests.reconcile.seeded import Fault, drawn, plant

from reliable_mq.testing.local_servers import LocalPostgres, LocalValkey

SEGMENT_SIZE = 4 * 1024 * 1024
_COLUMNS = ("message_id", "consumer_group", "verdict")


def make(directory: Path, orders: int) -> None:
    """Make the ledgers, and note what is true of them."""
    servers = Path(tempfile.mkdtemp(prefix="reliable-mq-corpus-"))
    servers.chmod(0o755)  # PostgreSQL runs as another user when we are root
    with ExitStack() as stack:
        stack.callback(shutil.rmtree, servers, ignore_errors=True)
        postgres, valkey = LocalPostgres(servers / "postgres"), LocalValkey(servers / "valkey")
        for server in (postgres, valkey):
            server.start()
            stack.callback(server.stop)
        urls = []
        with psycopg.connect(postgres.url.replace("+psycopg", ""), autocommit=True) as connection:
            for name in ("first", "second"):
                connection.execute(f"CREATE DATABASE {name}".encode())
                urls.append(postgres.url_of(name))
        began = time.monotonic()
        corpus = make_corpus(
            servers,
            (urls[0], urls[1]),
            valkey.url,
            orders=orders,
            segment_size=SEGMENT_SIZE,
        )
        print(f"{orders:,} orders in {time.monotonic() - began:.0f} s", flush=True)
        write_ledgers(directory / "ledgers", corpus.databases, {"broker-a": str(corpus.store)})
    parquet.write_table(_rows_of(corpus.expected), directory / "expected.parquet")
    parquet.write_table(pa.table({"id": corpus.kinds["good"]}), directory / "good.parquet")
    moment = {"as_of": corpus.as_of.isoformat(), "grace": corpus.grace.total_seconds()}
    (directory / "moment.json").write_text(json.dumps(moment))


def _rows_of(expected: Expected) -> pa.Table:
    columns = zip(*((*key, verdict) for key, verdict in expected.items()), strict=True)
    arrays = [pa.array(values, pa.string()) for values in columns]
    return pa.table(arrays, names=list(_COLUMNS))


def try_seeds(directory: Path, seeds: Sequence[int], share: float) -> int:
    """Return for how many seeds somebody found something else than there is."""
    moment = json.loads((directory / "moment.json").read_text())
    as_of = datetime.fromisoformat(moment["as_of"])
    grace = timedelta(seconds=moment["grace"])
    good = parquet.read_table(directory / "good.parquet")["id"].to_pylist()
    failures = 0
    for seed in seeds:
        began = time.monotonic()
        faults = list(drawn(good, seed, share))
        with tempfile.TemporaryDirectory(dir=directory) as folder:
            plant(directory / "ledgers", Path(folder), faults, as_of, grace)
            found = judged(Path(folder), as_of, grace)
            wrong = _differences(directory, Path(folder), found, faults, (as_of, grace))
        failures += any(wrong.values())
        told = ", ".join(f"{who} differs in {count}" for who, count in wrong.items())
        print(
            f"seed {seed}: {len(good):,} messages, {len(faults):,} of them with faults,"
            f" {found.num_rows:,} rows: {told}; {time.monotonic() - began:.0f} s",
            flush=True,
        )
    return failures


def _differences(
    directory: Path,
    folder: Path,
    found: pa.Table,
    faults: Sequence[Fault],
    moment: tuple[datetime, timedelta],
) -> dict[str, int]:
    """Return how many rows of product and rival are not what is true, or are missing."""
    planted: Expected = {}
    for each in faults:
        planted |= each.expected()
    with duckdb.connect() as connection:
        duckdb_rival.judge(connection, folder, *moment)
        connection.register("product", found)
        connection.register("planted", _rows_of(planted))
        connection.register("touched", pa.table({"message_id": [f.message_id for f in faults]}))
        names = ", ".join(_COLUMNS)
        connection.execute(
            f"CREATE TABLE expected AS SELECT {names} FROM planted UNION ALL SELECT {names}"
            f" FROM '{directory}/expected.parquet' WHERE message_id NOT IN (FROM touched)"
        )
        return {
            who: sum(
                len(connection.execute(f"(FROM {one}) EXCEPT ALL (FROM {other})").fetchall())
                for one, other in ((table, "expected"), ("expected", table))
            )
            for who, table in (("product", "product"), ("rival", "judged"))
        }


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.reconcile.corpus", description=__doc__)
    verbs = parser.add_subparsers(dest="verb", required=True)
    making, trying = verbs.add_parser("make"), verbs.add_parser("seeds")
    making.add_argument("--orders", type=int, default=1_000_000)
    trying.add_argument("--seeds", type=int, default=50)
    trying.add_argument("--first", type=int, default=1, help="the first seed")
    trying.add_argument("--share", type=float, default=0.05, help="of the messages, with faults")
    for verb in (making, trying):
        verb.add_argument("--directory", type=Path, required=True)
    options = parser.parse_args()
    if options.verb == "make":
        options.directory.mkdir(parents=True)
        make(options.directory.resolve(), options.orders)
        return 0
    seeds = range(options.first, options.first + options.seeds)
    failures = try_seeds(options.directory.resolve(), seeds, options.share)
    print(f"{len(seeds)} seeds, {failures} of them with differences")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
