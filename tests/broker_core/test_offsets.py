"""Offsets of groups and queues, by number and by time."""

from unittest import mock

import pytest
from tests.broker_core.broker_world import GROUP, START_MS, TOPIC, BrokerWorld, there

from reliable_mq.broker_core.offsets import OffsetTable
from reliable_mq.wire.codes import RequestCode as Ask
from reliable_mq.wire.codes import ResponseCode as Code

QUEUE = {"topic": TOPIC, "queueId": 0}


@pytest.fixture
def timed(world: BrokerWorld) -> BrokerWorld:
    """Give a broker with messages stored 0, 100, 100, 100 and 300 ms after its start."""
    world.create_topic()
    for time_ms in (0, 100, 100, 100, 300):
        world.now_ms = START_MS + time_ms
        world.send()
    return world


@pytest.mark.parametrize("code", [Ask.GET_MIN_OFFSET, Ask.GET_MAX_OFFSET])
@pytest.mark.parametrize(
    "queue",
    [QUEUE, {"topic": TOPIC, "queueId": 99}, {"topic": "nowhere", "queueId": 0}],
    ids=["never written", "out of range", "of no topic"],
)
def test_a_queue_that_never_had_a_message_begins_and_ends_at_0(
    world: BrokerWorld, code: Ask, queue: dict[str, object]
) -> None:
    world.create_topic()
    assert world.ask(code, queue).ext_fields == {"offset": "0"}


@pytest.mark.parametrize(
    ("time_ms", "lower", "upper"),
    [(-1, 0, 0), (0, 0, 0), (50, 1, 0), (100, 1, 3), (200, 4, 3), (300, 4, 4), (301, 5, 4)],
)
def test_a_time_is_found_between_the_messages(
    timed: BrokerWorld, time_ms: int, lower: int, upper: int
) -> None:
    """As Apache defines it: the first stored then or later, the last stored then or earlier."""
    for boundary, expected in (("lower", lower), ("upper", upper), (None, lower)):
        header = {**QUEUE, "timestamp": START_MS + time_ms, "boundaryType": boundary}
        answer = timed.ask(Ask.SEARCH_OFFSET_BY_TIMESTAMP, header)
        assert answer.ext_fields == {"offset": str(expected)}, boundary


def test_the_first_store_time_is_that_of_the_oldest_message(timed: BrokerWorld) -> None:
    answer = timed.ask(Ask.GET_EARLIEST_MSG_STORETIME, QUEUE)

    assert answer.ext_fields == {"timestamp": str(START_MS)}


def test_a_new_group_begins_with_the_first_message_of_a_young_queue(timed: BrokerWorld) -> None:
    answer = timed.ask(Ask.QUERY_CONSUMER_OFFSET, {"consumerGroup": "new", **QUEUE})

    assert (answer.code, answer.ext_fields) == (Code.SUCCESS, {"offset": "0"})


@pytest.mark.parametrize("why", ["the log went on", "the head was removed"])
def test_a_new_group_is_not_sent_to_the_begin_of_an_old_queue(timed: BrokerWorld, why: str) -> None:
    if why == "the log went on":
        timed.state.store.log.end += 5 * 1024**3
    else:
        there(timed.state.store.queue(TOPIC, 0)).first = 1

    answer = timed.ask(Ask.QUERY_CONSUMER_OFFSET, {"consumerGroup": "new", **QUEUE})

    assert answer.code == Code.QUERY_NOT_FOUND
    timed.state.store.log.end = timed.state.store.log.written


def test_a_commit_outlives_a_restart(timed: BrokerWorld) -> None:
    timed.subscribe(TOPIC)
    timed.ask(Ask.UPDATE_CONSUMER_OFFSET, {"consumerGroup": GROUP, **QUEUE, "commitOffset": 3})
    timed.pass_time(5_100)
    timed.disk.kill()

    again = BrokerWorld(timed.disk)

    assert again.state.offsets.get(GROUP, TOPIC, 0) == 3
    assert again.file("config/consumerOffset.json")["offsetTable"] == {f"{TOPIC}@{GROUP}": {0: 3}}


def test_a_negative_offset_is_never_kept(timed: BrokerWorld) -> None:
    timed.subscribe(TOPIC)
    header = {"consumerGroup": GROUP, **QUEUE, "commitOffset": -1}

    timed.ask(Ask.UPDATE_CONSUMER_OFFSET, header)

    assert timed.state.offsets.get(GROUP, TOPIC, 0) is None


def test_the_progress_of_a_group_is_told_by_queue(timed: BrokerWorld) -> None:
    timed.subscribe(TOPIC)
    timed.ask(Ask.UPDATE_CONSUMER_OFFSET, {"consumerGroup": GROUP, **QUEUE, "commitOffset": 2})

    answer = timed.ask(Ask.GET_CONSUME_STATS, {"consumerGroup": GROUP, "topic": TOPIC})

    assert answer.body.decode() == (
        '{"consumeTps":0.0,"offsetTable":{{"brokerName":"b","queueId":0,"topic":"orders"}:'
        '{"brokerOffset":5,"consumerOffset":2,'
        f'"lastTimestamp":{START_MS + 100},"pullOffset":2}}}}}}'
    )


def test_a_group_meets_the_messages_that_come_in_place_of_lost_ones(world: BrokerWorld) -> None:
    # Given a group that consumed three messages, of which a power loss took the last two
    world.create_topic()
    for _ in range(3):
        world.send()
    world.subscribe(TOPIC)
    committed = {**QUEUE, "consumerGroup": GROUP, "commitOffset": 3}
    world.ask(Ask.UPDATE_CONSUMER_OFFSET, committed)
    queue = world.core.state.store.queue(TOPIC, 0)
    assert queue is not None
    queue.cut(1)
    # When the broker settles what it found
    world.core.state.offsets.settle(world.core.state.store)
    # Then the group goes on with the first message that comes now
    answer = world.ask(Ask.QUERY_CONSUMER_OFFSET, {**QUEUE, "consumerGroup": GROUP})
    assert answer.ext_fields["offset"] == "1"


@pytest.mark.parametrize(
    ("topic", "group"), [("orders", "payments"), ("t{1:", "g,2:"), ("t 4:", 'g"3:')]
)
def test_offsets_read_as_they_were_written_whatever_the_names_are(topic: str, group: str) -> None:
    written, read = OffsetTable(), OffsetTable()
    written.commit(group, topic, 3, 7)

    read.load(written.dump())

    assert read.all_of(group, topic) == {3: 7}
    read.invariants()


def test_a_table_of_usual_names_is_read_by_the_fast_reader() -> None:
    """The reader of all that fastjson writes takes 40 us for each of what may be millions."""
    written, read = OffsetTable(), OffsetTable()
    written.commit("payments", "orders", 3, 7)

    with mock.patch("reliable_mq.wire.fastjson.loads", side_effect=AssertionError):
        read.load(written.dump())

    assert read.all_of("payments", "orders") == {3: 7}
