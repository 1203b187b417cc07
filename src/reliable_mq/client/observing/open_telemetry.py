"""Spans of sends and handler calls, as in OpenTelemetry's semantic conventions for messaging.

Source: semantic conventions 1.44.0, `messaging-spans.md` and `rocketmq.md`.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from reliable_mq import trace_context
from reliable_mq.client.observing.fates import FAILED, error_name, outcome_words
from reliable_mq.client.observing.middleware import ClientIdentity, Delivery, Middleware, Sending
from reliable_mq.error_texts import text_of
from reliable_mq.errors import RemoteError
from reliable_mq.extras import extra_missing
from reliable_mq.message import Message, ReceivedMessage, SendResult
from reliable_mq.telemetry.written_errors import written_error
from reliable_mq.trace_context import (
    FIELDS,
    carried_by,
    contexts,
    extracted,
    handled,
    injected,
    with_context,
)
from reliable_mq.wire.properties import TRANSACTION_PREPARED

_SCHEMA = "https://opentelemetry.io/schemas/1.44.0"
_DESCRIPTION_LENGTH_MAX = 500


class OpenTelemetryMiddleware(Middleware):
    """Makes spans, and carries their context in the properties of messages.

    Sending one message makes a span "send TOPIC" of kind PRODUCER. Its context travels with the
    message through all retries, to the dead letters, and with every resend of a stub. A message
    with a context of its own keeps it (a stub's is that of the transaction). Then the span is of
    kind CLIENT and linked to that context. Sending many messages at once makes a span "create
    TOPIC" for each message without a context, and one of kind CLIENT with links to all.

    A handler call is a span "process TOPIC" of kind CONSUMER. It is the current span in the
    handler, and has links to the contexts of its messages. A single message's context is also the
    parent. Messages for a caller of `poll` or `receive` make a span "receive TOPIC" of kind CLIENT.

    Besides the attributes of the conventions there are `reliable_mq.attempt`, from 1, and
    `reliable_mq.outcome`: consumed, later, postponed, dead, failed. Without a tracer provider,
    contexts pass through unchanged and nothing is recorded.

    Args:
        tracer_provider: makes the tracer; None: OpenTelemetry's global one.
        creates: whether each of many messages sent at once has a span "create". If not, messages
            without a context get that of the one span, which is then of kind PRODUCER.

    Raises:
        ExtraMissing: when OpenTelemetry's API is not installed.
    """

    def __init__(self, tracer_provider: Any = None, *, creates: bool = True) -> None:
        self._otel = trace_context.otel
        if self._otel is None:
            raise extra_missing("opentelemetry")
        #: makes the tracer; None: the global one
        self.provider = tracer_provider
        self._creates = creates
        self._tracer = self._otel.get_tracer(
            "reliable_mq", tracer_provider=tracer_provider, schema_url=_SCHEMA
        )

    @property
    def records(self) -> bool:
        """Whether spans are recorded."""
        return trace_context.is_recorded(self.provider)

    # sending

    def before_send(self, sending: Sending) -> None:
        """Start the span, and give its context to messages without one."""
        if not self.records:
            return
        alone = sending.verb != "send_batch" and len(sending.messages) == 1
        own = [self._own_context(message) for message in sending.messages]
        kinds = self._otel.SpanKind
        if alone or not self._creates:
            links = [self._otel.Link(each) for each in own if each is not None]
            is_creation = None in own
            span = self._tracer.start_span(
                _name("send", sending.messages),
                context=self._parent(own[0]) if alone else None,
                kind=kinds.PRODUCER if is_creation else kinds.CLIENT,
                attributes=_of_sending(sending, alone=alone),
                links=links,
            )
            if is_creation:
                carried = injected(self._otel.set_span_in_context(span))
                for at, each in enumerate(own):
                    if each is None:
                        sending.messages[at] = _carrying(sending.messages[at], carried)
        else:
            links = [self._otel.Link(self._created(sending, at, own[at])) for at in range(len(own))]
            span = self._tracer.start_span(
                _name("send", sending.messages),
                kind=kinds.CLIENT,
                attributes=_of_sending(sending, alone=False),
                links=links,
            )
        sending.notes[self] = span

    def after_send(self, sending: Sending) -> None:
        """End the span."""
        span = sending.notes.pop(self, None)
        if span is None:
            return
        for result in sending.results:
            if isinstance(result, BaseException):
                self._fail(span, _error_type(result), str(result))
                break
        first = sending.results[0] if len(sending.results) == 1 else None
        if isinstance(first, SendResult):
            span.set_attributes(_of_place(first, sending.origin))
        span.end()

    def _own_context(self, message: Message) -> Any:
        """Return a message's own span context; None when it has none.

        A context equal to the sender's current one is not its own: the send span comes between
        them.
        """
        if not message.properties:
            return None
        came = self._span_context(extracted(message.properties, message.topic))
        now = self._otel.get_current_span().get_span_context()
        if not came.is_valid or (came.span_id == now.span_id and came.trace_id == now.trace_id):
            return None
        return came

    def _parent(self, own: Any) -> Any:
        """Return the parent context of a span: the current one, or that of its only message."""
        if own is None or self._otel.get_current_span().get_span_context().is_valid:
            return None
        return self._otel.set_span_in_context(self._otel.NonRecordingSpan(own))

    def _created(self, sending: Sending, at: int, own: Any) -> Any:
        """Return the span context of a message; that of a new span if it has none."""
        if own is not None:
            return own
        message = sending.messages[at]
        span = self._tracer.start_span(
            f"create {message.topic}",
            kind=self._otel.SpanKind.PRODUCER,
            attributes={
                **_of_client(sending.origin, "create", message.topic),
                **_of_message(message),
            },
        )
        span.end()
        carried = injected(self._otel.set_span_in_context(span))
        sending.messages[at] = _carrying(message, carried)
        return span.get_span_context()

    def _span_context(self, context: Any) -> Any:
        return self._otel.get_current_span(context).get_span_context()

    # consuming

    def before_consume(self, delivery: Delivery) -> None:
        """Start the span and make it current."""
        alone = len(delivery.messages) == 1
        came = [extracted(each.properties, each.topic) for each in delivery.messages]
        if not self.records:
            if alone and delivery.verb == "process":
                delivery.notes[self] = None, contexts.attach(came[0])
            return
        links = [
            self._otel.Link(found) for each in came if (found := self._span_context(each)).is_valid
        ]
        attributes = _of_delivery(delivery, alone=alone)
        if delivery.verb == "receive":
            span = self._tracer.start_span(
                _name("receive", delivery.messages),
                kind=self._otel.SpanKind.CLIENT,
                attributes=attributes,
                links=links,
                start_time=delivery.begun_ms * 1_000_000,
            )
            delivery.notes[self] = span, None
            return
        parent = came[0] if alone else contexts.Context()
        span = self._tracer.start_span(
            _name("process", delivery.messages),
            context=parent,
            kind=self._otel.SpanKind.CONSUMER,
            attributes=attributes,
            links=links,
        )
        current = self._otel.set_span_in_context(span, parent)
        delivery.notes[self] = span, contexts.attach(current)

    def after_consume(self, delivery: Delivery) -> None:
        """End the span, and restore the span that was current before."""
        span, token = delivery.notes.pop(self, (None, None))
        if token is not None:
            contexts.detach(token)
        if span is None:
            return
        if delivery.verb == "process":
            self._note_outcomes(span, delivery)
        span.end()

    def _note_outcomes(self, span: Any, delivery: Delivery) -> None:
        words = {word: why for _, word, why in reversed(list(outcome_words(delivery)))}
        span.set_attribute("reliable_mq.outcome", ",".join(sorted(words)))
        if delivery.error is not None:
            span.record_exception(written_error(delivery.error))
            self._fail(span, _error_type(delivery.error), text_of(delivery.error))
            return
        for word in sorted(words.keys() & FAILED):
            self._fail(span, word, words[word])
            return

    def _fail(self, span: Any, kind: str, why: str) -> None:
        status = self._otel.Status(self._otel.StatusCode.ERROR, why[:_DESCRIPTION_LENGTH_MAX])
        span.set_status(status)
        span.set_attribute("error.type", kind)


def _carrying(message: Message, carried: Mapping[str, str]) -> Message:
    """Return a message with the properties of a context; those of another context are replaced."""
    own = {name: value for name, value in message.properties.items() if name not in carried}
    return msgspec.structs.replace(message, properties=with_context(own, carried))


def _name(operation: str, messages: Sequence[Message] | Sequence[ReceivedMessage]) -> str:
    """Return the name of a span: the operation, and the topic if there is only one."""
    topic = messages[0].topic
    is_one = all(message.topic == topic for message in messages)
    return f"{operation} {topic}" if is_one else operation


def _of_client(origin: ClientIdentity, operation: str, topic: str | None) -> dict[str, Any]:
    attributes = {
        "messaging.system": "rocketmq",
        "messaging.operation.name": operation,
        "messaging.operation.type": operation,
        "messaging.rocketmq.namespace": origin.namespace,
        "messaging.client.id": origin.client_id,
    }
    if topic is not None:
        attributes["messaging.destination.name"] = topic
    return attributes


def _of_message(message: Message | ReceivedMessage) -> dict[str, Any]:
    attributes: dict[str, Any] = {
        "messaging.message.id": message.message_id,
        "messaging.rocketmq.message.type": _kind(message),
    }
    if message.tag:
        attributes["messaging.rocketmq.message.tag"] = message.tag
    if message.keys:
        attributes["messaging.rocketmq.message.keys"] = list(message.keys)
    if message.ordering_key:
        attributes["messaging.rocketmq.message.group"] = message.ordering_key
    if isinstance(message, Message) and message.delay_level:
        attributes["messaging.rocketmq.message.delay_time_level"] = message.delay_level
    if isinstance(message, Message) and message.deliver_at is not None:
        delivered_ms = int(message.deliver_at.timestamp() * 1000)
        attributes["messaging.rocketmq.message.delivery_timestamp"] = delivered_ms
    return attributes


def _kind(message: Message | ReceivedMessage) -> str:
    if TRANSACTION_PREPARED in message.properties:
        return "transaction"
    if isinstance(message, Message) and message.is_delayed:
        return "delay"
    return "fifo" if message.ordering_key else "normal"


def _of_sending(sending: Sending, *, alone: bool) -> dict[str, Any]:
    messages = sending.messages
    topic = messages[0].topic
    is_one = all(message.topic == topic for message in messages)
    attributes = _of_client(sending.origin, "send", topic if is_one else None)
    if not alone:
        return {**attributes, "messaging.batch.message_count": len(messages)}
    attributes |= _of_message(messages[0])
    if sending.verb == "send_half":
        attributes["messaging.rocketmq.message.type"] = "transaction"
    return attributes


def _of_delivery(delivery: Delivery, *, alone: bool) -> dict[str, Any]:
    attributes = {
        **_of_client(delivery.origin, delivery.verb, delivery.topic),
        "messaging.consumer.group.name": delivery.group,
    }
    first = delivery.messages[0]
    if not alone:
        return {**attributes, "messaging.batch.message_count": len(delivery.messages)}
    return {
        **attributes,
        **_of_message(first),
        "messaging.destination.partition.id": str(first.queue.queue_id),
        "reliable_mq.attempt": first.reconsume_times + 1,
    }


def _of_place(result: SendResult, origin: ClientIdentity) -> dict[str, Any]:
    attributes: dict[str, Any] = {"messaging.destination.partition.id": str(result.queue.queue_id)}
    host, _, port = origin.address_of(result.queue.broker_name).rpartition(":")
    if host and port.isdigit():
        attributes["network.peer.address"] = host.strip("[]")
        attributes["network.peer.port"] = int(port)
    return attributes


def _error_type(error: BaseException) -> str:
    """Return the type of an error: a broker's code, or the full name of the class."""
    if isinstance(error, RemoteError):
        return error_name(error)
    kind = type(error)
    return kind.__qualname__ if kind.__module__ == "builtins" else _full_name(kind)


def _full_name(kind: type) -> str:
    return f"{kind.__module__}.{kind.__qualname__}"


class ContextCarrier(Middleware):
    """Passes the context of a received message on to the messages that its handler sends.

    It works without OpenTelemetry. `OpenTelemetryMiddleware` includes this.
    """

    def before_consume(self, delivery: Delivery) -> None:
        """Make the context current if there is only one message."""
        if len(delivery.messages) == 1 and delivery.verb == "process":
            carried = carried_by(delivery.messages[0].properties, FIELDS)
            delivery.notes[self] = handled.set(carried)

    def after_consume(self, delivery: Delivery) -> None:
        """Restore the previous context."""
        token = delivery.notes.pop(self, None)
        if token is not None:
            handled.reset(token)
