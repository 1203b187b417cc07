"""Which files of the log are old, by both clocks, and which go now: decided without a disk."""

from datetime import datetime

import pytest

from reliable_mq.broker_core.store.retention import (
    MANUAL_ROUNDS,
    DiskSurvey,
    FileRemoval,
    LogRetention,
    RetentionRules,
    hours_ms,
    parse_hours,
)
from reliable_mq.testing.memory_disk import MemoryDisk
from reliable_mq.watched_time import ClockReading

HOUR_MS = 3_600_000
AT_FOUR = int(datetime(2026, 11, 20, 4, 30).timestamp() * 1000)  # noqa: DTZ001 - hours are local
AT_FIVE = AT_FOUR + HOUR_MS
RULES = RetentionRules(
    hours=frozenset({4}),
    reserved_ms=72 * HOUR_MS,
    used_max=0.75,
    forcibly=0.85,
    warning=0.9,
    may_force=False,
    batch_max=10,
)


def watching(now_ms: int = AT_FOUR, rules: RetentionRules = RULES) -> LogRetention:
    """Give what has watched for 80 hours, and looked now."""
    retention = LogRetention(rules)
    for ago in range(80, -1, -1):
        seconds = now_ms / 1000 - ago * 3600
        retention.check_clocks(ClockReading(seconds, seconds, "run"))
    return retention


def aged(now_ms: int, *hours: float) -> list[int]:
    return [now_ms - int(each * HOUR_MS) for each in hours]


@pytest.mark.parametrize(
    ("text", "hours"),
    [
        ("04", {4}),
        ("04;16", {4, 16}),
        ("0;23", {0, 23}),
        (" 4 ; 5 ;", {4, 5}),
        ("", set()),
        (";".join(map(str, range(24))), set(range(24))),
    ],
)
def test_hours_read_as_apache_writes_them(text: str, hours: set[int]) -> None:
    assert parse_hours(text) == hours


@pytest.mark.parametrize("text", ["24", "-1", "4;24", "four", "4,5"])
def test_an_hour_that_no_day_has_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"not an hour|invalid literal"):
        parse_hours(text)


def test_old_files_go_in_their_hour_the_oldest_first() -> None:
    retention = watching()
    assert retention.files_to_remove(DiskSurvey(0.5, aged(AT_FOUR, 79, 73, 71, 1)), AT_FOUR) == 2
    assert retention.old_count == 2
    assert retention.files_to_remove(DiskSurvey(0.5, aged(AT_FOUR, 71, 79)), AT_FOUR) == 0
    assert retention.files_to_remove(DiskSurvey(0.5, []), AT_FOUR) == 0


def test_a_file_is_old_when_it_is_as_old_as_files_are_kept() -> None:
    retention = watching()
    assert retention.files_to_remove(DiskSurvey(0.5, [AT_FOUR - RULES.reserved_ms]), AT_FOUR) == 1
    assert (
        retention.files_to_remove(DiskSurvey(0.5, [AT_FOUR - RULES.reserved_ms + 1]), AT_FOUR) == 0
    )


@pytest.mark.parametrize(("used", "count"), [(0.5, 0), (0.75, 0), (0.751, 1), (0.95, 1)])
def test_at_another_hour_old_files_go_only_from_a_disk_that_is_too_full(
    used: float, count: int
) -> None:
    retention = watching(AT_FIVE)
    assert retention.files_to_remove(DiskSurvey(used, aged(AT_FIVE, 79, 1)), AT_FIVE) == count


@pytest.mark.parametrize(
    ("used", "may_force", "count"),
    [(0.85, True, 1), (0.851, True, 3), (0.851, False, 1), (0.99, False, 1)],
)
def test_young_files_go_only_above_the_second_mark_and_where_that_is_allowed(
    used: float, may_force: bool, count: int
) -> None:
    retention = watching(rules=RULES._replace(may_force=may_force))
    assert retention.files_to_remove(DiskSurvey(used, aged(AT_FOUR, 79, 5, 1)), AT_FOUR) == count
    assert retention.old_count == 1


def test_one_round_takes_no_more_than_a_batch() -> None:
    retention = watching(rules=RULES._replace(batch_max=2, may_force=True))
    old, young = aged(AT_FOUR, *[79] * 5), aged(AT_FOUR, *[1] * 5)
    assert retention.files_to_remove(DiskSurvey(0.5, old), AT_FOUR) == 2
    assert retention.files_to_remove(DiskSurvey(0.99, young), AT_FOUR) == 2


def test_a_request_lets_old_files_go_at_any_hour_for_so_many_rounds() -> None:
    retention = watching(AT_FIVE)
    retention.begin_manual()
    found = DiskSurvey(0.5, aged(AT_FIVE, 79))
    assert [retention.files_to_remove(found, AT_FIVE) for _ in range(MANUAL_ROUNDS + 2)] == [
        *[1] * MANUAL_ROUNDS,
        *[0, 0],
    ]
    assert MANUAL_ROUNDS == 20, "as Apache's broker has it"


def test_without_a_look_at_the_clocks_no_file_is_old() -> None:
    retention = LogRetention(RULES)
    assert retention.files_to_remove(DiskSurvey(0.5, [0, 1]), AT_FOUR) == 0
    assert not retention.is_worth_noting
    assert (retention.held_seconds, retention.dump()) == (0.0, "")


@pytest.mark.parametrize(("used", "is_full"), [(0.9, False), (0.901, True)])
def test_a_disk_is_full_above_the_last_mark(used: float, is_full: bool) -> None:
    retention = watching()
    retention.files_to_remove(DiskSurvey(used, [], (100, 7)), AT_FOUR)
    assert (retention.is_full, retention.used, retention.capacity) == (is_full, used, (100, 7))
    retention.change_rules(RULES._replace(warning=0.95))
    assert not retention.is_full
    retention.change_rules(RULES._replace(warning=used - 0.001))
    assert retention.is_full


def test_a_message_is_over_when_it_is_older_than_files_are_kept_by_both_clocks() -> None:
    kept = RULES.reserved_ms
    retention = watching()
    assert not retention.is_over(AT_FOUR - kept, AT_FOUR)
    assert retention.is_over(AT_FOUR - kept - 1, AT_FOUR)
    assert LogRetention(RULES).is_over(AT_FOUR - kept - 1, AT_FOUR), "only one clock is known"

    jumped = LogRetention(RULES)
    jumped.check_clocks(ClockReading(AT_FOUR / 1000, 0.0, "run"))
    later = AT_FOUR + 2 * kept
    jumped.check_clocks(ClockReading(later / 1000, 60.0, "run"))
    assert not jumped.is_over(AT_FOUR, later), "the clock says so, and nobody watched it pass"
    assert jumped.held_seconds > 0


def test_what_is_known_of_the_clocks_is_noted_and_read_again() -> None:
    retention = watching()
    assert retention.is_worth_noting
    text = retention.dump()
    assert not retention.is_worth_noting

    again = LogRetention(RULES)
    again.load(text)
    assert not again.is_worth_noting
    assert again.dump() == text
    assert again.files_to_remove(DiskSurvey(0.5, aged(AT_FOUR, 79, 1)), AT_FOUR) == 1
    again.load("{")
    assert again.dump() == ""


class Handle:
    def __init__(self) -> None:
        self.is_open = True

    def close(self) -> None:
        self.is_open = False


class StuckDisk(MemoryDisk):
    """A disk that removes only what it is told to let go of."""

    stuck = frozenset({"a"})

    def remove(self, path: str) -> None:
        if path in self.stuck:
            raise OSError("busy")
        super().remove(path)


def test_a_file_that_cannot_be_removed_is_tried_again_later() -> None:
    disk = StuckDisk()
    for path in ("a", "b", "c"):
        disk.open(path, 1)
    removal, handles = FileRemoval(disk, retry_ms=100), [Handle(), Handle()]
    removal.job([(handles[0], "a"), (handles[1], "b")], 1000)()
    assert [each.is_open for each in handles] == [False, False]
    assert set(disk.files()) == {"a", "c"}

    removal.job([(Handle(), "c")], 1000)()
    assert set(disk.files()) == {"a"}
    disk.stuck = frozenset()
    removal.job([], 1099)()
    assert set(disk.files()) == {"a"}, "it was tried less than 100 ms ago"
    removal.job([], 1100)()
    assert set(disk.files()) == set()


def test_hours_are_counted_in_milliseconds() -> None:
    assert hours_ms(72) == 72 * HOUR_MS
