"""The calls of consumers: they get messages for a time, acknowledge them, or keep them longer.

Source: Apache RocketMQ `ReceiveMessageActivity`, `AckMessageActivity`,
`ChangeInvisibleDurationActivity`, `ConsumerProcessor`, `DefaultReceiptHandleManager`.
"""

import asyncio
from collections.abc import Callable, Sequence
from contextvars import copy_context
from itertools import count
from typing import Any

from reliable_mq.client.connecting.routes import Route
from reliable_mq.errors import ProtocolError
from reliable_mq.gateway import renewals
from reliable_mq.gateway.acting import payer
from reliable_mq.gateway.asyncio_receipts import Receipts, check_invisible, now_ms
from reliable_mq.gateway.asyncio_rights import Rights
from reliable_mq.gateway.asyncio_upstream import MARGIN_SECONDS, Upstream
from reliable_mq.gateway.caller import Caller
from reliable_mq.gateway.codes import SQL, ClientKind, Code, RpcRefused, refused_by_broker
from reliable_mq.gateway.field_bytes import EncodedAnswer, field_tags, sized
from reliable_mq.gateway.group_policy import GroupPolicy
from reliable_mq.gateway.message_types import TYPES
from reliable_mq.gateway.receiving import PoppedMessage, encode_message, popped_of
from reliable_mq.gateway.sending import check_echoed, check_group, check_topic
from reliable_mq.gateway.sessions import BATCH_SIZE, Session, Sessions, ms_of
from reliable_mq.gateway.waiting_places import WaitingPlaces
from reliable_mq.names import EVERY_TAG, tags_of
from reliable_mq.wire.codes import RequestCode, ResponseCode
from reliable_mq.wire.command import Command, request

POLL_MS_MIN, POLL_MS_MAX = 5_000, 20_000
INVISIBLE_MS_MIN = 10_000
WAITING_MAX = 20_000
"""The most receives that wait at brokers at a time,"""
WAITING_OF_ONE_MAX = 10_000
"""and those of one user; if nobody signs, of one address."""
_SETTINGS_SECONDS, _SETTINGS_TRIES = 1.0, 20
_POLLING_FULL, _POLLING_TIMEOUT = 209, 210
_WAY_MS = 300  # for what comes at the end of a wait: else its client has hung up already
_MESSAGE = field_tags("ReceiveMessageResponse")["message"]
_NEWEST = 1  # where a group begins that has consumed nothing yet

OnLeft = Callable[[bool], None] | None
"""Called once: when all of an answer is on its way (True), or when some of it never will be."""
Write = Callable[[Sequence[Any], OnLeft], bool]
"""Sends messages on a stream; returns whether the client is still there to take them.

If it returns False, nothing is called.
"""


def poll_ms_of(caller: Caller, call: Any, session: Session, left_seconds: float) -> int:
    """Return how long a receive may wait for messages.

    Raises:
        RpcRefused: when its deadline leaves no time to wait.
    """
    left_ms = int(min(left_seconds, 3600.0) * 1000) - _WAY_MS
    if call.HasField("long_polling_timeout"):
        wanted = ms_of(call.long_polling_timeout)
    else:
        told = session.settings
        wanted = left_ms - ms_of(told.request_timeout) // 2
    wanted = min(max(wanted, POLL_MS_MIN), POLL_MS_MAX)
    if wanted <= left_ms:
        return wanted
    if left_ms + _WAY_MS >= POLL_MS_MIN:
        return left_ms
    is_old = _numbers_of(caller.client_version) < (5, 0, 3)
    raise RpcRefused(
        Code.BAD_REQUEST if is_old else Code.ILLEGAL_POLLING_TIME,
        "The deadline time remaining is not enough for polling, please check network condition",
    )


def _numbers_of(version: str) -> tuple[int, ...]:
    """Return the numbers of a version; "": none, which is less than any."""
    return tuple(int(each[:9]) for each in version.split(".")[:3] if each.isdecimal())


class Consuming:
    """The calls of consumers.

    Args:
        upstream: the brokers.
        sessions: the clients.
        receipts: has what was handed out.
        rights: what clients may do.
    """

    def __init__(
        self, upstream: Upstream, sessions: Sessions, receipts: Receipts, rights: Rights
    ) -> None:
        self._upstream = upstream
        self._sessions = sessions
        self._receipts = receipts
        self._rights = rights
        self._turn = count()
        self.places = WaitingPlaces("receives", WAITING_MAX, WAITING_OF_ONE_MAX)

    async def query_assignment(self, _caller: Caller, call: Any) -> Any:
        """Answer a QueryAssignment."""
        topic, group = call.topic.name, call.group.name
        check_topic(topic)
        check_group(group)
        check_echoed(call)
        await self._rights.consume(topic, group)
        route = await self._upstream.route(topic)
        policy = await self._upstream.group(group)
        response = TYPES["QueryAssignmentResponse"]()
        seen: set[str] = set()
        for queue in route.readable:
            broker = route.brokers[queue.broker_name]
            if broker.master is None or (not policy.is_orderly and broker.name in seen):
                continue
            seen.add(broker.name)
            assigned = response.assignments.add().message_queue
            assigned.topic.CopyFrom(call.topic)
            assigned.id = queue.queue_id if policy.is_orderly else -1
            assigned.permission = _permission(route, queue.broker_name)
            assigned.broker.name = broker.name
            assigned.broker.endpoints.CopyFrom(call.endpoints)
        if not seen:
            raise RpcRefused(Code.FORBIDDEN, "no readable queue")
        response.status.code, response.status.message = Code.OK, "OK"
        return response

    async def receive(self, caller: Caller, call: Any, write: Write) -> None:
        """Answer a ReceiveMessage: with a status, messages, and the time.

        What does not reach the client is given back, whatever the reason.
        """
        made = TYPES["ReceiveMessageResponse"]
        topic, group = call.message_queue.topic.name, call.group.name
        status, found = made(), list[PoppedMessage]()
        answers = [status]
        try:
            session = await self._session_of(caller)
            check_topic(topic)
            check_group(group)  # before its settings are kept by its name
            policy = await self._upstream.group(group)
            await self._pop(caller, call, session, policy, found)
            answers += self._answers(call, policy, found)
            code = Code.OK if found else Code.MESSAGE_NOT_FOUND
            status.status.code, status.status.message = code, "OK" if found else "no match message"
        except RpcRefused as refused:
            status.status.code, status.status.message = refused.code, str(refused)
            self._receipts.let_go(topic, group, found)
            found.clear()
        except BaseException:
            self._receipts.let_go(topic, group, found)
            raise
        last, now = made(), now_ms()
        last.delivery_timestamp.seconds = now // 1000
        last.delivery_timestamp.nanos = now % 1000 * 1_000_000
        answers.append(last)

        def left(is_whole: bool) -> None:
            if not is_whole:
                self._receipts.let_go(topic, group, found)
            elif call.auto_renew:
                self._receipts.keep(session, call, found)

        context = copy_context()  # what is given back is given back as the caller
        if not found:
            write(answers, None)
        elif not write(answers, lambda is_whole: context.run(left, is_whole)):
            left(is_whole=False)

    def _answers(self, call: Any, policy: GroupPolicy, found: list[PoppedMessage]) -> list[Any]:
        """Return messages for the client, and remove from `found` what it does not get.

        A message that cannot be converted comes again at its time, until it is buried.
        """
        answers: list[Any] = []
        topic = call.message_queue.topic.name
        for number, each in enumerate(list(found)):
            try:
                data = encode_message(each, topic)
            except Exception:  # noqa: BLE001 - one message must not hold the others up
                found.remove(each)
                if policy.is_orderly:  # nothing passes it
                    behind = found[number:]
                    del found[number:]
                    self._receipts.let_go(topic, call.group.name, behind)
                    break
                continue
            answers.append(EncodedAnswer(sized(_MESSAGE, data)))
        return answers

    async def _session_of(self, caller: Caller) -> Session:
        """Return the client; it may begin to receive before its settings have come."""
        session = self._sessions.find(caller.client_id)
        for _ in range(_SETTINGS_TRIES):
            if session is not None:
                break
            await asyncio.sleep(_SETTINGS_SECONDS / _SETTINGS_TRIES)
            session = self._sessions.find(caller.client_id)
        if session is None:
            raise RpcRefused(
                Code.INTERNAL_SERVER_ERROR,
                "there are no settings of this client: it has to send them by Telemetry first",
            )
        session.seen_at = asyncio.get_running_loop().time()
        return session

    async def _pop(
        self,
        caller: Caller,
        call: Any,
        session: Session,
        policy: GroupPolicy,
        found: list[PoppedMessage],
    ) -> None:
        """Find the messages for a receive."""
        if session.kind is ClientKind.PRODUCER:
            raise RpcRefused(Code.BAD_REQUEST, "a producer receives no messages")
        left = caller.deadline - asyncio.get_running_loop().time()
        poll_ms = poll_ms_of(caller, call, session, left)
        topic, group = call.message_queue.topic.name, call.group.name
        invisible_ms = renewals.FIRST_MS
        if not call.auto_renew:
            invisible_ms = ms_of(call.invisible_duration)
            check_invisible(invisible_ms, INVISIBLE_MS_MIN)
        expression, kind = _filter_of(call.filter_expression)
        try:
            broker, address = await self._reader(topic, call.message_queue.broker.name)
        except RpcRefused:
            await self._rights.consume(topic, group)  # else it would tell which topics there are
            raise
        fields = {
            "consumerGroup": group,
            "topic": topic,
            "queueId": "-1",
            "maxMsgNums": str(min(max(call.batch_size, 1), BATCH_SIZE)),
            "invisibleTime": str(invisible_ms),
            "pollTime": str(poll_ms),
            "bornTime": str(now_ms()),
            "initMode": str(_NEWEST),
            "expType": kind,
            "exp": expression,
            "order": "true" if policy.is_orderly else "false",
            "bname": broker,
        }
        if call.HasField("attempt_id"):
            fields["attemptId"] = call.attempt_id
        if call.auto_renew and len(session.held) >= renewals.HELD_MAX:
            raise RpcRefused(
                Code.TOO_MANY_REQUESTS, f"the client has {len(session.held)} messages already"
            )
        with self.places.place(payer()):
            command = request(RequestCode.POP_MESSAGE, fields)
            answer = await self._upstream.ask(address, command, poll_ms / 1000 + MARGIN_SECONDS)
        if answer.code == _POLLING_FULL:
            raise RpcRefused(Code.TOO_MANY_REQUESTS, "polling full")
        if answer.code in {_POLLING_TIMEOUT, ResponseCode.PULL_NOT_FOUND}:
            raise RpcRefused(Code.MESSAGE_NOT_FOUND, "no new message")
        if answer.code != ResponseCode.SUCCESS:
            raise refused_by_broker(answer.code, answer.remark)
        self._match(answer, broker, call, policy, found)

    def _match(
        self,
        answer: Command,
        broker: str,
        call: Any,
        policy: GroupPolicy,
        found: list[PoppedMessage],
    ) -> None:
        """Find those messages of a pop that the client gets; acknowledge or bury the others."""
        topic, group = call.message_queue.topic.name, call.group.name
        wanted = frozenset[str]()
        if call.filter_expression.type != SQL:
            wanted = tags_of(call.filter_expression.expression or EVERY_TAG)
        try:
            for each in popped_of(answer.ext_fields, answer.body, topic, broker):
                if wanted and EVERY_TAG not in wanted and each.said.tag not in wanted:
                    self._receipts.drop(topic, group, each)
                elif each.attempts > policy.retries:
                    self._receipts.bury_later(topic, group, each)
                else:
                    found.append(each)
        except ProtocolError as error:
            raise RpcRefused(Code.INTERNAL_SERVER_ERROR, f"the broker's answer: {error}") from error

    async def _reader(self, topic: str, broker: str) -> tuple[str, str]:
        """Return the name and the address of a broker from which a topic can be read."""
        route = await self._upstream.route(topic)
        names = sorted(
            {each.broker_name for each in route.readable if route.brokers[each.broker_name].master}
        )
        if not names:
            raise RpcRefused(Code.FORBIDDEN, "no readable queue")
        name = broker if broker in names else names[next(self._turn) % len(names)]
        return name, route.brokers[name].addresses[0]


def _filter_of(expression: Any) -> tuple[str, str]:
    """Return a filter as brokers know it, and its kind."""
    text = expression.expression
    if expression.type == SQL:
        return text, "SQL92"
    if not text or text == EVERY_TAG:
        return EVERY_TAG, "TAG"
    if not any(each.strip() for each in text.split("||")):
        raise RpcRefused(Code.ILLEGAL_FILTER_EXPRESSION, "subString split error")
    return text, "TAG"


def _permission(route: Route, broker: str) -> int:
    """Return what may be done with a queue that can be read."""
    is_writable = any(each.broker_name == broker for each in route.writable)
    return 4 if is_writable else 2
