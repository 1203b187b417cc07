"""Topics, groups and offsets at a slave, and back at its master; both ours or Apache's."""

from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path

import pytest
from bench.reliable_mq_broker import ReliableMQBroker
from tests.broker_core.raw_client import RawClient
from tests.interop.test_promotion import PATIENCE, knows
from tests.interop.test_replication import MASTER, SLAVE, Make, apaches, log_end, ours
from tests.interop.test_timers import kill
from tests.waiting import until
from tests.with_java import INTEROP, Broker

from reliable_mq.wire import fastjson
from reliable_mq.wire.codes import RequestCode as Ask
from reliable_mq.wire.codes import ResponseCode as Code

pytestmark = INTEROP

PLACE = {"consumerGroup": "g", "topic": "t", "queueId": 0}


def ask(address: str, code: int, ext: Mapping[str, object], body: bytes = b"") -> Code:
    with RawClient(address) as client:
        return Code(client.ask(code, ext, body).code)


def create_topic(address: str, name: str) -> None:
    topic = {"topic": name, "readQueueNums": 1, "writeQueueNums": 1, "perm": 6}
    ext = {**topic, "defaultTopic": "TBW102", "topicFilterType": "SINGLE_TAG", "order": "false"}
    assert ask(address, Ask.UPDATE_AND_CREATE_TOPIC, ext) == Code.SUCCESS


def prepare(master: str) -> None:
    """Create two topics and a group, and send five messages."""
    create_topic(master, "t")
    create_topic(master, "gone")
    group = fastjson.dumps({"groupName": "g", "consumeEnable": True})
    code = Ask.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP
    assert ask(master, code, {}, group) == Code.SUCCESS
    sent = {"a": "p", "b": "t", "c": "TBW102", "d": 4, "e": 0, "f": 0, "g": 0, "h": 0, "i": ""}
    for _ in range(5):
        assert ask(master, Ask.SEND_MESSAGE_V2, sent, b"x") == Code.SUCCESS


def commit(address: str, offset: int) -> None:
    ext = {**PLACE, "commitOffset": offset}
    assert ask(address, Ask.UPDATE_CONSUMER_OFFSET, ext) == Code.SUCCESS


def offset_at(address: str) -> int:
    """Return the committed offset; -1: the broker is not there, or has none."""
    try:
        with RawClient(address) as client:
            ext = {**PLACE, "setZeroIfNotFound": "false"}
            return int(client.ask(Ask.QUERY_CONSUMER_OFFSET, ext).ext_fields.get("offset", -1))
    except OSError:
        return -1


@pytest.mark.parametrize("slave_is", [ours, apaches])
@pytest.mark.parametrize("master_is", [ours, apaches])
def test_a_slave_has_the_tables_of_its_master(
    master_is: Make, slave_is: Make, tmp_path: Path
) -> None:
    with ExitStack() as stack:
        master: Broker = master_is(tmp_path / "master", MASTER, "")
        stack.enter_context(master)
        slave: Broker = slave_is(tmp_path / "slave", SLAVE, master.name_server_address)
        stack.enter_context(slave)
        prepare(master.address)
        commit(master.address, 3)

        def has(text: str, code: int) -> bool:
            return knows(slave.address, text, code)

        until(lambda: offset_at(slave.address) == 3, seconds=PATIENCE)
        until(lambda: has('"gone"', Ask.GET_ALL_TOPIC_CONFIG), seconds=PATIENCE)
        until(lambda: has('"g"', Ask.GET_ALL_SUBSCRIPTIONGROUP_CONFIG), seconds=PATIENCE)
        deleted = {"topic": "gone"}
        assert ask(master.address, Ask.DELETE_TOPIC_IN_BROKER, deleted) == Code.SUCCESS
        until(lambda: not has('"gone"', Ask.GET_ALL_TOPIC_CONFIG), seconds=PATIENCE)
        # Apache's slave empties its table for a moment.
        until(lambda: has('"t"', Ask.GET_ALL_TOPIC_CONFIG), seconds=PATIENCE)


@pytest.mark.parametrize("master_is", [ours, apaches])
def test_what_was_committed_at_our_slave_is_at_the_master_that_comes_back(
    master_is: Make, tmp_path: Path
) -> None:
    with ExitStack() as stack:
        master: Broker = master_is(tmp_path / "master", MASTER, "")
        stack.enter_context(master)
        slave: Broker = ours(tmp_path / "slave", SLAVE, master.name_server_address)
        stack.enter_context(slave)
        prepare(master.address)
        commit(master.address, 1)
        until(lambda: log_end(slave.address) == log_end(master.address))
        until(lambda: offset_at(slave.address) == 1)
        if isinstance(master, ReliableMQBroker):
            kill(master)
            commit(slave.address, 4)
            master.start()
        else:
            master.broker.kill()
            commit(slave.address, 4)
            master.start_broker()
        until(lambda: offset_at(master.address) == 4, seconds=PATIENCE)
        assert offset_at(slave.address) == 4
