"""Runs whose output, exports and carried events lie in an object store, by Hadoop's connector."""

import io
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from bench.java_programs import build_s3a
from pyarrow import parquet
from tests.reconcile.cases import every_case
from tests.reconcile.ledgers import GRACE, NOW
from tests.with_java import INTEROP, skipped_without_java

pytestmark = [*INTEROP, pytest.mark.spark]

KEYS = {"aws_access_key_id": "anybody", "aws_secret_access_key": "anything"}
REGION = "eu-central-1"

# One session for all runs; each line of input has the options of one, in JSON.
RUNS = f"""
import json, sys
from datetime import datetime, timedelta
from reliable_mq.reconcile.runs.spark_run import RunOptions, reconcile
from reliable_mq.reconcile.runs.spark_session import session

now, grace = datetime.fromisoformat("{NOW.isoformat()}"), timedelta(seconds={GRACE.seconds})
with session(is_small=True):
    for line in sys.stdin:
        print(json.dumps(reconcile(RunOptions(now=now, grace=grace, **json.loads(line)))))
"""


@pytest.fixture
def bucket() -> Iterator[Any]:
    """Give a bucket of an object store that speaks S3."""
    server = pytest.importorskip("moto.server").ThreadedMotoServer("127.0.0.1", 0)
    server.start()
    host, port = server.get_host_and_port()
    boto3 = pytest.importorskip("boto3")
    at = {"endpoint_url": f"http://{host}:{port}", "region_name": REGION}
    made = boto3.resource("s3", **at, **KEYS).Bucket("shop")
    made.create(CreateBucketConfiguration={"LocationConstraint": REGION})
    yield made
    server.stop()


def done(bucket: Any, *runs: dict[str, Any]) -> list[dict[str, Any]]:
    """Do runs in a process of their own, with the connector's jars; return their summaries."""
    with skipped_without_java():
        jars = build_s3a()
    settings = {
        "endpoint": bucket.meta.client.meta.endpoint_url,
        "endpoint.region": REGION,
        "path.style.access": "true",
    }
    words = [f"--conf spark.hadoop.fs.s3a.{name}={value}" for name, value in settings.items()]
    submit = " ".join(["--jars", ",".join(map(str, sorted(jars.glob("*.jar")))), *words])
    environment = {
        **os.environ,
        **{name.upper(): value for name, value in KEYS.items()},
        "PYSPARK_SUBMIT_ARGS": f"{submit} pyspark-shell",
    }
    told = "".join(json.dumps(run) + "\n" for run in runs)
    process = subprocess.run(
        [sys.executable, "-c", RUNS],
        input=told,
        capture_output=True,
        text=True,
        env=environment,
        check=False,
    )
    assert process.returncode == 0, process.stderr[-3000:]
    return [json.loads(line) for line in process.stdout.splitlines()]


def rows_in(bucket: Any, uri: str) -> list[dict[str, Any]]:
    """Read a folder of Parquet files by another client of the object store than Hadoop's."""
    prefix = uri.removeprefix(f"s3a://{bucket.name}/")
    return [
        row
        for each in bucket.objects.filter(Prefix=prefix)
        if each.key.endswith(".parquet")
        for row in parquet.read_table(io.BytesIO(each.get()["Body"].read())).to_pylist()
    ]


def test_exports_and_reports_are_written_to_an_object_store_and_read_from_there(
    tmp_path: Path, bucket: Any
) -> None:
    """Given ledgers, when they are exported to an object store and judged from there, then every
    message has its verdict, and has it again when the export alone is judged; two increments carry
    what is open from one to the other through the object store."""
    url = f"sqlite:///{tmp_path}/shop.db"
    expected, store = every_case(url, tmp_path / "store")
    tables, export = {"database": url, "store": store}, "s3a://shop/ledgers/2026-11-20"

    exported, again, first, second = done(
        bucket,
        {**tables, "out": "s3a://shop/reports", "export": export},
        {"database": "", "store": "", "out": "s3a://shop/again", "ledgers": export},
        {**tables, "out": "s3a://shop/daily", "increment": True},
        {**tables, "out": "s3a://shop/daily", "increment": True},
    )

    for summary in (exported, again, first):
        rows = rows_in(bucket, summary["parquet"])
        found = {(row["message_id"], row["consumer_group"]): row["verdict"] for row in rows}
        assert found == expected
    assert (
        len(rows_in(bucket, f"{export}/records"))
        == exported["ledgers"]["first_deliveries"] + (exported["ledgers"]["other_copies"])
    )
    newest = json.loads(bucket.Object("daily/latest.json").get()["Body"].read())
    assert newest["run_id"] == second["run_id"]
    assert second["increment"]["previous_run_id"] == first["run_id"]
    assert second["findings_total"] == first["findings_total"]
    report = bucket.Object(second["report"].removeprefix("s3a://shop/")).get()["Body"].read()
    assert b"</html>" in report
