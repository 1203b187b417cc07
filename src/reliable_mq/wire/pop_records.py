"""What a broker notes about popped messages: checkpoints and acknowledgements, as JSON.

A checkpoint says which messages of a queue one pop has handed out, and for how long. It has at most
32 of them; each has a bit. An acknowledgement names its checkpoint by start and time. Both are the
bodies of timed messages for the revive topic; their tags are `CHECKPOINT`, `ACK` and `ACKS`.
Source: Apache RocketMQ `PopCheckPoint`, `AckMsg`, `BatchAckMsg`, `PopMessageProcessor`.
"""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import msgspec

from reliable_mq.decodable import decodable
from reliable_mq.errors import RecordError
from reliable_mq.wire.java_int import I64_MAX

CHECKPOINT, ACK, ACKS = "ck", "ack", "bAck"
AHEAD_MS = 1_000
"""So long before its messages come back, a checkpoint is read: its acknowledgements follow it."""
MESSAGES_MAX = 32
"""Messages of one checkpoint."""
NO_POP = 0


class CheckpointKey(NamedTuple):
    """What an acknowledgement says of its checkpoint."""

    topic: str
    group: str
    queue_id: int
    start_offset: int
    popped_ms: int
    broker: str


class PopCheckpoint(NamedTuple):
    """The messages that one pop has handed out from one queue. `topic` is the real one.

    `next_offset` is where the group goes on in the queue. `NO_POP`: an extension has made it, so it
    says nothing of that. None: a broker of Apache has made it.
    """

    key: CheckpointKey
    invisible_ms: int
    offsets: tuple[int, ...]
    bits: int = 0  # one for each message that is acknowledged
    attempts: int = 0  # to bring messages back that failed
    next_offset: int | None = None

    @property
    def revive_ms(self) -> int:
        """When the messages come back that are not acknowledged."""
        return self.key.popped_ms + self.invisible_ms

    @property
    def name(self) -> str:
        """The unique key of its record."""
        return f"{_place(self.key, self.key.start_offset)}@{CHECKPOINT}"


class PopAcks(NamedTuple):
    """Messages of one checkpoint that are acknowledged."""

    key: CheckpointKey
    offsets: tuple[int, ...]

    @property
    def name(self) -> str:
        """The unique key of its record."""
        if len(self.offsets) == 1:
            return f"{_place(self.key, self.offsets[0])}@{ACK}"
        return f"{_place(self.key, -1)}@{ACK}"

    @property
    def tag(self) -> str:
        """The tag of its record."""
        return ACK if len(self.offsets) == 1 else ACKS


def _place(key: CheckpointKey, offset: int) -> str:
    topic, group, queue_id, _, popped_ms, broker = key
    return f"{topic}@{queue_id}@{offset}@{group}@{popped_ms}@{broker}"


@decodable
class _CheckpointText(msgspec.Struct, kw_only=True):
    bm: int = 0
    bn: str | None = None
    c: str | None = None
    d: list[int] | None = None
    it: int = 0
    n: int = 0
    no: int | None = None  # ours
    pt: int = 0
    q: int = 0
    ro: int = 0
    so: int = 0
    t: str | None = None
    rp: str | None = None


@decodable
class _AckText(msgspec.Struct, kw_only=True, omit_defaults=True):
    ao: int
    aol: list[int] | None = None
    bn: str | None = None
    c: str | None = None
    pt: int
    q: int
    so: int
    t: str | None = None


_encode = msgspec.json.Encoder().encode
_decode_checkpoint = msgspec.json.Decoder(_CheckpointText, strict=False).decode
_decode_ack = msgspec.json.Decoder(_AckText, strict=False).decode


def encode_checkpoint(checkpoint: PopCheckpoint) -> bytes:
    """Return the body of the record of a checkpoint."""
    topic, group, queue_id, start, popped_ms, broker = checkpoint.key
    own = {} if checkpoint.next_offset is None else {"no": checkpoint.next_offset}
    return _encode(
        {
            "bm": checkpoint.bits,
            "bn": broker,
            "c": group,
            "d": [offset - start for offset in checkpoint.offsets],
            "it": checkpoint.invisible_ms,
            "n": len(checkpoint.offsets),
            **own,
            "pt": popped_ms,
            "q": queue_id,
            "reviveTime": checkpoint.revive_ms,
            "ro": 0,
            "so": start,
            "t": topic,
        }
    )


def decode_checkpoint(body: bytes) -> PopCheckpoint:
    """Return the checkpoint in a body.

    Raises:
        RecordError: when it is none.
    """
    try:
        text = _decode_checkpoint(body)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise RecordError(f"no checkpoint of popped messages: {error}") from error
    if text.t is None or text.c is None or not 0 <= text.n <= MESSAGES_MAX:
        raise RecordError("a checkpoint of popped messages without topic, group or messages")
    apart = text.d or range(text.n)  # old brokers popped only neighbours
    offsets = tuple(text.so + apart[index] for index in range(min(text.n, len(apart))))
    if any(not 0 <= offset <= I64_MAX for offset in offsets):
        raise RecordError("a checkpoint of popped messages with an impossible offset")
    key = CheckpointKey(text.t, text.c, text.q, text.so, text.pt, text.bn or "")
    attempts = int(text.rp) if text.rp and text.rp.isdecimal() and len(text.rp) < 4 else 0
    bits = text.bm & (1 << MESSAGES_MAX) - 1
    return PopCheckpoint(key, text.it, offsets, bits, attempts, text.no)


def encode_acks(acks: PopAcks) -> bytes:
    """Return the body of the record of acknowledgements."""
    topic, group, queue_id, start, popped_ms, broker = acks.key
    offset, offsets = (acks.offsets[0], None) if len(acks.offsets) == 1 else (-1, acks.offsets)
    return _encode(
        _AckText(
            ao=offset,
            aol=None if offsets is None else list(offsets),
            bn=broker,
            c=group,
            pt=popped_ms,
            q=queue_id,
            so=start,
            t=topic,
        )
    )


def decode_acks(body: bytes, broker: str) -> PopAcks:
    """Return the acknowledgements in a body. `broker` is meant where the body names none.

    Raises:
        RecordError: when there are none.
    """
    try:
        text = _decode_ack(body)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise RecordError(f"no acknowledgement of popped messages: {error}") from error
    if text.t is None or text.c is None:
        raise RecordError("an acknowledgement of popped messages without topic or group")
    key = CheckpointKey(text.t, text.c, text.q, text.so, text.pt, text.bn or broker)
    return PopAcks(key, (text.ao,) if text.aol is None else tuple(text.aol))


def bits_of(checkpoint: PopCheckpoint, offsets: Sequence[int]) -> int:
    """Return the bits of some messages of a checkpoint; others have none."""
    own = checkpoint.offsets
    if len(offsets) == 1 and (count := own.count(offsets[0])) < 2:  # nearly always
        return 1 << own.index(offsets[0]) if count else 0
    places: Mapping[int, int] = {each: index for index, each in enumerate(own)}
    return sum(1 << places[offset] for offset in set(offsets) if offset in places)
