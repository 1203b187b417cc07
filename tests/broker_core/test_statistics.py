"""What came and went is counted, under Apache's names, over a minute, an hour and a day."""

import pytest
from tests.broker_core.broker_world import (
    GROUP,
    START_MS,
    TOPIC,
    BrokerWorld,
    pull_header,
    send_header,
)
from tests.broker_core.cleaning import begin_cleaning

from reliable_mq.broker_core.statistics import WINDOWS, Statistics, StatsItem
from reliable_mq.broker_core.store.consume_queue import ConsumeQueue, pack_unit
from reliable_mq.broker_core.store.lanes import Arrivals
from reliable_mq.testing.memory_disk import MemoryDisk
from reliable_mq.wire import fastjson
from reliable_mq.wire.batch_body import BatchItem, encode_batch
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


def test_the_rates_of_a_topic_and_of_a_group_are_told_with_their_offsets() -> None:
    world = BrokerWorld()
    for _ in range(60):
        world.send()
        world.pass_time(1000, step=1000)
    world.ask(RequestCode.PULL_MESSAGE, pull_header())
    world.ask(RequestCode.PULL_MESSAGE, pull_header(32))
    topic = world.ask(RequestCode.GET_TOPIC_STATS_INFO, {"topic": TOPIC})
    assert fastjson.loads(topic.body)["topicPutTps"] == pytest.approx(1.0, rel=0.05)
    ask = {"consumerGroup": GROUP, "topic": TOPIC}
    group = world.ask(RequestCode.GET_CONSUME_STATS, ask)
    assert fastjson.loads(group.body)["consumeTps"] == pytest.approx(6.0, rel=0.05)


def test_how_long_sends_took_is_shared_by_the_queues_of_a_second() -> None:
    counts = Statistics("cluster", lambda _topic: False)
    disk = MemoryDisk()
    first, second = (ConsumeQueue(disk, TOPIC, number, 20_000) for number in (0, 1))
    counts.note_turn_end(100, START_MS, START_MS)
    counts.note_turn_end(200, START_MS + 4, START_MS + 4)
    counts.stored(200, 4, START_MS + 12)  # the first turn took 12 ms, the second 8
    first.append_units(Arrivals(TOPIC, 0, 0, [pack_unit(0, 100, 0)] * 3, {0}, 200, 300, 300))
    second.append_units(Arrivals(TOPIC, 1, 0, [pack_unit(300, 100, 0)], {0}, 300, 400, 100))
    counts.collect([first, second], START_MS + 1000)
    items = [counts.item("TOPIC_PUT_LATENCY", f"{number}@{TOPIC}") for number in (0, 1)]
    assert [(item.value, item.times) for item in items if item] == [(30, 3), (10, 1)]


def test_how_long_pulls_took_is_counted_by_queue_topic_and_group() -> None:
    world = BrokerWorld()
    world.send()
    world.ask(RequestCode.PULL_MESSAGE, pull_header())
    statistics = world.state.statistics
    statistics.pulled(GROUP, TOPIC, 0, 1, 100)
    statistics.note_turn_end(None, START_MS, START_MS + 6)
    found = stats(world, "GROUP_GET_LATENCY", f"0@{TOPIC}@{GROUP}")["statsMinute"]
    assert (found["sum"], found["avgpt"]) == (6, 3.0)


def test_the_messages_of_a_batch_were_put_at_once() -> None:
    world = BrokerWorld()
    world.create_topic()
    world.send()
    header = send_header(TOPIC, 0)
    body = encode_batch([BatchItem(0, b"x", b"") for _ in range(5)])
    answer = world.ask(RequestCode.SEND_BATCH_MESSAGE, {**header, "m": "true"}, body)
    assert answer.code == 0, answer.remark
    found = stats(world, "TOPIC_PUT_NUMS", TOPIC)["statsMinute"]
    assert (found["sum"], found["avgpt"]) == (6, 3.0)


def test_what_comes_to_the_brokers_own_topics_counts_for_the_broker_only() -> None:
    world = BrokerWorld()
    world.send()
    for topic in ("b", "DefaultCluster"):
        assert world.ask(RequestCode.SEND_MESSAGE_V2, send_header(topic, 0), b"x").code == 0
    assert runtime(world)["msgPutTotalTodayNow"] == "1"
    assert stats(world, "BROKER_PUT_NUMS", "DefaultCluster")["statsMinute"]["sum"] == 3


def test_a_deleted_topic_or_group_takes_its_counters_along() -> None:
    world = BrokerWorld()
    world.send()
    world.ask(RequestCode.PULL_MESSAGE, pull_header())
    stats(world, "GROUP_GET_LATENCY", f"0@{TOPIC}@{GROUP}")
    world.ask(RequestCode.DELETE_SUBSCRIPTIONGROUP, {"groupName": GROUP})
    assert world.state.statistics.item("GROUP_GET_LATENCY", f"0@{TOPIC}@{GROUP}") is None
    assert world.state.statistics.item("TOPIC_PUT_LATENCY", f"0@{TOPIC}") is not None
    world.ask(RequestCode.DELETE_TOPIC_IN_BROKER, {"topic": TOPIC})
    assert world.state.statistics.item("TOPIC_PUT_LATENCY", f"0@{TOPIC}") is None


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
    begin_cleaning(world.core, world.core.housekeeping.survey_job()(), world.reading())
    table = runtime(world)
    assert table["commitLogDiskRatio"] == "0.5"
    assert table["commitLogDirCapacity"] == "Total : 1.0 GiB, Free : 512.0 MiB."


def test_many_queues_are_counted_a_few_at_a_tick_and_at_once_for_who_asks() -> None:
    world = BrokerWorld()
    world.pass_time(1_000)
    store, count = world.state.store, 1_000
    queues = [ConsumeQueue(world.disk, f"topic-{number}", 0, 20_000) for number in range(count)]
    for queue in queues:
        queue.append_units(Arrivals(queue.topic, 0, 0, [pack_unit(0, 100, 0)], {0}, 0, 100, 100))
    store.upkeep.grown.update(queues)
    seen = []
    world.now_ms += 1_000
    for _ in range(60):
        world.core.tick(world.now_ms)
        seen.append(world.state.statistics.totals.put)
    steps = [after - before for before, after in zip([0, *seen], seen, strict=False)]
    assert max(steps) < count / 50  # each is new, and has three new counters
    assert seen[-1] == count

    for queue in queues:
        queue.append_units(
            Arrivals(queue.topic, 0, 1, [pack_unit(100, 100, 0)], {0}, 100, 200, 100)
        )
    store.upkeep.grown.update(queues)
    world.now_ms += 1_000
    world.core.tick(world.now_ms)
    assert world.state.statistics.totals.put < 2 * count
    found = stats(world, "TOPIC_PUT_NUMS", f"topic-{count - 1}")["statsMinute"]
    assert found["sum"] == 2
    assert world.state.statistics.totals.put == 2 * count
