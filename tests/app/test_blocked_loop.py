"""A handler that blocks the event loop of its worker is named in the log."""

import logging
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.waiting import until

from reliable_mq import ReliableMQ
from reliable_mq.consume.thread_loop_watch import AGAIN_LOOKS, STILL_LOOKS, LoopWatch


def _lines(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [
        each.getMessage() for each in caplog.records if getattr(each, "event", "") == "loop_blocked"
    ]


@pytest.fixture
def may_end() -> Iterator[threading.Event]:
    event = threading.Event()
    yield event
    event.set()


def test_the_log_names_the_async_def_handler_that_blocks_and_its_line(
    tmp_path: Path,
    may_end: threading.Event,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(LoopWatch.__init__, "__defaults__", ((), 0.05))
    shop = ReliableMQ(
        "shop", broker=f"embedded:{tmp_path / 'store'}", database=f"sqlite:///{tmp_path}/shop.db"
    )
    shop.create_tables()

    @shop.consumer("orders", group="payments")
    async def pay(order: dict[str, Any]) -> None:
        may_end.wait()  # blocks: it is not awaited

    with shop.transaction() as tx:
        tx.send("orders", {"id": 1}, key="1")
    with caplog.at_level(logging.WARNING):
        shop.start()
        try:
            until(lambda: any("group payments" in each for each in _lines(caplog)))
        finally:
            may_end.set()
            shop.close()

    line = next(each for each in _lines(caplog) if "group payments" in each)
    assert "pay (group payments)" in line
    assert f"test_blocked_loop.py:{pay.__code__.co_firstlineno + 2};" in line


class _Loop:
    """A loop that runs what it is given only while it is free."""

    is_free = True

    def call_soon_threadsafe(self, call: Any) -> None:
        if self.is_free:
            call()


def _watch(loop: _Loop) -> LoopWatch:
    watch = LoopWatch(lambda: ["pay (group payments)"])
    watch._loop = loop  # type: ignore[assignment]
    watch._of_loop = threading.get_ident()
    watch._ask()
    return watch


def test_a_loop_that_runs_is_not_named(caplog: pytest.LogCaptureFixture) -> None:
    watch = _watch(_Loop())

    for _ in range(2 * STILL_LOOKS):
        watch.look()

    assert _lines(caplog) == []


def test_a_loop_that_stands_still_is_named_again_after_a_while_only(
    caplog: pytest.LogCaptureFixture,
) -> None:
    loop = _Loop()
    watch = _watch(loop)
    loop.is_free = False
    watch.look()  # sees the last turn, and asks for another

    for _ in range(STILL_LOOKS + AGAIN_LOOKS - 1):
        watch.look()
    assert len(_lines(caplog)) == 1
    watch.look()

    assert len(_lines(caplog)) == 2
