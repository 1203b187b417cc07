"""Metrics of a client's sends and handler calls, for Prometheus."""

from collections.abc import Iterable, Sequence
from contextlib import suppress
from typing import Any

from reliable_mq.client.observing.asyncio_lag import LOOK_SECONDS, LagWatch
from reliable_mq.client.observing.fates import FAILED, error_name, outcome_words, sent_as
from reliable_mq.client.observing.middleware import (
    Delivery,
    Middleware,
    ObservedClient,
    Sending,
)
from reliable_mq.extras import extra_missing
from reliable_mq.message import Message, ReceivedMessage
from reliable_mq.telemetry.families import made
from reliable_mq.telemetry.metrics import ROCKETMQ, metrics_of

_prometheus: Any = None
with suppress(ImportError):  # raised later, by the class that needs it
    import prometheus_client

    _prometheus = prometheus_client

SEND_SECONDS = (
    *(0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5),
    *(1.0, 2.5, 5.0, 10.0),
)
"""Buckets: from a round trip to a nearby broker, to the last attempt of a send."""
HANDLING_SECONDS = (
    *(0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0),
    *(30.0, 60.0, 300.0, 900.0),
)
"""Buckets: from an empty handler, to a handler's limit of fifteen minutes."""
AGE_SECONDS = (
    *(0.001, 0.005, 0.01, 0.05, 0.1, 0.5, 1.0, 5.0, 10.0, 60.0, 600.0, 3600.0, 6 * 3600.0),
    24 * 3600.0,
)
"""Buckets: from a consumer without lag, to one with a backlog of a day."""


class PrometheusMiddleware(Middleware):
    """Counts and times messages by topic and consumer group.

    The metrics are those of the source "client" in `reliable_mq.telemetry.metrics`. Four have the
    names of OpenTelemetry's conventions. Three of these have an earlier name, too, until you leave
    it out.

    Handlers are timed at their end. So a hung call is visible only in
    `reliable_mq_handling_messages`. In prometheus_client's multiprocess mode, gauges are the sum
    over living processes. The lag of a queue is from its last pull.

    Args:
        registry: where the metrics are registered; None: prometheus_client's own.
        send_buckets: upper bounds of `messaging_client_operation_duration_seconds`.
        handling_buckets: upper bounds of `messaging_process_duration_seconds`.
        lag_seconds: interval of updates of `reliable_mq_lag_messages`; no broker is asked.
        earlier_names: whether metrics have their earlier names, too. Default True.

    Raises:
        ExtraMissing: when prometheus_client is not installed.
        ValueError: when a registry has these metrics already: use one object for all clients.
    """

    def __init__(
        self,
        registry: Any = None,
        *,
        send_buckets: Sequence[float] = SEND_SECONDS,
        handling_buckets: Sequence[float] = HANDLING_SECONDS,
        lag_seconds: float = LOOK_SECONDS,
        earlier_names: bool = True,
    ) -> None:
        if _prometheus is None:
            raise extra_missing("prometheus_client")
        registry = _prometheus.REGISTRY if registry is None else registry
        buckets = {
            "messaging_client_operation_duration_seconds": send_buckets,
            "messaging_process_duration_seconds": handling_buckets,
            "reliable_mq_age_seconds": AGE_SECONDS,
        }
        metrics = {
            metric.name: _Children(
                made(registry, metric.name, buckets.get(metric.alias_of or metric.name, ()))
            )
            for metric in metrics_of("client")
            if earlier_names or not metric.alias_of
        }
        self._sent = metrics["messaging_client_sent_messages_total"]
        self._send_seconds = metrics["messaging_client_operation_duration_seconds"]
        self._consumed = metrics["messaging_client_consumed_messages_total"]
        self._process_seconds = metrics["messaging_process_duration_seconds"]
        self._bytes = metrics["reliable_mq_sent_bytes_total"]
        self._sending = metrics["reliable_mq_sending_messages"]
        self._handled = metrics["reliable_mq_handled_messages_total"]
        self._handling = metrics["reliable_mq_handling_messages"]
        self._age = metrics["reliable_mq_age_seconds"]
        self._lag = metrics["reliable_mq_lag_messages"]
        self._earlier_sent = metrics.get("reliable_mq_sent_messages_total")
        self._earlier_send_seconds = metrics.get("reliable_mq_send_seconds")
        self._earlier_handling_seconds = metrics.get("reliable_mq_handling_seconds")
        self._lag_seconds = lag_seconds
        self._watches: dict[str, LagWatch] = {}  # by client

    async def after_start(self, client: ObservedClient) -> None:
        """Start to measure the lag of the client's groups."""
        self._watches[client.client_id] = LagWatch(client, self._note_lag, self._lag_seconds)

    async def before_close(self, client: ObservedClient) -> None:
        """Stop measuring the lag."""
        watch = self._watches.pop(client.client_id, None)
        if watch is not None:
            await watch.stop()

    def _note_lag(self, group: str, topic: str, count: int) -> None:
        self._lag.of(group, topic).set(count)

    def before_send(self, sending: Sending) -> None:
        """Count messages in flight."""
        counts = _counts(sending.messages)
        sending.notes[self] = counts
        for topic, count in counts.items():
            self._sending.of(topic).inc(count)

    def after_send(self, sending: Sending) -> None:
        """Count and time sent messages."""
        errors: dict[str, str] = {}  # by topic, that of its last failed message
        for message, result in zip(sending.messages, sending.results, strict=True):
            error = ""
            if isinstance(result, BaseException):
                error = errors[message.topic] = error_name(result)
            else:
                self._bytes.of(message.topic).inc(len(message.body))
            self._sent.of("send", ROCKETMQ, message.topic, error).inc()
            if self._earlier_sent is not None:
                self._earlier_sent.of(message.topic, sent_as(result)).inc()
        for topic, count in sending.notes.pop(self).items():
            self._sending.of(topic).dec(count)
            error = errors.get(topic, "")
            self._send_seconds.of("send", ROCKETMQ, topic, error).observe(sending.seconds)
            if self._earlier_send_seconds is not None:
                self._earlier_send_seconds.of(topic).observe(sending.seconds)

    def before_consume(self, delivery: Delivery) -> None:
        """Count messages in a handler, and record their age."""
        labels = delivery.group, delivery.topic
        self._handling.of(*labels).inc(len(delivery.messages))
        delivery.notes[self] = labels
        age, now_ms = self._age.of(*labels), delivery.begun_ms + delivery.seconds * 1000
        for message in delivery.messages:
            age.observe(max(0.0, now_ms - message.store_time_ms) / 1000)

    def after_consume(self, delivery: Delivery) -> None:
        """Count and time a handler call."""
        labels = delivery.notes.pop(self)
        group, topic = labels
        self._handling.of(*labels).dec(len(delivery.messages))
        raised = "" if delivery.error is None else error_name(delivery.error)
        error = raised
        for _, word, _ in outcome_words(delivery):
            self._handled.of(*labels, word).inc()
            failed = raised or (word if word in FAILED else "")
            error = error or failed
            self._consumed.of(delivery.verb, ROCKETMQ, topic, group, failed).inc()
        if delivery.verb == "process":
            spent = self._process_seconds.of("process", ROCKETMQ, topic, group, error)
            spent.observe(delivery.seconds)
            if self._earlier_handling_seconds is not None:
                self._earlier_handling_seconds.of(*labels).observe(delivery.seconds)


class _Children:
    """The children of one metric, by label values: a lookup in the metric itself takes a lock."""

    def __init__(self, metric: Any) -> None:
        self._metric = metric
        self._children: dict[tuple[str, ...], Any] = {}

    def of(self, *labels: str) -> Any:
        """Return the child with these values."""
        child = self._children.get(labels)
        if child is None:
            child = self._children[labels] = self._metric.labels(*labels)
        return child


def _counts(messages: Iterable[Message | ReceivedMessage]) -> dict[str, int]:
    counts: dict[str, int] = {}
    for message in messages:
        counts[message.topic] = counts.get(message.topic, 0) + 1
    return counts
