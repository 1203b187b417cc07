"""Questions of tools to a consumer: its stacks, or what its listener makes of a message.

The broker of this process knows the consumers of the endpoint, and passes such a request on. The
client is asked on its Telemetry stream, and answers there with the number of the question. A
cluster's proxy is never asked: brokers do not know its clients.
Source: Apache RocketMQ `GrpcClientChannel`, `GrpcChannelManager`, `ClientActivity`.
"""

import asyncio
from collections.abc import Callable, Iterable
from contextlib import suppress
from itertools import count
from typing import Any, NamedTuple, Protocol

from reliable_mq.errors import InvariantBroken, RecordError
from reliable_mq.gateway.codes import SQL, ClientKind, Code
from reliable_mq.gateway.message_types import TYPES
from reliable_mq.gateway.receiving import message_of
from reliable_mq.gateway.sessions import Session
from reliable_mq.names import EVERY_TAG, tags_of
from reliable_mq.wire import fastjson
from reliable_mq.wire import properties as p
from reliable_mq.wire.codes import RequestCode, ResponseCode
from reliable_mq.wire.command import Command, reply
from reliable_mq.wire.record import decode_record
from reliable_mq.wire.subscription_row import subscription_row

ANSWER_SECONDS = 10.0
"""How long a broker waits for the answer of a client."""
_QUESTIONS_MAX = 1000
_RESULTS = {
    Code.OK: "CR_SUCCESS",
    Code.FAILED_TO_CONSUME_MESSAGE: "CR_LATER",
    Code.MESSAGE_CORRUPTED: "CR_RETURN_NULL",
}

Answer = Callable[[Command], None]


class Roster(Protocol):
    """Tells the broker of this process which consumers there are."""

    def join(self, session: Session) -> None:
        """Note a consumer, or what has changed of it."""

    def leave(self, session: Session, group: str) -> None:
        """Forget a consumer: it is not in this group any more."""


class _Question(NamedTuple):
    session: Session
    asked: Command
    answer: Answer
    began: float


class Questions:
    """Questions to clients, by their numbers.

    Invariant: at most `_QUESTIONS_MAX` wait, in the order in which they began.

    Args:
        sessions: the clients.
    """

    def __init__(self, sessions: Iterable[Session]) -> None:
        self._sessions = sessions
        self._waiting: dict[str, _Question] = {}
        self._numbers = count()

    def ask(self, asked: Command, answer: Answer) -> Command | None:
        """Take a request of the broker.

        Args:
            asked: names the group and the client.
            answer: is called with the answer of the client when it comes.

        Returns:
            The answer if nobody needs to be asked.
        """
        fields = asked.ext_fields
        group, client_id = fields.get("consumerGroup", ""), fields.get("clientId", "")
        session = next(
            (
                each
                for each in self._sessions
                if each.group == group and each.client_id == client_id and each.is_connected
            ),
            None,
        )
        if session is None or session.stream is None:
            return reply(
                asked,
                ResponseCode.SYSTEM_ERROR,
                f"the client <{client_id}> has no Telemetry stream now",
            )
        told = TYPES["TelemetryCommand"]()
        number = str(next(self._numbers))
        if asked.code == RequestCode.GET_CONSUMER_RUNNING_INFO:
            if fields.get("jstackEnable", "").lower() != "true":
                return reply(asked, body=running_info(session))
            told.print_thread_stack_trace_command.nonce = number
        elif asked.code == RequestCode.CONSUME_MESSAGE_DIRECTLY:
            try:
                record = decode_record(asked.body)
                found = record.property_map()
            except RecordError as error:
                return reply(asked, ResponseCode.SYSTEM_ERROR, str(error))
            record.topic = found.get(p.REAL_TOPIC) or record.topic
            told.verify_message_command.nonce = number
            told.verify_message_command.message.CopyFrom(
                message_of(record, found, record.reconsume_times)
            )
        else:
            return reply(
                asked,
                ResponseCode.REQUEST_CODE_NOT_SUPPORTED,
                f"the client <{client_id}> speaks gRPC, and does not know request {asked.code}",
            )
        self._begin(number, _Question(session, asked, answer, asyncio.get_running_loop().time()))
        session.stream.write(told)
        return None

    def _begin(self, number: str, question: _Question) -> None:
        """Note a question; forget those for whose answers nobody waits any more."""
        for each, before in list(self._waiting.items()):
            is_full = len(self._waiting) >= _QUESTIONS_MAX
            if not is_full and before.began >= question.began - ANSWER_SECONDS:
                break
            del self._waiting[each]
        self._waiting[number] = question

    def told(self, session: Session | None, command: Any) -> None:
        """Take the answer of a client. An answer to a question that it was not asked is dropped."""
        which = command.WhichOneof("command")
        if which not in {"thread_stack_trace", "verify_message_result"}:
            return
        number = getattr(command, which).nonce
        question = self._waiting.get(number)
        if question is None or question.session is not session:
            return
        is_stack = question.asked.code == RequestCode.GET_CONSUMER_RUNNING_INFO
        if is_stack != (which == "thread_stack_trace"):
            return
        del self._waiting[number]
        question.answer(_answered(question, command))

    def reconnect(self) -> None:
        """Tell all clients to connect again, and end their streams: this endpoint stops.

        A client library drops commands that it has not read when a connection closes under an open
        stream.
        """
        told = TYPES["TelemetryCommand"]()
        told.reconnect_endpoints_command.nonce = str(next(self._numbers))
        for each in self._sessions:
            if each.stream is not None:
                each.stream.write(told)
                each.stream.close()

    def invariants(self) -> None:
        """Check the number of questions, and their order.

        Raises:
            InvariantBroken: when there are too many, or the order is another one.
        """
        times = [each.began for each in self._waiting.values()]
        if len(times) > _QUESTIONS_MAX or times != sorted(times):
            raise InvariantBroken(f"{len(times)} questions wait, begun at {times[:5]}…")


def _answered(question: _Question, command: Any) -> Command:
    """Return what the broker is told."""
    asked, status = question.asked, command.status
    code = status.code
    if code == Code.VERIFY_FIFO_MESSAGE_UNSUPPORTED:
        return reply(asked, ResponseCode.NO_PERMISSION, "forbidden to verify message")
    if asked.code == RequestCode.GET_CONSUMER_RUNNING_INFO and code == Code.OK:
        stacks = command.thread_stack_trace.thread_stack_trace
        return reply(asked, body=running_info(question.session, stacks))
    result = _RESULTS.get(code) if command.HasField("verify_message_result") else None
    if result is None:
        name = str(code)
        with suppress(ValueError):
            name = Code(code).name
        text = f"the client answers {name}: {status.message}".rstrip(": ")
        return reply(asked, ResponseCode.SYSTEM_ERROR, text)
    spent = asyncio.get_running_loop().time() - question.began
    body = {
        "autoCommit": True,
        "consumeResult": result,
        "order": question.session.policy.is_orderly,
        "remark": status.message or "from gRPC client",
        "spentTimeMills": int(spent * 1000),
    }
    return reply(asked, body=fastjson.dumps(body))


def running_info(session: Session, stacks: str = "") -> bytes:
    """Return a consumer's report about itself, as tools read it."""
    is_push = session.kind is ClientKind.PUSH_CONSUMER
    info: dict[str, object] = {
        "mqPopTable": {},
        "mqTable": {},
        "properties": {
            "PROP_CLIENT_VERSION": session.version,
            "PROP_CONSUMEORDERLY": str(session.policy.is_orderly).lower(),
            "PROP_CONSUMER_START_TIMESTAMP": str(session.began_ms),
            "PROP_CONSUME_TYPE": "CONSUME_PASSIVELY" if is_push else "CONSUME_ACTIVELY",
            "consumerGroup": session.group,
            "maxReconsumeTimes": str(session.policy.retries),
        },
        "statusTable": {},
        "subscriptionSet": subscriptions_of(session),
        "userConsumerInfo": {"messages held": str(len(session.held))},
    }
    if stacks:
        info["jstack"] = stacks
    return fastjson.dumps(info)


def subscriptions_of(session: Session) -> list[dict[str, object]]:
    """Return the subscriptions of a consumer, as heartbeats have them."""
    rows: list[dict[str, object]] = []
    for each in session.settings.subscription.subscriptions:
        is_sql = each.expression.type == SQL
        expression = each.expression.expression or EVERY_TAG
        tags = frozenset[str]() if is_sql else tags_of(expression)
        kind = "SQL92" if is_sql else "TAG"
        rows.append(subscription_row(each.topic.name, expression, kind, tags, session.began_ms))
    return rows
