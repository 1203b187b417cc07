"""The setting `shutdown_timeout_seconds` decides how long a stopping worker waits for handlers."""

import logging
import os
import signal
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from reliable_mq import ReliableMQ

ORDERS = "orders"
SECONDS = 0.4


@pytest.fixture
def begun() -> threading.Event:
    return threading.Event()


@pytest.fixture
def may_end() -> Iterator[threading.Event]:
    event = threading.Event()
    yield event
    event.set()  # the thread of a handler that was cut off ends with its test


def _shop(folder: Path, **more: Any) -> ReliableMQ:
    shop = ReliableMQ(
        "shop",
        broker=f"embedded:{folder / 'store'}",
        database=f"sqlite:///{folder}/shop.db",
        **more,
    )
    shop.create_tables()
    return shop


def _cut_off(caplog: pytest.LogCaptureFixture) -> list[float]:
    return [
        each.seconds  # type: ignore[attr-defined]
        for each in caplog.records
        if getattr(each, "event", "") == "handlers_cut_off"
    ]


@pytest.mark.parametrize("by", ["close", "run"])
def test_a_handler_that_does_not_end_is_cut_off_after_the_setting(
    by: str,
    tmp_path: Path,
    begun: threading.Event,
    may_end: threading.Event,
    caplog: pytest.LogCaptureFixture,
) -> None:
    shop = _shop(tmp_path, shutdown_timeout_seconds=SECONDS)

    @shop.consumer(ORDERS, group="payments")
    def pay(order: dict[str, Any]) -> None:
        begun.set()
        if by == "run":
            os.kill(os.getpid(), signal.SIGTERM)
        may_end.wait()

    with shop.transaction() as tx:
        tx.send(ORDERS, {"id": 1}, key="1")
    with caplog.at_level(logging.WARNING):
        if by == "run":
            shop.run()
        else:
            shop.start()
            assert begun.wait(60)
            shop.close()

    assert _cut_off(caplog) == [SECONDS]


@pytest.mark.parametrize("seconds", [3.0, 90.0])
def test_a_shorter_and_a_longer_time_reach_the_client(seconds: float, tmp_path: Path) -> None:
    shop = _shop(tmp_path, shutdown_timeout_seconds=seconds)

    @shop.consumer(ORDERS, group="payments")
    def pay(order: dict[str, Any]) -> None: ...

    with shop:
        (worker,) = shop._connections.workers
        assert worker._running[0].group.settings.close_timeout_seconds == seconds


def test_the_clients_own_setting_goes_before_it(tmp_path: Path) -> None:
    shop = _shop(tmp_path, shutdown_timeout_seconds=3.0, client={"close_timeout_seconds": 7.0})

    @shop.consumer(ORDERS, group="payments")
    def pay(order: dict[str, Any]) -> None: ...

    with shop:
        (worker,) = shop._connections.workers
        assert worker._running[0].group.settings.close_timeout_seconds == 7.0
