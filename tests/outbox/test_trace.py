"""The trace context goes with a message, with OpenTelemetry and without."""

from contextlib import AbstractContextManager

import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from tests.outbox.benches import Bench

from reliable_mq import trace_context
from reliable_mq.client.observing.middleware import ClientIdentity
from reliable_mq.consume.observed_handlers import hooks_of_handlers, observed
from reliable_mq.message import MessageQueue, ReceivedMessage
from reliable_mq.outbox.composing import with_trace
from reliable_mq.trace_context import trace_properties

PARENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


def received(properties: dict[str, str]) -> ReceivedMessage:
    return ReceivedMessage(
        topic="orders",
        body=b"{}",
        message_id="A" * 32,
        properties=properties,
        queue=MessageQueue("orders", "broker-a", 0),
        queue_offset=0,
    )


def handling(message: ReceivedMessage, group: str) -> AbstractContextManager[bool]:
    """Stand for what an application does around the call of a handler."""
    return observed(hooks_of_handlers((), ClientIdentity()), group, message)


@pytest.fixture
def without(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trace_context, "otel", None)


@pytest.fixture(scope="module")
def exporter() -> InMemorySpanExporter:
    made = InMemorySpanExporter()
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(made))
    trace.set_tracer_provider(provider)
    return made


@pytest.fixture
def spans(exporter: InMemorySpanExporter) -> InMemorySpanExporter:
    exporter.clear()
    return exporter


@pytest.mark.usefixtures("without")
def test_without_opentelemetry_a_chain_of_messages_keeps_its_context(bench: Bench) -> None:
    came = {"traceparent": PARENT, "tracestate": "a=b", "region": "eu"}
    with handling(received(came), "payments"), bench.transaction() as tx:
        tx.send("orders", {"id": 1})
        tx.send("orders", {"id": 2}, properties={"traceparent": "mine"})
    with bench.transaction() as tx:
        tx.send("orders", {"id": 3})

    assert [row.properties for row in bench.stubs()] == [
        f'{{"traceparent": "{PARENT}", "tracestate": "a=b"}}',
        '{"traceparent": "mine", "tracestate": "a=b"}',
        "{}",
    ]


def test_the_span_in_which_a_message_is_sent_is_the_parent_of_its_handling(
    bench: Bench, spans: InMemorySpanExporter
) -> None:
    tracer = trace.get_tracer("shop")
    with tracer.start_as_current_span("place order") as placing, bench.transaction() as tx:
        tx.send("orders", {"id": 1})
    with bench.transaction() as tx:
        tx.send("orders", {"id": 2})  # in no span

    stub, without = (bench.handed_stubs[0], bench.handed_stubs[1])
    assert without.properties == {}
    with handling(received(dict(stub.properties)), "payments"):
        inside = trace.get_current_span().get_span_context()
        sent_on = trace_properties()

    handled = next(each for each in spans.get_finished_spans() if each.name == "process orders")
    assert handled.parent is not None
    assert handled.parent.span_id == placing.get_span_context().span_id
    assert handled.context.trace_id == placing.get_span_context().trace_id
    assert handled.kind is trace.SpanKind.CONSUMER
    assert handled.attributes is not None
    assert handled.attributes["messaging.consumer.group.name"] == "payments"
    assert f"{inside.trace_id:032x}-{inside.span_id:016x}" in sent_on["traceparent"]


def test_while_nobody_records_spans_the_context_of_a_message_goes_on_as_it_came(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(trace, "get_tracer_provider", trace.ProxyTracerProvider)
    came = received({"traceparent": PARENT})
    with handling(came, "payments") as is_wanted:
        assert is_wanted
        assert trace_properties()["traceparent"] == PARENT
    assert trace_properties() == {}
    with pytest.raises(ZeroDivisionError), handling(came, "payments"):
        raise ZeroDivisionError
    assert trace_properties() == {}


@pytest.mark.usefixtures("without")
def test_properties_that_need_the_room_themselves_are_sent_without_a_context() -> None:
    large = {"a": "x" * 20_000}
    with handling(received({"traceparent": PARENT}), "payments"):
        assert with_trace(large) == large
        assert with_trace({"a": "x"}) == {"a": "x", "traceparent": PARENT}


def test_a_failing_handler_is_seen_in_its_span(spans: InMemorySpanExporter) -> None:
    with pytest.raises(ZeroDivisionError), handling(received({"traceparent": PARENT}), "payments"):
        raise ZeroDivisionError

    (span,) = spans.get_finished_spans()
    assert span.status.status_code is trace.StatusCode.ERROR
    assert span.parent is not None
    assert f"{span.parent.trace_id:032x}" in PARENT
