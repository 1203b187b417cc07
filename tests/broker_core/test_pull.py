"""Pulls that are answered at once: which messages, how many, and where the next pull begins."""

import pytest
from tests.broker_core.broker_world import (
    GROUP,
    TOPIC,
    BrokerWorld,
    pull_header,
    there,
    waiting_pull_header,
)

from reliable_mq.broker_core.store.commit_log import CommitLog
from reliable_mq.wire import fastjson
from reliable_mq.wire.codes import RequestCode as Ask
from reliable_mq.wire.codes import ResponseCode as Code
from reliable_mq.wire.command import Command
from reliable_mq.wire.record import iter_records


def pull(world: BrokerWorld, offset: int = 0, **changes: object) -> Command:
    return world.ask(Ask.PULL_MESSAGE, pull_header(offset, **changes))


def bodies(answer: Command) -> list[bytes]:
    return [record.body for record in iter_records(answer.body)]


def next_offset(answer: Command) -> int:
    return int(answer.ext_fields["nextBeginOffset"])


@pytest.fixture
def ten(world: BrokerWorld) -> BrokerWorld:
    """Give a broker with ten messages, every second one red."""
    world.create_topic(queues=2)
    for number in range(10):
        world.send(b"%d" % number, TAGS="red" if number % 2 else "blue")
        world.send(b"other", queue_id=1)
    return world


@pytest.mark.parametrize(
    ("offset", "code", "status", "begin"),
    [
        (-5, Code.PULL_OFFSET_MOVED, "OFFSET_TOO_SMALL", 0),
        (10, Code.PULL_NOT_FOUND, "OFFSET_OVERFLOW_ONE", 10),
        (11, Code.PULL_OFFSET_MOVED, "OFFSET_OVERFLOW_BADLY", 10),
        (9, Code.SUCCESS, "FOUND", 10),
    ],
)
def test_the_status_says_where_an_offset_lies(
    ten: BrokerWorld, offset: int, code: Code, status: str, begin: int
) -> None:
    answer = pull(ten, offset)

    assert (answer.code, answer.remark, next_offset(answer)) == (code, status, begin)
    assert (answer.ext_fields["minOffset"], answer.ext_fields["maxOffset"]) == ("0", "10")


def test_no_more_messages_come_than_were_asked_for(ten: BrokerWorld) -> None:
    answer = pull(ten, 3, maxMsgNums=4)

    assert bodies(answer) == [b"3", b"4", b"5", b"6"]
    assert next_offset(answer) == 7


def test_tags_choose_and_the_next_pull_begins_behind_the_last_chosen(ten: BrokerWorld) -> None:
    answer = pull(ten, subscription="red", maxMsgNums=2)

    assert bodies(answer) == [b"1", b"3"]
    assert next_offset(pull(ten, next_offset(answer), subscription="red")) == 10


def test_one_pull_passes_over_at_most_800_messages_that_it_does_not_want(
    world: BrokerWorld,
) -> None:
    world.create_topic()
    for _ in range(805):
        world.send(TAGS="blue")
    world.send(b"red", TAGS="red")

    answer = pull(world, subscription="red")
    assert (answer.code, next_offset(answer)) == (Code.PULL_RETRY_IMMEDIATELY, 800)
    assert bodies(pull(world, 800, subscription="red")) == [b"red"]


def test_the_brokers_limits_of_number_and_size_hold() -> None:
    world = BrokerWorld(
        maxTransferCountOnMessageInMemory="3", maxTransferBytesOnMessageInMemory="5000"
    )
    world.create_topic()
    for _ in range(5):
        world.send(b"x" * 100)
    world.send(b"y" * 20_000)

    assert next_offset(pull(world)) == 3
    assert next_offset(pull(world, 3)) == 5
    assert len(bodies(pull(world, 5))[0]) == 20_000, "the first message comes whatever its size"


def test_messages_of_a_cut_log_are_passed_over(
    ten: BrokerWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    start = ten.records(TOPIC)[4].commit_log_offset
    monkeypatch.setattr(CommitLog, "start", property(lambda _log: start))

    assert bodies(pull(ten)) == [b"4", b"5", b"6", b"7", b"8", b"9"]
    assert bodies(pull(ten, maxMsgNums=1, subscription="blue")) == [b"4"]


def test_a_refused_pull_changes_nothing(ten: BrokerWorld) -> None:
    before = ten.state.offsets.text()

    for changes in ({"queueId": 2}, {"subscription": "||"}, {"topic": "nowhere"}):
        assert pull(ten, sysFlag=5, commitOffset=7, **changes).code != Code.SUCCESS

    assert ten.state.offsets.text() == before


def test_a_pull_commits_what_it_brings(ten: BrokerWorld) -> None:
    pull(ten, 4, sysFlag=5, commitOffset=4)

    assert ten.state.offsets.get(GROUP, TOPIC, 0) == 4
    assert ten.state.offsets.pulled(GROUP, TOPIC, 0) == 10


def test_a_subscription_by_heartbeat_is_enough_as_long_as_its_client_is_there(
    ten: BrokerWorld,
) -> None:
    ten.subscribe(TOPIC, of=2)
    assert pull(ten, sysFlag=0).code == Code.SUCCESS

    ten.core.disconnected(2)
    assert pull(ten, sysFlag=0).code == Code.SUBSCRIPTION_NOT_EXIST


def test_a_group_that_was_forbidden_a_topic_may_not_read_it(ten: BrokerWorld) -> None:
    ten.subscribe(TOPIC)
    ten.state.groups.load(fastjson.dumps({"forbiddenTable": {GROUP: {TOPIC: 4}}}).decode())

    answer = pull(ten, sysFlag=0)

    assert (answer.code, answer.ext_fields["forbiddenType"]) == (Code.NO_PERMISSION, "5")
    assert fastjson.loads(ten.state.groups.text())["forbiddenTable"] == {GROUP: {TOPIC: 4}}


def test_a_one_way_pull_gets_no_answer_and_is_not_held(ten: BrokerWorld) -> None:
    for header in (pull_header(), waiting_pull_header(10)):
        assert ten.begin(Ask.PULL_MESSAGE, header, oneway=True) is None
    ten.pass_time(20_000, step=1_000)
    ten.send()
    assert ten.inbox == {1: []}
    assert len(ten.state.pulls) == 0


@pytest.mark.parametrize(
    ("slaves", "memories", "broker_id"),
    [("true", 2, "7"), ("true", 3, "3"), ("false", 2, "0")],
)
def test_a_group_that_reads_slowly_is_sent_to_the_broker_of_its_settings(
    slaves: str, memories: int, broker_id: str
) -> None:
    """It is slow if more of the log is behind its message than 40 % of the machine's memory."""
    world = BrokerWorld(slaveReadEnable=slaves, accessMessageInMemoryMaxRatio="40")
    settings = {"groupName": GROUP, "whichBrokerWhenConsumeSlowly": 7, "brokerId": 3}
    world.ask(Ask.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, {}, fastjson.dumps(settings))
    world.create_topic()
    world.send()
    log = world.state.store.log
    unit = there(world.state.store.queue(TOPIC, 0)).unit(0)
    world.state.memory_size = (log.end - unit.commit_log_offset) * memories
    assert pull(world).ext_fields["suggestWhichBrokerId"] == broker_id
