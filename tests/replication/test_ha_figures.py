"""The figures of replication: how far each slave is, in bytes and in seconds."""

from collections.abc import Iterable

from tests.broker_core.broker_world import BrokerWorld

from reliable_mq.broker_core.store.log_walk import stored_after_ms
from reliable_mq.replication.ha_figures import (
    MasterLog,
    SlaveLag,
    TablesState,
    figures_of_master,
    figures_of_slave,
)
from reliable_mq.replication.ha_status import MasterState, SlaveState
from reliable_mq.telemetry.families import Sample

SECOND = 1_000


def by_name(samples: Iterable[Sample], *labels: str) -> dict[str, float]:
    return {
        each.name.removeprefix("reliable_mq_broker_"): each.value
        for each in samples
        if each.labels == labels
    }


def test_a_master_tells_how_many_slaves_follow_and_keep_up() -> None:
    slaves = [SlaveState("near:1", acknowledged=90), SlaveState("far:1", acknowledged=10)]
    log = MasterLog(100, gap_max=50, needed=1, store_time_ms=lambda _offset: None)
    told = by_name(figures_of_master(slaves, log, 0.0, 0))
    assert told == {"connected_slaves": 2, "in_sync_slaves": 1, "needed_slaves": 1}


def test_a_master_tells_of_each_slave_the_age_of_the_oldest_message_that_it_lacks() -> None:
    behind = SlaveState("behind:1", acknowledged=40, heard=7.0)
    level = SlaveState("level:1", acknowledged=100, heard=9.0)
    behind.rate.add(30, 7.0)
    log = MasterLog(100, 50, 0, store_time_ms={40: 12 * SECOND}.get)
    samples = list(figures_of_master([behind, level], log, now=9.5, now_ms=20 * SECOND))

    assert by_name(samples, "behind:1") == {
        "slave_lag_bytes": 60,
        "slave_lag_seconds": 8.0,
        "slave_report_age_seconds": 2.5,
        "slave_sent_bytes_total": 30,
    }
    assert by_name(samples, "level:1")["slave_lag_seconds"] == 0
    assert by_name(samples, "level:1")["slave_lag_bytes"] == 0


def test_the_store_time_is_found_at_a_record_and_inside_one() -> None:
    """A slave of Apache's reports places inside records."""
    world = BrokerWorld()
    world.create_topic(queues=1)
    begins, times = [], []
    for number in range(3):
        begins.append(world.state.store.log.end)
        times.append(world.now_ms)
        world.send(b"%d" % number)
        world.now_ms += 5 * SECOND
    log = world.state.store.log
    assert [stored_after_ms(log, begin) for begin in begins] == times
    assert [stored_after_ms(log, begin + 1) for begin in begins] == [*times[1:], None]
    assert stored_after_ms(log, log.end) is None
    assert stored_after_ms(log, log.end + 1_000) is None


def of_slave(master: MasterState, lag: SlaveLag, stored: int, now_ms: int) -> dict[str, float]:
    return by_name(figures_of_slave(master, lag, stored, 3.0, now_ms))


def test_a_slave_tells_how_far_it_is_behind_its_master() -> None:
    master = MasterState("m:1", end=100, newest_ms=10 * SECOND, reported_ms=11 * SECOND)
    master.rate.add(40, 1.0)
    told = of_slave(master, SlaveLag(), 100, 12 * SECOND)
    assert told == {
        "master_connected": 1,
        "behind_master_bytes": 0,
        "behind_master_seconds": 0,
        "master_report_age_seconds": 1.0,
        "master_tables_age_seconds": 3.0,
        "master_received_bytes_total": 40,
        "stands_in": 0,
        "delivered_elsewhere_messages_total": 0,
    }


def test_a_slave_that_stands_is_behind_for_as_long_as_it_stands() -> None:
    master, lag = MasterState(end=100, newest_ms=10 * SECOND), SlaveLag()
    ages = [of_slave(master, lag, 60, now * SECOND)["behind_master_seconds"] for now in (70, 75)]
    assert ages == [0, 5], "nothing shows that it lacked something an hour ago"
    assert of_slave(master, lag, 60, 75 * SECOND)["behind_master_bytes"] == 40
    assert of_slave(master, lag, 100, 76 * SECOND)["behind_master_seconds"] == 0
    assert of_slave(master, lag, 60, 90 * SECOND)["behind_master_seconds"] == 0, "behind anew"


def test_a_slave_that_always_lacks_the_newest_is_not_behind_for_ever() -> None:
    """Given a load, then each look finds it a little behind."""
    master, lag = MasterState(), SlaveLag()
    for second in range(1, 60):
        master.end, master.newest_ms = second * 100, second * SECOND - 200
        told = of_slave(master, lag, master.end - 10, second * SECOND)
        assert told["behind_master_seconds"] <= 0.2


def test_tables_that_never_came_are_as_old_as_the_process() -> None:
    tables = TablesState()
    assert tables.age_seconds(now_ms=9 * SECOND, started_ms=2 * SECOND) == 7
    tables.failure = "refused"
    tables.taken(8 * SECOND)
    assert (tables.age_seconds(9 * SECOND, 2 * SECOND), tables.failure) == (1, "")
