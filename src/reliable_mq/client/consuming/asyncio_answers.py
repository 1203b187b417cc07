"""Answers administrators' requests to a running consumer, which arrive through its broker.

It receives brokers' requests. It replies with `running_info`, or has a message handled at once.
Source: Apache RocketMQ `ClientRemotingProcessor`.
"""

import asyncio
import logging
import sys
import threading
import time
import traceback
from collections.abc import Callable
from typing import Any, Protocol

from reliable_mq.client.connecting.name_servers import NameServers
from reliable_mq.client.consuming.asyncio_push_consumer import AsyncPushConsumer
from reliable_mq.client.consuming.pulling import received
from reliable_mq.client.consuming.running_info import directly_consumed, running_info
from reliable_mq.client.consuming.thread_handling import HandlerStillRunning
from reliable_mq.client.consuming.unpacking import unpacked
from reliable_mq.client.flow import Instant
from reliable_mq.errors import RecordError
from reliable_mq.message import MessageQueue, ReceivedMessage
from reliable_mq.outcomes import Outcome
from reliable_mq.runtime.link import OnRequest
from reliable_mq.telemetry import client_events
from reliable_mq.telemetry.message_facts import facts_of
from reliable_mq.wire.codes import RequestCode, ResponseCode
from reliable_mq.wire.command import Command, reply
from reliable_mq.wire.record import decode_record

log = logging.getLogger(__name__)


class AnswersEngine(Protocol):
    """What the answers need from the client."""

    @property
    def name_servers(self) -> NameServers:
        """The name servers, for the answer."""

    def now(self) -> Instant:
        """Return the time."""

    def answer(self, address: str, command: Command) -> None:
        """Send a reply on the connection to `address`, if it is still there."""


class ConsumerAnswers:
    """Answers requests to the consumers of one client.

    Args:
        engine: has the connections.
        find: returns the consumer of a group, None when there is none.
    """

    def __init__(
        self, engine: AnswersEngine, find: Callable[[str], AsyncPushConsumer | None]
    ) -> None:
        self._engine = engine
        self._find = find

    def requests(self) -> dict[int, OnRequest]:
        """Return the handlers of requests, by request code."""
        return {
            RequestCode.GET_CONSUMER_RUNNING_INFO: self._running_info,
            RequestCode.CONSUME_MESSAGE_DIRECTLY: self._consume_directly,
        }

    def _running_info(self, address: str, command: Command) -> Command:  # noqa: ARG002
        consumer = self._find(command.ext_fields.get("consumerGroup", ""))
        if consumer is None:
            return _unknown_group_reply(command)
        wants_stacks = command.ext_fields.get("jstackEnable") == "true"
        body = running_info(
            consumer.group,
            self._engine.now(),
            name_servers=";".join(self._engine.name_servers.addresses),
            version=_version(),
            calls=len(consumer.pool.calls),
            stacks=stacks(consumer.pool.tasks) if wants_stacks else None,
        )
        return reply(command, body=body)

    def _consume_directly(self, address: str, command: Command) -> Command | None:
        consumer = self._find(command.ext_fields.get("consumerGroup", ""))
        if consumer is None or not consumer.pool.accepts:
            return _unknown_group_reply(command)
        try:
            message = _message_in(command)
        except RecordError as error:
            return reply(
                command, ResponseCode.SYSTEM_ERROR, f"the message cannot be decoded: {error}"
            )
        consumer.pool.start_task(self._handle(address, command, consumer, message))
        return None

    async def _handle(
        self, address: str, command: Command, consumer: AsyncPushConsumer, message: ReceivedMessage
    ) -> None:
        """Handle a message outside of its queue, and reply with the outcome."""
        begun = time.monotonic()
        outcome: Outcome | BaseException
        try:
            outcome = await consumer.pool.handle_apart(message)
        except asyncio.CancelledError as error:
            is_own = consumer.pool.accepts
            why = "the handler cancelled itself" if is_own else "the consumer was closed"
            goes_on = (
                ", a thread is still in the handler"
                if isinstance(error, HandlerStillRunning)
                else ""
            )
            outcome = asyncio.CancelledError(why + goes_on)
        except (Exception, SystemExit) as error:  # noqa: BLE001 - the reply has the error
            outcome = error
        seconds = time.monotonic() - begun
        client_events.HANDLED_ON_REQUEST.log(
            log,
            group=consumer.group_name,
            **facts_of(message),
            peer=address,
            outcome=_said(outcome),
        )
        ordered = consumer.group.subscription.ordered
        body = directly_consumed(outcome, seconds, ordered=ordered)
        self._engine.answer(address, reply(command, body=body))


def _said(outcome: Outcome | BaseException) -> str:
    name = type(outcome).__name__
    is_told = isinstance(outcome, BaseException) and str(outcome)
    return f"{name}: {outcome}" if is_told else name


def _message_in(command: Command) -> ReceivedMessage:
    record = decode_record(command.body)
    broker_name = command.ext_fields.get("brokerName", "")
    record.body = unpacked(record)
    return received(record, MessageQueue(record.topic, broker_name, record.queue_id))


def _unknown_group_reply(command: Command) -> Command:
    group = command.ext_fields.get("consumerGroup", "")
    remark = f"The Consumer Group <{group}> not exist in this consumer"
    return reply(command, ResponseCode.SYSTEM_ERROR, remark)


def _version() -> str:
    from importlib.metadata import PackageNotFoundError, version  # noqa: PLC0415 - costs no start

    try:
        return f"reliable-mq {version('reliable-mq')}"
    except PackageNotFoundError:  # a source tree that was not installed
        return "reliable-mq"


def stacks(tasks: list[asyncio.Task[Any]]) -> str:
    """Return the stacks of all threads and of these tasks, innermost frame last."""
    frames = sys._current_frames()
    lines: list[str] = []
    for thread in threading.enumerate():
        frame = frames.get(thread.ident or 0)
        if frame is not None:
            lines += [f"thread {thread.name}\n", *traceback.format_stack(frame), "\n"]
    for task in tasks:
        lines.append(f"task {task.get_name()}\n")
        waiting: Any = task.get_coro()
        while waiting is not None:  # follows the awaits; an idle task has no frame
            frame = _part(waiting, "frame")
            if frame is not None:
                lines += traceback.format_stack(frame, limit=1)
            waiting = _part(waiting, "await") or _part(waiting, "yieldfrom")
        lines.append("\n")
    return "".join(lines)


def _part(waiting: object, name: str) -> Any:
    """Return an attribute of a coroutine or a generator."""
    for kind in ("cr", "gi", "ag"):
        value = getattr(waiting, f"{kind}_{name}", None)
        if value is not None:
            return value
    return None
