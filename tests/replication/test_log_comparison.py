"""The comparison of two logs: any split of the bytes gives the same first difference."""

from random import Random

import pytest

from reliable_mq.errors import ReplicationError
from reliable_mq.replication.ha_frames import Transfer
from reliable_mq.replication.log_comparison import LogComparison, comparison_begins

OWN = bytes(range(256)) * 4


def compared(other: bytes, sizes: list[int], begin: int, end: int) -> tuple[int, bytes]:
    """Return the first difference, and what came behind the end."""
    comparison = LogComparison(begin, end, lambda at, size: OWN[at : at + size])
    at, rest = begin, b""
    for size in sizes:
        more = comparison.take(Transfer(at, other[at : at + size]))
        at += size
        rest += more.data if more else b""
        if comparison.differs_at >= 0:
            break
    return comparison.differs_at, rest


@pytest.mark.parametrize("differs_at", [300, 301, 555, 699, 700, 900, -1])
def test_the_first_difference_does_not_depend_on_how_the_bytes_come(differs_at: int) -> None:
    other = bytearray(OWN)
    if differs_at >= 0:
        other[differs_at] ^= 1
    expected = differs_at if 300 <= differs_at < 700 else -1
    for seed in range(50):
        random = Random(seed)
        sizes: list[int] = []
        while sum(sizes) < len(OWN) - 300:
            sizes.append(random.choice([0, 1, 7, 100, 1000]))
        found, rest = compared(bytes(other), sizes, 300, 700)
        assert found == expected
        if expected < 0:
            assert rest == bytes(other[700:])


def test_a_transfer_that_does_not_continue_is_an_error() -> None:
    comparison = LogComparison(0, 100, lambda at, size: OWN[at : at + size])
    with pytest.raises(ReplicationError, match="the master sent offset 5"):
        comparison.take(Transfer(5, b"x"))


def test_windows_grow_up_to_the_begin_of_both_logs_and_hold_the_last_record() -> None:
    assert comparison_begins(0, 90, 100) == [0]
    assert comparison_begins(0, 4_000_000, 10_000_000)[0] == 4_000_000
    begins = comparison_begins(5_000, 9_999_000, 10_000_000)
    assert begins == sorted(begins, reverse=True)
    assert begins[-1] == 5_000
    assert comparison_begins(100, 90, 100) == [100]
