"""What a slave knows of its master's tables, and what a promoted slave makes of it."""

from random import Random
from typing import Any

import pytest
from tests.broker_core.broker_world import GROUP, START_MS, TOPIC, BrokerWorld
from tests.broker_core.half_world import end, ending, prepare, produce, questions
from tests.replication.slave_world import Slave, a_master, bodies, both_pass

from reliable_mq.broker_core.names import SCHEDULE_TOPIC, TIMER_TOPIC
from reliable_mq.errors import ProtocolError
from reliable_mq.wire import fastjson
from reliable_mq.wire.codes import RequestCode as Ask
from reliable_mq.wire.codes import ResponseCode as Code
from reliable_mq.wire.command import Command

COMMITS = "config/commitsAtSlave.json"


@pytest.fixture
def master() -> BrokerWorld:
    return a_master()


def commit(world: BrokerWorld, offset: int, group: str = GROUP) -> Command:
    place = {"consumerGroup": group, "topic": TOPIC, "queueId": 0, "commitOffset": offset}
    return world.ask(Ask.UPDATE_CONSUMER_OFFSET, place)


def offset_of(world: BrokerWorld) -> int | None:
    return world.state.offsets.get(GROUP, TOPIC, 0)


def test_a_slave_takes_over_the_request_modes_and_the_counts_of_timers(
    master: BrokerWorld,
) -> None:
    mode = {"topic": TOPIC, "consumerGroup": GROUP, "mode": "POP", "popShareQueueNum": 2}
    assert master.ask(Ask.SET_MESSAGE_REQUEST_MODE, {}, fastjson.dumps(mode)).code == Code.SUCCESS
    master.send(b"later", TIMER_DELAY_SEC="30")
    master.pass_time(100)
    slave = Slave(master)
    slave.follow()
    assert slave.state.request_modes.to_json() == master.state.request_modes.to_json()
    assert slave.file("config/messageRequestMode.json") == master.state.request_modes.to_json()
    assert slave.state.timers.counts.of(TOPIC) == 1

    master.state.request_modes.forget(topic=TOPIC)
    slave.follow()

    assert len(slave.state.request_modes) == 0


def test_a_master_of_rocketmq_4_has_fewer_tables(master: BrokerWorld) -> None:
    slave = Slave(master)
    slave.copy()
    lacking = Command(0)
    lacking.code = Code.REQUEST_CODE_NOT_SUPPORTED
    missing = {Ask.GET_ALL_MESSAGE_REQUEST_MODE, Ask.GET_TIMER_CHECK_POINT, Ask.GET_TIMER_METRICS}
    for asked in slave.tables.begin():
        answer = lacking if asked.code in missing else master.ask(asked.code, asked.ext_fields)
        slave.tables.answered(asked.code, answer, slave.now_ms)

    assert slave.settle()
    assert TOPIC in slave.state.topics.by_name


def test_a_refused_table_is_one_line(master: BrokerWorld) -> None:
    slave = Slave(master)
    refused = Command(0, remark="who are you?")
    refused.code = Code.NO_PERMISSION
    with pytest.raises(ProtocolError, match=r"request 21 is refused: who are you\?"):
        slave.tables.answered(Ask.GET_ALL_TOPIC_CONFIG, refused, 0)


@pytest.mark.parametrize(
    ("wish", "topic"), [({"DELAY": "1"}, SCHEDULE_TOPIC), ({"TIMER_DELAY_MS": "500"}, TIMER_TOPIC)]
)
def test_a_slave_that_lags_does_not_know_a_delivery_that_it_does_not_have(
    master: BrokerWorld, wish: dict[str, str], topic: str
) -> None:
    properties: dict[str, Any] = {**wish}
    master.send(b"later", **properties)
    slave = Slave(master)
    slave.follow()
    slave.follow()
    for _ in range(3):
        both_pass(master, slave, 5_000)
        slave.ask_tables()
        assert not slave.settle(), "the log is not copied"
    assert bodies(master) == [b"later"]
    assert slave.state.store.queue(topic, 0)

    promoted = slave.promoted()
    promoted.pass_time(5_000)

    assert bodies(promoted) == [b"later"]


def test_a_table_that_is_the_same_is_not_read_again(
    master: BrokerWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A large one takes long. The slave's own commits and another master make it read again."""
    master.send(b"1")
    slave = Slave(master)
    slave.follow()
    taken: list[str] = []
    state = slave.state
    for table in (state.topics, state.groups, state.offsets, state.request_modes):
        take = table.take_over

        def noted(text: str, take: Any = take, name: str = type(table).__name__) -> Any:
            taken.append(name)
            return take(text)

        monkeypatch.setattr(table, "take_over", noted)
    slave.follow()
    assert taken == []
    commit(slave, 1)
    slave.follow()
    assert taken == ["OffsetTable"]
    slave.tables.lost()
    slave.follow()
    assert {*taken} == {"TopicTable", "GroupTable", "OffsetTable", "RequestModes"}


def test_a_master_that_is_busy_with_its_offsets_is_asked_again(master: BrokerWorld) -> None:
    master.send(b"later", DELAY="1")
    master.pass_time(5_000)
    slave = Slave(master)
    slave.copy()
    busy = Command(0)
    busy.code = Code.SYSTEM_BUSY
    for asked in slave.tables.begin():
        is_offsets = asked.code == Ask.GET_ALL_CONSUMER_OFFSET
        answer = busy if is_offsets else master.ask(asked.code, asked.ext_fields)
        slave.tables.answered(asked.code, answer, slave.now_ms)
    assert slave.settle()
    assert slave.state.schedule.saved() == {1: 1}, "the other tables do not wait for it"


def test_progress_waits_for_the_log_and_is_taken_over_then(master: BrokerWorld) -> None:
    slave = Slave(master)
    slave.follow()
    master.send(b"1")
    commit(master, 1)
    slave.ask_tables()
    assert not slave.settle()
    assert offset_of(slave) is None
    assert slave.tables.is_waiting
    assert Ask.GET_ALL_CONSUMER_OFFSET not in {asked.code for asked in slave.tables.begin()}

    slave.copy()

    assert slave.settle()
    assert offset_of(slave) == 1


def test_nothing_waits_for_a_master_that_is_gone(master: BrokerWorld) -> None:
    slave = Slave(master)
    slave.follow()
    master.send(b"1")
    commit(master, 1)
    slave.ask_tables()
    slave.tables.lost()
    slave.copy()
    assert slave.settle()
    assert offset_of(slave) is None


def test_offsets_that_are_gone_at_the_master_are_gone_at_the_slave(master: BrokerWorld) -> None:
    """Otherwise a group would skip the messages of a topic that is created again."""
    master.send(b"1")
    commit(master, 1)
    slave = Slave(master)
    slave.follow()
    assert offset_of(slave) == 1

    master.ask(Ask.DELETE_TOPIC_IN_BROKER, {"topic": TOPIC})
    slave.follow()

    assert offset_of(slave) is None
    slave.state.offsets.invariants()


# what consumers commit at a slave


def test_what_consumers_commit_at_a_slave_reaches_the_master(master: BrokerWorld) -> None:
    for number in range(5):
        master.send(b"%d" % number)
    commit(master, 1)
    slave = Slave(master)
    slave.follow()
    assert commit(slave, 4).code == Code.SUCCESS

    slave.copy()
    slave.ask_tables()
    assert slave.tables.settle(slave.now_ms)
    assert offset_of(slave) == 4, "the master's table has not replaced it"
    slave.follow()

    assert offset_of(master) == offset_of(slave) == 4
    assert len(slave.state.commits_at_slave) == 0
    commit(master, 5)
    slave.follow()
    assert (offset_of(master), offset_of(slave)) == (5, 5)


def test_a_slave_sets_no_group_back_at_its_master(master: BrokerWorld) -> None:
    for number in range(5):
        master.send(b"%d" % number)
    slave = Slave(master)
    slave.follow()
    commit(slave, 2)
    commit(master, 4)
    slave.follow()
    assert (offset_of(master), offset_of(slave)) == (4, 4)
    assert len(slave.state.commits_at_slave) == 0


def test_a_slave_that_restarts_still_tells_its_master(master: BrokerWorld) -> None:
    for number in range(5):
        master.send(b"%d" % number)
    slave = Slave(master)
    slave.follow()
    commit(slave, 3)
    slave.pass_time(10_000)  # no clean stop: what is saved regularly counts
    slave.start()
    slave.follow()
    assert offset_of(master) == 3
    slave.pass_time(10_000)
    assert slave.file(COMMITS) == {"commits": []}


def test_a_commit_that_the_master_refuses_is_told_again_for_ten_minutes(
    master: BrokerWorld,
) -> None:
    """The group may join there soon, or it may be gone. A busy master is asked for ever."""
    master.send(b"1")
    slave = Slave(master)
    slave.follow()
    commit(slave, 1)
    ((place, offset, _),) = slave.tables.commits()
    busy, unknown = Command(0), Command(0)
    busy.code, unknown.code = Code.SYSTEM_BUSY, Code.SUBSCRIPTION_GROUP_NOT_EXIST
    for code, number, minutes in (
        (busy, 1, 99),
        (unknown, 1, 0),
        (unknown, 1, 9),
        (unknown, 2, 11),
    ):
        slave.tables.committed(place, number, code, START_MS + minutes * 60_000)
        assert dict(slave.state.commits_at_slave.all()) == {place: offset}
    slave.tables.committed(place, offset, unknown, START_MS + 10 * 60_000)
    assert len(slave.state.commits_at_slave) == 0
    slave.follow()
    assert offset_of(slave) is None, "it is as at the master"


def test_a_group_that_began_at_the_slave_goes_on_at_the_master(master: BrokerWorld) -> None:
    """The master learns of the group by its consumers, some time after it is back."""
    for number in range(5):
        master.send(b"%d" % number)
    slave = Slave(master)
    slave.follow()
    slave.subscribe(TOPIC, group="new")
    commit(slave, 4, "new")
    slave.follow()
    assert master.state.offsets.get("new", TOPIC, 0) is None
    assert slave.state.offsets.get("new", TOPIC, 0) == 4

    master.subscribe(TOPIC, group="new")
    slave.follow()

    assert master.state.offsets.get("new", TOPIC, 0) == 4


def test_a_promoted_slave_has_the_commits_and_tells_nobody(master: BrokerWorld) -> None:
    """If it were demoted later, an old commit could undo a reset."""
    for number in range(5):
        master.send(b"%d" % number)
    slave = Slave(master)
    slave.follow()
    commit(slave, 3)
    promoted = slave.promoted()
    assert offset_of(promoted) == 3
    assert promoted.file(COMMITS) == {"commits": []}
    commit(promoted, 4)
    assert len(promoted.state.commits_at_slave) == 0


@pytest.mark.parametrize(
    "text", ['{"commits":[[["g","t"],1]]}', '{"commits":[{"place":["g","t",0]}]}', "["]
)
def test_a_broken_file_of_commits_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"."):
        BrokerWorld().state.commits_at_slave.load(text)


# half messages


def test_a_promoted_slave_asks_for_the_half_messages_that_are_pending(
    master: BrokerWorld,
) -> None:
    produce(master)
    settled, pending = prepare(master, b"settled"), prepare(master, b"pending")
    assert pending.code == Code.SUCCESS
    end(master, ending(settled, 8))
    master.pass_time(5_000)
    slave = Slave(master)
    slave.now_ms = master.now_ms
    slave.follow()

    promoted = slave.promoted()
    produce(promoted)
    promoted.pass_time(60_000)

    asked = [question.body for question in questions(promoted)]
    assert asked
    assert all(b"pending" in body for body in asked)


@pytest.mark.parametrize("seed", range(20))
def test_no_delayed_message_is_lost_by_a_promotion_at_any_time(
    master: BrokerWorld, seed: int
) -> None:
    """What the slave has is delivered; that of the last seconds may come twice."""
    random = Random(seed)
    slave = Slave(master)
    sent = 0
    for _ in range(random.randrange(5, 40)):
        for _ in range(random.randrange(4)):
            master.send(b"%d" % sent, DELAY=random.choice("12"))
            sent += 1
        both_pass(master, slave, random.choice((100, 700, 3_000)))
        for step in random.sample((slave.copy, slave.ask_tables, slave.settle), 2):
            step()
    had = {each.body for level in (0, 1) for each in slave.records(SCHEDULE_TOPIC, level)}

    promoted = slave.promoted()
    promoted.pass_time(10_000)

    assert {*bodies(promoted)} == had


@pytest.mark.parametrize("change", [{"bootTimestamp": "1"}, {"commitLogMaxOffset": "0"}])
def test_progress_that_speaks_of_a_lost_end_of_the_log_is_not_waited_for(
    change: dict[str, str],
) -> None:
    """Seed 953 of the simulation: a master that lost power, and no message after that."""
    master = a_master()
    slave = Slave(master)
    slave.follow()
    master.send(b"lost")
    slave.ask_tables()
    assert not slave.settle()

    answer = master.ask(Ask.GET_BROKER_RUNTIME_INFO)
    table = {**fastjson.loads(answer.body)["table"], **change}
    codes = [asked.code for asked in slave.tables.begin()]
    answer.body = fastjson.dumps({"table": table})
    with pytest.raises(ProtocolError, match="started again"):
        slave.tables.answered(codes[-1], answer, slave.now_ms)
    slave.tables.lost()  # as its follower does
    slave.follow()
    assert not slave.tables.is_waiting
