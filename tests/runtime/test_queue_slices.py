"""Thousands of queues grow at once: they are written a few at a time."""

import asyncio
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from tests.runtime.test_broker_server import Watch, serving
from tests.waiting import eventually

from reliable_mq.broker_core.store.consume_queue import Arrivals, ConsumeQueue, pack_unit
from reliable_mq.broker_core.store.message_store import MessageStore
from reliable_mq.runtime import broker_chores
from reliable_mq.runtime.log_writer import LogWriter
from reliable_mq.testing.memory_disk import MemoryDisk


def test_queues_that_grow_while_others_are_synced_are_written_before_the_checkpoint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    watch, count = Watch(), 100
    disk = MemoryDisk()
    queues = [ConsumeQueue(disk, f"t{number}", 0, 20_000) for number in range(count)]
    stores: list[MessageStore] = []
    left: list[int] = []
    run, begin = LogWriter.run, MessageStore.begin_checkpoint

    def grow() -> None:
        for queue in queues:
            unit = [pack_unit(queue.end * 100, 100, 0)]
            queue.append_units(Arrivals(queue.topic, 0, queue.end, unit, {0}, 0, 0, 100))
        stores[0].upkeep.gathering.update(dict.fromkeys(queues))

    async def run_and_grow(writer: LogWriter, job: Callable[[], Any]) -> Any:
        if stores and isinstance(job, partial):  # the syncs
            grow()
        return await run(writer, job)

    def counted(store: MessageStore) -> Callable[[], None]:
        left.append(store.upkeep.unwritten)
        if not stores:
            stores.append(store)
            grow()
        return begin(store)

    async def scenario() -> None:
        async with serving(tmp_path, watch):
            await eventually(lambda: bool(stores))
            grow()
            await eventually(lambda: len(left) >= 3)

    monkeypatch.setattr(LogWriter, "run", run_and_grow)
    monkeypatch.setattr(MessageStore, "begin_checkpoint", counted)
    monkeypatch.setattr(broker_chores, "_CHECKPOINT_SECONDS", 0.02)
    monkeypatch.setattr(broker_chores, "_CHECKPOINT_STEP_SECONDS", 0.02)
    asyncio.run(scenario())
    assert max(left[:3]) < count / 4
    assert not watch.causes
