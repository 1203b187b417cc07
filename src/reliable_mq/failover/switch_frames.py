"""The frames between a master and its slaves under a controller.

    slave   hello     1 i32 | from the last file i16 | learner i16 | broker id i64
            report    2 i32 | offset i64
    master  welcome   1 i32 | size i32 | log end i64 | epoch i32 | (epoch i32 | start i64)…
            transfer  2 i32 | size i32 | offset i64 | epoch i32 | start i64 | confirmed i64 | log

A slave says who it is, and learns the master's epochs. It cuts its log where they end to be the
same. Then it reports and gets transfers, as without a controller. The bytes of one transfer are of
one epoch.

Invariant W4: any split of the bytes gives the same frames.
Source: Apache RocketMQ `AutoSwitchHAConnection`, `AutoSwitchHAClient`.
"""

import struct
from itertools import pairwise
from typing import NamedTuple

from reliable_mq.errors import FrameError
from reliable_mq.failover.epochs import COUNT_MAX, Epoch
from reliable_mq.replication.ha_frames import RECEIVED_TRANSFER_SIZE_MAX, Transfer

_HANDSHAKE, _TRANSFER = 1, 2
_HELLO = struct.Struct(">ihhq")
_REPORT = struct.Struct(">iq")
_WELCOME = struct.Struct(">iiqi")
_HEAD = struct.Struct(">iiqiqq")
_EPOCH = struct.Struct(">iq")
_STATE = struct.Struct(">i")
_OFFSET_MAX = 1 << 56
_OTHER = "enableControllerMode must be the same at a master and its slaves"


class Hello(NamedTuple):
    """Who a slave is."""

    broker_id: int
    is_learner: bool = False  # it never becomes a master
    from_last_file: bool = False  # what it wants of the log, if it has nothing


class Welcome(NamedTuple):
    """What a master has: where its log ends, and the epochs of its log."""

    log_end: int
    epochs: tuple[Epoch, ...]


class EpochTransfer(NamedTuple):
    """A transfer, with the epoch of its bytes, and how far all replicas in sync have the log."""

    transfer: Transfer
    epoch: Epoch
    confirmed: int


def encode_hello(hello: Hello) -> bytes:
    """Return the first frame of a slave."""
    return _HELLO.pack(_HANDSHAKE, hello.from_last_file, hello.is_learner, hello.broker_id)


def encode_report(offset: int) -> bytes:
    """Return the report of a slave that has the log up to `offset`."""
    return _REPORT.pack(_TRANSFER, offset)


def encode_welcome(welcome: Welcome) -> bytes:
    """Return the answer of a master to a slave's hello."""
    body = b"".join(_EPOCH.pack(*each) for each in welcome.epochs)
    last = welcome.epochs[-1].number if welcome.epochs else -1
    return _WELCOME.pack(_HANDSHAKE, len(body), welcome.log_end, last) + body


def encode_transfer(sent: EpochTransfer) -> bytes:
    """Return a transfer."""
    (offset, data), epoch, confirmed = sent
    return encode_transfer_head(offset, len(data), epoch, confirmed) + data


def encode_transfer_head(offset: int, size: int, epoch: Epoch, confirmed: int) -> bytes:
    """Return what stands before `size` bytes of the log in a transfer."""
    return _HEAD.pack(_TRANSFER, size, offset, *epoch, confirmed)


class SlaveFrames:
    """Reads what one slave sends."""

    def __init__(self) -> None:
        self._kept = b""

    def feed(self, data: bytes) -> list[Hello | int]:
        """Return the frames that are whole with these bytes: hellos, and offsets of reports.

        Raises:
            FrameError: when the bytes are no such frames.
        """
        data = self._kept + data
        found: list[Hello | int] = []
        at = 0
        while len(data) - at >= _STATE.size:
            (state,) = _STATE.unpack_from(data, at)
            if state not in (_HANDSHAKE, _TRANSFER):
                raise FrameError(f"it sends state {state}, which no slave has: {_OTHER}")
            kind = _HELLO if state == _HANDSHAKE else _REPORT
            if len(data) - at < kind.size:
                break
            if kind is _HELLO:
                _state, from_last_file, is_learner, broker_id = _HELLO.unpack_from(data, at)
                if broker_id <= 0:
                    raise FrameError(f"a slave with broker id {broker_id}: no controller gives it")
                found.append(Hello(broker_id, is_learner == 1, from_last_file == 1))
            else:
                _state, offset = _REPORT.unpack_from(data, at)
                if not 0 <= offset < _OFFSET_MAX:
                    raise FrameError(f"a report of offset {offset}, which no log has")
                found.append(offset)
            at += kind.size
        self._kept = data[at:]
        return found


class MasterFrames:
    """Reads what one master sends."""

    def __init__(self) -> None:
        self._kept = bytearray()

    def feed(self, data: bytes) -> list[Welcome | EpochTransfer]:
        """Return the frames that are whole with these bytes.

        Raises:
            FrameError: when the bytes are no such frames.
        """
        kept = self._kept
        kept += data
        found: list[Welcome | EpochTransfer] = []
        at = 0
        while len(kept) - at >= _STATE.size:
            (state,) = _STATE.unpack_from(kept, at)
            if state not in (_HANDSHAKE, _TRANSFER):
                raise FrameError(f"the master sends state {state}, which none has: {_OTHER}")
            kind = _WELCOME if state == _HANDSHAKE else _HEAD
            if len(kept) - at < kind.size:
                break
            fields = kind.unpack_from(kept, at)
            _check(state, fields[1], fields[2])
            begin, end = at + kind.size, at + kind.size + fields[1]
            if end > len(kept):
                break
            body = bytes(kept[begin:end])
            found.append(_welcome(fields, body) if kind is _WELCOME else _transfer(fields, body))
            at = end
        del kept[:at]
        return found


def _check(state: int, size: int, offset: int) -> None:
    """Raise if no master sends this; an empty one names offset -1 in its heartbeats."""
    is_welcome = state == _HANDSHAKE
    most = 10 * COUNT_MAX * _EPOCH.size if is_welcome else RECEIVED_TRANSFER_SIZE_MAX
    is_whole = not is_welcome or not size % _EPOCH.size
    if not 0 <= size <= most or not is_whole or offset < -1 or (offset < 0 < size):
        raise FrameError(f"a frame of {size} bytes at offset {offset}: no master sends it")


def _welcome(fields: tuple[int, ...], body: bytes) -> Welcome:
    epochs = tuple(Epoch(*each) for each in _EPOCH.iter_unpack(body))
    for first, second in pairwise(epochs):
        if first.number >= second.number or first.start > second.start:
            raise FrameError(f"the master's epoch {first} is before {second}: no master sends it")
    return Welcome(fields[2], epochs)


def _transfer(fields: tuple[int, ...], body: bytes) -> EpochTransfer:
    _state, _size, offset, number, start, confirmed = fields
    return EpochTransfer(Transfer(offset, body), Epoch(number, start), confirmed)
