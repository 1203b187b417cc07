"""The judgement without Spark: whole ledgers as events, and the world that they are judged in."""

from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from tests.reconcile.ledgers import GRACE, LONG_AGO, NOW

from reliable_mq.reconcile.brokers import file_queues, file_store
from reliable_mq.reconcile.brokers.log_schema import LOG_SCHEMA
from reliable_mq.reconcile.brokers.spark_begins import begins_of, oldest_of
from reliable_mq.reconcile.databases import sql_ledger
from reliable_mq.reconcile.databases.ledger_columns import CONSUME_LOG, STUB
from reliable_mq.reconcile.databases.sql_arrow import LedgerQuery, read
from reliable_mq.reconcile.databases.sql_ranges import IdWindow, key_ranges
from reliable_mq.reconcile.judgement.events import EVENTS, packed_ids
from reliable_mq.reconcile.judgement.judge import judge
from reliable_mq.reconcile.judgement.ledger_events import (
    LOG_COLUMNS,
    STUB_COLUMNS,
    log_events,
    record_events,
    stub_events,
)
from reliable_mq.reconcile.judgement.world import World

Key = tuple[str, str]


def events_in(url: str, store: str) -> pa.Table:
    """Read all ledgers as events; damage is left out."""
    adapters = {STUB: (STUB_COLUMNS, stub_events), CONSUME_LOG: (LOG_COLUMNS, log_events)}
    batches = [
        events_of(batch)
        for name, (columns, events_of) in adapters.items()
        for part in key_ranges(url, name, "rmq_", IdWindow())
        for batch in read(url, LedgerQuery(name, "rmq_", columns, part))
    ]
    batches += [
        record_events(batch, "")
        for partition in file_store.read_layout(store).partitions
        for batch in file_store.read_batches(partition, LOG_SCHEMA)
    ]
    events = pa.Table.from_batches(batches, EVENTS)
    return events.filter(pc.is_valid(events["id"]))


def world_of(url: str, store: str, now: datetime = NOW, grace: timedelta = GRACE) -> World:
    """Return the world of ledgers of one broker."""
    layout = file_store.read_layout(store)
    progress = file_queues.read_progress(store)
    return World(
        as_of=now,
        grace=grace,
        moving_since=now - min(grace, timedelta(seconds=5)),
        managed=frozenset(sql_ledger.managed_topics(url, "rmq_")),
        progress={("", *names): queues for names, queues in progress.items()},
        begins=begins_of("", layout.queue_begins),
        oldest=oldest_of("", layout.oldest_ms),
    )


def verdicts_of(judged: pa.Table) -> dict[Key, str]:
    """Return the verdict of each message and consumer group; each must have one."""
    found = {(row["message_id"], row["consumer_group"]): row["verdict"] for row in rows_of(judged)}
    assert len(found) == judged.num_rows, "one verdict per message and group"
    return found


def rows_of(judged: pa.Table) -> list[dict[str, Any]]:
    return list(judged.to_pylist())


def event(kind: int, identity: str, **columns: Any) -> dict[str, Any]:
    """Return one event, two hours old; what is not told is null."""
    packed = packed_ids(pa.array([identity]))[0].as_py()
    told = {"id": packed, "kind": kind, "topic": "orders", "state": 0, "tries": 1, "marks": 0}
    return dict.fromkeys(EVENTS.names) | told | {"seen": LONG_AGO, "changed": LONG_AGO} | columns


def verdicts_on(events: list[dict[str, Any]], **world: Any) -> dict[Key, str]:
    """Judge events of managed topics, in a world of one broker unless told otherwise."""
    around = World(NOW, GRACE, NOW - timedelta(seconds=5), frozenset({"orders"}))
    return verdicts_of(judge(pa.Table.from_pylist(events, EVENTS), replace(around, **world)))
