"""Thousands of queues grow at once: they are written a few at a time."""

import asyncio
import threading
import time
from collections.abc import Callable
from functools import partial
from itertools import repeat
from pathlib import Path
from typing import Any, cast

import pytest
from tests.broker_core.broker_world import BrokerWorld
from tests.runtime.test_broker_server import Watch, serving
from tests.waiting import eventually

from reliable_mq.broker_core.store.consume_queue import ConsumeQueue, pack_unit
from reliable_mq.broker_core.store.lanes import Arrivals
from reliable_mq.broker_core.store.marks import StoreMark
from reliable_mq.broker_core.store.message_store import MessageStore
from reliable_mq.runtime import broker_chores, flood_pace
from reliable_mq.runtime.broker_chores import BrokerChores
from reliable_mq.runtime.disk_file import FileDiskFile
from reliable_mq.runtime.file_disk import FileDisk
from reliable_mq.runtime.flood_pace import FloodPace
from reliable_mq.runtime.listener import Listener
from reliable_mq.runtime.log_writer import LogWriter
from reliable_mq.runtime.server_connection import TurnShares
from reliable_mq.runtime.syncs import PromptSyncs
from reliable_mq.testing.memory_disk import MemoryDisk
from reliable_mq.wire.codes import RequestCode


def test_the_files_of_new_queues_are_made_by_the_thread(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each takes half a millisecond, in which the loop serves others."""
    watch, count = Watch(), 40
    makers: list[str] = []
    make = FileDisk.open

    def noted(disk: FileDisk, path: str, size: int) -> FileDiskFile:
        if path.startswith("consumequeue/new-"):
            makers.append(threading.current_thread().name)
        return make(disk, path, size)

    async def scenario() -> None:
        async with serving(tmp_path, watch) as (_server, peer):
            for number in range(count):
                await peer.send(f"new-{number}")
            monkeypatch.setattr(broker_chores, "_CHECKPOINT_SECONDS", 0.0)
            await eventually(lambda: len(makers) == count)
            assert set(makers) == {"reliable-mq-writer"}

    monkeypatch.setattr(FileDisk, "open", noted)
    monkeypatch.setattr(broker_chores, "_CHECKPOINT_STEP_SECONDS", 0.02)
    asyncio.run(scenario())
    assert not watch.causes


def test_queues_that_grow_while_others_are_synced_wait_for_the_next_checkpoint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """To write all of them at once, for this one, would hold the loop up for seconds."""
    watch, count = Watch(), 100
    disk = MemoryDisk()
    queues = [ConsumeQueue(disk, f"t{number}", 0, 20_000) for number in range(count)]
    stores: list[MessageStore] = []
    at_once: list[int] = []
    run, begin = LogWriter.run, MessageStore.begin_checkpoint

    def grow() -> None:
        for queue in queues:
            unit = [pack_unit(queue.end * 100, 100, 0)]
            queue.append_units(Arrivals(queue.topic, 0, queue.end, unit, {0}, 0, 0, 100))
        stores[0].upkeep.gathering.update(dict.fromkeys(queues))

    async def run_and_grow(writer: LogWriter, job: Callable[[], Any], *rest: Any) -> Any:
        if stores and isinstance(job, partial):  # the syncs
            grow()
        return await run(writer, job, *rest)

    def counted(store: MessageStore, mark: StoreMark | None = None) -> Callable[[], None]:
        before = store.upkeep.unwritten
        job = begin(store, mark)
        at_once.append(before - store.upkeep.unwritten)
        if not stores:
            stores.append(store)
            store.queues.update(((queue.topic, 0), queue) for queue in queues)
            grow()
        return job

    async def scenario() -> None:
        async with serving(tmp_path, watch):
            await eventually(lambda: len(at_once) >= 3 or bool(watch.causes))

    monkeypatch.setattr(LogWriter, "run", run_and_grow)
    monkeypatch.setattr(MessageStore, "begin_checkpoint", counted)
    monkeypatch.setattr(broker_chores, "_CHECKPOINT_SECONDS", 0.02)
    monkeypatch.setattr(broker_chores, "_CHECKPOINT_STEP_SECONDS", 0.02)
    asyncio.run(scenario())
    assert not watch.causes
    assert at_once[1:3] == [0, 0]
    assert all(disk.size_of(queue.path_of(0)) > 0 for queue in queues)


def test_a_broker_lets_a_flood_go_on_when_the_queues_that_it_has_begun_exist(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """So a flood of sends to new topics makes a few in one turn of the loop."""
    watch, count = Watch(), 5
    held: list[bool] = []
    hold_flood = Listener.hold_flood

    def holding(listener: Listener, *, is_storing: bool) -> None:
        hold_flood(listener, is_storing=is_storing)
        held.append(listener.is_held_back)

    monkeypatch.setattr(flood_pace, "_NEW_AT_ONCE", 0)
    monkeypatch.setattr(FloodPace, "begin_anew", lambda _pace: None)
    monkeypatch.setattr(PromptSyncs, "start", lambda syncs, *job: syncs.others.start(*job))
    monkeypatch.setattr(Listener, "hold_flood", holding)

    async def scenario() -> None:
        async with serving(tmp_path, watch) as (server, peer):
            (creator, *_) = server.listener.connections.values()
            server.listener.pace.note(creator, server.listener.pace.created())
            for number in range(count):
                await peer.send(f"new-{number}")
            assert not server.listener.is_held_back

    asyncio.run(scenario())
    assert not watch.causes
    assert any(held), "a sync was on its way"


def test_a_flood_is_never_held_back_for_a_message_that_nobody_stores(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Who creates topics keeps a pace. All others have their turns, though nothing is stored."""
    watch = Watch()
    held: list[bool] = []
    hold_flood = Listener.hold_flood

    def holding(listener: Listener, *, is_storing: bool) -> None:
        listener.turns.single_at = time.monotonic()
        hold_flood(listener, is_storing=is_storing)
        held.append(listener.pace.is_on)

    monkeypatch.setattr(flood_pace, "_NEW_AT_ONCE", 0)
    monkeypatch.setattr(Listener, "hold_flood", holding)

    async def scenario() -> None:
        async with serving(tmp_path, watch) as (server, peer):
            listener = server.listener
            (creator, *_) = listener.connections.values()
            for number in range(5):
                listener.pace.note(creator, listener.pace.created())
                fields = {"topic": f"new-{number}", "readQueueNums": 1, "writeQueueNums": 1}
                await peer.ask(RequestCode.UPDATE_AND_CREATE_TOPIC, fields | {"perm": 6})
                assert not listener.is_held_back

    asyncio.run(scenario())
    assert not watch.causes
    assert any(held)


@pytest.mark.parametrize("is_slow", [False, True])
def test_many_queues_are_written_back_together_unless_others_fill_the_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_slow: bool
) -> None:
    """One by one, each sync of a new file makes the names of four folders durable, too."""
    watch, count, together = Watch(), 150, 64
    synced: list[int] = []
    begin = MessageStore.begin_queue_sync

    def noted(store: MessageStore, wanted: int) -> Callable[[], None]:
        synced.append(wanted)
        return begin(store, wanted)

    async def scenario() -> None:
        async with serving(tmp_path, watch) as (server, peer):
            for number in range(count):
                await peer.send(f"new-{number}")
            mark = await server._chores._flush_queues()
            assert mark.waiting == count
            assert server._core.state.store.upkeep.unsynced < 16

    monkeypatch.setattr(MessageStore, "begin_queue_sync", noted)
    monkeypatch.setattr(broker_chores, "_TOGETHER_SECONDS", -1.0 if is_slow else 3600.0)
    asyncio.run(scenario())
    assert not watch.causes
    assert synced == [together, *([16] * 5 if is_slow else [together, 16])]


def test_slices_of_the_statistics_come_between_two_ticks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Else short slices would not keep up with many topics."""
    monkeypatch.setattr(broker_chores, "_COUNT_SECONDS", 0.001)
    world, slices = BrokerWorld(), list[int]()
    statistics = world.state.statistics
    run_some = statistics.run_some

    def counted() -> None:
        slices.append(1)
        run_some()

    monkeypatch.setattr(statistics, "run_some", counted)
    chores = BrokerChores(world.core, cast("LogWriter", None), lambda _ms: None, TurnShares())
    asyncio.run(chores.rest(0.0045))
    assert not slices
    for work, expected in ((repeat(None), 4), (iter([None]), 2)):
        slices.clear()
        statistics._under_way, statistics.is_under_way = work, True
        asyncio.run(chores.rest(0.0045))
        assert len(slices) == expected
