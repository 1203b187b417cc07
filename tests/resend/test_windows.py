"""Windows that contradict each other are refused, by their names."""

import re
from pathlib import Path
from typing import Any

import pytest
from tenacity.wait import wait_fixed

from reliable_mq import ReliableMQ
from reliable_mq.app import thread_upkeep
from reliable_mq.client.settings import ClientSettings
from reliable_mq.errors import ConfigurationError
from reliable_mq.resend import sql_resending
from reliable_mq.resend.scheduler_books import SchedulerBooks
from reliable_mq.resend.topic_gate import PROBE_LEASE, PROBE_STUBS, probe_lease
from reliable_mq.retention.windows import (
    RetentionWindows,
    contradictions,
    horizon,
    lease_doubt,
    send_seconds,
)

DAY = 86_400.0
FITTING = {
    "stub_retention_seconds": 7 * DAY,
    "log_retention_seconds": 30 * DAY,
    "replay_window_seconds": 4 * DAY,
    "resend_horizon": DAY,
    "retry_horizon": DAY,
}


def test_the_windows_of_the_settings_fit() -> None:
    assert contradictions(RetentionWindows(**FITTING)) == []
    ReliableMQ("shop")


@pytest.mark.parametrize(
    ("changed", "says"),
    [
        (
            {"log_retention_seconds": 5 * DAY},
            "log_retention_seconds=432000 is shorter than stub_retention_seconds",
        ),
        (
            {"replay_window_seconds": 31 * DAY},
            "log_retention_seconds=2.592e+06 is shorter than replay_window_seconds",
        ),
        ({"resend_horizon": 31 * DAY}, "resend_waits_seconds and resend_count_max"),
        ({"retry_horizon": 31 * DAY}, "retry_waits_seconds and max_attempts"),
        (
            {"stub_retention_seconds": 3600.0},
            "stub_retention_seconds=3600 is shorter than the 7200 s of check-backs",
        ),
    ],
)
def test_two_that_contradict_each_other_are_named(changed: dict[str, float], says: str) -> None:
    (found,) = contradictions(RetentionWindows(**(FITTING | changed)))

    assert says in found


def test_where_nothing_is_removed_it_does_not_matter_when_it_would_be() -> None:
    windows = RetentionWindows(**(FITTING | {"log_retention_seconds": 1.0}))

    assert contradictions(windows, is_kept=True) == []
    ReliableMQ("shop", log_retention_seconds=1.0, retention="off")


def test_a_lease_that_is_shorter_than_a_send_may_take_is_told_of() -> None:
    assert lease_doubt(60.0, send_seconds(3.0, 2)) is None
    assert "resend_lease_seconds=9 is not longer than the 9 s" in str(
        lease_doubt(9.0, send_seconds(3.0, 2))
    )


def test_a_ladder_of_waits_lasts_as_long_as_it_is_climbed() -> None:
    assert horizon((1.0, 5.0), 1) == 1.0
    assert horizon((1.0, 5.0), 4) == 16.0


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        (
            {"log_retention_seconds": DAY},
            "log_retention_seconds=86400 is shorter than stub_retention_seconds",
        ),
        ({"resend_lease_seconds": 0.0}, "resend_lease_seconds"),
        ({"resend_wait": wait_fixed(2 * DAY), "resend_count_max": 20}, "resend_count_max"),
        ({"stub_retention_seconds": 0.0}, "stub_retention_seconds"),
        ({"log_retention_seconds": -1.0}, "log_retention_seconds"),
        ({"replay_window_seconds": 0.0}, "replay_window_seconds"),
        ({"retention": "sometimes"}, "retention"),
    ],
)
def test_an_application_with_such_windows_is_refused_at_once(
    settings: dict[str, object], says: str
) -> None:
    with pytest.raises(ConfigurationError, match=re.escape(says)):
        ReliableMQ("shop", **settings)  # type: ignore[arg-type]


def test_a_consumer_more_patient_than_its_logs_are_kept_is_refused_at_start() -> None:
    mq = ReliableMQ("shop", database="sqlite:///never-made.db")

    @mq.consumer("orders", group="patient", max_attempts=1000)
    def handle(_order: dict[str, int]) -> None: ...

    with pytest.raises(ConfigurationError, match="retry_waits_seconds and max_attempts"):
        mq.start()


def test_a_client_that_waits_long_makes_leases_longer() -> None:
    assert send_seconds(3.0, 2) == 9.0
    assert send_seconds(60.0, 0) == 180.0
    assert probe_lease(send_seconds(3.0, 2)) == PROBE_LEASE
    assert probe_lease(send_seconds(60.0, 2)) > 180.0


def test_a_scheduler_has_its_probe_as_long_as_its_client_may_send(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    books: list[SchedulerBooks] = []

    def books_of(*given: Any, **named: Any) -> SchedulerBooks:
        books.append(sql_resending.books_of(*given, **named))
        return books[-1]

    monkeypatch.setattr(thread_upkeep, "books_of", books_of)
    slow = ClientSettings(request_timeout_seconds=60.0)
    mq = ReliableMQ("shop", database=f"sqlite:///{tmp_path / 'shop.db'}", client=slow)
    mq.create_tables()
    now = mq.database.clock.measured_now()
    mq.scheduler()
    topics = books[0].topics
    topics.add_failures("orders", PROBE_STUBS, now, "ConnectionLost: gone")
    (row,) = topics.rows().values()

    assert row.probe_time is not None
    assert topics.take_probe("orders", row.probe_time)
    assert not topics.take_probe("orders", row.probe_time + 180.0)
    mq.close()
