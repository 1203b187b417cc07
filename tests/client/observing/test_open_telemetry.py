"""Spans by the semantic conventions, and contexts that stay with their messages."""

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest
from opentelemetry import propagate, trace
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from tests.client.observing.seen import received, stored

from reliable_mq import trace_context
from reliable_mq.client.observing.asyncio_hooks import Hooks
from reliable_mq.client.observing.middleware import ClientIdentity, SendVerb
from reliable_mq.client.observing.open_telemetry import OpenTelemetryMiddleware
from reliable_mq.client.observing.send_results import of_many
from reliable_mq.errors import ConfigurationError, RemoteError, RequestTimeout
from reliable_mq.message import Message, SendResult
from reliable_mq.outcomes import CONSUMED, RAISED, Outcome, Reject, Retry

PARENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
TRACE_ID, SPAN_ID = PARENT.split("-")[1:3]
ORDER = Message(topic="orders", body=b"{}", tag="paid", keys=("o1",), ordering_key="c1")
OWN = Message(topic="orders", body=b"{}", properties={"traceparent": PARENT})


class Traced:
    """Hooks over a tracer provider of its own, and the spans that it got."""

    def __init__(self, **options: Any) -> None:
        self._exporter = InMemorySpanExporter()
        self.provider = TracerProvider()
        self.provider.add_span_processor(SimpleSpanProcessor(self._exporter))
        self.tracer = self.provider.get_tracer("test")
        origin = ClientIdentity(client_id="me", address_of=lambda _: "10.0.0.1:10911")
        self.hooks = Hooks([OpenTelemetryMiddleware(self.provider, **options)], origin)
        self.sent: list[Message] = []

    @property
    def spans(self) -> list[ReadableSpan]:
        return list(self._exporter.get_finished_spans())

    def send(
        self,
        *messages: Message,
        verb: SendVerb = "send",
        results: Sequence[SendResult | Exception | None] | None = None,
    ) -> None:
        async def send(sent: Sequence[Message]) -> Sequence[SendResult | Exception | None]:
            self.sent = list(sent)
            return results or [stored() for _ in sent]

        asyncio.run(self.hooks.around_send(verb, messages, send, of_many))


def attributes(span: ReadableSpan) -> dict[str, Any]:
    return dict(span.attributes or {})


def context_of(message: Message) -> str:
    return message.properties["traceparent"]


def named(span: ReadableSpan) -> str:
    """Return the context of a span as a message carries it."""
    assert span.context is not None
    context = span.context
    return f"00-{context.trace_id:032x}-{context.span_id:016x}-{context.trace_flags:02x}"


def linked(span: ReadableSpan) -> list[str]:
    return [f"{each.context.span_id:016x}" for each in span.links]


def test_a_message_is_sent_in_a_producer_span_whose_context_goes_with_it() -> None:
    traced = Traced()
    with traced.tracer.start_as_current_span("place order") as placing:
        traced.send(ORDER)

    span, _ = traced.spans
    assert (span.name, span.kind) == ("send orders", trace.SpanKind.PRODUCER)
    assert span.parent == placing.get_span_context()
    assert context_of(traced.sent[0]) == named(span)
    assert attributes(span) == {
        "messaging.system": "rocketmq",
        "messaging.operation.name": "send",
        "messaging.operation.type": "send",
        "messaging.rocketmq.namespace": "",
        "messaging.client.id": "me",
        "messaging.destination.name": "orders",
        "messaging.message.id": traced.sent[0].message_id,
        "messaging.rocketmq.message.type": "fifo",
        "messaging.rocketmq.message.tag": "paid",
        "messaging.rocketmq.message.keys": ("o1",),
        "messaging.rocketmq.message.group": "c1",
        "messaging.destination.partition.id": "2",
        "network.peer.address": "10.0.0.1",
        "network.peer.port": 10911,
    }
    assert span.status.is_unset


def test_a_message_with_a_context_of_its_own_keeps_it_and_the_span_is_linked_to_it() -> None:
    traced = Traced()
    traced.send(OWN)

    (span,) = traced.spans
    assert context_of(traced.sent[0]) == PARENT
    assert span.kind is trace.SpanKind.CLIENT
    assert linked(span) == [SPAN_ID]
    assert span.parent is not None, "it stands in the trace of its message"
    assert f"{span.parent.span_id:016x}" == SPAN_ID


def test_the_context_in_which_a_message_is_sent_is_not_one_of_its_own() -> None:
    traced = Traced()
    with traced.tracer.start_as_current_span("place order"):
        carried: dict[str, str] = {}
        propagate.inject(carried)
        traced.send(Message(topic="orders", body=b"{}", properties=carried))

    span, _ = traced.spans
    assert span.kind is trace.SpanKind.PRODUCER
    assert context_of(traced.sent[0]) == named(span)


def test_of_many_messages_each_has_a_span_that_the_one_of_sending_is_linked_to() -> None:
    traced = Traced()
    traced.send(ORDER, OWN, Message(topic="bills", body=b"{}"), verb="send_many")

    *created, span = traced.spans
    assert [each.name for each in created] == ["create orders", "create bills"]
    assert all(each.kind is trace.SpanKind.PRODUCER for each in created)
    assert (span.name, span.kind) == ("send", trace.SpanKind.CLIENT)
    assert attributes(span)["messaging.batch.message_count"] == 3
    assert "messaging.destination.name" not in attributes(span)
    contexts = [context_of(each) for each in traced.sent]
    assert contexts == [named(created[0]), PARENT, named(created[1])]
    assert linked(span) == [each.split("-")[2] for each in contexts]


def test_without_spans_of_creation_many_messages_have_the_context_of_the_one_of_sending() -> None:
    traced = Traced(creates=False)
    traced.send(ORDER, OWN, ORDER, verb="send_batch")

    (span,) = traced.spans
    assert (span.name, span.kind) == ("send orders", trace.SpanKind.PRODUCER)
    assert [context_of(each) for each in traced.sent] == [named(span), PARENT, named(span)]


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (RemoteError(17, "no such topic"), "TOPIC_NOT_EXIST"),
        (RequestTimeout("no answer"), "reliable_mq.errors.RequestTimeout"),
        (ValueError("odd"), "ValueError"),
    ],
)
def test_what_is_not_sent_is_an_error_of_its_span(error: Exception, kind: str) -> None:
    traced = Traced()
    traced.send(ORDER, results=[error])

    (span,) = traced.spans
    assert span.status.status_code is trace.StatusCode.ERROR
    assert span.status.description == str(error)
    assert attributes(span)["error.type"] == kind


def handle(traced: Traced, outcome: Outcome | Exception, **properties: str) -> ReadableSpan:
    delivery = traced.hooks.begin("payments", [received(b"{}", **properties)])
    inside = trace.get_current_span().get_span_context()
    if isinstance(outcome, Exception) and not isinstance(outcome, RAISED):
        traced.hooks.fail(delivery, outcome)
    else:
        traced.hooks.end(delivery, [outcome])
    assert not trace.get_current_span().get_span_context().is_valid
    span = traced.spans[-1]
    assert span.context == inside, "the span was current in the handler"
    return span


def test_a_message_is_handled_in_a_consumer_span_below_the_one_it_came_with() -> None:
    traced = Traced()
    with traced.tracer.start_as_current_span("the client was started here"):
        span = None
        delivery = traced.hooks.begin("payments", [received(traceparent=PARENT, TAGS="paid")])
        traced.hooks.end(delivery, [CONSUMED])
    (span, _) = traced.spans

    assert (span.name, span.kind) == ("process orders", trace.SpanKind.CONSUMER)
    assert span.parent is not None
    assert f"{span.parent.trace_id:032x}-{span.parent.span_id:016x}" == f"{TRACE_ID}-{SPAN_ID}"
    assert linked(span) == [SPAN_ID]
    assert attributes(span) == {
        "messaging.system": "rocketmq",
        "messaging.operation.name": "process",
        "messaging.operation.type": "process",
        "messaging.rocketmq.namespace": "",
        "messaging.client.id": "me",
        "messaging.destination.name": "orders",
        "messaging.consumer.group.name": "payments",
        "messaging.message.id": "A" * 32,
        "messaging.rocketmq.message.type": "normal",
        "messaging.destination.partition.id": "2",
        "reliable_mq.attempt": 1,
        "reliable_mq.outcome": "consumed",
    }


def test_a_message_without_a_context_begins_a_trace() -> None:
    assert handle(Traced(), CONSUMED).parent is None
    assert handle(Traced(), CONSUMED, traceparent="nonsense").parent is None


@pytest.mark.parametrize(
    ("outcome", "kind", "why"),
    [
        (Retry(reason="no money"), "later", "no money"),
        (Reject("no payer"), "dead", "no payer"),
        (ZeroDivisionError("by zero"), "ZeroDivisionError", "by zero"),
    ],
)
def test_a_handler_that_did_not_consume_is_an_error_of_its_span(
    outcome: Outcome | Exception, kind: str, why: str
) -> None:
    span = handle(Traced(), outcome, traceparent=PARENT)

    assert span.status.status_code is trace.StatusCode.ERROR
    assert span.status.description == why
    assert attributes(span)["error.type"] == kind


def test_what_is_postponed_is_no_error() -> None:
    span = handle(Traced(), Retry(1.0, counts=False))

    assert span.status.is_unset
    assert attributes(span)["reliable_mq.outcome"] == "postponed"


def test_a_batch_is_handled_in_one_span_that_is_linked_to_each_context() -> None:
    traced = Traced()
    other = PARENT.replace(SPAN_ID, "00f067aa0ba902b7")
    messages = [received(traceparent=PARENT), received(), received(traceparent=other)]
    traced.hooks.end(traced.hooks.begin("payments", messages), [CONSUMED, Retry(), CONSUMED])

    (span,) = traced.spans
    assert span.parent is None
    assert linked(span) == [SPAN_ID, "00f067aa0ba902b7"]
    assert attributes(span)["messaging.batch.message_count"] == 3
    assert attributes(span)["reliable_mq.outcome"] == "consumed,later"


def test_what_is_handed_to_a_caller_is_a_span_of_receiving_over_the_time_he_waited() -> None:
    traced = Traced()
    with traced.tracer.start_as_current_span("my loop") as mine:
        traced.hooks.call_receive_hooks("payments", [received(traceparent=PARENT)], waited=2.0)
        assert trace.get_current_span() is mine, "nothing of it goes on in the caller"
    span, _ = traced.spans

    assert (span.name, span.kind) == ("receive orders", trace.SpanKind.CLIENT)
    assert linked(span) == [SPAN_ID]
    assert span.parent == mine.get_span_context()
    assert span.start_time is not None
    assert span.end_time is not None
    assert span.end_time - span.start_time > 1e9


def test_while_nobody_records_the_context_of_a_message_goes_on_as_it_came(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(trace, "get_tracer_provider", trace.ProxyTracerProvider)
    hooks = Hooks([OpenTelemetryMiddleware()], ClientIdentity())

    delivery = hooks.begin("payments", [received(traceparent=PARENT)])
    assert trace_context.trace_properties()["traceparent"] == PARENT
    hooks.end(delivery, [CONSUMED])
    assert trace_context.trace_properties() == {}

    async def send(sent: Sequence[Message]) -> Sequence[SendResult]:
        assert sent[0].properties == {}
        return [stored()]

    asyncio.run(hooks.around_send("send", [ORDER], send, of_many))


def test_a_context_that_cannot_be_carried_stops_no_message(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def odd(carrier: dict[str, str], **_: Any) -> None:
        carrier |= {"a": "line\n", "b": "x" * 10_000, "c": "fine"}

    def broken(*_: Any, **__: Any) -> None:
        raise ZeroDivisionError

    traced = Traced()
    for inject, properties in ((odd, {"c": "fine"}), (broken, {})):
        monkeypatch.setattr(propagate, "inject", inject)
        traced.send(ORDER)
        assert traced.sent[0].properties == properties
    monkeypatch.setattr(propagate, "extract", broken)
    handle(traced, CONSUMED, traceparent=PARENT)
    assert len(caplog.records) == 2


def test_properties_that_need_the_room_themselves_are_sent_without_a_context() -> None:
    traced = Traced()
    large = {"a": "x" * 20_000}
    traced.send(Message(topic="orders", body=b"{}", properties=large))

    assert traced.sent[0].properties == large


def test_without_opentelemetry_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trace_context, "otel", None)

    with pytest.raises(ConfigurationError, match=r"reliable-mq\[otel\]"):
        OpenTelemetryMiddleware()
