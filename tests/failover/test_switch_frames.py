"""The frames between masters and slaves under a controller."""

from random import Random

import pytest

from reliable_mq.errors import FrameError
from reliable_mq.failover.epochs import Epoch
from reliable_mq.failover.switch_frames import (
    EpochTransfer,
    Hello,
    MasterFrames,
    SlaveFrames,
    Welcome,
    encode_hello,
    encode_report,
    encode_transfer,
    encode_welcome,
)
from reliable_mq.replication.ha_frames import Transfer
from reliable_mq.replication.ha_frames import encode_report as plain_report
from reliable_mq.replication.ha_frames import encode_transfer as plain_transfer

SLAVE: list[Hello | int] = [Hello(2), 0, 17, Hello(3, True, True), 5, 1 << 50]
MASTER: list[Welcome | EpochTransfer] = [
    Welcome(700, (Epoch(1, 0), Epoch(4, 300))),
    Welcome(0, ()),
    EpochTransfer(Transfer(-1, b""), Epoch(1, 0), 0),
    EpochTransfer(Transfer(300, b"log" * 100), Epoch(4, 300), 299),
    EpochTransfer(Transfer(600, b""), Epoch(4, 300), 600),
]


def of_slave(frame: Hello | int) -> bytes:
    return encode_report(frame) if isinstance(frame, int) else encode_hello(frame)


def of_master(frame: Welcome | EpochTransfer) -> bytes:
    return encode_welcome(frame) if isinstance(frame, Welcome) else encode_transfer(frame)


def cut(data: bytes, random: Random) -> list[bytes]:
    """Cut bytes at random places."""
    places = sorted(random.sample(range(len(data)), 9))
    return [data[a:b] for a, b in zip([0, *places], [*places, len(data)], strict=True)]


@pytest.mark.parametrize("seed", range(20))
def test_any_split_of_the_bytes_gives_the_same_frames(seed: int) -> None:
    random = Random(seed)
    slave, master = SlaveFrames(), MasterFrames()
    said = b"".join(map(of_slave, SLAVE))
    sent = b"".join(map(of_master, MASTER))

    assert [each for part in cut(said, random) for each in slave.feed(part)] == SLAVE
    assert [each for part in cut(sent, random) for each in master.feed(part)] == MASTER


def test_the_frames_have_the_bytes_of_apaches() -> None:
    assert encode_hello(Hello(7)).hex() == "00000001000000000000000000000007"
    assert encode_report(258).hex() == "000000020000000000000102"
    welcome = encode_welcome(Welcome(9, (Epoch(3, 5),)))
    assert welcome.hex() == f"000000010000000c{9:016x}0000000300000003{5:016x}"
    transfer = encode_transfer(EpochTransfer(Transfer(5, b"ab"), Epoch(3, 4), 6))
    assert transfer.hex() == f"0000000200000002{5:016x}00000003{4:016x}{6:016x}6162"


@pytest.mark.parametrize(
    ("data", "why"),
    [
        (plain_report(1 << 40), "state 256, which no slave has: enableControllerMode must be"),
        (b"GET / HTTP/1.1\r\n\r\n", "which no slave has"),
        (encode_hello(Hello(0)), "a slave with broker id 0"),
        (encode_report(1 << 57), "which no log has"),
        (encode_report(-1), "a report of offset -1"),
    ],
)
def test_a_master_refuses_who_speaks_something_else(data: bytes, why: str) -> None:
    with pytest.raises(FrameError, match=why):
        SlaveFrames().feed(data)


@pytest.mark.parametrize(
    ("data", "why"),
    [
        (plain_transfer(0, b"log"), "state 0, which none has: enableControllerMode must be"),
        (b"HTTP/1.1 400 Bad Request\r\n\r\n", "which none has"),
        (encode_transfer(EpochTransfer(Transfer(-2, b""), Epoch(1, 0), 0)), "offset -2"),
        (encode_transfer(EpochTransfer(Transfer(-1, b"x"), Epoch(1, 0), 0)), "1 bytes at offset"),
        (encode_welcome(Welcome(9, (Epoch(2, 0), Epoch(1, 5)))), "no master sends it"),
        (encode_welcome(Welcome(9, (Epoch(1, 5), Epoch(2, 0)))), "no master sends it"),
        (bytes.fromhex("000000010000000d" + "00" * 12), "a frame of 13 bytes"),
        (bytes.fromhex("000000027fffffff" + "00" * 28), "a frame of 2147483647 bytes"),
    ],
)
def test_a_slave_refuses_a_master_that_speaks_something_else(data: bytes, why: str) -> None:
    with pytest.raises(FrameError, match=why):
        MasterFrames().feed(data)
