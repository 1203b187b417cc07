"""The calls of producers: sends, the ends of transactions, recalls, and check-backs to them.

A transaction id names the place of its half message, so that any endpoint of the cluster can end
the transaction; Apache's proxy keeps that place in memory for half a minute.
Source: Apache RocketMQ `SendMessageActivity`, `EndTransactionActivity`, `ProducerProcessor`.
"""

import random
import time
from collections.abc import Mapping
from itertools import count
from typing import Any, NamedTuple

from reliable_mq.client.connecting.routes import Route
from reliable_mq.errors import RecordError
from reliable_mq.gateway import sending
from reliable_mq.gateway.acting import Acting
from reliable_mq.gateway.asyncio_rights import Rights
from reliable_mq.gateway.asyncio_upstream import Begun, Upstream
from reliable_mq.gateway.caller import Caller
from reliable_mq.gateway.codes import Code, KindOfMessage, RpcRefused, refused_by_broker
from reliable_mq.gateway.field_bytes import (
    STATUS_OK,
    EncodedAnswer,
    field_tags,
    sized,
    varint,
)
from reliable_mq.gateway.group_buckets import bucket_of
from reliable_mq.gateway.message_types import TYPES
from reliable_mq.gateway.receiving import message_of
from reliable_mq.gateway.sessions import Session, Sessions
from reliable_mq.gateway.usual_send import usual_send
from reliable_mq.wire import properties as p
from reliable_mq.wire.codes import RequestCode, ResponseCode
from reliable_mq.wire.command import Command, request
from reliable_mq.wire.message_id import decode_offset_message_id
from reliable_mq.wire.recall_handle import decode_recall_handle
from reliable_mq.wire.record import decode_record

_STORED: dict[int, Code] = {
    ResponseCode.SUCCESS: Code.OK,
    ResponseCode.FLUSH_DISK_TIMEOUT: Code.MASTER_PERSISTENCE_TIMEOUT,
    ResponseCode.FLUSH_SLAVE_TIMEOUT: Code.SLAVE_PERSISTENCE_TIMEOUT,
    ResponseCode.SLAVE_NOT_AVAILABLE: Code.HA_NOT_AVAILABLE,
}
_COMMIT, _ROLLBACK = 1, 2  # resolutions
_FLAGS = {_COMMIT: 8, _ROLLBACK: 12}
_FROM_CHECK = 2  # a source
_PLACE_FIELDS = 3
_ID_SIZE_MAX = 1024


class HalfPlace(NamedTuple):
    """Where a half message lies."""

    broker: str
    queue_offset: int
    log_offset: int

    def transaction_id(self, message_id: str) -> str:
        """Return the id of its transaction."""
        return f"{message_id}@{self.broker}@{self.queue_offset}@{self.log_offset}"


def place_of(transaction_id: str) -> HalfPlace:
    """Return where the half message of a transaction lies.

    Raises:
        RpcRefused: when the id does not say it.
    """
    if not transaction_id.strip():
        raise RpcRefused(Code.INVALID_TRANSACTION_ID, "transaction id cannot be empty")
    _, *place = transaction_id[-_ID_SIZE_MAX:].rsplit("@", _PLACE_FIELDS)
    try:
        broker, queue_offset, log_offset = place
        return HalfPlace(broker, int(queue_offset), int(log_offset))
    except ValueError as error:
        raise RpcRefused(
            Code.INTERNAL_SERVER_ERROR,
            f"transaction id {transaction_id[:80]!r} was not given by this endpoint",
        ) from error


_RESPONSE, _RESULT = map(field_tags, ("SendMessageResponse", "SendResultEntry"))
_ALL_SENT = sized(_RESPONSE["status"], STATUS_OK)
_SENT, _ENTRIES = sized(_RESULT["status"], STATUS_OK), _RESPONSE["entries"]
_ID, _TRANSACTION, _OFFSET, _RECALL = (
    _RESULT[name] for name in ("message_id", "transaction_id", "offset", "recall_handle")
)


class Producing:
    """The calls of producers.

    Args:
        upstream: the brokers.
        sessions: the clients, for check-backs.
        rights: what clients may do.
    """

    def __init__(self, upstream: Upstream, sessions: Sessions, rights: Rights) -> None:
        self._upstream = upstream
        self._sessions = sessions
        self._rights = rights
        self._turn = count(random.randrange(1 << 16))  # noqa: S311 - it only spreads load

    async def send(self, caller: Caller, call: Any) -> Any:
        """Answer a SendMessage."""
        now_ms = time.time_ns() // 1_000_000
        outgoing = sending.read_messages(call.messages, caller.host, now_ms)
        upstream, topic = self._upstream, outgoing.topic
        try:
            route = upstream.known_route(topic) or await upstream.route(topic)
            sending.check_kind(outgoing, upstream.known_kinds(topic) or await upstream.kinds(topic))
        except RpcRefused:
            await self._rights.send(topic)  # else it would tell of topics that the user may not see
            raise
        begun = self._begun(outgoing, route)
        return begun.finish(await upstream.ask(begun.address, begun.command))

    def begin_send(self, caller: Caller, call: Any) -> Begun | None:
        """Begin a SendMessage to a topic of which all is known; None: `send` must answer it.

        Raises:
            RpcRefused: when `send` would refuse it.
        """
        now_ms = time.time_ns() // 1_000_000
        return self._begun_here(sending.read_messages(call.messages, caller.host, now_ms))

    def begin_usual(self, caller: Caller, body: bytes) -> Begun | None:
        """Begin a SendMessage in the usual form; None: it is in another one, or see `begin_send`.

        Raises:
            RpcRefused: when `send` would refuse it.
        """
        outgoing = usual_send(body, caller.host)
        return None if outgoing is None else self._begun_here(outgoing)

    def _begun_here(self, outgoing: sending.Outgoing) -> Begun | None:
        upstream, topic = self._upstream, outgoing.topic
        route, kinds = upstream.known_route(topic), upstream.known_kinds(topic)
        if route is None or kinds is None:
            return None
        sending.check_kind(outgoing, kinds)
        return self._begun(outgoing, route, is_here=True)

    def _begun(self, outgoing: sending.Outgoing, route: Route, *, is_here: bool = False) -> Begun:
        queues = route.writable
        if not queues:
            raise RpcRefused(Code.FORBIDDEN, "no writable queue")
        number = (
            bucket_of(outgoing.group, len(queues))
            if outgoing.group
            else next(self._turn) % len(queues)
        )
        queue = queues[number]
        name = queue.broker_name
        return Begun(
            route.brokers[name].addresses[0],
            sending.command_of(outgoing, queue.queue_id, is_here=is_here),
            lambda answer: self._answered(outgoing, name, answer),
        )

    def _answered(self, outgoing: sending.Outgoing, broker: str, answer: Command) -> Any:
        code = _STORED.get(answer.code)
        if code is None:
            if answer.code == ResponseCode.TOPIC_NOT_EXIST:
                self._upstream.forget_topic(outgoing.topic)
            raise refused_by_broker(answer.code, answer.remark)
        if code is not Code.OK:
            response = TYPES["SendMessageResponse"]()
            entry = response.entries.add()
            entry.status.code = code
            entry.status.message = f"send message failed, sendStatus={code.name}"
            response.status.code, response.status.message = code, code.name
            return response
        message_id = outgoing.message_ids[0]
        stored_id, offset, recall = _result_of(answer)
        sent = _SENT + sized(_ID, message_id.encode()) + _OFFSET + varint(offset)
        if recall:
            sent += sized(_RECALL, recall.encode())
        if outgoing.kind is KindOfMessage.TRANSACTION:
            log_offset = decode_offset_message_id(stored_id).commit_log_offset
            place = HalfPlace(broker, offset, log_offset)
            sent += sized(_TRANSACTION, place.transaction_id(message_id).encode())
        return EncodedAnswer(_ALL_SENT + sized(_ENTRIES, sent), Code.OK)

    async def end_transaction(self, _caller: Caller, call: Any) -> Any:
        """Answer an EndTransaction."""
        sending.check_topic(call.topic.name)
        topic, place = call.topic.name, place_of(call.transaction_id)
        flag = _FLAGS.get(call.resolution)
        if flag is None:  # brokers send no answer to it
            raise RpcRefused(Code.BAD_REQUEST, "a transaction ends with COMMIT or ROLLBACK")
        fields = {
            "topic": topic,
            "producerGroup": topic,
            "tranStateTableOffset": str(place.queue_offset),
            "commitLogOffset": str(place.log_offset),
            "commitOrRollback": str(flag),
            "fromTransactionCheck": "true" if call.source == _FROM_CHECK else "false",
            "msgId": call.message_id,
            "transactionId": call.message_id,
        }
        address = await self._upstream.master(place.broker, topic)
        await self._upstream.asked(address, request(RequestCode.END_TRANSACTION, fields))
        response = TYPES["EndTransactionResponse"]()
        response.status.code, response.status.message = Code.OK, "OK"
        return response

    async def recall(self, _caller: Caller, call: Any) -> Any:
        """Answer a RecallMessage."""
        topic = call.topic.name
        sending.check_topic(topic)
        await self._rights.send(topic)
        if KindOfMessage.DELAY not in await self._upstream.kinds(topic):
            raise RpcRefused(
                Code.MESSAGE_PROPERTY_CONFLICT_WITH_TYPE,
                f"topic {topic} takes no delayed messages: there is nothing to recall",
            )
        handle = decode_recall_handle(call.recall_handle)
        if handle is None:
            raise RpcRefused(Code.INTERNAL_SERVER_ERROR, "recall handle is invalid")
        address = await self._upstream.master(handle.broker, topic)
        fields = {"producerGroup": topic, "topic": topic, "recallHandle": call.recall_handle}
        answer = await self._upstream.asked(address, request(RequestCode.RECALL_MESSAGE, fields))
        response = TYPES["RecallMessageResponse"]()
        response.status.code, response.status.message = Code.OK, "OK"
        response.message_id = answer.ext_fields.get("msgId", "")
        return response

    async def producer_of(self, topic: str) -> Session | None:
        """Return a connected producer of a topic whose user may send to it.

        Everybody may claim to be a producer of a topic. A check-back has the message.
        """
        found = self._sessions.producers_of(topic)
        random.shuffle(found)
        refused: set[Acting | None] = set()
        for each in found:
            if each.acting in refused:
                continue
            if not await self._rights.may_send(each.acting, topic):
                refused.add(each.acting)
            elif each.is_connected:
                return each
        return None

    async def check_back(self, broker: str, command: Command) -> bool:
        """Ask a producer how its transaction has ended. Return whether there is one to ask."""
        try:
            record = decode_record(command.body)
            found = record.property_map()
            fields = command.ext_fields
            place = HalfPlace(
                broker, int(fields["tranStateTableOffset"]), int(fields["commitLogOffset"])
            )
        except (RecordError, KeyError, ValueError):
            return False
        topic = found.get(p.REAL_TOPIC) or record.topic
        session = await self.producer_of(topic)
        if session is None or session.stream is None:
            return False
        record.topic = topic
        told = TYPES["TelemetryCommand"]()
        recover = told.recover_orphaned_transaction_command
        recover.message.CopyFrom(message_of(record, _as_sent(found), record.reconsume_times))
        message_id = recover.message.system_properties.message_id
        recover.transaction_id = place.transaction_id(message_id)
        session.stream.write(told)
        return True


def _as_sent(found: Mapping[str, str]) -> dict[str, str]:
    """Return the properties of a half message as its message has them."""
    return {**found, p.TRANSACTION_PREPARED: "true"}


def _result_of(answer: Command) -> tuple[str, int, str]:
    """Return the broker's id of a stored message, its queue offset, and its recall handle."""
    typed = answer.send_result
    if typed is not None:
        return typed.msg_id, typed.queue_offset, typed.recall_handle or ""
    fields = answer.ext_fields
    offset = fields.get("queueOffset", "0")
    number = int(offset) if offset.lstrip("-").isdecimal() else 0
    return fields.get("msgId", ""), number, fields.get("recallHandle", "")
