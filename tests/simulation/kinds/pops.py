"""Pops, acknowledgements one by one and together, and other times: what is right."""

import binascii
from typing import Any, NamedTuple

import msgspec
from tests.simulation.asked import Asked
from tests.simulation.facts import Expected, Violation
from tests.simulation.kinds.pulls import is_of_fenced
from tests.simulation.model import Model
from tests.simulation.popped import BROKER, Handed

from reliable_mq.wire.codes import ResponseCode
from reliable_mq.wire.command import Command
from reliable_mq.wire.pop_answer import handles_of
from reliable_mq.wire.pop_handle import ORDER_QUEUE, PopHandle, parse_handle, stored_topic
from reliable_mq.wire.pop_headers import (
    AckMessageHeader,
    ChangeInvisibleTimeHeader,
    PopMessageHeader,
)
from reliable_mq.wire.pop_records import CheckpointKey
from reliable_mq.wire.record import iter_records

_NOTHING = (ResponseCode.POLLING_FULL, ResponseCode.POLLING_TIMEOUT, ResponseCode.TOPIC_NOT_EXIST)
_BUSY = (ResponseCode.SERVICE_NOT_AVAILABLE, ResponseCode.SYSTEM_ERROR)
_GONE = (ResponseCode.NO_MESSAGE, ResponseCode.TOPIC_NOT_EXIST)


def key_of(topic: str, group: str, handle: PopHandle) -> CheckpointKey:
    """Return the checkpoint of a message; `topic` is where it is stored."""
    start, popped_ms = handle.start_offset, handle.popped_ms
    return CheckpointKey(topic, group, handle.queue_id, start, popped_ms, handle.broker)


def _attempt_of(header: PopMessageHeader) -> tuple[str, str, str] | None:
    """Return group, topic and attempt of a pop in order; None: it is another one, or has none."""
    if not header.order or not header.attempt_id:
        return None
    return header.consumer_group, header.topic, header.attempt_id


def _request_of(asked: Asked) -> tuple[int, int]:
    return asked.connection, asked.command.opaque


class Pop:
    """A pop: what it is told was handed out for sure, to nobody else."""

    def expect(self, model: Model, asked: Asked) -> list[Expected]:
        header = PopMessageHeader.decode(asked.command.ext_fields)
        model.tables.groups.add(header.consumer_group)
        if attempt := _attempt_of(header):
            until_ms = asked.now_ms + header.invisible_time
            model.popped.in_order.asked(attempt, _request_of(asked), until_ms)
        return []

    def check(self, model: Model, asked: Asked, reply: Command) -> None:
        header = PopMessageHeader.decode(asked.command.ext_fields)
        if attempt := _attempt_of(header):
            model.popped.in_order.answered(attempt, _request_of(asked))
        if reply.code:
            if reply.code not in (*_NOTHING, *_BUSY) and not is_of_fenced(model, reply):
                raise Violation(f"a pop is answered {reply}")
            return
        group, records = header.consumer_group, list(iter_records(reply.body))
        if not 0 < len(records) <= header.max_msg_nums:
            raise Violation(f"a pop of {header.max_msg_nums} gets {len(records)} messages")
        handles = handles_of(reply.ext_fields, records, header.topic, BROKER)
        in_order: dict[int, list[int]] = {}
        for record, handle in zip(records, handles, strict=True):
            topic = stored_topic(header.topic, group, handle.kind)
            offset = record.queue_offset
            if handle.is_order:
                in_order.setdefault(record.queue_id, []).append(offset)
                wanted = model.queues[topic, record.queue_id].entries[offset]
            else:
                wanted = model.popped.is_handed_out(key_of(topic, group, handle), offset)
            if wanted.body != record.body or wanted.number >= model.visible:
                raise Violation(f"a pop gets {record.body[:20]!r} as {wanted}")
        for queue_id, offsets in in_order.items():
            entries = model.queues[header.topic, queue_id].entries
            first = sum(1 for each in entries if model.is_gone(each))
            place = (group, header.topic, queue_id)
            popped_ms = int(reply.ext_fields["popTime"])
            times = (popped_ms, header.invisible_time)
            model.popped.in_order.handed_out(place, offsets, *times, header.attempt_id, first)

    def may_wait(self, model: Model, asked: Asked) -> bool:
        return True


class _Ending(NamedTuple):
    """What an acknowledgement must end: messages, and those of pops in order."""

    handed: list[Handed]
    in_order: list[tuple[tuple[str, str, int], int, int]]


class Ack:
    """An acknowledgement: when it is confirmed in time, the message never comes back."""

    def expect(self, model: Model, asked: Asked) -> list[Expected]:
        header = AckMessageHeader.decode(asked.command.ext_fields)
        handle = parse_handle(header.extra_info)
        ending = asked.facts = _Ending([], [])
        _end(model, ending, header.topic, header.consumer_group, handle, [header.offset], asked)
        return []

    def check(self, model: Model, asked: Asked, reply: Command) -> None:
        if reply.code:
            if reply.code not in (*_BUSY, *_GONE, ResponseCode.MESSAGE_ILLEGAL):
                raise Violation(f"an acknowledgement is answered {reply}")
            return
        ending: _Ending = asked.facts
        model.popped.ended(ending.handed)
        for place, offset, popped_ms in ending.in_order:
            model.popped.in_order.ended(place, offset, popped_ms)

    def may_wait(self, model: Model, asked: Asked) -> bool:
        return True


def _end(
    model: Model,
    ending: _Ending,
    topic: str,
    group: str,
    handle: PopHandle,
    offsets: list[int],
    asked: Asked,
) -> None:
    if handle.revive_queue != ORDER_QUEUE:
        key = key_of(topic, group, handle)
        times = (handle.revive_ms, offsets, asked.now_ms)
        ending.handed.extend(model.popped.asked_to_end(key, *times))
        return
    place = (group, topic, handle.queue_id)
    for offset in offsets:
        if model.popped.in_order.asked_to_end(place, offset, handle.popped_ms, asked.now_ms):
            ending.in_order.append((place, offset, handle.popped_ms))


class BatchAck(Ack):
    """Many acknowledgements at once."""

    def expect(self, model: Model, asked: Asked) -> list[Expected]:
        ending = asked.facts = _Ending([], [])
        body: dict[str, Any] = msgspec.json.decode(asked.command.body)
        for each in body["acks"]:
            topic = stored_topic(each["t"], each["c"], each["r"])
            bits = int.from_bytes(binascii.a2b_base64(each["b"]), "little")
            offsets = [each["so"] + n for n in range(bits.bit_length()) if bits >> n & 1]
            times = (each["so"], each["pt"], each["it"], each["rq"])
            handle = PopHandle(*times, each["r"], BROKER, each["q"])
            _end(model, ending, topic, each["c"], handle, offsets, asked)
        return []


class Extend:
    """Another time for a message."""

    def expect(self, model: Model, asked: Asked) -> list[Expected]:
        header = ChangeInvisibleTimeHeader.decode(asked.command.ext_fields)
        handle = parse_handle(header.extra_info)
        if handle.is_order:
            place = (header.consumer_group, header.topic, header.queue_id)
            times = (asked.now_ms, header.invisible_time)
            model.popped.in_order.asked_to_hide(place, header.offset, *times)
        else:
            model.popped.used(key_of(header.topic, header.consumer_group, handle))
        return []

    def check(self, model: Model, asked: Asked, reply: Command) -> None:
        if reply.code:
            if reply.code not in (*_BUSY, *_GONE):
                raise Violation(f"another time is answered {reply}")
            return
        header = ChangeInvisibleTimeHeader.decode(asked.command.ext_fields)
        former = parse_handle(header.extra_info)
        if former.is_order:
            return
        group = header.consumer_group
        new = new_handle(former, header.offset, reply)
        keys = [key_of(header.topic, group, handle) for handle in (former, new)]
        model.popped.extended(keys[0], keys[1], header.offset)

    def may_wait(self, model: Model, asked: Asked) -> bool:
        return True


def new_handle(former: PopHandle, offset: int, reply: Command) -> PopHandle:
    """Return the handle of a message after another time was confirmed."""
    ext = reply.ext_fields
    if former.is_order:
        return former
    return former._replace(
        start_offset=offset,
        popped_ms=int(ext["popTime"]),
        invisible_ms=int(ext["invisibleTime"]),
        revive_queue=int(ext["reviveQid"]),
    )
