"""Records that are written alone, without a turn, and the zeros behind small writes."""

import asyncio
from typing import cast

from tests.runtime.test_log_writer import FullSegment, GatedSegment, Reports, turn
from tests.waiting import eventually

from reliable_mq.broker_core.requests.sends_at_once import PlacedSends
from reliable_mq.broker_core.store.disk import DiskFile
from reliable_mq.broker_core.store.marks import Dispatched
from reliable_mq.runtime.log_writer import LogWriter
from reliable_mq.testing.memory_disk import MemoryDisk


def lone(segment: GatedSegment, at: int, data: bytes) -> PlacedSends:
    return PlacedSends(cast("DiskFile", segment), at, data, Dispatched(at + len(data)), {}, None)


def test_a_record_is_written_alone_only_if_it_can_be_written_at_once() -> None:
    async def scenario() -> None:
        segment, reports = FullSegment(), Reports()
        writer = LogWriter(MemoryDisk(), 3600, reports)
        assert not writer.write_alone(lone(segment, 0, b"a")), "there is no room"
        assert not writer.is_waiting_for_room
        segment.has_room = True
        assert writer.write_alone(lone(segment, 0, b"a"))
        assert (segment.written, segment.zeros, reports.ends) == ([b"a"], [1], [])
        segment.has_room = False
        writer.write_turn(turn(segment, 1, b"b"))
        segment.has_room = True
        assert not writer.write_alone(lone(segment, 2, b"c")), "an earlier one waits for room"
        await eventually(lambda: not writer.is_waiting_for_room)
        assert writer.write_alone(lone(segment, 2, b"c"))
        await writer.drain()
        assert reports.ends == [(2, False), (3, True)]
        assert segment.syncs == 1
        writer.close()

    asyncio.run(scenario())


def test_no_record_is_written_alone_that_is_synced_or_copied_before_its_answer() -> None:
    async def scenario() -> None:
        segment = GatedSegment()
        synced = LogWriter(MemoryDisk(), 0, Reports())
        copied = LogWriter(MemoryDisk(), 3600, Reports(), on_written=lambda _batch: None)
        for writer in (synced, copied):
            assert not writer.write_alone(lone(segment, 0, b"a"))
            writer.close()
        assert segment.written == []

    asyncio.run(scenario())


def test_zeros_are_written_behind_small_writes_also_without_a_sync_for_each() -> None:
    """Given syncs in between, zeros follow what is small, not what is large."""

    async def scenario() -> list[int]:
        segment = GatedSegment()
        writer = LogWriter(MemoryDisk(), 3600, Reports())
        small, large = bytes(1_000), bytes(200_000)
        writer.write_turn(turn(segment, 0, small))
        writer.write_turn(turn(segment, 1_000, large))
        await writer.drain()  # a sync of much
        assert writer.write_alone(lone(segment, 201_000, small))
        assert writer.write_alone(lone(segment, 202_000, large))
        writer.write_turn(turn(segment, 402_000, small))
        await writer.drain()
        writer.close()
        return segment.zeros

    assert asyncio.run(scenario()) == [1_000, 202_000, 403_000]
