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
from reliable_mq.escalate.alerts import LogNotifier
from reliable_mq.escalate.escalation import Digest
from reliable_mq.retention.retention import RetentionCounts
from reliable_mq.retention.thread_retention import run_forever


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
