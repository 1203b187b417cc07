"""Trace context (W3C `traceparent` and related fields) in the properties of a message.

With OpenTelemetry installed, its configured propagators are used. Without it, a handler's messages
carry the context of the message that it handles, so that one process does not break the chain.

Trace context never prevents a send or a call of a handler: a context that does not fit is left out,
and an unreadable one is ignored.
"""

import logging
from collections.abc import Mapping
from contextlib import suppress
from contextvars import ContextVar
from typing import Any

from reliable_mq.telemetry import client_events

log = logging.getLogger(__name__)

FIELDS = ("traceparent", "tracestate", "baggage")
"""The fields of W3C. They are passed on if OpenTelemetry is not installed."""
ROOM = 4_096
"""Characters. A message with longer properties is sent without a context."""
_VALUE_LENGTH_MAX = 8_192
handled: ContextVar[Mapping[str, str] | None] = ContextVar("reliable_mq_trace", default=None)
"""The trace properties of the message in the handler, if OpenTelemetry is not installed."""

otel: Any = None
"""OpenTelemetry's API as `opentelemetry.trace`; None if it is not installed."""
contexts: Any = None
"""The same as `opentelemetry.context`."""
propagators: Any = None
"""The same as `opentelemetry.propagate`."""
reads_fields_only: Any = None
"""OpenTelemetry's propagator at the start, if it is the usual one, which reads only `FIELDS`."""
with suppress(ImportError):  # a namespace of many packages; the API may be missing
    from opentelemetry import context, propagate, trace

    otel, contexts, propagators = trace, context, propagate
    if propagate.get_global_textmap().fields == set(FIELDS):
        reads_fields_only = propagate.get_global_textmap()


def is_recorded(provider: Any = None) -> bool:
    """Return whether spans of a tracer provider are recorded; None: of OpenTelemetry's global one.

    Call it only if OpenTelemetry is installed.
    """
    return not isinstance(provider or otel.get_tracer_provider(), otel.ProxyTracerProvider)


def trace_properties() -> dict[str, str]:
    """Return the properties with the current trace context; empty if there is none."""
    if otel is None:
        return dict(handled.get() or {})
    if not otel.get_current_span().get_span_context().is_valid:
        return {}
    return injected(context.get_current())


def with_context(properties: Mapping[str, str], carried: Mapping[str, str]) -> dict[str, str]:
    """Return properties with those of a trace context, if there is room for both.

    If both have a name, the value in `properties` wins.
    """
    if properties and sum(len(str(each)) for each in properties.values()) > ROOM:
        return dict(properties)
    return {**carried, **properties}


def injected(what: Any) -> dict[str, str]:
    """Return the properties that carry a given context of OpenTelemetry."""
    carrier: dict[str, str] = {}
    try:
        propagate.inject(carrier, context=what)
    except Exception:  # noqa: BLE001 - it is logged
        client_events.TRACE_CONTEXT_NOT_ADDED.log(log, traceback_of=True)
        return {}
    return carried_by(carrier, tuple(carrier))


def extracted(properties: Mapping[str, str], topic: str) -> Any:
    """Return the context of OpenTelemetry in some properties, and nothing of the current one."""
    try:
        return propagate.extract(properties, context=context.Context())
    except Exception:  # noqa: BLE001 - it is logged
        client_events.TRACE_CONTEXT_UNREADABLE.log(log, traceback_of=True, topic=topic)
        return context.Context()


def carried_by(fields: Mapping[str, str], names: tuple[str, ...]) -> dict[str, str]:
    """Return the fields that the properties of a message can hold."""
    return {
        name: value
        for name in names
        if (value := fields.get(name)) and value.isprintable() and len(value) <= _VALUE_LENGTH_MAX
    }
