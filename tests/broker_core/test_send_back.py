"""Failed messages: again later, then to the dead."""

import pytest
from tests.broker_core.broker_world import GROUP, TOPIC, BrokerWorld, send_header, there
from tests.broker_core.probes.asking import locking, queue

from reliable_mq.broker_core.names import SCHEDULE_TOPIC
from reliable_mq.wire.codes import RequestCode as Ask
from reliable_mq.wire.codes import ResponseCode as Code
from reliable_mq.wire.command import Command
from reliable_mq.wire.message_id import encode_offset_message_id
from reliable_mq.wire.record import Record

RETRY = f"%RETRY%{GROUP}"
DEAD = f"%DLQ%{GROUP}"


@pytest.fixture
def failed(world: BrokerWorld) -> int:
    """Give the commit-log offset of a message."""
    world.create_topic()
    world.send(b"body", TAGS="red", KEYS="k", UNIQ_KEY="A" * 32)
    return commit_log_offset(world.records(TOPIC)[0])


def commit_log_offset(record: Record) -> int:
    return record.commit_log_offset


def send_back(world: BrokerWorld, offset: int, level: int = 0, **changes: object) -> Command:
    version = int(str(changes.pop("version", 493)))
    header = {"offset": offset, "group": GROUP, "delayLevel": level, **changes}
    return world.ask(Ask.CONSUMER_SEND_MSG_BACK, header, version=version)


def test_a_failure_waits_longer_with_each_attempt(world: BrokerWorld, failed: int) -> None:
    for attempt in range(3):
        assert send_back(world, failed).code == Code.SUCCESS
        (waiting,) = world.records(SCHEDULE_TOPIC, 3 + attempt - 1)[-1:]
        assert waiting.property_map()["REAL_TOPIC"] == RETRY
        world.pass_time(60_000, step=1_000)
        again = world.records(RETRY)[-1]
        assert again.reconsume_times == attempt + 1
        failed = again.commit_log_offset


def test_what_comes_again_is_the_message_and_says_where_it_began(
    world: BrokerWorld, failed: int
) -> None:
    (first,) = world.records(TOPIC)
    send_back(world, failed, level=1)
    world.pass_time(1_100)

    (again,) = world.records(RETRY)
    origin = encode_offset_message_id(b"\x7f\0\0\1", 10911, first.commit_log_offset)
    assert (again.body, again.flag, again.born_time_ms) == (b"body", 0, first.born_time_ms)
    assert again.born_host == first.born_host
    assert again.property_map().items() >= {
        ("RETRY_TOPIC", TOPIC),
        ("ORIGIN_MESSAGE_ID", origin),
        ("UNIQ_KEY", "A" * 32),
        ("TAGS", "red"),
        ("WAIT", "false"),
    }


def test_a_second_failure_keeps_the_first_origin(world: BrokerWorld, failed: int) -> None:
    send_back(world, failed, level=1)
    world.pass_time(1_100)
    (once,) = world.records(RETRY)
    send_back(world, once.commit_log_offset, level=1)
    world.pass_time(1_100)

    twice = world.records(RETRY)[1]
    for name in ("RETRY_TOPIC", "ORIGIN_MESSAGE_ID"):
        assert twice.property_map()[name] == once.property_map()[name]


@pytest.mark.parametrize(
    ("level", "changes"),
    [(-1, {}), (0, {"maxReconsumeTimes": 0}), (3, {"maxReconsumeTimes": 0})],
)
def test_what_is_given_up_goes_to_the_dead_at_once(
    world: BrokerWorld, failed: int, level: int, changes: dict[str, object]
) -> None:
    assert send_back(world, failed, level, **changes).code == Code.SUCCESS

    (dead,) = world.records(DEAD)
    assert dead.body == b"body"
    assert dead.property_map()["RETRY_TOPIC"] == TOPIC
    topic = there(world.state.topics.get(DEAD))
    assert (topic.read_queue_nums, topic.write_queue_nums, topic.perm) == (1, 1, 6)


def test_the_groups_limit_holds_when_the_client_sends_none(world: BrokerWorld, failed: int) -> None:
    world.ask(
        Ask.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP,
        {},
        b'{"groupName":"%s","retryMaxTimes":0}' % GROUP.encode(),
    )
    send_back(world, failed)
    send_back(world, failed, maxReconsumeTimes=5, version=100)  # too old for a limit of its own
    assert len(world.records(DEAD)) == 2

    send_back(world, failed, maxReconsumeTimes=5)
    assert len(world.records(DEAD)) == 2


def test_a_level_above_the_highest_is_the_highest(world: BrokerWorld, failed: int) -> None:
    send_back(world, failed, level=77)

    assert len(world.records(SCHEDULE_TOPIC, 17)) == 1


@pytest.mark.parametrize("offset", [-1, 7, 2**40, 2**62])
def test_an_offset_where_no_message_begins_changes_nothing(
    world: BrokerWorld, failed: int, offset: int
) -> None:
    end = world.state.store.log.end

    answer = send_back(world, offset)

    assert (answer.code, answer.remark) == (
        Code.SYSTEM_ERROR,
        f"look message by offset failed, {offset}",
    )
    assert world.state.store.log.end == end
    assert world.state.topics.get(RETRY) is None


def test_a_group_that_retries_nothing_gets_nothing_back(world: BrokerWorld, failed: int) -> None:
    world.ask(
        Ask.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP,
        {},
        b'{"groupName":"%s","retryQueueNums":0}' % GROUP.encode(),
    )

    assert send_back(world, failed).code == Code.SUCCESS
    assert world.records(RETRY) == world.records(DEAD) == []


def test_a_message_that_failed_as_often_as_can_be_counted_is_given_up_and_stops_nobody(
    world: BrokerWorld,
) -> None:
    world.create_topic()
    header = {**send_header(UNIQ_KEY="A" * 32), "j": 2**31 - 1}
    assert world.ask(Ask.SEND_MESSAGE_V2, header, b"x").code == Code.SUCCESS

    assert send_back(world, commit_log_offset(world.records(TOPIC)[0])).code == Code.SUCCESS
    world.send(b"another")

    assert world.records(DEAD)[0].reconsume_times == 2**31 - 1


def test_a_one_way_failure_is_stored_without_an_answer(world: BrokerWorld, failed: int) -> None:
    header = {"offset": failed, "group": GROUP, "delayLevel": -1}

    assert world.begin(Ask.CONSUMER_SEND_MSG_BACK, header, oneway=True) is None
    assert len(world.records(DEAD)) == 1
    assert not world.inbox.get(1)


def test_a_retry_sent_as_a_message_goes_to_the_dead_over_its_limit(world: BrokerWorld) -> None:
    retry = {**send_header(RETRY), "j": 4, "l": 3}
    world.ask(Ask.SEND_MESSAGE_V2, {**retry, "j": 3}, b"tried")
    world.ask(Ask.SEND_MESSAGE_V2, retry, b"dead")

    assert [record.body for record in world.records(RETRY)] == [b"tried"]
    assert [record.body for record in world.records(DEAD)] == [b"dead"]


def test_a_retry_sent_by_a_group_in_order_goes_to_the_dead(world: BrokerWorld) -> None:
    """Its clients count attempts themselves; what they send they gave up."""
    world.create_topic()
    world.ask(Ask.LOCK_BATCH_MQ, {}, locking("a", {**queue(), "topic": TOPIC}, group=GROUP))

    world.ask(Ask.SEND_MESSAGE_V2, send_header(RETRY), b"dead")

    assert [record.body for record in world.records(DEAD)] == [b"dead"]


def test_a_message_without_an_id_gets_one_that_its_retries_keep(world: BrokerWorld) -> None:
    world.create_topic()
    world.send()
    world.send(UNIQ_KEY="MINE")
    first, second, *_ = (record.property_map()["UNIQ_KEY"] for record in world.records(TOPIC, 0))
    assert (len(first), second) == (32, "MINE")


def test_without_room_the_answer_says_so_and_no_topic_is_made(
    world: BrokerWorld, failed: int
) -> None:
    world.state.pressure.note_disk(0.99, is_full=True)

    answer = send_back(world, failed)

    assert answer.code == Code.SYSTEM_ERROR
    assert answer.remark == "SERVICE_NOT_AVAILABLE: the broker's disk is full"
    assert world.state.topics.get(RETRY) is None
