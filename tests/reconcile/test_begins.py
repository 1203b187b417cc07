"""Retention at work while logs are read: what it takes has expired, and no broker has lost it."""

import os
import pickle
from collections.abc import Iterable
from datetime import timedelta
from pathlib import Path

import pyarrow as pa
import pytest
from tests.doctor.worlds import running_broker
from tests.reconcile.judging import event, verdicts_of
from tests.reconcile.ledgers import GRACE, NOW, StoreWriter, message_id
from tests.waiting import until

from reliable_mq.broker_core.store.queue_upkeep import QueueUpkeep
from reliable_mq.client.thread_client import Client
from reliable_mq.errors import ConfigurationError
from reliable_mq.message import Message, SendResult
from reliable_mq.reconcile.brokers.file_store import SPLIT_SIZE
from reliable_mq.reconcile.brokers.log_schema import LOG_SCHEMA, columns_of
from reliable_mq.reconcile.brokers.spark_begins import MovingBegins
from reliable_mq.reconcile.brokers.spark_brokers import (
    BrokerLogs,
    cluster_option,
    cluster_reader,
    open_logs,
)
from reliable_mq.reconcile.brokers.spark_log_source import LogReader
from reliable_mq.reconcile.judgement.event_rows import EVENT_ROWS, event_rows
from reliable_mq.reconcile.judgement.events import EVENTS, STUB
from reliable_mq.reconcile.judgement.ledger_events import RECORD_COLUMNS, record_events
from reliable_mq.reconcile.judgement.tally import Tally
from reliable_mq.reconcile.judgement.world import World
from reliable_mq.reconcile.runs.spark_judge import JudgementContext

LATER = NOW + timedelta(days=365)
SEGMENT_SIZE = 8 * 1024
SETTINGS = {
    "brokerName": "b-1",
    "mappedFileSizeCommitLog": str(128 * 1024),
    "maxMessageSize": str(16 * 1024),
    "fileReservedTime": "1",
    "deleteWhen": ";".join(f"{hour:02d}" for hour in range(24)),
    "cleanResourceInterval": "100",
}
Place = tuple[str, str, int, int]
"""Message id, broker, queue id, queue offset: as a stub says."""


def judged(
    places: Iterable[Place], records: Iterable[pa.RecordBatch], logs: BrokerLogs
) -> dict[str, str]:
    """Return the verdicts on messages that their brokers acknowledged, as workers come to them."""
    stubs = [
        event(STUB, name, required="payments", broker=broker, queue_id=queue, queue_offset=at)
        for name, broker, queue, at in places
    ]
    batches = [*pa.Table.from_pylist(stubs, EVENTS).to_batches(), *records]
    rows = pa.Table.from_batches([event_rows(each) for each in batches], EVENT_ROWS).sort_by("id")
    world = World(
        LATER,
        GRACE,
        LATER - GRACE,
        frozenset({"orders"}),
        progress=logs.progress,
        begins=pickle.loads(pickle.dumps(logs.begins)),  # as a worker gets it
        brokers=logs.brokers,
    )
    found = JudgementContext(world, (), "rmq_").verdicts(rows.to_batches(), Tally())
    return {key[0]: verdict for key, verdict in verdicts_of(pa.concat_tables(found)).items()}


def test_what_expired_while_a_store_was_read_is_not_lost(tmp_path: Path) -> None:
    """Given a store of which the reading is planned, when its first segment goes before it is read,
    then what lay there has expired, what lies behind it waits, and what is in no segment that
    was ever there is lost."""
    store = StoreWriter(tmp_path, SEGMENT_SIZE)
    records = [store.send(message_id(number), bytes(400)) for number in range(40)]
    path = store.write()
    logs = open_logs({"b-1": path})
    reader = LogReader(path, SPLIT_SIZE, True, columns_of(RECORD_COLUMNS, LOG_SCHEMA))
    partitions = reader.partitions()

    (tmp_path / "commitlog" / f"{0:020d}").unlink()

    read = [record_events(batch, "b-1") for part in partitions for batch in reader.read(part)]
    places = [(message_id(n), "b-1", 0, record.queue_offset) for n, record in enumerate(records)]
    found = judged([*places, (message_id(99), "b-1", 0, 77)], read, logs)
    assert found == {message_id(99): "lost by the broker"} | {
        message_id(number): "expired" if record.commit_log_offset < SEGMENT_SIZE else "waiting"
        for number, record in enumerate(records)
    }


def test_a_segment_that_is_gone_from_the_middle_has_not_expired(tmp_path: Path) -> None:
    store = StoreWriter(tmp_path, SEGMENT_SIZE)
    for number in range(60):
        store.send(message_id(number), bytes(400))
    path = store.write()
    reader = LogReader(path, SPLIT_SIZE, True)
    partitions = reader.partitions()
    (tmp_path / "commitlog" / f"{SEGMENT_SIZE:020d}").unlink()

    with pytest.raises(FileNotFoundError):
        list(reader.read(partitions[1]))


@pytest.mark.parametrize(
    ("are_begins_late", "is_planned_before"), [(True, True), (True, False), (False, True)]
)
def test_what_expired_while_a_cluster_was_read_is_not_lost(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    are_begins_late: bool,
    is_planned_before: bool,
) -> None:
    """Given a running broker whose queues are asked for, when its retention takes the first segment
    before it is pulled, then what lay there has expired, also while the broker has not yet
    corrected the beginnings of its queues. It may have taken it shortly before they are asked for:
    then the log does not begin elsewhere after the reading."""
    if are_begins_late:
        monkeypatch.setattr(QueueUpkeep, "trim_some", lambda *_: [])
    with running_broker(tmp_path, **SETTINGS) as address:
        with Client(address) as client:
            messages = [Message(topic="orders", body=bytes(1000)) for _ in range(160)]
            results = client.send_many(messages)
        sent = [one for one in results if isinstance(one, SendResult)]
        first = tmp_path / "commitlog" / f"{0:020d}"

        def expire() -> None:
            os.utime(first, times=(0, 0))
            until(lambda: not first.exists())

        if not is_planned_before:
            expire()
        logs = open_logs({}, address)
        reader = cluster_reader(cluster_option(logs) or "", RECORD_COLUMNS)
        partitions = reader.partitions()
        if is_planned_before:
            expire()

        read = [record_events(batch, "b-1") for part in partitions for batch in reader.read(part)]
        places = [(s.message_id, "b-1", s.queue.queue_id, s.queue_offset) for s in sent]
        found = judged(places, read, logs)

    assert isinstance(logs.begins, MovingBegins)
    assert set(found.values()) == {"expired", "waiting"}


def test_a_namespace_is_refused_before_anything_is_judged_by_wrong_names(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RELIABLE_MQ_NAMESPACE", "east")

    with pytest.raises(ConfigurationError, match="does not support the namespace 'east'"):
        open_logs({"": str(tmp_path)})
