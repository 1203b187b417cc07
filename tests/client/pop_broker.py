"""A broker that hands out messages one by one, over a scripted world; and a client for it.

It keeps what Apache's broker keeps: checkpoints, which an acknowledgement or another invisible time
must name by its handle. What nobody acknowledges in time comes back in a retry topic.
"""

import asyncio
import base64
from collections.abc import Sequence
from typing import TypeVar

import msgspec
from tests.client.script import World, group_of, says
from tests.client.scripted_consumer import ScriptedClient
from tests.waiting import eventually

from reliable_mq.client.consuming.consumer_group import ConsumerGroup
from reliable_mq.client.consuming.subscription import Subscription
from reliable_mq.client.flow import Call, Flow
from reliable_mq.client.settings import ClientSettings
from reliable_mq.wire.codes import RequestCode, ResponseCode
from reliable_mq.wire.command import Command, reply
from reliable_mq.wire.pop_handle import parse_handle
from reliable_mq.wire.properties import POP_CK, decode_properties, encode_properties
from reliable_mq.wire.record import Record, pack_host
from reliable_mq.wire.record_encode import encode_record

T = TypeVar("T")

QUICK = ClientSettings(rebalance_retry_seconds=0.001, pull_retry_seconds_max=0.001)
_MS = 1000


class PopBroker:
    """Broker "a" with one topic. Its clock is the world's.

    Args:
        world: is given the answers of this broker.
        tags: of the messages of queue 0, one for each.
    """

    def __init__(self, world: World, *tags: str) -> None:
        self.world = world
        self.waiting = [_record(offset, tag) for offset, tag in enumerate(tags)]
        #: (handle, record) of messages that are out
        self.out: dict[str, Record] = {}
        self.acknowledged: list[int] = []
        self.late: list[str] = []  # handles that came after their end
        self.returned = 0
        world.answers |= {
            RequestCode.QUERY_ASSIGNMENT: says(body=b'{"messageQueueAssignments":null}'),
            RequestCode.POP_MESSAGE: self._pop,
            RequestCode.ACK_MESSAGE: self._ack,
            RequestCode.BATCH_ACK_MESSAGE: self._ack_batch,
            RequestCode.CHANGE_MESSAGE_INVISIBLETIME: self._change,
            RequestCode.SEND_MESSAGE_V2: says(
                ext={"msgId": "1", "queueId": "0", "queueOffset": "0"}
            ),
        }

    @property
    def counts(self) -> list[int]:
        """How many messages each pop that found some has asked for."""
        return [
            int(call.command.ext_fields["maxMsgNums"])
            for call in self.world.calls_of(RequestCode.POP_MESSAGE)
        ]

    @property
    def handles(self) -> list[str]:
        """The handles of the messages that are out."""
        return list(self.out)

    def tick(self) -> None:
        """Let what is over come back."""
        for text, record in list(self.out.items()):
            handle = parse_handle(text)
            if (handle.popped_ms + handle.invisible_ms) / _MS > self.world.seconds:
                continue
            del self.out[text]
            again = msgspec.structs.replace(record, reconsume_times=record.reconsume_times + 1)
            again.queue_offset = 1000 + self.returned
            self.returned += 1
            self.waiting.append(again)

    def _pop(self, call: Call) -> Command:
        self.tick()
        asked = call.command.ext_fields
        if asked["topic"] != "t" or not self.waiting:
            return reply(call.command, ResponseCode.POLLING_TIMEOUT, "NO_MESSAGE_IN_QUEUE")
        count = int(asked["maxMsgNums"])
        taken, self.waiting = self.waiting[:count], self.waiting[count:]
        popped, invisible = int(self.world.seconds * _MS), asked["invisibleTime"]
        start = min(record.queue_offset for record in taken)
        body = b""
        for record in taken:
            kind = "1" if record.queue_offset >= 1000 else "0"
            at = record.queue_offset if kind == "1" else start
            handle = f"{at} {popped} {invisible} 2 {kind} a 0 {record.queue_offset}"
            self.out[handle] = record
            properties = decode_properties(record.properties)
            if kind == "1":
                properties |= {POP_CK: handle}
            sent = msgspec.structs.replace(record, properties=encode_properties(properties))
            body += encode_record(sent)
        fields = {
            "popTime": str(popped),
            "invisibleTime": invisible,
            "reviveQid": "2",
            "restNum": str(len(self.waiting)),
            "startOffsetInfo": f"0 0 {start}",
        }
        return reply(call.command, ext=fields, body=body)

    def _ack(self, call: Call) -> Command:
        self.tick()
        self._end(call.command.ext_fields["extraInfo"])
        return reply(call.command)

    def _end(self, handle: str) -> None:
        record = self.out.pop(handle, None)
        if record is None:
            self.late.append(handle)
        else:
            self.acknowledged.append(record.queue_offset)

    def _ack_batch(self, call: Call) -> Command:
        self.tick()
        for each in msgspec.json.decode(call.command.body)["acks"]:
            bits = int.from_bytes(base64.b64decode(each["b"]), "little")
            for at in range(bits.bit_length()):
                if bits >> at & 1:
                    offset = each["so"] + at
                    where = f"{each['rq']} {each['r']} a {each['q']} {offset}"
                    self._end(f"{each['so']} {each['pt']} {each['it']} {where}")
        return reply(call.command)

    def _change(self, call: Call) -> Command:
        self.tick()
        asked = call.command.ext_fields
        record = self.out.pop(asked["extraInfo"], None)
        if record is None:
            self.late.append(asked["extraInfo"])
            return reply(call.command, ResponseCode.NO_MESSAGE, "it has come back")
        old, popped = parse_handle(asked["extraInfo"]), int(self.world.seconds * _MS)
        invisible = asked["invisibleTime"]
        handle = f"{old.offset} {popped} {invisible} 2 {old.kind} a 0 {old.offset}"
        self.out[handle] = record
        fields = {"popTime": str(popped), "invisibleTime": invisible, "reviveQid": "2"}
        return reply(call.command, ext=fields)


class PoppingClient(ScriptedClient):
    """A client of that broker. A pop that finds nothing takes a moment, as a long poll does."""

    async def run(self, flow: Flow[T]) -> T:
        before = len(self.world.calls)
        result = await super().run(flow)
        last = self.world.calls[-1] if len(self.world.calls) > before else None
        if last is not None and last.command.code == RequestCode.POP_MESSAGE:
            await asyncio.sleep(0.001)
        return result


async def passed(seconds: float) -> None:
    """Return when the loop's clock has gone on so far."""
    now = asyncio.get_running_loop().time
    until = now() + seconds
    await eventually(lambda: now() >= until)


def popping_group(
    world: World, settings: ClientSettings = QUICK, wanted: str = "*", **wishes: object
) -> ConsumerGroup:
    """Return a group that consumes topic t at broker a by the message."""
    subscription = Subscription(
        group="g",
        topics={"t": wanted},
        by="message",
        ordered=False,
        **wishes,  # type: ignore[arg-type]
    )
    return group_of(world, subscription, queues={"a": 1}, settings=settings)


def offsets_of(handles: Sequence[str]) -> list[int]:
    """Return the offset in each handle."""
    return sorted(parse_handle(each).offset or 0 for each in handles)


def _record(offset: int, tag: str) -> Record:
    properties = {"UNIQ_KEY": f"ID{offset}", **({"TAGS": tag} if tag else {})}
    return Record(
        topic="t",
        body=b"x",
        properties=encode_properties(properties),
        queue_offset=offset,
        store_host=pack_host("127.0.0.1", 10911),
    )
