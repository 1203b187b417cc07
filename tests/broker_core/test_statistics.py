"""What came and went is counted, under Apache's names, over a minute, an hour and a day."""

import pytest
from tests.broker_core.broker_world import GROUP, START_MS, TOPIC, BrokerWorld, pull_header

from reliable_mq.broker_core.statistics import WINDOWS, StatsItem
from reliable_mq.wire import fastjson
from reliable_mq.wire.codes import RequestCode, ResponseCode


def stats(world: BrokerWorld, name: str, key: str) -> dict[str, dict[str, float]]:
    ext = {"statsName": name, "statsKey": key}
    answer = world.ask(RequestCode.VIEW_BROKER_STATS_DATA, ext)
    assert answer.code == 0, answer.remark
    found: dict[str, dict[str, float]] = fastjson.loads(answer.body.decode())
    return found


def runtime(world: BrokerWorld) -> dict[str, str]:
    answer = world.ask(RequestCode.GET_BROKER_RUNTIME_INFO)
    table: dict[str, str] = fastjson.loads(answer.body.decode())["table"]
    return table


def test_what_is_put_and_got_is_counted_by_topic_by_group_and_by_broker() -> None:
    world = BrokerWorld()
    for _ in range(3):
        world.send(b"x" * 100)
    world.ask(RequestCode.PULL_MESSAGE, pull_header(1))
    assert stats(world, "TOPIC_PUT_NUMS", TOPIC)["statsMinute"]["sum"] == 3
    assert stats(world, "TOPIC_PUT_SIZE", TOPIC)["statsDay"]["sum"] > 300
    got = stats(world, "GROUP_GET_NUMS", f"{TOPIC}@{GROUP}")["statsMinute"]
    assert (got["sum"], got["avgpt"]) == (2, 2.0)
    assert stats(world, "BROKER_PUT_NUMS", "DefaultCluster")["statsHour"]["sum"] == 3
    assert stats(world, "BROKER_GET_NUMS", "DefaultCluster")["statsHour"]["sum"] == 2


def test_what_was_never_counted_is_refused_in_apaches_words() -> None:
    ext = {"statsName": "TOPIC_PUT_NUMS", "statsKey": "nothing"}
    answer = BrokerWorld().ask(RequestCode.VIEW_BROKER_STATS_DATA, ext)
    assert answer.code == ResponseCode.SYSTEM_ERROR
    assert answer.remark == "The stats <TOPIC_PUT_NUMS> <nothing> not exist"


def test_a_window_lets_go_of_what_is_older() -> None:
    world = BrokerWorld()
    world.send()
    world.pass_time(61_000, step=1_000)
    world.send()
    found = stats(world, "TOPIC_PUT_NUMS", TOPIC)
    assert found["statsMinute"]["sum"] == 1
    assert found["statsHour"]["sum"] == 2
    world.pass_time(80_000, step=1_000)
    assert stats(world, "TOPIC_PUT_NUMS", TOPIC)["statsMinute"]["sum"] == 0


@pytest.mark.parametrize("window", range(len(WINDOWS)))
def test_a_steady_stream_has_a_steady_rate_in_each_window(window: int) -> None:
    interval_ms, count = WINDOWS[window]
    item = StatsItem(START_MS)
    now_ms = START_MS
    for _ in range(3 * count):
        now_ms += interval_ms
        item.value += interval_ms // 100
        item.times += interval_ms // 1000
        item.sample(window, now_ms)
    found = item.over(window, now_ms)
    assert found.sum == count * interval_ms // 100
    assert (found.tps, found.avgpt) == (10.0, 10.0)


def test_a_restart_counts_only_what_comes_after_it() -> None:
    world = BrokerWorld()
    world.send()
    world.stop()
    world.start()
    world.send()
    assert stats(world, "TOPIC_PUT_NUMS", TOPIC)["statsDay"]["sum"] == 1


def test_the_broker_tells_its_rates_over_ten_seconds_a_minute_and_ten_minutes() -> None:
    world = BrokerWorld()
    for _ in range(70):
        world.send()
        world.pass_time(1000, step=1000)
    table = runtime(world)
    assert table["putTps"] == "1.0 1.0 "
    assert table["putMessageTimesTotal"] == table["msgPutTotalTodayNow"] == "70"
    assert table["runtime"] == "[ 0 days, 0 hours, 1 minutes, 10 seconds ]"


def test_midnight_begins_another_day() -> None:
    world = BrokerWorld()
    world.send()
    world.pass_time(1000)
    world.now_ms += 24 * 3_600_000
    world.pass_time(2000, step=1000)
    world.send()
    table = runtime(world)
    assert table["msgPutTotalTodayMorning"] == "1"
    assert table["msgPutTotalTodayNow"] == "2"
    assert table["msgPutTotalYesterdayMorning"] == "0"


def test_how_full_the_disk_is_comes_from_the_last_look_at_it() -> None:
    world = BrokerWorld()
    world.disk.used = 0.5
    world.core.housekeeping.begin(world.core.housekeeping.look()(), world.now_ms)
    table = runtime(world)
    assert table["commitLogDiskRatio"] == "0.5"
    assert table["commitLogDirCapacity"] == "Total : 1.0 GiB, Free : 512.0 MiB."
