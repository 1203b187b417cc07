"""`mq.register_metrics` in a program of one's own, with an embedded broker."""

from collections.abc import Iterator
from itertools import count
from pathlib import Path

import pytest
from prometheus_client import CollectorRegistry
from tests.waiting import until

from reliable_mq import PrometheusMiddleware, ReliableMQ
from reliable_mq.app import thread_meter
from reliable_mq.errors import UsageError
from reliable_mq.telemetry.families import Sample


@pytest.fixture
def shop(tmp_path: Path) -> Iterator[ReliableMQ]:
    mq = ReliableMQ(
        "shop", broker=f"embedded:{tmp_path / 'store'}", database=f"sqlite:///{tmp_path / 'd.db'}"
    )

    @mq.consumer("orders", group="payments", concurrency=2)
    def take_payment(order: dict[str, int]) -> None: ...

    mq.create_tables()
    yield mq
    mq.close()


def test_an_embedded_broker_has_its_metrics_in_the_application(shop: ReliableMQ) -> None:
    registry = CollectorRegistry()
    shop.register_metrics(registry)
    with shop:
        with shop.transaction() as tx:
            tx.send("orders", {"n": 1})
        labels = {"group": "payments", "topic": "orders", "outcome": "consumed"}
        until(
            lambda: (
                registry.get_sample_value("reliable_mq_handled_messages_total", labels) == 1
                and registry.get_sample_value("reliable_mq_broker_messages_in_total", {})
            )
        )
        assert registry.get_sample_value("reliable_mq_name_server_brokers", {}) == 1
        calls = registry.get_sample_value("reliable_mq_handler_calls_max", {"group": "payments"})
        assert calls == 2


def test_an_application_with_a_middleware_of_its_own_gets_no_second_one(tmp_path: Path) -> None:
    registry = CollectorRegistry()
    mq = ReliableMQ(
        "shop",
        database=f"sqlite:///{tmp_path / 'd.db'}",
        middleware=[PrometheusMiddleware(registry)],
    )
    mq.register_metrics(registry)
    with pytest.raises(ValueError, match="reliable_mq_outbox"):
        mq.register_metrics(registry)


def test_a_worker_whose_figures_cannot_be_read_once_shows_new_ones_later(
    shop: ReliableMQ, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(thread_meter, "SET_SECONDS", 0.01)
    registry, turns = CollectorRegistry(), count()
    meter = shop.meter(registry)

    def samples() -> list[Sample]:
        if not (turn := next(turns)):
            raise RuntimeError("dictionary changed size during iteration")
        return [Sample("reliable_mq_redis_breaker_open", turn)]

    monkeypatch.setattr(meter, "worker_samples", samples)
    meter.measure_for_parent()

    until(lambda: (registry.get_sample_value("reliable_mq_redis_breaker_open") or 0) >= 2)
    assert "metrics of this worker: dictionary changed size" in caplog.text


def test_metrics_are_registered_before_the_application_connects(shop: ReliableMQ) -> None:
    with shop, pytest.raises(UsageError, match="before the first message"):
        shop.register_metrics(CollectorRegistry())


def test_a_database_that_is_away_leaves_the_other_metrics(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    registry = CollectorRegistry()
    away = tmp_path / "away" / "d.db"
    mq = ReliableMQ(
        "shop",
        database=f"sqlite:///{tmp_path / 'd.db'}",
        databases={"billing": f"sqlite:///{away}"},
    )
    mq.databases["main"].create_tables()
    mq.register_metrics(registry)
    found = {
        (sample.name, sample.labels.get("database")): sample.value
        for family in registry.collect()
        for sample in family.samples
    }
    assert found["reliable_mq_database_up", "main"] == 1
    assert found["reliable_mq_database_up", "billing"] == 0
    assert found["reliable_mq_outbox_oldest_unsent_seconds", "main"] == 0
    assert ("reliable_mq_outbox_oldest_unsent_seconds", "billing") not in found
    assert found["reliable_mq_redis_breaker_open", None] == 0
    assert [getattr(record, "event", "") for record in caplog.records] == ["database_lost"]
