"""Rare events of an application, each made by the code that writes it."""

import asyncio
import logging
import threading
from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from tests.waiting import eventually, run_scene

from reliable_mq import ReliableMQ
from reliable_mq.consume.asyncio_delivery import MessageProcessing
from reliable_mq.consume.sql_receipts import SuppressedLines
from reliable_mq.escalate.alerts import LogNotifier
from reliable_mq.escalate.escalation import Digest
from reliable_mq.idempotency.sql_consume_log import LogEntry
from reliable_mq.retention.retention import RetentionCounts
from reliable_mq.retention.thread_retention import run_forever
from reliable_mq.testing.local_servers import free_port


def events(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [getattr(record, "event", "") for record in caplog.records]


@pytest.fixture(autouse=True)
def every_line_is_kept(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG, "reliable_mq")


def shop(tmp_path: Path, **settings: Any) -> ReliableMQ:
    mq = ReliableMQ("shop", database=f"sqlite:///{tmp_path / 'shop.db'}", **settings)
    mq.create_tables()
    return mq


def test_resend_lease_doubtful(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    stopped = threading.Event()
    stopped.set()
    mq = shop(tmp_path, resend_lease_seconds=0.5)
    mq.resend_forever(stopped)
    mq.close()
    assert {"resend_started", "resend_lease_doubtful"} <= set(events(caplog))


def test_escalation_test(caplog: pytest.LogCaptureFixture) -> None:
    digest = Digest("d", "shop", datetime(2026, 1, 1, tzinfo=UTC), 0, (), ())
    LogNotifier(lambda: "--app shop:mq").tell(digest)
    assert events(caplog) == ["escalation_test"]


def test_retention_removed(caplog: pytest.LogCaptureFixture) -> None:
    stopped = threading.Event()

    def run_once(_now: float) -> RetentionCounts:
        stopped.set()
        return RetentionCounts(stubs=3)

    run_forever(SimpleNamespace(run_once=run_once), stopped)  # type: ignore[arg-type]
    assert caplog.messages[0].startswith("retention: removed 3 ")
    assert events(caplog) == ["retention_removed"]


def test_tables_newer(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    mq = shop(tmp_path)
    monkeypatch.setattr("reliable_mq.database.sql_database.check_revision", lambda *_: "9999")
    mq.databases.check_tables()
    assert "tables_newer" in events(caplog)
    mq.close()


def test_leases_not_renewed(caplog: pytest.LogCaptureFixture) -> None:
    async def bug(*_: object) -> None:
        raise ZeroDivisionError("a bug")

    async def scene() -> None:
        processing: Any = MessageProcessing.__new__(MessageProcessing)
        processing._consumer = SimpleNamespace(lease=0.001, group="g")
        processing._renew = bug
        renewing = asyncio.create_task(processing._renew_forever())
        await eventually(lambda: "leases_not_renewed" in events(caplog))
        renewing.cancel()
        await asyncio.gather(renewing, return_exceptions=True)

    run_scene(scene())


def test_application_waits_and_says_later_that_it_is_ready(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    mq = shop(tmp_path, broker=f"127.0.0.1:{free_port()}")
    mq.consumer("orders", group="payments")(lambda _: None)
    with mq:
        assert [each for each in events(caplog) if each.startswith("application_")] == [
            "application_waits"
        ]
        (consumer,) = mq._connections.client._engine.consumers.values()
        for _ in range(2):
            consumer.reader._acceptance.accept()

    assert events(caplog).count("application_ready") == 1


def test_application_stopped(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    stopped = threading.Event()
    stopped.set()
    mq = shop(tmp_path)
    mq.resend_forever(stopped)
    mq.close()

    assert caplog.records[-1].getMessage() == ("application shop: the resend scheduler has stopped")


def test_many_suppressed_duplicates_are_one_line_with_their_number(
    caplog: pytest.LogCaptureFixture,
) -> None:
    lines = SuppressedLines()
    place: dict[str, Any] = {
        "topic": "orders",
        "broker_name": "b",
        "queue_id": 0,
        "offset": 0,
        "token": "t",
    }
    for group, count in (("payments", 50), ("billing", 1)):
        for number in range(count):
            lines.log(LogEntry(group=group, message_id=str(number), **place))

    assert [each.getMessage().split(":")[0] for each in caplog.records] == [
        "group payments",
        "group billing",
    ]
