"""The calls of clients that read a queue from an offset, which Apache's proxy leaves unanswered.

A client that pulls has the progress of its group in its own hands: it reads, and says how far.
"""

import asyncio
from typing import Any

from reliable_mq.errors import RecordError
from reliable_mq.gateway.acting import payer
from reliable_mq.gateway.asyncio_consuming import Write
from reliable_mq.gateway.asyncio_upstream import MARGIN_SECONDS, Upstream
from reliable_mq.gateway.caller import Caller
from reliable_mq.gateway.codes import SQL, Code, RpcRefused, refused_by_broker
from reliable_mq.gateway.message_types import TYPES
from reliable_mq.gateway.receiving import message_of
from reliable_mq.gateway.sending import check_group, check_topic
from reliable_mq.gateway.sessions import BATCH_SIZE, ms_of
from reliable_mq.gateway.waiting_places import WaitingPlaces
from reliable_mq.names import EVERY_TAG, tags_of
from reliable_mq.wire import properties as p
from reliable_mq.wire.codes import RequestCode, ResponseCode
from reliable_mq.wire.command import Command, request
from reliable_mq.wire.record import iter_records

_POLL_MS_MAX = 20_000
_DIGITS_MAX = 18
WAITING_MAX, WAITING_OF_ONE_MAX = 10_000, 5_000
"""The most pulls that wait at brokers at a time, and those of one user or address."""
_SUSPEND, _HAS_FILTER = 0x2, 0x4
_END, _BY_TIME = 1, 2  # policies of QueryOffset


class Pulling:
    """The calls of clients that pull."""

    def __init__(self, upstream: Upstream) -> None:
        self._upstream = upstream
        self.places = WaitingPlaces("pulls", WAITING_MAX, WAITING_OF_ONE_MAX)

    async def _asked(self, call: Any, code: int, fields: dict[str, str]) -> Command:
        queue = call.message_queue
        topic = queue.topic.name
        check_topic(topic)
        address = await self._upstream.master(queue.broker.name, topic)
        named = {"topic": topic, "queueId": str(queue.id), "bname": queue.broker.name}
        return await self._upstream.ask(address, request(code, named | fields))

    async def update_offset(self, _caller: Caller, call: Any) -> Any:
        """Answer an UpdateOffset."""
        check_group(call.group.name)
        if call.offset < 0:
            raise RpcRefused(Code.ILLEGAL_OFFSET, f"offset {call.offset} is negative")
        fields = {"consumerGroup": call.group.name, "commitOffset": str(call.offset)}
        answer = await self._asked(call, RequestCode.UPDATE_CONSUMER_OFFSET, fields)
        return _offset_answer("UpdateOffset", answer)

    async def get_offset(self, _caller: Caller, call: Any) -> Any:
        """Answer a GetOffset."""
        check_group(call.group.name)
        fields = {"consumerGroup": call.group.name, "setZeroIfNotFound": "false"}
        answer = await self._asked(call, RequestCode.QUERY_CONSUMER_OFFSET, fields)
        if answer.code == ResponseCode.QUERY_NOT_FOUND:
            raise RpcRefused(Code.OFFSET_NOT_FOUND, answer.remark or "the group has no offset")
        return _offset_answer("GetOffset", answer)

    async def query_offset(self, _caller: Caller, call: Any) -> Any:
        """Answer a QueryOffset."""
        policy, fields = call.query_offset_policy, dict[str, str]()
        if policy == _BY_TIME:
            if not call.HasField("timestamp"):
                raise RpcRefused(Code.BAD_REQUEST, "the policy TIMESTAMP needs a timestamp")
            code: int = RequestCode.SEARCH_OFFSET_BY_TIMESTAMP
            fields["timestamp"] = str(ms_of(call.timestamp))
        else:
            code = RequestCode.GET_MAX_OFFSET if policy == _END else RequestCode.GET_MIN_OFFSET
        return _offset_answer("QueryOffset", await self._asked(call, code, fields))

    async def pull(self, caller: Caller, call: Any, write: Write) -> None:
        """Answer a PullMessage: with a status, messages, and the next offset."""
        made = TYPES["PullMessageResponse"]
        status = made()
        answers = [status]
        try:
            next_offset, messages = await self._pulled(caller, call)
            found = bool(messages)
            status.status.code = Code.OK if found else Code.MESSAGE_NOT_FOUND
            status.status.message = "OK" if found else "no new message"
            answers += [made(message=each) for each in messages]
            answers.append(made(next_offset=next_offset))
        except RpcRefused as refused:
            status.status.code, status.status.message = refused.code, str(refused)
        write(answers, None)

    async def _pulled(self, caller: Caller, call: Any) -> tuple[int, list[Any]]:
        queue, group = call.message_queue, call.group.name
        topic = queue.topic.name
        check_topic(topic)
        check_group(group)
        if call.offset < 0:
            raise RpcRefused(Code.ILLEGAL_OFFSET, f"offset {call.offset} is negative")
        left_ms = int(min(caller.deadline - asyncio.get_running_loop().time(), 60.0) * 1000)
        poll_ms = max(min(ms_of(call.long_polling_timeout), _POLL_MS_MAX, left_ms), 0)
        expression = call.filter_expression.expression or EVERY_TAG
        is_sql = call.filter_expression.type == SQL
        fields = {
            "consumerGroup": group,
            "topic": topic,
            "queueId": str(queue.id),
            "queueOffset": str(call.offset),
            "maxMsgNums": str(min(max(call.batch_size, 1), BATCH_SIZE)),
            "sysFlag": str(_HAS_FILTER | (_SUSPEND if poll_ms else 0)),
            "commitOffset": "0",
            "suspendTimeoutMillis": str(poll_ms),
            "subscription": expression,
            "subVersion": "0",
            "expressionType": "SQL92" if is_sql else "TAG",
            "bname": queue.broker.name,
        }
        address = await self._upstream.master(queue.broker.name, topic)
        command = request(RequestCode.PULL_MESSAGE, fields)
        with self.places.place(payer()):
            answer = await self._upstream.ask(address, command, poll_ms / 1000 + MARGIN_SECONDS)
        if answer.code == ResponseCode.PULL_OFFSET_MOVED:
            raise RpcRefused(
                Code.ILLEGAL_OFFSET, f"offset {call.offset} is not in the queue: {_next_of(answer)}"
            )
        wanted = frozenset[str]() if is_sql else tags_of(expression)
        messages: list[Any] = []
        if answer.code == ResponseCode.SUCCESS:
            try:
                for record in iter_records(answer.body):
                    found = record.property_map()
                    if not wanted or found.get(p.TAGS) in wanted:
                        messages.append(message_of(record, found, record.reconsume_times))
            except RecordError as error:
                raise RpcRefused(Code.INTERNAL_SERVER_ERROR, str(error)) from error
        elif answer.code not in {
            ResponseCode.PULL_NOT_FOUND,
            ResponseCode.PULL_RETRY_IMMEDIATELY,
        }:
            raise refused_by_broker(answer.code, answer.remark)
        return _next_of(answer), messages


def _next_of(answer: Command) -> int:
    if answer.pull_result is not None:
        return answer.pull_result.next_begin_offset
    return _number_in(answer, "nextBeginOffset")


def _offset_answer(name: str, answer: Command) -> Any:
    if answer.code != ResponseCode.SUCCESS:
        raise refused_by_broker(answer.code, answer.remark)
    response = TYPES[f"{name}Response"]()
    response.status.code, response.status.message = Code.OK, "OK"
    if name != "UpdateOffset":
        response.offset = _number_in(answer, "offset")
    return response


def _number_in(answer: Command, name: str) -> int:
    """Return a number of a broker.

    Raises:
        RpcRefused: when it is none that a client can be given.
    """
    text = answer.ext_fields.get(name, "0")
    if len(text) <= _DIGITS_MAX and text.removeprefix("-").isdecimal():
        return int(text)
    raise RpcRefused(Code.INTERNAL_SERVER_ERROR, f"the broker's {name} is {text[:40]!r}")
