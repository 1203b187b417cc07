"""What a client reads from the answer to a pop, and what it sends to acknowledge many messages.

Each popped message gets a handle (`pop_handle`): one of the topic from the fields of the answer, a
copy from a retry topic from a property that it brings.
Source: Apache RocketMQ `MQClientAPIImpl.processPopResponse`, `ExtraInfoUtil`, `BatchAck`.
"""

import base64
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

import msgspec

from reliable_mq.errors import ProtocolError
from reliable_mq.wire.pop_handle import (
    NORMAL,
    RETRY,
    RETRY_V2,
    HandleInvalid,
    PopHandle,
    kind_of,
    parse_handle,
)
from reliable_mq.wire.properties import NAME_VALUE_SEPARATOR, POP_CK
from reliable_mq.wire.record import Record

_KINDS = frozenset((NORMAL, RETRY, RETRY_V2))
_NAME = f"{POP_CK}{NAME_VALUE_SEPARATOR}".encode()
_BITS_MAX = 100_000
"""Offsets that one bit set of an acknowledgement may span: 17 KB of text."""


def handles_of(
    ext: Mapping[str, str], records: Sequence[Record], topic: str, broker_name: str
) -> list[PopHandle]:
    """Return the handle of each record in the answer to a pop of `topic`.

    A producer may write any handle into its message. So a message brings its handle only if it came
    by a retry topic: the answer names its place there, if it names places, and the handle agrees
    with the answer. A pop of a retry topic itself has only normal handles.

    Raises:
        ProtocolError: when a field is missing or is not as it should be.
    """
    try:
        popped, invisible = int(ext["popTime"]), int(ext["invisibleTime"])
        revive = int(ext["reviveQid"])
        starts = _starts(ext.get("startOffsetInfo") or "")
        places = _places(ext.get("msgOffsetInfo") or "")
    except (KeyError, ValueError) as error:
        raise ProtocolError(f"the answer to a pop cannot be decoded: {error!r}") from error
    is_retry_topic = kind_of(topic) != NORMAL
    handles: list[PopHandle] = []
    for record in records:
        queue_id, offset = record.queue_id, record.queue_offset
        kinds = places.get((queue_id, offset), frozenset()) if places else _KINDS
        kind = NORMAL if is_retry_topic else kind_of(record.topic)
        named = kind_of(topic) if is_retry_topic else kind
        if named == NORMAL:
            if _NAME in record.properties:
                usual = PopHandle(0, popped, invisible, revive, kind, broker_name, queue_id, offset)
                given = _given(record.property_map().get(POP_CK), usual, kinds - {NORMAL})
                if given is not None:
                    handles.append(given)
                    continue
            if len(kinds) == 1:  # a copy whose handle had no room, or is spoilt
                (kind,) = (named,) = kinds
        # A broker that names no starts has one checkpoint for each queue, at its first record.
        start = starts.get((named, queue_id))
        if start is None and named != NORMAL:  # brokers may name both forms of the topic alike
            start = starts.get((RETRY if named == RETRY_V2 else RETRY_V2, queue_id))
        if start is None:
            start = starts.setdefault((named, queue_id), offset)
        handles.append(
            PopHandle(start, popped, invisible, revive, kind, broker_name, queue_id, offset)
        )
    return handles


def _given(text: str | None, usual: PopHandle, kinds: Collection[str]) -> PopHandle | None:
    """Return the handle that a message brings; None: it has none that agrees with the answer."""
    if text is None or not kinds:
        return None
    try:
        handle = parse_handle(text)
    except HandleInvalid:
        return None
    if handle.offset is None:  # as old brokers write it
        handle = handle._replace(offset=usual.offset)
    if handle.kind not in kinds or not 0 <= (usual.offset or 0) - handle.start_offset < _BITS_MAX:
        return None
    expected = usual._replace(start_offset=handle.start_offset, kind=handle.kind)
    return handle if handle == expected else None


def _starts(text: str) -> dict[tuple[str, int], int]:
    """Return where checkpoints start, by kind and queue, from `KIND QUEUE START;…`."""
    starts: dict[tuple[str, int], int] = {}
    for part in text.split(";") if text else ():
        kind, queue_id, start = part.split(" ")
        starts[kind, int(queue_id)] = int(start)
    return starts


def _places(text: str) -> dict[tuple[int, int], frozenset[str]]:
    """Return the kinds of each queue and offset, from `KIND QUEUE OFFSET,OFFSET,…;…`."""
    places: dict[tuple[int, int], frozenset[str]] = {}
    for part in text.split(";") if text else ():
        kind, queue, offsets = part.split(" ")
        queue_id, alone = int(queue), frozenset((kind,))
        for offset in map(int, offsets.split(",")):
            known = places.setdefault((queue_id, offset), alone)
            if known is not alone:
                places[queue_id, offset] = known | alone
    return places


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
