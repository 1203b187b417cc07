"""Bodies that unpack to much more than a message may have."""

import sys
import tracemalloc
import zlib
from pathlib import Path

import pytest

import reliable_mq
from reliable_mq.client.consuming.unpacking import unpack
from reliable_mq.client.flow import Work
from reliable_mq.errors import RecordError
from reliable_mq.limits import MESSAGE_BODY_SIZE_MAX
from reliable_mq.wire.compression import compress, decompress, flags_of
from reliable_mq.wire.record import Record

BOMB_SIZE = 64 * 1024 * 1024
PULLED = 32  # messages of one pull


@pytest.mark.parametrize("kind", ["zlib", "lz4", "zstd"])
def test_a_bomb_is_refused_and_takes_no_more_memory_than_the_largest_message(kind: str) -> None:
    bomb = compress(bytes(BOMB_SIZE), kind)
    tracemalloc.start()
    try:
        with pytest.raises(RecordError, match="unpacks to more than"):
            decompress(bomb, flags_of(kind), MESSAGE_BODY_SIZE_MAX)
        assert tracemalloc.get_traced_memory()[1] < 4 * MESSAGE_BODY_SIZE_MAX
    finally:
        tracemalloc.stop()


def test_a_pull_of_many_bombs_keeps_none_of_what_they_unpack_to() -> None:
    bomb = zlib.compress(bytes(2 * MESSAGE_BODY_SIZE_MAX))
    records = [Record(topic="t", body=bomb, sys_flag=0x301) for _ in range(PULLED)]
    tracemalloc.start()
    try:
        job = next(unpack(records, MESSAGE_BODY_SIZE_MAX, enough=256 * 1024))
        assert isinstance(job, Work)
        count, faults = job.function()
        assert tracemalloc.get_traced_memory()[1] < 4 * MESSAGE_BODY_SIZE_MAX
    finally:
        tracemalloc.stop()
    assert (count, len(faults)) == (PULLED, PULLED)


def test_a_broker_has_no_way_to_unpack_a_body() -> None:
    """It stores bodies and hands them on; only clients unpack them."""
    folder = Path(reliable_mq.__file__).parent
    modules = [*folder.glob("broker_core/**/*.py"), *folder.glob("runtime/*.py")]
    assert len(modules) > 100, sys.path
    unpacking = [path.name for path in modules if "wire.compression" in path.read_text()]
    assert unpacking == []
