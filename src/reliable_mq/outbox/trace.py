"""Trace context (W3C `traceparent` and what travels with it) goes with a message.

Receives the context in which a message is sent; hands on properties that carry it, and, at the
consumer, a block in which it is the current one. With OpenTelemetry installed its propagators and
spans are used, whatever they are set to; without it the context of the message that is handled
goes on to the messages that its handler sends, so that a chain is not cut by one process.

Refuses to be a reason why a message is not sent: what cannot be carried is left out.
"""

import logging
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from typing import Any

from reliable_mq.message import ReceivedMessage

log = logging.getLogger(__name__)

FIELDS = ("traceparent", "tracestate", "baggage")
"""What is handed on where OpenTelemetry is not installed."""
_VALUE_LENGTH_MAX = 8_192
_handled: ContextVar[Mapping[str, str] | None] = ContextVar("reliable_mq_trace", default=None)

_otel: Any = None
with suppress(ImportError):  # a namespace of many packages, of which the API may be none
    from opentelemetry import context, propagate, trace

    _otel = trace


def trace_properties() -> dict[str, str]:
    """Return the properties that carry the current trace context, none when there is none."""
    if _otel is None:
        return dict(_handled.get() or {})
    if not _otel.get_current_span().get_span_context().is_valid:
        return {}
    carrier: dict[str, str] = {}
    try:
        propagate.inject(carrier)
    except Exception:
        log.warning("a trace context was not carried", exc_info=True)
        return {}
    return _carried(carrier, tuple(carrier))


@contextmanager
def handling(message: ReceivedMessage, group: str) -> Iterator[None]:
    """Make the trace context that came with a message the current one while a handler runs.

    With OpenTelemetry a span of kind CONSUMER is its child, and ends with the block.
    """
    if _otel is None:
        token = _handled.set(_carried(message.properties, FIELDS))
        try:
            yield
        finally:
            _handled.reset(token)
        return
    try:
        came = propagate.extract(message.properties)
    except Exception:
        log.warning("a trace context of topic %s does not read", message.topic, exc_info=True)
        came = context.get_current()
    attached = context.attach(came)
    try:
        if isinstance(_otel.get_tracer_provider(), _otel.ProxyTracerProvider):
            yield  # nobody records spans: what came is what goes on
            return
        with _otel.get_tracer("reliable_mq").start_as_current_span(
            f"process {message.topic}",
            kind=_otel.SpanKind.CONSUMER,
            attributes={
                "messaging.system": "rocketmq",
                "messaging.operation.name": "process",
                "messaging.destination.name": message.topic,
                "messaging.consumer.group.name": group,
                "messaging.message.id": message.message_id,
            },
        ):
            yield
    finally:
        context.detach(attached)


def _carried(fields: Mapping[str, str], names: tuple[str, ...]) -> dict[str, str]:
    """Return those of some fields that the properties of a message can hold."""
    return {
        name: value
        for name in names
        if (value := fields.get(name)) and value.isprintable() and len(value) <= _VALUE_LENGTH_MAX
    }
