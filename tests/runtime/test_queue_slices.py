"""Thousands of queues grow at once: they are written a few at a time."""

import asyncio
import threading
import time
from collections.abc import Callable
from functools import partial
from itertools import repeat
from pathlib import Path
from typing import Any, cast

import msgspec
import pytest
from tests.broker_core.broker_world import BrokerWorld, send_header
from tests.runtime.echo_server import set_shares
from tests.runtime.test_broker_server import Watch, serving
from tests.waiting import eventually

from reliable_mq.broker_core.core import BrokerCore
from reliable_mq.broker_core.store.consume_queue import ConsumeQueue, pack_unit
from reliable_mq.broker_core.store.lanes import Arrivals
from reliable_mq.broker_core.store.marks import StoreMark
from reliable_mq.broker_core.store.message_store import MessageStore
from reliable_mq.runtime import broker_chores, flood_pace
from reliable_mq.runtime.broker_chores import BrokerChores
from reliable_mq.runtime.disk_file import FileDiskFile
from reliable_mq.runtime.file_disk import FileDisk
from reliable_mq.runtime.log_writer import LogWriter
from reliable_mq.runtime.server_connection import TurnShares
from reliable_mq.testing.memory_disk import MemoryDisk
from reliable_mq.wire.codes import RequestCode
from reliable_mq.wire.command import encode_command, request


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


@pytest.mark.parametrize("is_list", [False, True])
def test_who_creates_topics_keeps_a_pace_and_the_tables_rest_meanwhile(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_list: bool
) -> None:
    """Each of them makes work due, for which the sends of others wait."""
    watch, count = Watch(), 40
    rests: list[bool] = []
    saved = BrokerCore.saved

    def noted(core: BrokerCore, now_ms: int, seconds: float, *, is_flood: bool) -> None:
        rests.append(is_flood)
        saved(core, now_ms, seconds, is_flood=is_flood)

    monkeypatch.setattr(flood_pace, "CREATED_A_SECOND", 1e-3)
    monkeypatch.setattr(flood_pace, "SECONDS_MAX", 1e6)
    monkeypatch.setattr(BrokerCore, "saved", noted)
    set_shares(monkeypatch, slice=-1.0, shared_slice=-1.0)

    async def scenario() -> None:
        async with serving(tmp_path, watch) as (server, peer):
            pace = server.listener.pace
            server.listener.turns.single_at = time.monotonic() + 60
            if is_list:
                rows = [{"topicName": f"new-{number}"} for number in range(count)]
                body = msgspec.json.encode({"topicConfigList": rows})
                await peer.ask(RequestCode.UPDATE_AND_CREATE_TOPIC_LIST, {}, body)
            else:
                code = RequestCode.SEND_MESSAGE_V2
                headers = [send_header(f"new-{number}").items() for number in range(count)]
                fields = [{name: str(value) for name, value in each} for each in headers]
                asks = [encode_command(request(code, each, b"x")) for each in fields]
                peer.writer.write(b"".join(asks))
            await eventually(lambda: pace.held == 1 and any(rests))

    asyncio.run(scenario())
    assert not watch.causes


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
