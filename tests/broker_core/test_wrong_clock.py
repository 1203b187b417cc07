"""A clock that jumps makes no file of the log old: the broker waits, and tells a person."""

import pytest
from tests.broker_core.test_housekeeping import HOUR_MS, age, clean, log_files, world_with

from reliable_mq.broker_core.store.retention import PATH as CLOCK_PATH
from reliable_mq.wire import fastjson
from reliable_mq.wire.codes import RequestCode

DAY_MS = 24 * HOUR_MS
EVERY_HOUR = ";".join(map(str, range(24)))


def test_a_clock_that_is_four_days_ahead_for_a_while_takes_no_file(
    caplog: pytest.LogCaptureFixture,
) -> None:
    world = world_with(200, deleteWhen=EVERY_HOUR)
    before = log_files(world)
    world.now_ms += 4 * DAY_MS
    for _ in range(3):
        clean(world, ahead_ms=4 * DAY_MS)
    assert log_files(world) == before
    runtime = fastjson.loads(world.ask(RequestCode.GET_BROKER_RUNTIME_INFO).body)["table"]
    assert abs(int(runtime["filesHeldSeconds"]) - 4 * 86_400) < 10
    world.now_ms -= 4 * DAY_MS
    clean(world)
    assert log_files(world) == before
    runtime = fastjson.loads(world.ask(RequestCode.GET_BROKER_RUNTIME_INFO).body)["table"]
    assert runtime["filesHeldSeconds"] == "0"
    ahead, back = caplog.messages
    assert "files of the log: the clock was 4 days further than the time that passed" in ahead
    assert "the clock was set back by 4 days. Old files are kept as long as before." in back


def test_what_is_old_by_both_clocks_goes_while_one_is_wrong() -> None:
    world = world_with(200, deleteWhen=EVERY_HOUR)
    age(world, 2, 73)
    before = log_files(world)
    world.now_ms += 4 * DAY_MS
    clean(world, ahead_ms=4 * DAY_MS)
    assert log_files(world) == before[2:]


@pytest.mark.parametrize("is_same_boot", [True, False])
def test_a_broker_that_starts_under_a_wrong_clock_takes_no_file(is_same_boot: bool) -> None:
    world = world_with(200, deleteWhen=EVERY_HOUR)
    before = log_files(world)
    world.stop()
    world.now_ms += 4 * DAY_MS
    if not is_same_boot:
        world.disk.boot += 1
    world.start()
    for _ in range(3):
        world.send()
        clean(world, ahead_ms=4 * DAY_MS)
    assert log_files(world)[: len(before)] == before


def test_a_store_that_nobody_watched_is_as_old_as_its_newest_message_says() -> None:
    world = world_with(200, deleteWhen=EVERY_HOUR)
    before = log_files(world)
    world.stop()
    world.disk.remove(CLOCK_PATH)
    world.now_ms += 4 * DAY_MS
    world.start()
    clean(world)
    assert log_files(world) == before
    world.now_ms += 3 * DAY_MS + HOUR_MS  # now it was watched for as long as files are kept
    clean(world)
    assert log_files(world) == before[-1:]
