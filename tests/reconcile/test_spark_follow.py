"""`reliable-mq reconcile --follow` as a process."""

import json
import os
import signal
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path

import pytest
from bench.reliable_mq_broker import ReliableMQBroker
from sqlalchemy import MetaData, create_engine, select
from tests.reconcile.ledgers import message_id
from tests.reconcile.test_command import COMMAND
from tests.reconcile.test_spark_deaths import Gate, begun, end_of
from tests.reconcile.test_spark_increment import FIRST_DAY, GROUP, Days
from tests.waiting import until

from reliable_mq.client.thread_client import Client
from reliable_mq.database.sql_run_tables import run_table
from reliable_mq.message import Message


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
            _, wrong = end_of(process)
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


@pytest.mark.long
@pytest.mark.spark
@pytest.mark.processes
def test_who_follows_can_be_stopped_at_any_time_and_goes_on_later(tmp_path: Path) -> None:
    """Given a process that follows, when it is told to stop while the first increment reads, or by
    Ctrl-C while a later one does, then it ends at once, without a trace on the screen, in the table
    and on disk of what was under way; started again it goes on, and what a person was told of it
    repairs at no time."""
    days, gate, scratch = Days(tmp_path), Gate(tmp_path / "gate"), tmp_path / "scratch"
    scratch.mkdir()
    days.settled(FIRST_DAY, 3)
    times = {"create_date": FIRST_DAY, "update_date": FIRST_DAY}
    days.cases.stub(message_id(900, FIRST_DAY), GROUP, count=16, **times)
    days.write()
    words = ("--db", days.url, "--store", days.store, "--out", f"{tmp_path}/out", "--json")
    follows = [*COMMAND, *words, "--follow", "--every", "1s", "--repair", "apply"]
    environment = {**os.environ, **gate.environment, "TMPDIR": str(scratch)}

    with begun(follows, environment) as first:
        reader = gate.reader(first)
        first.send_signal(signal.SIGTERM)
        told, wrong = end_of(first)
        until(lambda: not Path(f"/proc/{reader}").exists())

    assert (first.returncode, told) == (0, ""), wrong
    assert wrong == "stopped by SIGTERM before the first increment had ended\n"
    assert runs_in(days.url) == set()
    assert not list((tmp_path / "out").glob("run-*"))
    assert not list(scratch.glob("reliable-mq-*"))

    gate.open()
    with begun(follows, environment) as second:
        assert second.stdout is not None
        summary = json.loads(second.stdout.readline())
        assert summary["verdicts"] == {"settled": 3, "not sent": 1}
        assert summary["repair"]["outcomes"] == {"a person was told of it; left alone": 1}
        gate.close()
        days.sent(FIRST_DAY)
        gate.reader(second)
        second.send_signal(signal.SIGINT)
        _, wrong = end_of(second)

    assert (second.returncode, wrong) == (0, "")
    folders = list((tmp_path / "out").glob("run-*"))
    assert {path.name.removeprefix("run-") for path in folders} <= runs_in(days.url)
    assert all((path / "summary.json").exists() for path in folders)
    assert not list((tmp_path / "out").glob("run-*/owner"))
    assert not list(scratch.glob("reliable-mq-*"))


def runs_in(url: str) -> set[str]:
    engine = create_engine(url)
    table = run_table(MetaData(), "rmq_")
    table.create(engine, checkfirst=True)
    with engine.connect() as connection:
        found = set(connection.scalars(select(table.c.run_id)))
    engine.dispose()
    return found


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
        sent = client.send(Message(topic="orders", body=b"body", tag="paid"))
    place = {"broker_name": sent.queue.broker_name, "queue_id": sent.queue.queue_id}
    place |= {"offset": sent.queue_offset, "count": 1, "create_date": datetime.now(UTC)}
    days.cases.tables.stub(sent.message_id, b"body", status=1, **place)
    days.cases.tables.write()
