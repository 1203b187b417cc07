"""Hooks see every message, in their order, and whatever they raise: no message is lost for it."""

import asyncio
import contextvars
import sys
import threading
import time
from collections.abc import Sequence
from typing import Any

import msgspec
import pytest
from tests.client.observing.seen import Noted, received, stored

from reliable_mq.client.consuming.thread_handling import Threads, is_asynchronous
from reliable_mq.client.observing.asyncio_hooks import Hooks
from reliable_mq.client.observing.middleware import (
    ClientIdentity,
    Delivery,
    Middleware,
    Sending,
    Skip,
)
from reliable_mq.client.observing.send_results import of_batch, of_many, of_one
from reliable_mq.errors import ConfigurationError, RequestTimeout, UsageError
from reliable_mq.message import Message, ReceivedMessage, SendResult
from reliable_mq.outcomes import CONSUMED, Outcome, Retry
from reliable_mq.telemetry.outages import SAID_AGAIN_SECONDS, FaultRate

MESSAGE = Message(topic="orders", body=b"{}")


class Sent:
    """Stands for the client's own sending: notes what it is given."""

    def __init__(self, error: Exception | None = None) -> None:
        self.messages: list[Message] = []
        self._error = error

    async def __call__(self, messages: Sequence[Message]) -> SendResult:
        self.messages += messages
        if self._error is not None:
            raise self._error
        return stored(messages[0].message_id)


def hooks(*middleware: Middleware) -> Hooks:
    return Hooks(middleware, ClientIdentity(client_id="c", producer_group="shop"))


def send(hooked: Hooks, sent: Sent, message: Message = MESSAGE) -> SendResult:
    return asyncio.run(hooked.around_send("send", [message], sent, of_one))


def test_what_comes_before_runs_in_order_and_what_comes_after_the_other_way_round() -> None:
    log: list[str] = []
    send(hooks(Noted("a ", log), Noted("b ", log)), Sent())

    assert log == ["a before send", "b before send", "b after send", "a after send"]


def test_a_hook_sees_the_message_with_its_id_and_where_it_is_stored() -> None:
    noted, sent = Noted(), Sent()
    result = send(hooks(noted), sent)

    (sending,) = noted.sendings
    assert (sending.group, sending.origin.client_id) == ("shop", "c")
    assert sending.messages == sent.messages
    assert len(sending.messages[0].message_id) == 32
    assert sending.results == (result,)
    assert sending.seconds > 0
    assert abs(sending.begun_ms - time.time() * 1000) < 60_000


def test_what_cannot_be_sent_is_seen_with_its_error_and_raised() -> None:
    noted, error = Noted(), RequestTimeout("no answer")

    with pytest.raises(RequestTimeout):
        send(hooks(noted), Sent(error))

    assert noted.sendings[0].results == [error]


class Raises(Middleware):
    """Raises something in every hook."""

    def __init__(self, error: BaseException) -> None:
        self._error = error

    async def after_start(self, client: object) -> None:
        raise self._error

    async def before_close(self, client: object) -> None:
        raise self._error

    def before_send(self, sending: Sending) -> None:
        raise self._error

    def after_send(self, sending: Sending) -> None:
        raise self._error

    def before_consume(self, delivery: Delivery) -> None:
        raise self._error

    def after_consume(self, delivery: Delivery) -> None:
        raise self._error


ERRORS = [ZeroDivisionError(), SystemExit(3), asyncio.CancelledError(), GeneratorExit()]


def consume(
    hooked: Hooks, handler: Any, *messages: ReceivedMessage
) -> tuple[Sequence[Outcome] | None, BaseException | None]:
    """Return what a consumer gets from a handler, or what is raised to it."""

    async def scene() -> Sequence[Outcome]:
        around: Any = hooked.around_handler(handler, "payments")
        if not is_asynchronous(around):
            around = Threads(1, "handler").wrapped(around)
        outcomes: Sequence[Outcome] = await around(messages or (received(),))
        return outcomes

    try:
        return asyncio.run(scene()), None
    except BaseException as error:  # noqa: BLE001 - it is what is looked at
        return None, error


def done(messages: Sequence[ReceivedMessage]) -> Sequence[Outcome]:
    return [CONSUMED] * len(messages)


async def done_on_the_loop(messages: Sequence[ReceivedMessage]) -> Sequence[Outcome]:
    return done(messages)


def done_when_awaited(messages: Sequence[ReceivedMessage]) -> Any:
    return done_on_the_loop(messages)


HANDLERS = [done, done_on_the_loop, done_when_awaited]


@pytest.mark.parametrize("error", ERRORS, ids=lambda error: type(error).__name__)
@pytest.mark.parametrize("handler", HANDLERS)
def test_whatever_a_hook_raises_the_message_is_sent_and_handled_and_others_are_called(
    error: BaseException, handler: Any, caplog: pytest.LogCaptureFixture
) -> None:
    noted, sent = Noted(), Sent()
    hooked = hooks(Raises(error), noted)
    send(hooked, sent)

    assert len(sent.messages) == 1
    assert consume(hooked, handler) == ([CONSUMED], None)
    assert noted.log == ["before send", "after send", "before process", "after process"]
    told = [record.message for record in caplog.records]
    assert told == [
        "before_send of Raises failed",
        "after_send of Raises failed",
        "before_consume of Raises failed",
        "after_consume of Raises failed",
    ]


def test_a_person_who_interrupts_is_no_fault_of_a_hook() -> None:
    with pytest.raises(KeyboardInterrupt):
        hooks(Raises(KeyboardInterrupt())).begin("payments", (received(),))


def test_a_hook_that_fails_with_every_message_is_told_of_once_in_a_while(
    caplog: pytest.LogCaptureFixture,
) -> None:
    hooked = hooks(Raises(ZeroDivisionError()))
    for _ in range(50):
        send(hooked, Sent())
    assert len(caplog.records) == 2  # one for each hook

    seldom = FaultRate()
    times = [seldom.count_fault("fault", at) for at in (0.0, 1.0, 2.0, SAID_AGAIN_SECONDS)]
    assert times == [0, None, None, 2]


@pytest.mark.parametrize("handler", HANDLERS)
def test_what_is_set_before_a_handler_is_there_in_it_and_taken_back_after_it(handler: Any) -> None:
    number: contextvars.ContextVar[int] = contextvars.ContextVar("number", default=0)
    there: list[int] = []

    class Sets(Middleware):
        def before_consume(self, delivery: Delivery) -> None:
            delivery.notes[self] = number.set(7)

        def after_consume(self, delivery: Delivery) -> None:
            number.reset(delivery.notes[self])  # fails in another context
            there.append(number.get())

    def looks(messages: Sequence[ReceivedMessage]) -> Any:
        there.append(number.get())
        return handler(messages)

    async def looks_on_the_loop(messages: Sequence[ReceivedMessage]) -> Any:
        there.append(number.get())
        return await handler(messages)

    hooked = hooks(Sets())
    wanted = looks_on_the_loop if is_asynchronous(handler) else looks
    assert consume(hooked, wanted) == ([CONSUMED], None)
    assert there == [7, 0]


def test_hooks_of_a_plain_handler_run_in_its_thread() -> None:
    threads: list[int] = []

    class Looks(Middleware):
        def before_consume(self, delivery: Delivery) -> None:
            threads.append(threading.get_ident())

        def after_consume(self, delivery: Delivery) -> None:
            threads.append(threading.get_ident())

    def handler(messages: Sequence[ReceivedMessage]) -> Sequence[Outcome]:
        threads.append(threading.get_ident())
        return done(messages)

    consume(hooks(Looks()), handler)
    assert len(threads) == 3
    assert set(threads) != {threading.get_ident()}
    assert len(set(threads)) == 1


def exits(messages: Sequence[ReceivedMessage]) -> Sequence[Outcome]:
    sys.exit(3)


async def fails(messages: Sequence[ReceivedMessage]) -> Sequence[Outcome]:
    raise ZeroDivisionError


def returns_nothing(messages: Sequence[ReceivedMessage]) -> None:
    return None


@pytest.mark.parametrize(
    ("handler", "error"),
    [(exits, SystemExit), (fails, ZeroDivisionError), (returns_nothing, UsageError)],
)
def test_a_handler_that_fails_is_seen_with_its_error(
    handler: Any, error: type[BaseException]
) -> None:
    noted = Noted()
    outcomes, raised = consume(hooks(noted), handler)

    (delivery,) = noted.deliveries
    assert outcomes is None
    assert raised is not None
    assert isinstance(delivery.error, error)
    assert delivery.outcomes is None


@pytest.mark.parametrize("handler", HANDLERS)
def test_what_a_hook_skips_is_not_handled_and_has_its_outcome(handler: Any) -> None:
    class Skips(Middleware):
        def before_consume(self, delivery: Delivery) -> None:
            raise Skip(Retry(5.0, counts=False))

    noted = Noted()

    def never(messages: Sequence[ReceivedMessage]) -> Any:
        raise AssertionError("it was called")

    async def never_on_the_loop(messages: Sequence[ReceivedMessage]) -> Any:
        raise AssertionError("it was called")

    wanted = never_on_the_loop if is_asynchronous(handler) else never
    outcomes, error = consume(hooks(Skips(), noted), wanted, received(), received(b"two"))

    assert error is None
    assert outcomes == [Retry(5.0, counts=False)] * 2
    assert noted.deliveries[0].outcomes == outcomes


def test_what_is_handed_to_a_caller_is_seen_by_topic_with_its_waiting_time() -> None:
    noted = Noted()
    other = msgspec.structs.replace(received(), topic="bills")
    hooks(noted).call_receive_hooks("g", [received(), other, received()], waited=2.0)

    assert [(each.topic, len(each.messages)) for each in noted.deliveries] == [
        ("orders", 2),
        ("bills", 1),
    ]
    assert all(each.outcomes is None and each.seconds >= 2.0 for each in noted.deliveries)
    assert noted.log == ["before receive", "after receive"] * 2


def test_without_a_hook_nothing_stands_around_a_handler() -> None:
    class Starts(Middleware):
        async def after_start(self, client: object) -> None:
            pass

    for hooked in (hooks(), hooks(Starts())):
        assert hooked.around_handler(done, "payments") is done
        assert (hooked.sends, hooked.ends, hooked.consumes) == (False, False, False)


def test_one_middleware_that_fails_to_start_or_close_keeps_no_other_from_it(
    caplog: pytest.LogCaptureFixture,
) -> None:
    log: list[str] = []

    class Lives(Middleware):
        async def after_start(self, client: object) -> None:
            log.append("started")

        async def before_close(self, client: object) -> None:
            log.append("closed")

    async def scene() -> None:
        hooked = hooks(Raises(ZeroDivisionError()), Lives())
        client: Any = object()
        await hooked.start(client)
        await hooked.close(client)

    asyncio.run(scene())
    assert log == ["started", "closed"]
    assert [r.message for r in caplog.records] == [
        "after_start of Raises failed",
        "before_close of Raises failed",
    ]


def test_the_class_instead_of_an_object_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="not an object of Middleware"):
        hooks(Noted)  # type: ignore[arg-type]


def test_each_message_of_a_batch_has_a_result_of_its_own() -> None:
    one = stored("A,B")
    both = msgspec.structs.replace(one, offset_message_id="1,2")

    assert [(r.message_id, r.offset_message_id, r.queue_offset) for r in of_batch(both)] == [  # type: ignore[union-attr]
        ("A", "1", 7),
        ("B", "2", 8),
    ]
    assert of_many([one, None]) == [one, None]
