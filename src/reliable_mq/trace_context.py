"""Trace context (W3C `traceparent` and what travels with it) in the properties of a message.

With OpenTelemetry installed its propagators are used, whatever they are set to; without it the
context of the message that is handled goes on to the messages that its handler sends, so that a
chain is not cut by one process.

Refuses to be a reason why a message is not sent or handled: what cannot be carried is left out,
what does not read is passed over.
"""

import logging
from collections.abc import Mapping
from contextlib import suppress
from contextvars import ContextVar
from typing import Any

log = logging.getLogger(__name__)

FIELDS = ("traceparent", "tracestate", "baggage")
"""What is handed on where OpenTelemetry is not installed."""
ROOM = 4_096
"""Properties that are longer than this are sent without a context."""
_VALUE_LENGTH_MAX = 8_192
handled: ContextVar[Mapping[str, str] | None] = ContextVar("reliable_mq_trace", default=None)
"""The properties of the message that is handled, where OpenTelemetry is not installed."""

otel: Any = None
"""OpenTelemetry's API as `opentelemetry.trace`; None where it is not installed."""
contexts: Any = None
"""The same as `opentelemetry.context`."""
with suppress(ImportError):  # a namespace of many packages, of which the API may be none
    from opentelemetry import context, propagate, trace

    otel, contexts = trace, context


def trace_properties() -> dict[str, str]:
    """Return the properties that carry the current trace context, none when there is none."""
    if otel is None:
        return dict(handled.get() or {})
    if not otel.get_current_span().get_span_context().is_valid:
        return {}
    return injected(context.get_current())


def with_context(properties: Mapping[str, str], carried: Mapping[str, str]) -> dict[str, str]:
    """Return properties with those of a trace context, unless theirs take the room.

    What both name stays as it was.
    """
    if properties and sum(len(str(each)) for each in properties.values()) > ROOM:
        return dict(properties)
    return {**carried, **properties}


def injected(what: Any) -> dict[str, str]:
    """Return the properties that carry a context of OpenTelemetry."""
    carrier: dict[str, str] = {}
    try:
        propagate.inject(carrier, context=what)
    except Exception:
        log.warning("a trace context was not carried", exc_info=True)
        return {}
    return carried_by(carrier, tuple(carrier))


def extracted(properties: Mapping[str, str], topic: str) -> Any:
    """Return the context of OpenTelemetry that properties carry; it has no other beside."""
    try:
        return propagate.extract(properties, context=context.Context())
    except Exception:
        log.warning("a trace context of topic %s does not read", topic, exc_info=True)
        return context.Context()


def carried_by(fields: Mapping[str, str], names: tuple[str, ...]) -> dict[str, str]:
    """Return those of some fields that the properties of a message can hold."""
    return {
        name: value
        for name in names
        if (value := fields.get(name)) and value.isprintable() and len(value) <= _VALUE_LENGTH_MAX
    }
