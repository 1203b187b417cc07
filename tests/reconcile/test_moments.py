"""Times as a person types them, latencies as counts, and which repair is chosen."""

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from reliable_mq.errors import ConfigurationError
from reliable_mq.message import new_message_id
from reliable_mq.reconcile.judgement.latency import quantile_ms
from reliable_mq.reconcile.judgement.verdict import FINDINGS, Verdict
from reliable_mq.reconcile.moments import first_id, parse_duration, parse_moment
from reliable_mq.reconcile.repairs.repair import ACTIONS, RepairAction, plan
from reliable_mq.reconcile.report.report_chart import spell_ms

NOW = datetime(2026, 11, 20, 12, tzinfo=UTC)


@pytest.mark.parametrize(
    ("text", "seconds"), [("90s", 90), ("10m", 600), ("2h", 7200), ("1.5", 1.5), ("250ms", 0.25)]
)
def test_a_duration_is_a_number_and_a_unit(text: str, seconds: float) -> None:
    assert parse_duration(text, "--grace") == timedelta(seconds=seconds)


@pytest.mark.parametrize(
    ("text", "moment"),
    [
        ("2026-11-20T08:00", NOW.replace(hour=8)),
        ("2026-11-20T08:00+02:00", NOW.replace(hour=6)),
        ("2026-11-20", NOW.replace(hour=0)),
        ("-90m", NOW - timedelta(minutes=90)),
    ],
)
def test_a_moment_is_iso_in_utc_or_ago(text: str, moment: datetime) -> None:
    assert parse_moment(text, "--since", NOW) == moment


@pytest.mark.parametrize(
    "text", ["", "soon", "-", "5 weeks", "-1y", "2026-13-01", "-999999d", "0001-01-01T00:00+05:00"]
)
def test_what_is_no_time_is_named(text: str) -> None:
    with pytest.raises(ConfigurationError, match="--since takes"):
        parse_moment(text, "--since", NOW)


@pytest.mark.parametrize("text", ["999999d", "9" * 30 + "d", "9" * 400])
def test_a_duration_that_no_calendar_holds_is_named(text: str) -> None:
    with pytest.raises(ConfigurationError, match="--grace takes a duration of at most 100 years"):
        parse_duration(text, "--grace")


def test_the_first_id_of_a_moment_parts_the_ids_before_from_those_after() -> None:
    milliseconds = int(NOW.timestamp() * 1000)

    before = new_message_id(milliseconds - 1, b"\xff" * 10)
    after = new_message_id(milliseconds, b"\0" * 10)

    assert before < first_id(NOW) <= after


@pytest.mark.parametrize("microseconds", [0, 1, 999, 1_000, 123_000, 123_456, 999_999])
def test_an_id_is_below_the_first_one_of_a_moment_exactly_when_its_time_is(
    microseconds: int,
) -> None:
    """Given a moment between two milliseconds, as `--until -1h` gives one, then tables, which are
    cut by ids, and the log, which is cut by their times, are cut at the same message."""
    moment = NOW + timedelta(microseconds=microseconds)
    begin = int(NOW.timestamp()) * 1000

    for milliseconds in range(begin - 1, begin + 1_002):
        identity = new_message_id(milliseconds, b"\0" * 10)
        made = datetime(1970, 1, 1, tzinfo=UTC) + timedelta(milliseconds=milliseconds)
        assert (identity < first_id(moment)) == (made < moment)


def test_quantiles_are_the_ends_of_buckets() -> None:
    assert quantile_ms({}, 0.5) is None
    assert quantile_ms({3: 99, 39: 1}, 0.5) == 2.0
    assert quantile_ms({3: 99, 39: 1}, 1.0) == 1024.0


@pytest.mark.parametrize(
    ("milliseconds", "text"),
    [(1.5, "1.5 ms"), (1500, "1.5 s"), (90_000, "1.5 min"), (9e6, "2.5 h")],
)
def test_latencies_are_spelt_with_a_unit(milliseconds: float, text: str) -> None:
    assert spell_ms(milliseconds) == text


def finding(identity: str, group: str, verdict: Verdict, status: int | None = 0) -> dict[str, Any]:
    row = {"message_id": identity, "consumer_group": group, "verdict": str(verdict)}
    return {**row, "stub_status": status}


def test_a_message_gets_one_action_the_strongest_of_its_groups() -> None:
    findings = [
        finding("1", "a", Verdict.SENT_NOT_MARKED),
        finding("1", "b", Verdict.NOT_CONSUMED),
        finding("2", "a", Verdict.CONSUMED_NOT_CONFIRMED),
        finding("3", "a", Verdict.DEAD_LETTERED),
        finding("4", "", Verdict.ORPHAN, None),
        finding("5", "", Verdict.EXPIRED, None),
    ]

    repairs = list(plan(findings))

    assert [(r.message_id, r.action, r.groups) for r in repairs] == [
        ("1", RepairAction.RESEND, ("b",)),
        ("2", RepairAction.CONFIRM, ("a",)),
    ]


def test_only_findings_are_repaired() -> None:
    assert ACTIONS.keys() <= FINDINGS
