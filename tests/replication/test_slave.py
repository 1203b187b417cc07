"""What a slave answers: it serves what it has copied, and takes nothing from clients."""

import json
from typing import cast

import pytest
from tests.broker_core.broker_world import (
    GROUP,
    TOPIC,
    BrokerWorld,
    pull_header,
    send_header,
    waiting_pull_header,
)
from tests.broker_core.half_world import COMMIT, end, ending, prepare
from tests.replication.slave_world import Slave

from reliable_mq.broker_core.names import HALF_TOPIC, OP_TOPIC, TRANSACTION_GROUP
from reliable_mq.broker_core.registration import registrations
from reliable_mq.errors import ConfigurationError
from reliable_mq.runtime.broker_role import BrokerRole
from reliable_mq.runtime.log_writer import LogWriter
from reliable_mq.runtime.slave_store import CoreAsSlaveStore
from reliable_mq.wire.codes import RequestCode as Ask
from reliable_mq.wire.codes import ResponseCode as Code


@pytest.fixture
def master() -> BrokerWorld:
    made = BrokerWorld()
    made.create_topic(queues=4)
    return made


def test_a_slave_serves_the_messages_of_its_master(master: BrokerWorld) -> None:
    for number in range(5):
        master.send(b"%d" % number)
    slave = Slave(master)
    slave.follow()

    pulled = slave.ask(Ask.PULL_MESSAGE, pull_header())

    assert pulled.code == Code.SUCCESS
    assert pulled.body == master.ask(Ask.PULL_MESSAGE, pull_header()).body


def test_a_pull_that_waits_at_a_slave_is_woken_by_what_arrives(master: BrokerWorld) -> None:
    master.subscribe(TOPIC)
    slave = Slave(master)
    slave.follow()
    slave.subscribe(TOPIC)
    assert slave.begin(Ask.PULL_MESSAGE, waiting_pull_header()) is None
    opaque = slave.last_opaque

    master.send(b"new")
    slave.follow()

    answer = slave.reply_to(opaque)
    assert answer is not None
    assert answer.code == Code.SUCCESS
    assert b"new" in answer.body


@pytest.mark.parametrize("code", [Ask.SEND_MESSAGE_V2, Ask.SEND_MESSAGE, Ask.SEND_BATCH_MESSAGE])
def test_a_slave_takes_no_message(master: BrokerWorld, code: Ask) -> None:
    slave = Slave(master)
    slave.follow()
    answer = slave.ask(code, send_header(), b"x")
    assert answer.code == Code.SYSTEM_BUSY
    assert "this broker is a slave" in (answer.remark or "")
    assert slave.state.store.log.end == master.state.store.log.end


def test_a_slave_ends_no_transaction(master: BrokerWorld) -> None:
    slave = Slave(master)
    assert slave.ask(Ask.END_TRANSACTION, {}).code == Code.SLAVE_NOT_AVAILABLE


def test_a_slave_that_may_not_be_read_says_so(master: BrokerWorld) -> None:
    slave = Slave(master, slaveReadEnable="false")
    slave.follow()
    answer = slave.ask(Ask.PULL_MESSAGE, pull_header())
    assert answer.code == Code.SYSTEM_BUSY
    assert "slaveReadEnable is false" in (answer.remark or "")


def test_a_slave_takes_over_topics_groups_and_offsets_and_what_is_gone(master: BrokerWorld) -> None:
    master.create_topic("short", 1)
    master.subscribe(TOPIC)
    master.send(b"x")
    master.state.offsets.commit(GROUP, TOPIC, 0, 1)
    slave = Slave(master)
    slave.follow()
    assert slave.state.topics.by_name == master.state.topics.by_name
    assert slave.state.groups.by_name == master.state.groups.by_name
    assert slave.state.offsets.get(GROUP, TOPIC, 0) == 1

    master.ask(Ask.DELETE_TOPIC_IN_BROKER, {"topic": "short"})
    slave.follow()

    assert "short" not in slave.state.topics.by_name
    assert "short" not in slave.file("config/topics.json")["topicConfigTable"]


def test_a_slave_delivers_no_delayed_message_and_a_promoted_one_does(master: BrokerWorld) -> None:
    master.send(b"later", DELAY="1")
    slave = Slave(master)
    slave.follow()
    slave.pass_time(5_000)
    assert slave.state.store.log.end == master.state.store.log.end

    slave.stop()
    promoted = BrokerWorld(slave.disk, brokerRole="ASYNC_MASTER")
    promoted.now_ms = slave.now_ms
    promoted.pass_time(5_000)

    assert [record.body for record in promoted.records(TOPIC)] == [b"later"]
    promoted.send(b"new")


def test_a_name_server_may_take_the_topics_of_a_slave_while_its_master_is_away(
    master: BrokerWorld,
) -> None:
    """But no slave of ours stands for its master yet."""
    (of_slave,) = registrations(Slave(master).state)
    (of_master,) = registrations(master.state)
    assert of_slave.ext_fields["enableActingMaster"] == "false"
    assert "enableActingMaster" not in of_master.ext_fields


def test_a_slave_that_starts_between_a_commit_and_its_op_record_appends_nothing(
    master: BrokerWorld,
) -> None:
    """A master that starts there stores the op record. The slave's comes from its master."""
    assert end(master, ending(prepare(master), COMMIT)).code == Code.SUCCESS
    (op,) = master.records(OP_TOPIC)
    slave = Slave(master)
    slave.copy(op.commit_log_offset)
    slave.stop()

    slave.start()
    slave.finish_turn()
    assert slave.state.store.log.end == op.commit_log_offset

    slave.follow()
    assert slave.records(OP_TOPIC) == [op]


@pytest.mark.parametrize(
    ("properties", "says"),
    [
        ({"brokerRole": "LEADER"}, "use ASYNC_MASTER, SYNC_MASTER or SLAVE"),
        ({"brokerRole": "SLAVE"}, "brokerId=0: a broker with brokerRole=SLAVE has a number above"),
        ({"brokerId": "1"}, "brokerId=1: a broker with brokerRole=ASYNC_MASTER has 0"),
        ({"brokerId": "-1"}, "brokerId=-1: a broker with brokerRole=ASYNC_MASTER has 0"),
        ({"slaveFlush": "never"}, "slaveFlush=never: use disk or received"),
        ({"haMasterAddress": "nowhere"}, "haMasterAddress=nowhere: host:port"),
        ({"haAllowedAddresses": "10.0.0.0/99"}, "haAllowedAddresses: '10.0.0.0/99'"),
    ],
    ids=str,
)
def test_a_wrong_role_is_one_line(properties: dict[str, str], says: str) -> None:
    with pytest.raises(ConfigurationError, match=says):
        BrokerWorld(None, **properties)


def test_tables_that_are_the_same_are_not_written_again(master: BrokerWorld) -> None:
    master.subscribe(TOPIC)
    master.send(b"x", DELAY="1")
    master.pass_time(5_000)
    master.state.offsets.commit(GROUP, TOPIC, 0, 1)
    slave = Slave(master)
    slave.follow()
    slave.pass_time(30_000)

    before = len(slave.disk.operations)
    slave.follow()

    assert not slave.state.offsets.is_dirty
    assert len(slave.disk.operations) == before


def test_a_slave_counts_no_copy_as_a_message_that_was_put(master: BrokerWorld) -> None:
    for number in range(5):
        master.send(b"%d" % number)
    slave = Slave(master)
    slave.follow()
    slave.now_ms += 20_000
    slave.core.tick(slave.now_ms)
    for world, count, is_active in ((master, "5", "true"), (slave, "0", "false")):
        table = json.loads(world.ask(Ask.GET_BROKER_RUNTIME_INFO).body)["table"]
        assert (table["msgPutTotalTodayNow"], table["brokerActive"]) == (count, is_active)


def test_a_slave_tells_its_role_and_why_it_has_no_tables(master: BrokerWorld) -> None:
    slave = Slave(master)
    slave.state.master_tables.failure = "request 21 is refused"
    slave.now_ms += 7_000
    table = json.loads(slave.ask(Ask.GET_BROKER_RUNTIME_INFO).body)["table"]
    assert table["masterTablesFailure"] == "request 21 is refused"
    assert int(table["masterTablesAgeSeconds"]) >= 7
    told = slave.ask(Ask.GET_BROKER_CONFIG).body.decode().splitlines()
    assert {"brokerRole=SLAVE", "ownNameServer=false", "haOpenToEverybody=false"} <= set(told)
    theirs = json.loads(master.ask(Ask.GET_BROKER_RUNTIME_INFO).body)["table"]
    assert "masterTablesFailure" not in theirs


def test_a_slave_knows_whether_it_lacks_much_of_its_master_s_log(master: BrokerWorld) -> None:
    slave = Slave(master)
    store = CoreAsSlaveStore(slave.core, cast("LogWriter", None), slave.finish_turn, BrokerRole())
    for lacks, is_copying in ((0, False), (65 * 2**20, True), (63 * 2**20, False)):
        store.master.end = slave.state.store.log.end + lacks
        store.copy([])
        assert slave.state.store.is_copying == is_copying


def test_a_slave_whose_master_has_left_copies_nothing(master: BrokerWorld) -> None:
    slave = Slave(master)
    store = CoreAsSlaveStore(slave.core, cast("LogWriter", None), slave.finish_turn, BrokerRole())
    store.master.end = 65 * 2**20
    store.copy([])
    assert slave.state.store.is_copying
    store.left()
    assert not slave.state.store.is_copying


def test_a_slave_that_stops_keeps_the_progress_of_its_master_s_halves(master: BrokerWorld) -> None:
    slave = Slave(master)
    slave.state.offsets.commit(TRANSACTION_GROUP, HALF_TOPIC, 0, 30)
    slave.core.close(slave.now_ms)

    assert slave.state.offsets.get(TRANSACTION_GROUP, HALF_TOPIC, 0) == 30
