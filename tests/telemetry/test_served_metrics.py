"""Every declared metric is served by a real process, and no other one; several processes add up."""

import os
import signal
import sqlite3
import sys
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from bench.child_process import ChildError, LoggedProcess
from prometheus_client import Metric
from prometheus_client.parser import text_string_to_metric_families
from tests.forked_programs import ForkedProcess, Programs
from tests.gateway.grpc_client import client_at
from tests.reconcile.test_report import summary
from tests.waiting import until

from reliable_mq import ReliableMQ
from reliable_mq.gateway.codes import Code
from reliable_mq.reconcile.report.prometheus_text import prometheus_text
from reliable_mq.telemetry.metrics import METRICS
from reliable_mq.testing.local_servers import free_port

COMMAND = ("-m", "reliable_mq.cli.main")
OURS = ("reliable_mq_", "messaging_")
SHOP = """
import os
from sqlalchemy.orm import Session
from reliable_mq import Reject, ReliableMQ
mq = ReliableMQ("shop", broker=os.environ["SHOP_BROKER"], database=os.environ["SHOP_DATABASE"])

@mq.consumer("orders", group="payments", concurrency=3)
def take_payment(order: dict, session: Session) -> None:
    if order["n"] == 0:
        raise Reject("no money")
    with mq.transaction(session) as tx:
        tx.send("bills", order, required_groups=["nobody"])
"""

pytestmark = pytest.mark.processes

Start = Callable[..., LoggedProcess]


@pytest.fixture(scope="module")
def programs() -> Iterator[Programs]:
    with Programs(
        *("uvloop", "reliable_mq.app.application", "reliable_mq.cli.main", "reliable_mq.cli.run"),
        *("reliable_mq.cli.broker", "reliable_mq.cli.resend", "sqlalchemy.dialects.sqlite"),
    ) as made:
        yield made


@pytest.fixture
def start(programs: Programs, tmp_path: Path) -> Iterator[Start]:
    """Give a function that starts `reliable-mq` with some words; what it starts is stopped.

    A process with workers is not killed: they would live on.
    """
    children: list[LoggedProcess] = []

    def started(*words: str) -> LoggedProcess:
        child = ForkedProcess(programs, [*COMMAND, *words], tmp_path / f"log-{len(children)}")
        children.append(child)
        return child

    yield started
    for child in reversed(children):
        with suppress(ChildError):
            child.stop(60)


def scraped(port: int) -> dict[str, Metric]:
    """Return the metrics of ours at a port, by the name that is declared; none before it serves."""
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics") as answer:
            text = answer.read().decode()
    except urllib.error.URLError:
        return {}
    found = {}
    for family in text_string_to_metric_families(text):
        name = f"{family.name}_total" if family.type == "counter" else family.name
        if name.startswith(OURS) and not name.endswith("_created"):
            found[name] = family
    return found


def value(port: int, name: str, **labels: str) -> float:
    family = scraped(port).get(name)
    samples = [] if family is None else family.samples
    return sum(
        each.value
        for each in samples
        if labels.items() <= each.labels.items() and not each.name.endswith("_created")
    )


class Shop:
    """A broker, and an application in processes of its own."""

    def __init__(self, folder: Path, start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
        self.broker_port = free_port()
        broker = start(
            *("broker", "--store", str(folder / "store"), "--port", "0", "--namesrv-port", "0"),
            *("--set", "osPageCacheBusyTimeOutMills=3600000", "--set", "brokerRole=ASYNC_MASTER"),
            *("--metrics-port", str(self.broker_port)),
        )
        self.at = at = broker.wait_for(r"^ready broker=(\S+) namesrv=(\S+) ", 60.0)[2]
        self.file = folder / "shop.db"
        url = f"sqlite:///{self.file}"
        (folder / "metered_shop.py").write_text(SHOP)
        monkeypatch.setenv("SHOP_BROKER", at)
        monkeypatch.setenv("SHOP_DATABASE", url)
        monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(folder), *sys.path]))
        self.mq = ReliableMQ("shop", broker=at, database=url)
        self.mq.topic("orders", groups=["payments"])
        self.mq.create_tables()

    def order(self, number: int) -> None:
        with self.mq.transaction() as tx:
            tx.send("orders", {"n": number})


@pytest.fixture
def shop(tmp_path: Path, start: Start, monkeypatch: pytest.MonkeyPatch) -> Iterator[Shop]:
    made = Shop(tmp_path, start, monkeypatch)
    yield made
    made.mq.close()


def test_every_declared_metric_has_a_sample_in_some_process_and_no_other_is_served(
    shop: Shop, start: Start
) -> None:
    run_port, resend_port, name_server_port = free_port(), free_port(), free_port()
    slave_port = free_port()
    start(
        *("broker", "--store", str(shop.file.parent / "slave"), "--port", "0"),
        *("--namesrv", shop.at, "--set", "brokerRole=SLAVE", "--set", "brokerId=1"),
        *("--metrics-port", str(slave_port)),
    ).wait_for(r"^ready ", 60.0)
    start("namesrv", "--port", "0", "--metrics-port", str(name_server_port)).wait_for(
        r"^ready ", 60.0
    )
    endpoint_port = free_port()
    endpoint = start(
        *("proxy", "--namesrv", shop.at, "--port", "0", "--metrics-port", str(endpoint_port))
    ).wait_for(r"^ready namesrv=\S+ grpc=(\S+)", 60.0)[1]
    start("run", "metered_shop:mq", "--metrics-port", str(run_port)).wait_for(r"is ready", 60.0)
    with client_at(endpoint) as client:
        stream = client.producer("nothing")  # without a name it would be cancelled
        code = client.send("nowhere").status.code
        assert code == Code.TOPIC_NOT_FOUND
        until(lambda: value(endpoint_port, "reliable_mq_endpoint_command_streams") == 1)
        assert value(endpoint_port, "reliable_mq_endpoint_connections") == 1
        assert value(endpoint_port, "reliable_mq_endpoint_clients") == 1
        sent = {"call": "SendMessage", "code": str(int(code))}
        until(lambda: value(endpoint_port, "reliable_mq_endpoint_calls_total", **sent) == 1)
        stream.cancel()
    with sqlite3.connect(shop.file) as rows:
        rows.execute(
            "INSERT INTO rmq_escalation (kind, message_id, topic, reason, create_date)"
            " VALUES ('stuck', 'A', 'orders', 'why', '2026-11-28 00:00:00')"
        )
    shop.order(0)
    shop.order(1)
    until(lambda: value(run_port, "reliable_mq_handled_messages_total") >= 2)
    start("resend", "metered_shop:mq", "--metrics-port", str(resend_port))
    until(lambda: value(resend_port, "reliable_mq_outbox_unconfirmed_stubs", topic="bills") == 1)
    until(lambda: value(run_port, "reliable_mq_dead_letters_open", group="payments") == 1)
    until(lambda: value(shop.broker_port, "reliable_mq_broker_messages_out_total") >= 2)
    until(lambda: scraped(shop.broker_port)["reliable_mq_broker_consumer_lag_seconds"].samples)
    until(lambda: value(shop.broker_port, "reliable_mq_broker_slave_sent_bytes_total") > 0)
    until(lambda: value(slave_port, "reliable_mq_broker_master_received_bytes_total") > 0)

    ports = (shop.broker_port, slave_port, name_server_port, endpoint_port, run_port)
    seen: dict[str, int] = {}
    for port in ports:
        for name, family in scraped(port).items():
            seen[name] = seen.get(name, 0) + len(family.samples)
    for family in text_string_to_metric_families(prometheus_text(summary(), 1.0)):
        seen[family.name] = len(family.samples)
    of_console = {name for name in METRICS if name.startswith("reliable_mq_console_")}
    assert seen.keys() == METRICS.keys() - of_console, "for these: tests/console/test_figures.py"
    rare = {"reliable_mq_outbox_unsent_stubs"}  # only while the broker is away
    assert {name for name, samples in seen.items() if not samples} <= rare
    assert value(shop.broker_port, "reliable_mq_broker_connected_slaves") == 1
    assert value(slave_port, "reliable_mq_broker_master_connected") == 1
    assert value(run_port, "reliable_mq_handler_calls_max", group="payments") == 3
    assert value(run_port, "reliable_mq_database_up", database="main") == 1
    assert value(run_port, "reliable_mq_escalations_open", kind="stuck") == 1


def test_several_processes_add_up_at_one_port_and_counters_outlive_a_worker(
    shop: Shop, start: Start
) -> None:
    port = free_port()
    workers = start("run", "metered_shop:mq", "--processes", "2", "--metrics-port", str(port))
    until(lambda: value(port, "reliable_mq_handler_calls_max", group="payments") == 6)
    for number in range(1, 21):
        shop.order(number)
    handled = "reliable_mq_handled_messages_total"
    until(lambda: value(port, handled, outcome="consumed") == 20)

    (first, *_) = children_of(workers.child.pid)
    os.kill(first, signal.SIGKILL)
    workers.wait_for(r"worker \d+ ended", 60.0)
    assert value(port, handled, outcome="consumed") == 20
    until(lambda: value(port, "reliable_mq_handler_calls_max", group="payments") == 6)


def test_workers_whose_first_process_is_killed_end_and_leave_no_file(
    shop: Shop, start: Start, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "temporary"
    folder.mkdir()
    monkeypatch.setenv("TMPDIR", str(folder))
    port = free_port()
    first = start("run", "metered_shop:mq", "--processes", "2", "--metrics-port", str(port))
    until(lambda: value(port, "reliable_mq_handler_calls_max", group="payments") == 6)
    workers = children_of(first.child.pid)
    assert list(folder.glob("reliable-mq-metrics-*/*.db"))

    first.child.kill()

    until(lambda: not any(Path(f"/proc/{pid}").exists() for pid in workers))
    assert not list(folder.glob("reliable-mq-metrics-*"))


def children_of(parent: int) -> list[int]:
    text = Path(f"/proc/{parent}/task/{parent}/children").read_text()
    return [int(number) for number in text.split()]
