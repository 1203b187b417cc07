"""A connection that tears at any byte, with and without a controller. Without sockets."""

import pytest
from tests.replication.test_bad_input import log_bytes

from reliable_mq.failover import switch_frames
from reliable_mq.failover.epochs import Epoch
from reliable_mq.failover.switch_frames import EpochTransfer, MasterFrames
from reliable_mq.replication import ha_frames
from reliable_mq.replication.copied_log import CopiedLog
from reliable_mq.replication.ha_frames import Transfer, TransferReader
from reliable_mq.wire.record import record_size_at

SEGMENT_SIZE = 1024 * 1024
PART = 50  # bytes of the log in a transfer; a record has some more


def sent(log: bytes, begin: int, *, is_controlled: bool) -> bytes:
    """Return the bytes of a connection that sends the rest of a log."""
    transfers = [Transfer(at, log[at : at + PART]) for at in range(begin, len(log), PART)]
    if not is_controlled:
        return b"".join(ha_frames.encode_transfer(*each) for each in transfers)
    epoch = Epoch(1, 0)
    frames = [EpochTransfer(each, epoch, 0) for each in transfers]
    return b"".join(map(switch_frames.encode_transfer, frames))


def stored(data: bytes, end: int, *, is_controlled: bool) -> bytes:
    """Return what a slave whose log ends at `end` stores of a connection that ends after `data`."""
    copied = CopiedLog(end, SEGMENT_SIZE)
    if is_controlled:
        found = MasterFrames().feed(data)
        transfers = [each.transfer for each in found if isinstance(each, EpochTransfer)]
    else:
        transfers = TransferReader().feed(data)
    return b"".join(run.data for each in transfers for run in copied.take(each))


def ends_of_records(log: bytes) -> set[int]:
    ends = {0}
    while (end := max(ends)) < len(log):
        ends.add(end + record_size_at(log, end))
    return ends


@pytest.mark.parametrize("is_controlled", [False, True])
def test_a_connection_that_tears_at_any_byte_leaves_whole_records_and_the_next_one_the_rest(
    *, is_controlled: bool
) -> None:
    log = log_bytes()
    ends = ends_of_records(log)
    whole = sent(log, 0, is_controlled=is_controlled)
    seen = set()
    for cut in range(len(whole) + 1):
        first = stored(whole[:cut], 0, is_controlled=is_controlled)
        seen.add(len(first))
        assert first == log[: len(first)], cut
        again = sent(log, len(first), is_controlled=is_controlled)
        assert first + stored(again, len(first), is_controlled=is_controlled) == log, cut
    assert seen == ends, "whole records, and each as soon as it is whole"
