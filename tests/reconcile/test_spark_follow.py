"""`reliable-mq reconcile --follow` as a process."""

import json
import signal
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path

import pytest
from bench.reliable_mq_broker import ReliableMQBroker
from sqlalchemy import MetaData, create_engine, select
from tests.reconcile.test_command import COMMAND
from tests.reconcile.test_spark_increment import FIRST_DAY, Days

from reliable_mq.client.thread_client import Client
from reliable_mq.message import Message
from reliable_mq.reconcile.sql_tables import run_table


@pytest.mark.spark
@pytest.mark.processes
def test_the_ledgers_are_followed_until_somebody_says_stop(tmp_path: Path) -> None:
    """Given a process that follows a store and a running broker, when messages come to both, then
    an increment judges them; when it is told to stop it ends, and leaves nothing half done."""
    days = Days(tmp_path)
    days.settled(FIRST_DAY, 3)
    with ReliableMQBroker(tmp_path / "broker", settings={"brokerName": "b-1"}) as broker:
        words = ["--db", days.url, "--store", f"broker-a={days.store}", "--out", f"{tmp_path}/out"]
        words += ["--cluster", broker.name_server_address]
        with followed(words) as process:
            assert process.stdout is not None
            first = json.loads(process.stdout.readline())
            assert (first["rows"], first["increment"]["changed_since"]) == (3, None)
            days.sent(FIRST_DAY)
            send(days, broker.name_server_address)

            told = (json.loads(line) for line in process.stdout)
            found = next(each for each in told if each["verdicts"] == {"settled": 1, "waiting": 1})

            assert found["increment"]["carried"] >= 1
            process.send_signal(signal.SIGTERM)
            _, wrong = process.communicate()
            assert process.returncode == 0, wrong
    engine = create_engine(days.url)
    with engine.connect() as connection:
        runs = connection.execute(select(run_table(MetaData(), "rmq_"))).mappings().all()
    engine.dispose()
    assert {run["kind"] for run in runs} == {"increment"}
    before = {run["previous_run_id"] for run in runs}
    assert before - {run["run_id"] for run in runs} == {"0" * 32}
    assert not list((tmp_path / "out").glob("run-*/owner"))
    assert len(list((tmp_path / "out").glob("run-*"))) == 2


@contextmanager
def followed(words: Sequence[str]) -> Iterator[subprocess.Popen[str]]:
    process = subprocess.Popen(
        [*COMMAND, *words, "--follow", "--every", "1s", "--keep-runs", "2", "--json"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    with process:
        try:
            yield process
        finally:
            if process.poll() is None:
                process.kill()


def send(days: Days, name_servers: str) -> None:
    """Send a message whose stub waits for the broker alone, and write the stub."""
    with Client(name_servers) as client:
        sent = client.send(Message(topic="orders", body=b"body"))
    place = {"broker_name": sent.queue.broker_name, "queue_id": sent.queue.queue_id}
    place |= {"offset": sent.queue_offset, "count": 1, "create_date": datetime.now(UTC)}
    days.cases.tables.stub(sent.message_id, b"body", status=1, **place)
    days.cases.tables.write()
