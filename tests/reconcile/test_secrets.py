"""A run of Spark shows no password: not in lists of processes, event logs, reports or output."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from tests.cli.test_secrets import PLANTED, command_lines, leaks, postgres
from tests.reconcile.ledgers import StoreWriter, TableWriter, message_id
from tests.waiting import until

COMMAND = (sys.executable, "-m", "reliable_mq.cli.main", "reconcile")


@pytest.mark.spark
@pytest.mark.processes
def test_a_run_shows_no_password(postgres_url: str, tmp_path: Path) -> None:
    """Given Spark's event log, which records plans and options, then it has no password either."""
    place, _, name = postgres_url.rpartition("@")[2].partition("/")
    url = postgres(place, name)
    store = StoreWriter(tmp_path / "store")
    store.send(message_id(1), b"x", topic="free")
    TableWriter(url).write()
    conf, events, report = (tmp_path / each for each in ("conf", "events", "report"))
    conf.mkdir()
    events.mkdir()
    (conf / "spark-defaults.conf").write_text(
        f"spark.eventLog.enabled true\nspark.eventLog.dir file://{events}\n"
        "spark.eventLog.compress false\n"
    )
    (tmp_path / "url").write_text(url)
    words = ["--db", f"@{tmp_path / 'url'}", "--store", store.write(), "--out", str(report)]
    variables = {**os.environ, "SPARK_CONF_DIR": str(conf)}
    seen: set[str] = set()
    with (tmp_path / "out").open("wb") as out:
        process = subprocess.Popen([*COMMAND, *words], env=variables, stdout=out, stderr=out)

        def has_ended() -> bool:
            seen.update(command_lines(process.pid))
            return process.poll() is not None

        try:
            until(has_ended, seconds=180, look_seconds=0.1)
        finally:
            process.kill()
            process.wait()

    assert "1 verdicts" in (tmp_path / "out").read_text()
    assert any("java" in each for each in seen)
    assert not leaks("\n".join(seen))
    files = [each for top in (events, report) for each in top.rglob("*") if each.is_file()]
    assert any(each.stat().st_size > 10_000 for each in files if events in each.parents)
    for file in (*files, tmp_path / "out"):
        assert not leaks(file.read_bytes().decode("latin-1")), file
    assert PLANTED["database"] in url


def test_a_database_that_is_away_or_has_no_tables_is_named_without_its_password(
    postgres_url: str, tmp_path: Path
) -> None:
    place, _, name = postgres_url.rpartition("@")[2].partition("/")
    store = StoreWriter(tmp_path / "store")
    store.send(message_id(1), b"x", topic="free")
    words = ["--store", store.write(), "--out", str(tmp_path / "report")]
    for url, says in (
        (postgres("127.0.0.1:1"), "database:"),
        (postgres(place, name), "has no table rmq_consume_log"),
        (postgres(place, name).replace("+psycopg", "+odd"), "not a database URL"),
    ):
        done = subprocess.run(
            [*COMMAND, "--db", url, *words], capture_output=True, text=True, check=False
        )
        assert done.returncode != 0
        assert says in done.stderr
        assert not leaks(done.stdout + done.stderr)
