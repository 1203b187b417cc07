"""What a slave knows of its master's timers, and what a promoted slave makes of it."""

from random import Random

import msgspec
import pytest
from tests.broker_core.broker_world import START_MS, TOPIC, BrokerWorld
from tests.replication.slave_world import Promoted, Slave, a_master, bodies, both_pass

from reliable_mq.broker_core.delivery.followed_timers import FollowedTimers, OwnLog
from reliable_mq.broker_core.figures import broker_samples
from reliable_mq.broker_core.names import TIMER_TOPIC
from reliable_mq.broker_core.store.timer_checkpoint import (
    PATH,
    TimerCheckpoint,
    timer_checkpoint_from,
)
from reliable_mq.broker_core.store.timer_store import TimerStore
from reliable_mq.testing.memory_disk import MemoryDisk
from reliable_mq.wire import fastjson
from reliable_mq.wire.codes import RequestCode as Ask


@pytest.fixture
def master() -> BrokerWorld:
    return a_master()


def test_a_master_tells_its_slaves_how_far_its_timers_are(master: BrokerWorld) -> None:
    said = timer_checkpoint_from(master.ask(Ask.GET_TIMER_CHECK_POINT).body)
    assert said.read_ms == START_MS - 1_000, "nothing was timed: everything before is delivered"
    master.send(b"later", TIMER_DELAY_SEC="30")
    master.pass_time(5_000)
    body = master.ask(Ask.GET_TIMER_CHECK_POINT).body
    assert len(body) == 56
    said = timer_checkpoint_from(body)
    assert said.read_ms == START_MS + 5_000
    assert said.master_queue_offset == 1
    short = msgspec.structs.replace(said, counter=0)
    assert timer_checkpoint_from(body[:32]) == short, "before RocketMQ 5.1 it is shorter"
    metrics = fastjson.loads(master.ask(Ask.GET_TIMER_METRICS).body)
    assert metrics["timingCount"][TOPIC]["count"] == 1


@pytest.mark.parametrize("body", [b"", bytes(31), b"\xff" * 32], ids=len)
def test_what_is_no_checkpoint_of_timers_is_refused(body: bytes) -> None:
    with pytest.raises(ValueError, match="a checkpoint of timers"):
        timer_checkpoint_from(body)


def test_a_slave_that_has_heard_nothing_claims_nothing(master: BrokerWorld) -> None:
    master.send(b"later", TIMER_DELAY_SEC="30")
    slave = Slave(master)
    slave.copy()
    said = timer_checkpoint_from(slave.ask(Ask.GET_TIMER_CHECK_POINT).body)
    assert said.read_ms == 0


def test_a_promoted_slave_delivers_what_is_left_and_searches_the_end_of_the_log_only(
    master: BrokerWorld,
) -> None:
    for number in range(20):
        master.send(b"%d" % number, TIMER_DELAY_MS=str(1_000 * number + 1))
    slave = Slave(master)
    for _ in range(10):
        both_pass(master, slave, 1_000)
        slave.follow()
    was = bodies(slave)
    assert 8 <= len(was) < 20

    promoted = slave.promoted()
    assert promoted.state.timers._files.delivered_end > slave.state.store.log.end // 2
    promoted.pass_time(30_000)

    assert sorted(bodies(promoted), key=int) == [b"%d" % number for number in range(20)]
    assert promoted.state.timers.counts.of(TOPIC) == 0


def test_a_slave_counts_the_timed_messages_that_wait_as_its_master_does(
    master: BrokerWorld,
) -> None:
    for seconds in (1, 30, 60):
        master.send(b"later", TIMER_DELAY_SEC=str(seconds))
    slave = Slave(master)
    both_pass(master, slave, 5_000)
    slave.follow()
    counted = [
        sample.value
        for world in (master, slave)
        for sample in broker_samples(world.state, world.now_ms)
        if sample.name == "reliable_mq_broker_timers_waiting_messages"
    ]
    assert counted == [2, 2]


def test_the_note_of_a_slave_is_not_written_each_time(master: BrokerWorld) -> None:
    master.send(b"later", TIMER_DELAY_SEC="300")
    slave = Slave(master)
    jobs = 0
    for _ in range(60):
        both_pass(master, slave, 2_000)
        slave.follow()
        job = slave.core.begin_timer_checkpoint(slave.now_ms)
        if job is not None:
            job()
            jobs += 1
    assert 2 <= jobs <= 4
    assert slave.disk.size_of(PATH) == 4_096


@pytest.mark.parametrize("seed", range(40))
def test_no_timed_message_is_lost_by_a_promotion_and_none_comes_twice(seed: int) -> None:
    """The slave asks, copies and is promoted at any time. What it has is delivered, once."""
    random = Random(seed)
    master = a_master()
    slave = Slave(master)
    sent = 0
    for _ in range(random.randrange(10, 60)):
        for _ in range(random.randrange(4)):
            delay = random.choice((1, 40, 900, 1_000, 1_001, 5_000, 20_000))
            master.send(b"%d" % sent, TIMER_DELAY_MS=str(delay))
            sent += 1
        both_pass(master, slave, random.choice((50, 300, 1_000, 2_500)))
        if random.random() < 0.5:
            slave.copy()
        if random.random() < 0.6:
            slave.ask_tables()
        if random.random() < 0.3:
            slave.copy()
        slave.settle()
        if random.random() < 0.1 and (job := slave.core.begin_timer_checkpoint(0)):
            job()
        if random.random() < 0.05:
            slave.start()  # killed, and started again
    had = [int(each.body) for each in slave.records(TIMER_TOPIC)]

    promoted = slave.promoted() if random.random() < 0.5 else Promoted(slave)
    promoted.pass_time(40_000)

    assert sorted(map(int, bodies(promoted))) == had


@pytest.mark.parametrize("is_first", [False, True])
def test_what_a_restarted_master_has_delivered_before_does_not_come_twice(
    *, is_first: bool
) -> None:
    """It is killed between two questions. Then it has taken up more than at the first one, and less
    than before."""
    master = a_master()
    slave = Slave(master)
    if not is_first:
        master.send(b"first", TIMER_DELAY_MS="1")
        both_pass(master, slave, 300)
        slave.follow()
    for body in (b"noted", b"lost"):
        master.send(body, TIMER_DELAY_MS="1")
        both_pass(master, slave, 300)
        job = master.core.begin_timer_checkpoint(master.now_ms)
        if body == b"noted" and job:
            job()
    slave.copy()
    master.disk.kill()
    master.start()
    slave.follow()
    both_pass(master, slave, 2_000)
    slave.follow()
    was = bodies(slave)

    promoted = slave.promoted()
    promoted.pass_time(3_000)

    assert bodies(promoted) == was
    assert was[-2:] == [b"noted", b"lost"]


def test_a_slave_is_promoted_while_its_master_delivers_late_messages() -> None:
    """The master has lost the files of its timers. It takes up what was due long ago, and has no
    slot for that time any more."""
    count = 2_500
    master = a_master()
    slave = Slave(master)
    for number in range(count):
        master.send(b"%d" % number, TIMER_DELAY_SEC="1")
    slave.follow()
    master.disk.kill()
    for name in ("timerwheel", PATH):
        master.disk.remove(name)
    master.now_ms = slave.now_ms = slave.now_ms + 600_000
    master.start()
    for _ in range(4):  # the third turn has taken up all of them, and each delivers 1,000
        both_pass(master, slave, 100)
        slave.ask_tables()
        slave.copy()
        assert slave.settle()
    assert len(bodies(slave)) == 2_000

    promoted = slave.promoted()
    promoted.pass_time(1_000)

    assert sorted(map(int, bodies(promoted))) == list(range(count))


def told(read_ms: int, queue_offset: int, *, has_late: bool = False) -> TimerCheckpoint:
    taken_up = 0 if has_late else queue_offset
    return TimerCheckpoint(read_ms=read_ms, queue_offset=taken_up, master_queue_offset=queue_offset)


def followed() -> FollowedTimers:
    files = TimerStore(MemoryDisk(), file_size=4_096, precision_ms=1_000, is_sync_flush=True)
    return FollowedTimers(files, 1_000)


def test_a_message_counts_as_delivered_if_it_was_taken_up_a_question_before() -> None:
    """The master may have taken it up late, into a slot that is not delivered yet."""
    timers = followed()
    timers.take(told(50_500, 7), OwnLog(1_000, 49_000, 7))
    assert timers.known == TimerCheckpoint(), "one answer says nothing"
    timers.take(told(55_500, 9), OwnLog(2_000, 54_000, 9))
    assert timers.known == TimerCheckpoint(
        read_ms=55_000, delivered_end=1_000, done_before=7, done_ms=55_000
    )


def test_a_master_whose_timers_lag_is_believed_when_they_have_caught_up() -> None:
    """Until then a delivery of a later slot may be in front of the place to search from."""
    timers = followed()
    timers.take(told(50_000, 7), OwnLog(1_000, 55_000, 7))
    timers.take(told(55_000, 8), OwnLog(2_000, 60_000, 8))
    assert timers.known == TimerCheckpoint()
    timers.take(told(61_000, 9), OwnLog(3_000, 65_000, 9))
    assert (timers.known.done_ms, timers.known.delivered_end) == (61_000, 2_000)


def test_a_master_that_has_restarted_and_says_less_changes_nothing() -> None:
    timers = followed()
    timers.take(told(50_000, 7), OwnLog(1_000, 49_000, 7))
    timers.take(told(55_000, 8), OwnLog(2_000, 54_000, 8))
    known = timers.known
    timers.take(told(52_000, 3), OwnLog(3_000, 54_500, 8))
    timers.take(told(54_000, 3), OwnLog(4_000, 54_500, 8))
    assert timers.known == known


def test_deliveries_are_searched_from_where_the_log_had_nothing_that_is_not_taken_up() -> None:
    """The master was killed after the first question. It has delivered messages up to 9 before."""
    timers = followed()
    timers.take(told(50_000, 5), OwnLog(1_000, 49_000, 5))
    timers.take(told(50_000, 6), OwnLog(2_000, 56_000, 10))
    timers.take(told(60_000, 10), OwnLog(3_000, 57_000, 10))
    assert (timers.known.done_before, timers.known.delivered_end) == (6, 1_000)
    timers.take(told(61_000, 10), OwnLog(4_000, 60_500, 10))
    assert (timers.known.done_before, timers.known.delivered_end) == (10, 3_000)


def test_a_master_is_not_believed_that_never_had_taken_up_what_the_log_has() -> None:
    timers = followed()
    for number in range(1, 4):
        timers.take(told(50_000 * number, 5), OwnLog(1_000 * number, 1_000, 6 + number))
    assert timers.known == TimerCheckpoint()


def test_a_master_with_late_messages_says_nothing() -> None:
    """They are due in the slot of their own time, and delivered in a later one."""
    timers = followed()
    timers.take(told(50_000, 5), OwnLog(1_000, 49_000, 5))
    timers.take(told(51_000, 5, has_late=True), OwnLog(2_000, 50_000, 5))
    assert timers.known == TimerCheckpoint()
    timers.take(told(52_000, 5), OwnLog(3_000, 51_000, 5))
    timers.take(told(53_000, 5), OwnLog(4_000, 52_000, 5))
    assert (timers.known.done_before, timers.known.done_ms) == (5, 53_000)


@pytest.mark.parametrize("is_killed", [False, True])
def test_a_former_master_does_not_count_what_waits_in_a_later_slot(*, is_killed: bool) -> None:
    """The clock was ahead for a while, so the message got a slot behind what was delivered."""
    master = a_master()
    master.send(b"first", TIMER_DELAY_MS="100")
    master.pass_time(200)
    master.now_ms += 18_700
    master.pass_time(20)
    master.now_ms = START_MS + 500
    master.send(b"waits", TIMER_DELIVER_MS=str(START_MS + 2_000))
    master.pass_time(3_000)
    assert bodies(master) == [b"first"]
    work = master.core.begin_timer_checkpoint(master.now_ms)
    assert work is not None
    work()
    if not is_killed:
        master.stop()

    files = TimerStore(master.disk, file_size=4_096, precision_ms=1_000, is_sync_flush=True)
    timers = FollowedTimers(files, 1_000)

    known = timers.progress()
    assert known.counter > 0
    claims_nothing = TimerCheckpoint(counter=known.counter)  # all deliveries are behind 0
    assert known == timers.told() == claims_nothing
