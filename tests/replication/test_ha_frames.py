"""The frames between a master and its slaves, whole or in pieces."""

from random import Random

import pytest

from reliable_mq.errors import FrameError
from reliable_mq.replication.ha_frames import (
    RECEIVED_TRANSFER_SIZE_MAX,
    ReportReader,
    Transfer,
    TransferReader,
    encode_report,
    encode_transfer,
)


@pytest.mark.parametrize("seed", range(20))
def test_any_split_of_the_bytes_gives_the_same_transfers_and_the_newest_report(seed: int) -> None:
    random = Random(seed)
    sent = [
        Transfer(random.randrange(1 << 40), random.randbytes(random.choice((0, 1, 7, 300))))
        for _ in range(random.randint(1, 20))
    ]
    stream = b"".join(encode_transfer(*each) for each in sent)
    offsets = [random.randrange(1 << 56) for _ in range(random.randint(1, 9))]
    reports = b"".join(map(encode_report, offsets))
    transfers, reader, newest = TransferReader(), ReportReader(), None

    found: list[Transfer] = []
    while stream:
        size = random.randint(1, 40)
        found += transfers.feed(stream[:size])
        stream = stream[size:]
        transfers.invariants()
    while reports:
        size = random.randint(1, 11)
        newest = reader.feed(reports[:size]) or newest
        reports = reports[size:]
        reader.invariants()

    assert found == sent
    assert newest == offsets[-1]


@pytest.mark.parametrize(
    "head",
    [
        b"\xff" * 8 + bytes(4),
        bytes(8) + b"\xff" * 4,
        bytes(8) + (RECEIVED_TRANSFER_SIZE_MAX + 1).to_bytes(4),
    ],
    ids=["offset", "negative size", "large size"],
)
def test_bytes_that_are_no_transfer_are_refused_at_their_head(head: bytes) -> None:
    with pytest.raises(FrameError, match="a transfer of"):
        TransferReader().feed(head)


def test_a_negative_report_is_refused() -> None:
    with pytest.raises(FrameError, match="a report of offset -1"):
        ReportReader().feed(b"\xff" * 8)
