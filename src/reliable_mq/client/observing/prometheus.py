"""Metrics of a client's sends and handler calls, for Prometheus."""

from collections.abc import Iterable, Sequence
from contextlib import suppress
from typing import Any

from reliable_mq.client.observing.asyncio_lag import LOOK_SECONDS, LagWatch
from reliable_mq.client.observing.fates import outcome_words, sent_as
from reliable_mq.client.observing.middleware import (
    Delivery,
    Middleware,
    ObservedClient,
    Sending,
)
from reliable_mq.extras import extra_missing
from reliable_mq.message import Message, ReceivedMessage

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

    | metric | labels | |
    |---|---|---|
    | `reliable_mq_sent_messages_total` | topic, result | `stored`, `unanswered`, or an error |
    | `reliable_mq_sent_bytes_total` | topic | bodies that are stored, or sent without an answer |
    | `reliable_mq_send_seconds` | topic | histogram of calls that send, all attempts together |
    | `reliable_mq_sending_messages` | topic | messages in flight |
    | `reliable_mq_handled_messages_total` | group, topic, outcome | consumed, later, failed, … |
    | `reliable_mq_handling_seconds` | group, topic | histogram of the calls of handlers |
    | `reliable_mq_handling_messages` | group, topic | messages in handlers now |
    | `reliable_mq_age_seconds` | group, topic | histogram: from storing until handling |
    | `reliable_mq_lag_messages` | group, topic | unfinished messages of the queues read here |

    Handlers are timed at their end. So a hung call is visible only in
    `reliable_mq_handling_messages`. In prometheus_client's multiprocess mode, gauges are the sum
    over living processes. The lag of a queue is from its last pull.

    Args:
        registry: where the metrics are registered; None: prometheus_client's own.
        send_buckets: upper bounds of `reliable_mq_send_seconds`.
        handling_buckets: upper bounds of `reliable_mq_handling_seconds`.
        lag_seconds: interval of updates of `reliable_mq_lag_messages`; no broker is asked.

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
    ) -> None:
        if _prometheus is None:
            raise extra_missing("prometheus_client")
        registry = _prometheus.REGISTRY if registry is None else registry

        def made(kind: Any, name: str, text: str, labels: Sequence[str], **more: Any) -> _Children:
            metric = kind(f"reliable_mq_{name}", text, labels, registry=registry, **more)
            return _Children(metric)

        counter, gauge = _prometheus.Counter, _prometheus.Gauge
        histogram = _prometheus.Histogram
        ours, theirs = ("topic",), ("group", "topic")
        self._sent = made(counter, "sent_messages", "Messages sent", (*ours, "result"))
        self._bytes = made(counter, "sent_bytes", "Bytes of bodies sent", ours)
        self._send_seconds = made(
            histogram, "send_seconds", "Calls that send", ours, buckets=send_buckets
        )
        live = {"multiprocess_mode": "livesum"}
        self._sending = made(gauge, "sending_messages", "Messages in flight", ours, **live)
        self._handled = made(
            counter, "handled_messages", "Messages that handlers had", (*theirs, "outcome")
        )
        self._handling_seconds = made(
            histogram, "handling_seconds", "Calls of handlers", theirs, buckets=handling_buckets
        )
        self._handling = made(
            gauge, "handling_messages", "Messages that handlers have", theirs, **live
        )
        self._age = made(
            histogram, "age_seconds", "From stored until handled", theirs, buckets=AGE_SECONDS
        )

        self._lag = made(gauge, "lag_messages", "Messages not finished", theirs, **live)
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
        for topic, count in sending.notes.pop(self).items():
            self._sending.of(topic).dec(count)
            self._send_seconds.of(topic).observe(sending.seconds)
        for message, result in zip(sending.messages, sending.results, strict=True):
            self._sent.of(message.topic, sent_as(result)).inc()
            if not isinstance(result, BaseException):
                self._bytes.of(message.topic).inc(len(message.body))

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
        self._handling.of(*labels).dec(len(delivery.messages))
        if delivery.verb == "process":
            self._handling_seconds.of(*labels).observe(delivery.seconds)
        for _, word, _ in outcome_words(delivery):
            self._handled.of(*labels, word).inc()


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
