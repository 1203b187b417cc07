"""The logs of several brokers: stores with names, and a running cluster; one may be away."""

import tempfile
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pytest
from bench.reliable_mq_broker import ReliableMQBroker
from pyspark.sql import SparkSession
from tests.client.cluster import PATIENT, play
from tests.reconcile.judging import verdicts_of
from tests.reconcile.ledgers import GRACE, NOW, StoreWriter, TableWriter, message_id
from tests.waiting import NEVER_BUSY, eventually

from reliable_mq.client.asyncio_client import AsyncClient
from reliable_mq.client.thread_client import Client
from reliable_mq.errors import ConfigurationError, StoreError, Unavailable
from reliable_mq.message import Message, SendResult
from reliable_mq.reconcile.brokers import file_store
from reliable_mq.reconcile.brokers.spark_brokers import (
    BrokerLogs,
    broker_of,
    check_named_brokers,
    cluster_option,
    cluster_reader,
    named_stores,
    open_logs,
)
from reliable_mq.reconcile.databases.ledger_columns import STUB
from reliable_mq.reconcile.databases.sql_arrow import LedgerQuery, read
from reliable_mq.reconcile.databases.sql_ranges import IdWindow, key_ranges
from reliable_mq.reconcile.judgement.events import EVENTS
from reliable_mq.reconcile.judgement.judge import judge
from reliable_mq.reconcile.judgement.ledger_events import (
    RECORD_COLUMNS,
    STUB_COLUMNS,
    record_events,
    stub_events,
)
from reliable_mq.reconcile.judgement.world import World
from reliable_mq.reconcile.runs.spark_run import RunOptions, reconcile
from reliable_mq.testing.local_servers import free_port

LATER = NOW + timedelta(days=365)

ONCE = msgspec.structs.replace(PATIENT, retries=0)
"""A message that is sent again lies in two brokers, and is settled when one of them is away."""


def store_at(path: Path, number: int) -> str:
    """Return a store of one message, consumed up to its number."""
    store = StoreWriter(path)
    store.send(message_id(number), b"%d" % number)
    store.commit("payments", "orders", 0, number)
    return store.write()


def test_stores_are_told_apart_by_their_brokers_names() -> None:
    assert named_stores(["b-1=/data/one", "b.2=/data/a=b", "/data/c=d"]) == {
        "b-1": "/data/one",
        "b.2": "/data/a=b",
        "": "/data/c=d",
    }
    for texts, what in (
        (["b-1=/a", "b-1=/b"], "two stores of the broker b-1"),
        (["/a", "/b"], "two stores without a name"),
    ):
        with pytest.raises(ConfigurationError, match=what):
            named_stores(texts)


def test_what_brokers_say_is_kept_under_their_names(tmp_path: Path) -> None:
    """Given two stores with a queue of the same name, then neither's offsets hide the other's."""
    stores = {"b-1": store_at(tmp_path / "one", 1), "": store_at(tmp_path / "two", 2)}

    logs = open_logs(stores)

    assert logs.progress == {
        ("b-1", "payments", "orders"): {0: 1},
        ("", "payments", "orders"): {0: 2},
    }
    assert logs.begins == {("b-1", "orders"): {0: 0}, ("", "orders"): {0: 0}}
    assert (sorted(logs.brokers), dict(logs.missing)) == (["", "b-1"], {})
    assert logs.size == sum(end for _, end in logs.bounds.values()) > 0
    assert logs.description() == f"b-1={tmp_path / 'one'}, {tmp_path / 'two'}"
    assert cluster_option(logs) is None


def test_what_a_group_passes_behind_the_end_of_the_log_is_not_passed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Given a group that goes on while a store is opened, then it counts how far it had come: an
    increment does not read what became of the attempts in between."""
    path = store_at(tmp_path, 1)
    read_layout = file_store.read_layout

    def read_then_consume(store: str) -> file_store.StoreLayout:
        layout = read_layout(store)
        store_at(tmp_path, 7)
        return layout

    monkeypatch.setattr(file_store, "read_layout", read_then_consume)

    assert open_logs({"": path}).progress == {("", "payments", "orders"): {0: 1}}


def test_a_store_that_is_not_whole_may_be_left_out_when_its_name_is_known(tmp_path: Path) -> None:
    stores = {"b-1": store_at(tmp_path / "one", 1), "b-2": str(tmp_path / "nowhere")}

    with pytest.raises(StoreError, match=r"nowhere is not a store directory"):
        open_logs(stores)
    logs = open_logs(stores, is_partial=True)

    assert (sorted(logs.brokers), sorted(logs.stores)) == (["b-1"], ["b-1"])
    assert sorted(logs.missing) == ["b-2"]
    with pytest.raises(StoreError, match=r"nowhere is not a store directory"):
        open_logs({"": str(tmp_path / "nowhere")}, is_partial=True)


def test_a_broker_that_the_tables_name_must_have_a_log(tmp_path: Path) -> None:
    logs = open_logs({"b-1": store_at(tmp_path / "one", 1)})

    assert held(logs, {"b-1"}) == logs
    with pytest.raises(ConfigurationError, match=r"brokers b-2, b-3, whose log was not given by"):
        held(logs, {"b-1", "b-2", "b-3"})
    assert sorted(held(logs, {"b-2"}, is_partial=True).missing) == ["b-2"]
    with pytest.raises(ConfigurationError, match="--broker-name is for one --store DIR"):
        check_named_brokers(logs, (), claimed="b-1", is_partial=False)


def held(logs: BrokerLogs, named: set[str], *, is_partial: bool = False) -> BrokerLogs:
    return check_named_brokers(logs, named, claimed=None, is_partial=is_partial)[0]


def test_without_any_log_nothing_is_judged() -> None:
    with pytest.raises(ConfigurationError, match=r"--store is missing.* or --cluster"):
        open_logs({})
    with pytest.raises(ConfigurationError, match="NAME=DIR"):
        open_logs({"": "/data"}, "127.0.0.1:1")


@pytest.fixture
def cluster() -> Iterator[tuple[ReliableMQBroker, ReliableMQBroker]]:
    """Give two brokers of one cluster; the name server is in the first."""
    with (
        tempfile.TemporaryDirectory() as folder,
        ReliableMQBroker(Path(folder) / "1", settings={"brokerName": "b-1", **NEVER_BUSY}) as first,
    ):
        second = ReliableMQBroker(
            Path(folder) / "2",
            settings={"brokerName": "b-2", **NEVER_BUSY},
            name_servers=first.name_server_address,
        )
        second.start()
        try:
            yield first, second
        finally:
            second.kill()


def send_to_both(name_servers: str, count: int) -> list[SendResult]:
    sent: list[SendResult] = []

    async def scene() -> None:
        async with AsyncClient(name_servers, settings=ONCE) as client:
            await eventually_two_brokers(client)
            await client.create_topic("orders", 2)
            messages = [Message(topic="orders", body=b"body", tag="paid") for _ in range(count)]
            sent.extend([await client.send(message) for message in messages])

    play(scene())
    assert {one.queue.broker_name for one in sent} == {"b-1", "b-2"}
    return sent


async def eventually_two_brokers(client: AsyncClient) -> None:
    async def are_known() -> bool:
        return len((await client.cluster_facts()).brokers) == 2

    await eventually(are_known)


def judged(url: str, logs: BrokerLogs) -> dict[tuple[str, str], str]:
    """Judge the stubs of a database by a cluster, long after all of it, without Spark."""
    reader = cluster_reader(cluster_option(logs) or "", RECORD_COLUMNS)
    records = [
        record_events(batch, broker_of(batch))
        for partition in reader.partitions()
        for batch in reader.read(partition)
    ]
    world = World(
        as_of=LATER,
        grace=GRACE,
        moving_since=LATER - GRACE,
        managed=frozenset({"orders"}),
        progress=logs.progress,
        begins=logs.begins,
        brokers=logs.brokers,
        missing=frozenset(logs.missing),
    )
    events = pa.Table.from_batches([*stub_batches(url), *records], EVENTS)
    return verdicts_of(judge(events, world))


def stub_batches(url: str) -> list[pa.RecordBatch]:
    return [
        stub_events(batch)
        for part in key_ranges(url, STUB, "rmq_", IdWindow())
        for batch in read(url, LedgerQuery(STUB, "rmq_", STUB_COLUMNS, part))
    ]


@pytest.mark.spark
@pytest.mark.processes
def test_a_cluster_is_judged_whole_or_it_is_said_which_broker_is_away(
    spark: SparkSession, cluster: tuple[ReliableMQBroker, ReliableMQBroker], tmp_path: Path
) -> None:
    """Given messages in two brokers, then all are settled by both logs together; given one broker
    is killed, then it is named, and a partial run calls none of its messages lost."""
    first, second = cluster
    sent = send_to_both(first.name_server_address, 12)
    tables = TableWriter(f"sqlite:///{tmp_path}/shop.db")
    for one in sent:
        place = {"queue_id": one.queue.queue_id, "offset": one.queue_offset, "count": 1}
        name = one.queue.broker_name
        tables.stub(one.message_id, b"body", status=1, broker_name=name, **place)
    url = tables.write()

    whole = open_logs({}, first.name_server_address)
    assert [clock.whose for clock in whole.clocks] == ["the broker b-1", "the broker b-2"]
    assert all(clock.difference < 1 for clock in whole.clocks)
    verdicts = judged(url, whole)
    asked = RunOptions(url, "", tmp_path / "out", LATER, GRACE, cluster=first.name_server_address)
    run = reconcile(asked)
    second.kill()
    with pytest.raises(ConfigurationError, match="broker b-2, whose log is not in the cluster now"):
        reconcile(asked)
    rest = open_logs({}, first.name_server_address)
    with pytest.raises(ConfigurationError, match="broker b-2, whose log is not in the cluster now"):
        held(rest, {"b-1", "b-2"})
    part = held(rest, {"b-1", "b-2"}, is_partial=True)

    assert (sorted(whole.brokers), dict(whole.missing)) == (["b-1", "b-2"], {})
    assert set(verdicts.values()) == {"settled"}
    assert run["verdicts"] == {"settled": 12}
    assert run["store"] == f"cluster {first.name_server_address}"
    assert len(verdicts) == 12
    assert (sorted(part.brokers), sorted(part.missing)) == (["b-1"], ["b-2"])
    expected = {"b-1": "settled", "b-2": "in flight"}
    assert judged(url, part) == {
        (one.message_id, ""): expected[one.queue.broker_name] for one in sent
    }
    nobody = f"127.0.0.1:{free_port()}"
    with pytest.raises(Unavailable, match=f"no name server answers \\({nobody}: "):
        open_logs({}, nobody)
    with pytest.raises(ConfigurationError, match="b-1 is given twice, by --cluster and by --store"):
        open_logs({"b-1": str(first.store)}, first.name_server_address, is_partial=True)


@pytest.mark.spark
@pytest.mark.processes
def test_increments_go_on_in_the_queues_of_a_running_cluster(
    spark: SparkSession, tmp_path: Path
) -> None:
    """Given an increment over a running broker, when more is sent, then the next one pulls what is
    new, and the two together say what a full run says."""
    with ReliableMQBroker(tmp_path / "broker", settings={"brokerName": "b-1"}) as broker:
        tables = TableWriter(f"sqlite:///{tmp_path}/shop.db")

        def send(count: int) -> None:
            with Client(broker.name_server_address) as client:
                for _ in range(count):
                    sent = client.send(Message(topic="orders", body=b"body", tag="paid"))
                    place = {"queue_id": sent.queue.queue_id, "offset": sent.queue_offset}
                    more = {"broker_name": "b-1", "count": 1, "create_date": datetime.now(UTC)}
                    tables.stub(sent.message_id, b"body", status=1, **place, **more)

        def run(**more: Any) -> dict[str, Any]:
            now = datetime.now(UTC) + timedelta(hours=1)
            options = RunOptions(url, "", tmp_path / "out", now, timedelta(minutes=1), **more)
            return reconcile(replace(options, cluster=broker.name_server_address))

        send(5)
        url = tables.write()
        first = run(increment=True)
        send(3)
        tables.write()
        second = run(increment=True)
        whole = run()

    assert first["verdicts"] == {"settled": 5}
    assert second["ledgers"]["first_deliveries"] == 3
    assert second["verdicts"] == {"settled": 8}, "the last minute of the tables is read twice"
    assert whole["verdicts"] == {"settled": 8}


@pytest.mark.spark
def test_a_run_judges_each_message_by_its_brokers_log(spark: SparkSession, tmp_path: Path) -> None:
    """Given two brokers with a message each in the same place of a queue, one of them lost with
    the store's copy, then a run judges by the right log; and with a store that cannot be read it
    ends with one line, or says of that broker's messages that nobody knows."""
    tables = TableWriter(f"sqlite:///{tmp_path}/shop.db")
    stores = []
    for number, name in enumerate(("b-1", "b-2")):
        store = StoreWriter(tmp_path / name)
        record = store.send(message_id(number), b"body")
        place = {"queue_id": 0, "offset": record.queue_offset, "count": 1, "broker_name": name}
        tables.stub(message_id(number), b"body", status=1, **place)
        stores.append(f"{name}={store.write()}")
    lost = {"queue_id": 0, "offset": 7, "count": 1, "broker_name": "b-2"}
    tables.stub(message_id(2), b"body", status=1, **lost)
    url = tables.write()
    asked = RunOptions(url, stores[0], tmp_path / "out", NOW, GRACE, stores=(stores[1],))

    whole = reconcile(asked)
    away = replace(asked, stores=(f"b-2={tmp_path / 'nowhere'}",))
    with pytest.raises(StoreError, match="nowhere is not a store directory: it does not exist"):
        reconcile(away)
    part = reconcile(replace(away, partial=True))

    assert whole["verdicts"] == {"settled": 2, "lost by the broker": 1}
    assert whole["store"] == ", ".join(stores)
    assert part["verdicts"] == {"settled": 1, "in flight": 2}
    assert (part["clean"], part["exit_code"]) == (False, 2)
    assert "nowhere is not a store" in part["whole"]["log of broker b-2"]
