"""Metrics as prometheus_client's own registry gives them."""

import asyncio
from collections.abc import Sequence

import pytest
from prometheus_client import CollectorRegistry
from tests.client.observing.seen import received, stored

from reliable_mq.client.observing import prometheus
from reliable_mq.client.observing.asyncio_hooks import Hooks
from reliable_mq.client.observing.middleware import ClientIdentity
from reliable_mq.client.observing.prometheus import PrometheusMiddleware
from reliable_mq.client.observing.send_results import of_many
from reliable_mq.errors import ConfigurationError, RemoteError, RequestTimeout
from reliable_mq.message import Message, SendResult
from reliable_mq.outcomes import CONSUMED, Retry


class Metrics:
    """A registry, and hooks that fill it."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self.hooks = Hooks([PrometheusMiddleware(self.registry)], ClientIdentity())

    def of(self, name: str, **labels: str) -> float | None:
        return self.registry.get_sample_value(f"reliable_mq_{name}", labels)


def test_what_is_sent_is_counted_by_topic_and_result_and_timed_by_call() -> None:
    metrics = Metrics()
    messages = [Message(topic=topic, body=b"1234") for topic in ("orders", "orders", "bills")]
    results: list[SendResult | Exception] = [stored(), RequestTimeout("no answer")]
    results.append(RemoteError(17, "no such topic"))

    async def send(sent: Sequence[Message]) -> Sequence[SendResult | Exception]:
        assert metrics.of("sending_messages", topic="orders") == 2
        return results

    asyncio.run(metrics.hooks.around_send("send_many", messages, send, of_many))

    assert metrics.of("sent_messages_total", topic="orders", result="stored") == 1
    assert metrics.of("sent_messages_total", topic="orders", result="RequestTimeout") == 1
    assert metrics.of("sent_messages_total", topic="bills", result="TOPIC_NOT_EXIST") == 1
    assert metrics.of("sent_bytes_total", topic="orders") == 4
    assert metrics.of("send_seconds_count", topic="orders") == 1
    assert metrics.of("send_seconds_bucket", topic="bills", le="10.0") == 1
    assert metrics.of("sending_messages", topic="orders") == 0


def test_a_send_that_raises_is_on_its_way_no_more() -> None:
    metrics = Metrics()

    async def send(sent: Sequence[Message]) -> Sequence[SendResult]:
        raise RequestTimeout("no answer")

    message = Message(topic="orders", body=b"x")
    with pytest.raises(RequestTimeout):
        asyncio.run(metrics.hooks.around_send("send_many", [message], send, of_many))
    assert metrics.of("sending_messages", topic="orders") == 0
    assert metrics.of("sent_messages_total", topic="orders", result="RequestTimeout") == 1


def test_what_is_handled_is_counted_by_outcome_and_timed_by_call() -> None:
    metrics, labels = Metrics(), {"group": "payments", "topic": "orders"}

    delivery = metrics.hooks.begin("payments", [received(), received()])
    assert metrics.of("handling_messages", **labels) == 2
    metrics.hooks.end(delivery, [CONSUMED, Retry()])
    failing = metrics.hooks.begin("payments", [received()])
    metrics.hooks.fail(failing, ZeroDivisionError())
    metrics.hooks.call_receive_hooks("payments", [received()])

    outcomes = ("consumed", "later", "failed", "received")
    counts = [metrics.of("handled_messages_total", outcome=each, **labels) for each in outcomes]
    assert counts == [1, 1, 1, 1]
    assert metrics.of("handling_messages", **labels) == 0
    assert metrics.of("handling_seconds_count", **labels) == 2
    assert metrics.of("age_seconds_count", **labels) == 4


def test_without_prometheus_client_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prometheus, "_prometheus", None)

    with pytest.raises(ConfigurationError, match=r"reliable-mq\[prometheus\]"):
        PrometheusMiddleware()


def test_one_registry_takes_the_metrics_once() -> None:
    registry = CollectorRegistry()
    PrometheusMiddleware(registry)

    with pytest.raises(ValueError, match="messaging_client_sent_messages"):
        PrometheusMiddleware(registry)
