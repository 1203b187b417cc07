"""What the attacks at real servers send and pull, in the fields of the wire."""

from collections.abc import Callable

from tests.fuzz.bystander import GROUP, TOPIC

from reliable_mq.errors import FrameError

SEND = {
    "a": "producers",
    "b": TOPIC,
    "c": "TBW102",
    "d": "1",
    "e": "0",
    "f": "0",
    "g": "1700000000000",
    "h": "0",
    "i": "",
    "j": "0",
    "k": "false",
    "m": "false",
}
PULL = {
    "consumerGroup": GROUP,
    "topic": TOPIC,
    "queueId": "0",
    "maxMsgNums": "32",
    "sysFlag": "4",
    "commitOffset": "0",
    "suspendTimeoutMillis": "0",
    "subscription": "*",
    "subVersion": "0",
}


def try_frame(make: Callable[[], bytes]) -> bytes:
    """Return a frame, b"" when what was asked for fits none."""
    try:
        return make()
    except FrameError:
        return b""
