"""Which ticks a schedule has: expressions, time zones, and clocks that are set for summer."""

from datetime import UTC, datetime, timedelta
from itertools import islice, takewhile
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from reliable_mq.errors import UsageError
from reliable_mq.periodic.due import DueTick, due_tick
from reliable_mq.periodic.schedule import COUNTED_MAX, Schedule

BERLIN = ZoneInfo("Europe/Berlin")
SPRING = datetime(2026, 3, 29, tzinfo=BERLIN)  # 2:00 becomes 3:00
AUTUMN = datetime(2026, 10, 25, tzinfo=BERLIN)  # 3:00 becomes 2:00
HOUR, DAY = 3600.0, 86_400.0


def schedule(*expressions: str, zone: str = "Europe/Berlin") -> Schedule:
    return Schedule(expressions, zone, what="periodic message nightly")


def between(made: Schedule, begin: datetime, days: float = 1) -> list[str]:
    """Return the ticks of some days, as local times with their offset."""
    first = begin.timestamp()
    ticks = takewhile(lambda tick: tick < first + days * DAY, made.ticks(first - 1))
    return [datetime.fromtimestamp(tick, made.zone).strftime("%d %H:%M %z") for tick in ticks]


def test_a_time_that_is_left_out_in_spring_comes_when_the_gap_ends() -> None:
    made = schedule("30 2 * * *")

    assert between(made, SPRING - timedelta(days=1), 3) == [
        *("28 02:30 +0100", "29 03:00 +0200", "30 02:30 +0200")
    ]


def test_a_time_that_comes_twice_in_autumn_has_one_tick() -> None:
    made = schedule("30 2 * * *")

    assert between(made, AUTUMN, 2) == ["25 02:30 +0200", "26 02:30 +0100"]


def test_every_half_hour_follows_the_time_that_passes() -> None:
    made = schedule("*/30 * * * *")

    spring, autumn = between(made, SPRING + timedelta(hours=1)), between(made, AUTUMN)
    assert spring[:4] == ["29 01:00 +0100", "29 01:30 +0100", "29 03:00 +0200", "29 03:30 +0200"]
    assert autumn[3:9] == [
        *("25 01:30 +0200", "25 02:00 +0200", "25 02:30 +0200"),
        *("25 02:00 +0100", "25 02:30 +0100", "25 03:00 +0100"),
    ]
    assert len(autumn) == 48


def test_a_search_that_begins_in_the_hour_that_comes_twice_goes_only_forward() -> None:
    made = schedule("15,45 2 * * *")
    second = datetime(2026, 10, 25, 2, 20, tzinfo=BERLIN, fold=1).timestamp()

    assert all(tick > second for tick in islice(made.ticks(second), 5))


def test_several_expressions_make_one_schedule_without_a_tick_twice() -> None:
    made = schedule("0 3 * * *", "0 3,15 * * *", zone="UTC")

    begin = datetime(2026, 11, 27, tzinfo=UTC)
    assert between(made, begin) == ["27 03:00 +0000", "27 15:00 +0000"]


@pytest.mark.parametrize(
    ("expression", "first"),
    [
        ("@hourly", "2026-11-28T07:00:00+00:00"),
        ("@daily", "2026-11-29T00:00:00+00:00"),
        ("@WEEKLY", "2026-11-29T00:00:00+00:00"),
        ("@monthly", "2026-12-01T00:00:00+00:00"),
        ("@yearly", "2027-01-01T00:00:00+00:00"),
        ("0 0 L * *", "2026-11-30T00:00:00+00:00"),
        ("0 9 * * MON#1", "2026-12-07T09:00:00+00:00"),
        ("0 0 29 2 *", "2028-02-29T00:00:00+00:00"),
        ("*/20 * * * * *", "2026-11-28T06:17:40+00:00"),
    ],
)
def test_expressions_of_cron_are_read(expression: str, first: str) -> None:
    now = datetime(2026, 11, 28, 6, 17, 30, tzinfo=UTC).timestamp()

    tick = schedule(expression, zone="UTC").first(now)

    assert tick is not None
    assert datetime.fromtimestamp(tick, UTC).isoformat() == first


@pytest.mark.parametrize(
    "expression",
    [
        *("", "nightly", "0 3 * *", "60 3 * * *", "0 24 * * *", "*/0 * * * *", "0 3 * * * * *"),
        *("5-1 * * * *", "0 0 0 * *", "²L * * * *", "0 3 * * MON-", "* * * * L/2", "@reboot"),
        "1" * 5000 + " * * * *",
    ],
)
def test_a_bad_expression_is_refused_in_one_line_with_an_example(expression: str) -> None:
    with pytest.raises(UsageError, match="is no cron expression") as refused:
        schedule(expression)

    assert "\n" not in str(refused.value)
    assert str(refused.value).startswith("periodic message nightly: ")
    assert "as in '0 3 * * *'" in str(refused.value)
    assert len(str(refused.value)) < 400


@pytest.mark.parametrize("expression", ["0 0 30 2 *", "0 0 31 4,6 *"])
def test_a_time_that_never_comes_is_refused(expression: str) -> None:
    with pytest.raises(UsageError, match=r"never comes|is no cron expression"):
        schedule(expression)


@pytest.mark.parametrize(
    ("zone", "hint"),
    [
        ("Europe/Belin", "did you mean 'Europe/Berlin'"),
        ("Europe", "did you mean"),
        ("/etc/passwd", "write a name as"),
        ("../../etc/passwd", "write a name as"),
        ("", "write a name as"),
    ],
)
def test_an_unknown_time_zone_is_refused_with_the_name_that_is_meant(zone: str, hint: str) -> None:
    with pytest.raises(UsageError, match="there is no such time zone") as refused:
        schedule("0 3 * * *", zone=zone)

    assert hint in str(refused.value)


def test_no_expression_and_too_many_are_refused() -> None:
    with pytest.raises(UsageError, match="0 cron expressions are given"):
        schedule()
    with pytest.raises(UsageError, match="21 cron expressions are given"):
        schedule(*["0 3 * * *"] * 21)


EXPRESSIONS = [
    "30 2 * * *",
    "*/7 * * * *",
    "0 */2 * * *",
    "15,45 1-3 * * *",
    "0 0 1 * *",
    "0 2 * * SUN",
]


@given(
    expression=st.sampled_from(EXPRESSIONS),
    zone=st.sampled_from(["UTC", "Europe/Berlin", "America/New_York", "Australia/Lord_Howe"]),
    begin=st.integers(1_740_000_000, 1_800_000_000),
    length=st.integers(0, 40 * 86_400),
    cut=st.floats(0, 1),
)
@settings(deadline=None, max_examples=150)
def test_the_ticks_do_not_depend_on_where_a_search_begins(
    expression: str, zone: str, begin: int, length: int, cut: float
) -> None:
    made, middle, end = schedule(expression, zone=zone), begin + cut * length, begin + length

    def ticks(after: float, until: float) -> list[float]:
        return list(takewhile(lambda tick: tick <= until, made.ticks(after)))

    whole = ticks(begin, end)
    assert ticks(begin, middle) + ticks(middle, end) == whole
    assert made.newest(begin, end) == (whole[-1] if whole else None)
    assert whole == sorted(set(whole))


def test_the_newest_tick_of_years_is_found_at_once() -> None:
    made = schedule("* * * * * *", zone="UTC")

    assert made.newest(0.0, 1_800_000_000.5) == 1_800_000_000.0
    assert made.count(0.0, 1_800_000_000.0) == COUNTED_MAX


NOON = datetime(2026, 11, 28, 12, tzinfo=UTC).timestamp()


def test_without_a_limit_the_newest_missed_tick_is_due_and_the_others_are_skipped() -> None:
    made = schedule("0 * * * *", zone="UTC")

    assert due_tick(made, NOON - 3.5 * HOUR, NOON + 60, None) == DueTick(NOON, 3, NOON)
    assert due_tick(made, NOON, NOON + 60, None) is None


def test_with_a_limit_each_missed_tick_within_it_is_due_the_oldest_first() -> None:
    made, late = schedule("0 * * * *", zone="UTC"), 2.5 * HOUR

    decided, found = NOON - 4.5 * HOUR, []
    while due := due_tick(made, decided, NOON + 60, late):
        found.append((due.tick, due.skipped))
        decided = due.decided_until

    assert found == [(NOON - 2 * HOUR, 2), (NOON - HOUR, 0), (NOON, 0)]


def test_a_tick_that_is_later_than_the_limit_is_skipped() -> None:
    made = schedule("0 3 * * *", zone="UTC")
    three = NOON - 9 * HOUR

    due = due_tick(made, three - DAY, NOON, HOUR)

    assert due == DueTick(None, 1, NOON - HOUR)
    assert due_tick(made, due.decided_until, NOON, HOUR) is None


def test_nothing_is_due_by_a_clock_that_was_set_back() -> None:
    made = schedule("* * * * *", zone="UTC")

    assert due_tick(made, NOON, NOON - HOUR, None) is None
