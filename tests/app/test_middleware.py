"""Middleware of an application: what its relay sends, and each call of a handler."""

import threading
from collections.abc import Iterator
from typing import Any

import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from sqlalchemy.ext.asyncio import AsyncSession
from sqlalchemy.orm import Session
from tests.client.observing.seen import Noted

from reliable_mq import OpenTelemetryMiddleware, ReceivedMessage, ReliableMQ
from reliable_mq.client.observing.middleware import Delivery, Middleware, Sending, Skip
from reliable_mq.errors import ConfigurationError
from reliable_mq.outcomes import CONSUMED, Reject, Retry
from reliable_mq.testing.message_world import MessageWorld


class Shop:
    """An application with a `def` handler, an `async def` one, and some middleware."""

    def __init__(self, url: str, *middleware: Middleware) -> None:
        self.mq = mq = ReliableMQ("shop", database=url, middleware=middleware)
        mq.create_tables()
        self.raises: list[Exception] = []
        self.paid: list[int] = []
        self.packed: list[int] = []

        @mq.consumer("orders", group="payments")
        def take_payment(order: dict[str, int], session: Session, message: ReceivedMessage) -> None:
            self.paid.append(threading.get_ident())
            if self.raises:
                raise self.raises.pop(0)
            with mq.transaction(session) as tx:
                tx.send("payments", order)

        @mq.consumer("payments", group="packing")
        async def pack(payment: dict[str, int], session: AsyncSession) -> None:
            self.packed.append(payment["id"])

    def place(self) -> None:
        with self.mq.transaction() as tx:
            tx.send("orders", {"id": 1})


@pytest.fixture
def shops(database_url: str) -> Iterator[Any]:
    made: list[Shop] = []

    def make(*middleware: Middleware) -> Shop:
        made.append(Shop(database_url, *middleware))
        return made[-1]

    yield make
    for each in made:
        each.mq.close()


def test_what_the_relay_sends_and_each_call_of_a_handler_is_seen(shops: Any) -> None:
    noted = Noted()
    shop = shops(noted)
    shop.raises = [ZeroDivisionError("by zero"), Retry(after=1)]
    with MessageWorld(shop.mq) as world:
        shop.place()
        world.settle()
        world.assert_sent("payments", {"id": 1})

    assert [(each.verb, each.messages[0].topic) for each in noted.sendings] == [
        ("send_many", "orders"),
        ("send_many", "payments"),
    ]
    paid = [each for each in noted.deliveries if each.group == "payments"]
    assert [(each.outcomes, type(each.error)) for each in paid] == [
        (None, ZeroDivisionError),
        ((Retry(1),), type(None)),
        ((CONSUMED,), type(None)),
    ]
    (packed,) = [each for each in noted.deliveries if each.group == "packing"]
    assert packed.outcomes == (CONSUMED,)


def test_a_rejected_message_is_seen_as_dead(shops: Any) -> None:
    noted = Noted()
    shop = shops(noted)
    shop.raises = [Reject("no payer")]
    with MessageWorld(shop.mq) as world:
        shop.place()
        world.settle()

    assert [each.outcomes for each in noted.deliveries] == [(Reject("no payer"),)]


class Breaks(Middleware):
    """Fails, and ends its thread if it can."""

    def before_send(self, sending: Sending) -> None:
        raise ZeroDivisionError

    def after_send(self, sending: Sending) -> None:
        raise SystemExit

    def before_consume(self, delivery: Delivery) -> None:
        raise SystemExit

    def after_consume(self, delivery: Delivery) -> None:
        raise ZeroDivisionError


def test_a_middleware_that_fails_costs_no_effect(shops: Any) -> None:
    shop = shops(Breaks())
    with MessageWorld(shop.mq) as world:
        shop.place()
        world.settle()

    assert shop.packed == [1]


class Skips(Middleware):
    """Wants the first message skipped."""

    def __init__(self, *skips: Skip) -> None:
        self._skips = list(skips)

    def before_consume(self, delivery: Delivery) -> None:
        if self._skips:
            raise self._skips.pop(0)


def test_what_a_hook_skips_has_no_effect_and_is_settled_as_the_hook_says(shops: Any) -> None:
    shop = shops(Skips(Skip(Retry(1)), Skip(Reject("not today"))))
    with MessageWorld(shop.mq) as world:
        shop.place()
        world.settle()
        assert len(world.dead_letters("payments")) == 1
    assert shop.paid == []

    shop = shops(Skips(Skip()))
    with MessageWorld(shop.mq) as world:
        shop.place()
        world.settle()
    assert (shop.paid, shop.packed) == ([], [])


@pytest.fixture
def exporter(monkeypatch: pytest.MonkeyPatch) -> InMemorySpanExporter:
    """Give what a global tracer provider of this test exports."""
    exporter, provider = InMemorySpanExporter(), TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    monkeypatch.setattr(trace, "get_tracer_provider", lambda: provider)
    monkeypatch.setattr(trace, "_TRACER_PROVIDER", provider)
    return exporter


def spans_of_an_order(shop: Shop, exporter: InMemorySpanExporter) -> list[ReadableSpan]:
    with MessageWorld(shop.mq) as world:
        with trace.get_tracer("shop").start_as_current_span("place order"):
            shop.place()
        world.settle()
    spans = list(exporter.get_finished_spans())
    assert len({each.context.trace_id for each in spans if each.context}) == 1, "one trace"
    return spans


def test_without_a_middleware_each_handler_has_one_span(
    shops: Any, exporter: InMemorySpanExporter
) -> None:
    spans = spans_of_an_order(shops(), exporter)

    assert [each.name for each in spans] == ["place order", "process orders", "process payments"]


def test_with_the_middleware_each_handler_has_one_span_too_and_sending_has_others(
    shops: Any, exporter: InMemorySpanExporter
) -> None:
    spans = spans_of_an_order(shops(OpenTelemetryMiddleware()), exporter)

    names = [each.name for each in spans]
    assert sorted(names) == [
        *("place order", "process orders", "process payments", "send orders", "send payments"),
    ]
    by_name = {each.name: each for each in spans}
    placed, paid = by_name["place order"].context, by_name["process orders"].context
    parents = {each.name: each.parent for each in spans}
    assert placed is not None
    assert paid is not None
    assert parents["process orders"] == parents["send orders"]
    handled = [parents[name] for name in ("process orders", "process payments")]
    assert [each.span_id for each in handled if each] == [placed.span_id, paid.span_id]


def test_what_is_no_middleware_is_refused_when_the_application_is_made() -> None:
    with pytest.raises(ConfigurationError, match="middleware"):
        ReliableMQ("shop", database="sqlite:///a.db", middleware=[Noted])  # type: ignore[list-item]
