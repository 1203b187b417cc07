"""A process that waits for a signal ends by itself when it can do nothing any more."""

import pytest

from reliable_mq import ReliableMQ
from reliable_mq.app import thread_signals
from reliable_mq.app.thread_signals import WorkerDied
from reliable_mq.cli.main import FAILED, explain


async def ends() -> None:
    raise SystemExit(3)


def test_a_worker_whose_loop_thread_died_ends_with_code_1(
    database_url: str, monkeypatch: pytest.MonkeyPatch, tmp_path: object
) -> None:
    monkeypatch.setattr(thread_signals, "LOOK_SECONDS", 0.01)
    mq = ReliableMQ("shop", broker=f"embedded:{tmp_path}/store", database=database_url)
    mq.create_tables()

    @mq.consumer("orders", group="payments")
    def pay(order: dict[str, int]) -> None: ...

    start = mq.start

    def start_and_die() -> None:
        start()
        mq._connections.loop_thread.submit(ends())

    monkeypatch.setattr(mq, "start", start_and_die)
    with pytest.raises(WorkerDied, match="the event loop has ended") as caught:
        mq.run()

    explained = explain(caught.value)
    assert explained is not None
    assert explained[1] == FAILED == 1
