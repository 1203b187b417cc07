"""What a client reads from the answer to a pop, and what it sends to acknowledge many messages.

Each popped message gets a handle (`pop_handle`): one of the topic from the fields of the answer, a
copy from a retry topic from a property that it brings.
Source: Apache RocketMQ `MQClientAPIImpl.processPopResponse`, `ExtraInfoUtil`, `BatchAck`.
"""

import base64
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import msgspec

from reliable_mq.errors import ProtocolError
from reliable_mq.wire.pop_handle import NORMAL, RETRY, RETRY_V2, PopHandle, kind_of, parse_handle
from reliable_mq.wire.properties import POP_CK
from reliable_mq.wire.record import Record

_RETRY_PREFIX = "%RETRY%"
_BITS_MAX = 100_000
"""Offsets that one bit set of an acknowledgement may span: 17 KB of text."""


def stored_topic(topic: str, group: str, kind: str) -> str:
    """Return the topic in which messages of a kind are stored that a group popped from `topic`."""
    if kind == RETRY:
        return f"{_RETRY_PREFIX}{group}_{topic}"
    return f"{_RETRY_PREFIX}{group}+{topic}" if kind == RETRY_V2 else topic


def handles_of(
    ext: Mapping[str, str], records: Sequence[Record], topic: str, broker_name: str
) -> list[PopHandle]:
    """Return the handle of each record in the answer to a pop of `topic`.

    A pop of a retry topic itself has only normal handles.

    Raises:
        ProtocolError: when a field is missing or is not as it should be.
    """
    try:
        popped, invisible = int(ext["popTime"]), int(ext["invisibleTime"])
        revive = int(ext["reviveQid"])
        starts = _starts(ext.get("startOffsetInfo") or "")
    except (KeyError, ValueError) as error:
        raise ProtocolError(f"the answer to a pop cannot be decoded: {error!r}") from error
    is_retry_topic = topic.startswith(_RETRY_PREFIX)
    handles: list[PopHandle] = []
    for record in records:
        given = None if is_retry_topic else record.property_map().get(POP_CK)
        if given is not None:
            handles.append(_with_offset(parse_handle(given), record.queue_offset))
            continue
        queue_id, offset = record.queue_id, record.queue_offset
        kind = NORMAL if is_retry_topic else kind_of(record.topic)
        # A broker that names no starts has one checkpoint for each queue, at its first record.
        start = starts.setdefault((is_retry_topic or kind != NORMAL, queue_id), offset)
        handles.append(
            PopHandle(start, popped, invisible, revive, kind, broker_name, queue_id, offset)
        )
    return handles


def _with_offset(handle: PopHandle, offset: int) -> PopHandle:
    return handle if handle.offset is not None else handle._replace(offset=offset)


def _starts(text: str) -> dict[tuple[bool, int], int]:
    """Return where checkpoints start, by (in a retry topic, queue), from `KIND QUEUE START;…`."""
    starts: dict[tuple[bool, int], int] = {}
    for part in text.split(";") if text else ():
        kind, queue_id, start = part.split(" ")
        starts[kind != NORMAL, int(queue_id)] = int(start)
    return starts


def batch_ack_body(
    group: str, broker_name: str, acknowledged: Iterable[tuple[str, PopHandle]]
) -> bytes:
    """Return the body of BATCH_ACK_MESSAGE for handles, each with the topic that was popped.

    The offsets of one checkpoint are one entry, with a set of bits: bit i is the offset i after its
    start.

    Raises:
        ProtocolError: when an offset is outside of its checkpoint.
    """
    bits: dict[tuple[Any, ...], int] = {}
    for topic, handle in acknowledged:
        offset = handle.start_offset if handle.offset is None else handle.offset
        distance = offset - handle.start_offset
        if not 0 <= distance < _BITS_MAX:
            raise ProtocolError(f"the handle {handle.text()[:100]!r} is outside of its checkpoint")
        key = (
            *(topic, handle.kind, handle.start_offset, handle.queue_id),
            *(handle.revive_queue, handle.popped_ms, handle.invisible_ms),
        )
        bits[key] = bits.get(key, 0) | 1 << distance
    names = ("t", "r", "so", "q", "rq", "pt", "it")
    acks = [
        {"c": group, **dict(zip(names, key, strict=True)), "b": _base64(each)}
        for key, each in bits.items()
    ]
    return msgspec.json.encode({"acks": acks, "brokerName": broker_name})


def _base64(bits: int) -> str:
    """Return a set of bits as Java's `BitSet.toByteArray` has it, as text."""
    return base64.b64encode(bits.to_bytes((bits.bit_length() + 7) // 8, "little")).decode()
