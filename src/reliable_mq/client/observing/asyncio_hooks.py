"""Calls the hooks of middlewares before and after a client's sends and handler calls.

The clients call this, not the flows: a flow is one attempt after another, a hook sees the whole
call. A hook decides nothing: its exceptions are logged. If it makes a message illegal, the original
message is sent.
"""

import asyncio
import contextvars
import inspect
import logging
import os
import time
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Literal, TypeVar, cast

from reliable_mq.client.consuming.subscription import Handler
from reliable_mq.client.consuming.thread_handling import AnyHandler, is_asynchronous
from reliable_mq.client.observing.middleware import (
    ClientIdentity,
    Delivery,
    Ending,
    Middleware,
    ObservedClient,
    Recall,
    Sending,
    SendOutcome,
    SendVerb,
    Skip,
    check_middleware,
)
from reliable_mq.client.sending.outgoing import fault_of, named
from reliable_mq.limits import MESSAGE_BODY_SIZE_MAX
from reliable_mq.message import Decision, Half, Message, ReceivedMessage
from reliable_mq.message_checks import size_of
from reliable_mq.outcomes import Outcome, checked_outcomes, outcomes_of, raised_outcomes
from reliable_mq.telemetry import client_events
from reliable_mq.telemetry.message_facts import facts_of
from reliable_mq.telemetry.outages import FaultRate

log = logging.getLogger(__name__)

R = TypeVar("R")

CLOSE_SECONDS = 5.0
"""Time limit of a middleware's `before_close`, for example to send waiting data."""

Hook = Callable[[Any], None]
_Called = tuple[tuple[Middleware, Hook], ...]


class Hooks:
    """The middlewares of one client.

    Args:
        middleware: in their order.
        origin: identifies the client.

    Raises:
        ConfigurationError: when an object is not a `Middleware`, for example its class.
    """

    def __init__(self, middleware: Sequence[Middleware], origin: ClientIdentity) -> None:
        self.middleware = check_middleware(middleware)
        self.origin = origin
        self._before_send = self._overridden("before_send")
        self._after_send = self._overridden("after_send")[::-1]
        self._after_end = self._overridden("after_end")[::-1]
        self._after_recall = self._overridden("after_recall")[::-1]
        self._before_consume = self._overridden("before_consume")
        self._after_consume = self._overridden("after_consume")[::-1]
        #: whether any hook sees sends; if not, the client calls nothing here
        self.sends = bool(self._before_send or self._after_send)
        #: the same for ended half messages, and for consumed messages
        self.ends = bool(self._after_end)
        self.consumes = bool(self._before_consume or self._after_consume)
        self._faults = FaultRate()

    def _overridden(self, name: str) -> _Called:
        """Return the hooks with this name that a middleware overrides."""
        nothing = getattr(Middleware, name)
        hooks = ((each, getattr(each, name)) for each in self.middleware)
        return tuple(
            (each, hook) for each, hook in hooks if getattr(hook, "__func__", None) is not nothing
        )

    async def start(self, client: ObservedClient) -> None:
        """Call all hooks for a started client."""
        for each in self.middleware:
            await self._attempt(each, "after_start", client)

    async def close(self, client: ObservedClient) -> None:
        """Call all hooks before the connections close, at the same time."""
        closing = (self._attempt(each, "before_close", client) for each in self.middleware)
        await asyncio.gather(*closing)

    async def _attempt(self, each: Middleware, name: str, client: ObservedClient) -> None:
        try:
            async with asyncio.timeout(CLOSE_SECONDS):
                await getattr(each, name)(client)
        except (Exception, SystemExit) as error:  # noqa: BLE001 - it is logged
            self._log_fault(each, name, error)

    # sending

    async def around_send(
        self,
        verb: SendVerb,
        messages: Sequence[Message],
        send: Callable[[list[Message]], Awaitable[R]],
        results_of: Callable[[R], Sequence[SendOutcome]],
        *,
        posts_of: Callable[[R], int] = lambda _: 1,
        group: str = "",
    ) -> R:
        """Send messages between the two hooks of sending, and return the result of `send`.

        Args:
            verb: the verb of the client.
            messages: the caller's messages.
            send: sends the messages as the hooks have changed them.
            results_of: returns the result of each message.
            posts_of: returns the number of requests of a one-way send.
            group: the producer group, when it is not the client's default.
        """
        if not self.sends or not messages:
            return await send([*messages])
        sending = self.begin_send(verb, messages, group=group)
        try:
            result = await send(sending.messages)
        except BaseException as error:
            self.end_send(sending, [error] * len(messages))
            raise
        sending.posts = posts_of(result)
        self.end_send(sending, results_of(result))
        return result

    def begin_send(
        self, verb: SendVerb, messages: Sequence[Message], *, group: str = ""
    ) -> Sending:
        """Call the hooks before a send. The returned object has the `messages` to send.

        The caller must call `end_send` after all attempts.
        """
        now_ms = time.time_ns() // 1_000_000
        sent = [_named(message, now_ms) for message in messages]
        sending = Sending(
            verb=verb,
            messages=[*sent],
            group=group or self.origin.producer_group,
            origin=self.origin,
            begun=time.monotonic(),
            begun_ms=now_ms,
        )
        for each, hook in self._before_send:
            try:
                hook(sending)
            except BaseException as error:  # noqa: BLE001 - it is logged
                self._handle_fault(each, "before_send", error)
        if sending.messages != sent:
            sending.messages = self._legal(sent, sending.messages)
        return sending

    def end_send(self, sending: Sending, results: Sequence[SendOutcome]) -> None:
        """Call the hooks after a send, with the result of each message."""
        sending.seconds = time.monotonic() - sending.begun
        sending.results = results
        self._call(self._after_send, "after_send", sending)

    def _legal(self, sent: list[Message], changed: object) -> list[Message]:
        """Return the messages as hooks have changed them, or the original of each illegal one."""
        if not isinstance(changed, list) or len(changed) != len(sent):
            if self._faults.count_fault("number", time.monotonic()) is not None:
                client_events.MIDDLEWARE_COUNT_CHANGED.log(log)
            return sent
        return [
            after if after is before or self._is_legal(before, after) else before
            for before, after in zip(sent, changed, strict=True)
        ]

    def _is_legal(self, before: Message, after: Message) -> bool:
        """Return whether a message may be sent as a hook has changed it. Log an error of the hook.

        The size limit of the body is checked later, unless a hook has made the body larger.
        """
        size_max = max(MESSAGE_BODY_SIZE_MAX, size_of(before))
        fault = fault_of(after, size_max)
        if fault is None:
            return True
        is_its_own = fault_of(before, size_max) is None  # otherwise the sender gets the error
        if is_its_own and self._faults.count_fault("changed", time.monotonic()) is not None:
            client_events.MIDDLEWARE_MESSAGE_INVALID.log(log, **facts_of(before), fault=fault)
        return False

    def ended(self, half: Half, decision: Decision, error: BaseException | None = None) -> None:
        """Call the hooks after a half was ended, or failed to end."""
        ending = Ending(
            half=half,
            decision=decision,
            origin=self.origin,
            begun_ms=time.time_ns() // 1_000_000,
            error=error,
        )
        self._call(self._after_end, "after_end", ending)

    async def around_recall(self, topic: str, message_id: str, recall: Awaitable[R]) -> R:
        """Recall a timed message, and call the hooks with the outcome."""
        begun_ms = time.time_ns() // 1_000_000

        def told(error: BaseException | None = None) -> None:
            seen = Recall(
                topic=topic,
                message_id=message_id,
                group=self.origin.producer_group,
                origin=self.origin,
                begun_ms=begun_ms,
                error=error,
            )
            self._call(self._after_recall, "after_recall", seen)

        try:
            result = await recall
        except BaseException as error:
            told(error)
            raise
        told()
        return result

    # consuming

    def around_handler(self, handler: AnyHandler, group: str) -> AnyHandler:
        """Return a handler of the same kind that calls the hooks; the same handler without hooks.

        Args:
            handler: a consumer's handler, a coroutine function or not.
            group: the consumer group.
        """
        if not self.consumes:
            return handler
        if is_asynchronous(handler):
            return self._around_coroutine(cast("Handler", handler), group)
        return self._around_function(handler, group)

    def _around_coroutine(self, handler: Handler, group: str) -> Handler:
        async def observed(messages: Sequence[ReceivedMessage]) -> Sequence[Outcome]:
            delivery = self.begin(group, messages)
            if delivery.outcomes is not None:  # skipped
                return self.end(delivery, delivery.outcomes)
            try:
                outcomes = await outcomes_of(handler(messages), len(messages))
            except BaseException as error:
                self.fail(delivery, error)
                raise
            return self.end(delivery, outcomes)

        return observed

    def _around_function(self, handler: AnyHandler, group: str) -> AnyHandler:
        def observed(messages: Sequence[ReceivedMessage]) -> Any:
            # A separate context: a returned awaitable runs in it too, so that hooks can reset
            # there the context variables that they set here.
            context = contextvars.copy_context()
            delivery = context.run(self.begin, group, messages)
            if delivery.outcomes is not None:  # skipped
                return context.run(self.end, delivery, delivery.outcomes)
            try:
                answer = context.run(handler, messages)
                if inspect.isawaitable(answer):
                    return self._awaited(context, delivery, answer)
                outcomes = checked_outcomes(answer, len(messages))
            except BaseException as error:
                if (said := raised_outcomes(error, len(messages))) is None:
                    context.run(self.fail, delivery, error)
                    raise
                outcomes = said
            return context.run(self.end, delivery, outcomes)

        return observed

    async def _awaited(
        self, context: contextvars.Context, delivery: Delivery, answer: Awaitable[object]
    ) -> Sequence[Outcome]:
        """Wait for the awaitable that a plain function returned, in the context of its call."""

        async def waiting() -> Sequence[Outcome]:
            try:
                outcomes = await outcomes_of(answer, len(delivery.messages))
            except BaseException as error:
                self.fail(delivery, error)
                raise
            return self.end(delivery, outcomes)

        return await asyncio.create_task(waiting(), context=context)

    def call_receive_hooks(
        self, group: str, messages: Sequence[ReceivedMessage], waited: float = 0.0
    ) -> None:
        """Call the hooks for messages that are returned to a caller.

        For consumers without a handler: call it with the messages of `poll` or `receive`.

        Args:
            group: the consumer group.
            messages: messages of any topics.
            waited: seconds that the caller waited for them.
        """
        if not self.consumes or not messages:
            return
        by_topic: dict[str, list[ReceivedMessage]] = {}
        for message in messages:
            by_topic.setdefault(message.topic, []).append(message)
        for row in by_topic.values():
            delivery = self.begin(group, row, verb="receive", waited=waited)
            delivery.outcomes = None
            self._consumed(delivery)

    def begin(
        self,
        group: str,
        messages: Sequence[ReceivedMessage],
        *,
        verb: Literal["process", "receive"] = "process",
        waited: float = 0.0,
    ) -> Delivery:
        """Call the hooks before a handler. The caller must call `end` or `fail` after the handler.

        Returns:
            The delivery. If it has `outcomes`, a hook skips the handler, and these outcomes count.
        """
        delivery = Delivery(
            verb=verb,
            group=group,
            messages=messages,
            origin=self.origin,
            begun=time.monotonic() - waited,
            begun_ms=time.time_ns() // 1_000_000 - int(waited * 1000),
            seconds=waited,
        )
        for each, hook in self._before_consume:
            try:
                hook(delivery)
            except Skip as skip:
                delivery.outcomes = [skip.outcome] * len(messages)
            except BaseException as error:  # noqa: BLE001 - it is logged
                self._handle_fault(each, "before_consume", error)
        return delivery

    def end(self, delivery: Delivery, outcomes: Sequence[Outcome]) -> Sequence[Outcome]:
        """Call the hooks after a handler that returned; return the outcomes."""
        delivery.outcomes = outcomes
        self._consumed(delivery)
        return outcomes

    def fail(self, delivery: Delivery, error: BaseException) -> None:
        """Call the hooks after a handler that raised."""
        delivery.error = error
        self._consumed(delivery)

    def _consumed(self, delivery: Delivery) -> None:
        delivery.seconds = time.monotonic() - delivery.begun
        self._call(self._after_consume, "after_consume", delivery)

    # errors of hooks

    def _call(self, hooks: _Called, name: str, argument: Any) -> None:
        for each, hook in hooks:
            try:
                hook(argument)
            except BaseException as error:  # noqa: BLE001 - it is logged
                self._handle_fault(each, name, error)

    def _handle_fault(self, each: Middleware, name: str, error: BaseException) -> None:
        """Log a hook's exception. `sys.exit` in a hook does not end a loop or a thread.

        Raises:
            KeyboardInterrupt: it is not an error of the hook, but a request of a person.
        """
        if isinstance(error, KeyboardInterrupt):
            raise error
        self._log_fault(each, name, error)

    def _log_fault(self, each: Middleware, name: str, error: BaseException) -> None:
        kind = type(each).__name__
        times = self._faults.count_fault((id(each), name), time.monotonic())
        if times is not None:
            again = f" (and {times} times more since the last such line)" if times else ""
            client_events.MIDDLEWARE_FAILED.log(
                log, traceback_of=error, hook=name, middleware=kind, again=again
            )


def _named(message: Message, now_ms: int) -> Message:
    """Return a message with its id. An object of another type is refused later, with a reason."""
    return named(message, now_ms, os.urandom) if isinstance(message, Message) else message
