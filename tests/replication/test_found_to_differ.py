"""A slave that finds that its log differs: what clients had asked before shows no message then."""

import pytest
from tests.broker_core.broker_world import (
    BrokerWorld,
    connection,
    send_header,
    waiting_pull_header,
)
from tests.broker_core.test_query import query
from tests.replication.slave_world import Slave, a_master

from reliable_mq.wire.codes import RequestCode, ResponseCode
from reliable_mq.wire.command import request


@pytest.fixture
def master() -> BrokerWorld:
    return a_master()


@pytest.mark.parametrize("differs", [False, True])
def test_a_pull_that_waits_gets_no_message_that_the_master_may_not_have(
    master: BrokerWorld, differs: bool
) -> None:
    """With `slaveFlush=received` logs are compared before the slave's disk has synced all."""
    slave = Slave(master)
    slave.follow()
    assert slave.begin(RequestCode.PULL_MESSAGE, waiting_pull_header()) is None
    opaque = slave.last_opaque
    master.send(b"lost by the master")

    slave.is_writing = False
    slave.copy()
    slave.state.is_unverified = differs
    slave.is_writing = True
    slave.finish_turn()

    answer = slave.reply_to(opaque)
    assert answer is not None
    assert answer.code == (ResponseCode.SYSTEM_BUSY if differs else ResponseCode.SUCCESS)
    assert (b"lost by the master" in answer.body) != differs


@pytest.mark.parametrize("differs", [False, True])
def test_a_query_that_takes_long_finds_no_message_that_the_master_may_not_have(
    master: BrokerWorld, differs: bool
) -> None:
    header = send_header(KEYS="order-1")
    assert master.ask(RequestCode.SEND_MESSAGE_V2, header, b"lost by the master").code == 0
    slave = Slave(master)
    slave.follow()
    slave.pass_time(100)
    assert slave.state.store.is_indexed

    fields = {name: str(value) for name, value in query("order-1").items()}
    command = request(RequestCode.QUERY_MESSAGE, fields)
    slave.core.receive(connection(1), command, slave.now_ms)
    slave.state.is_unverified = differs
    slave.finish_turn()

    answer = slave.reply_to(command.opaque)
    assert answer is not None
    assert answer.code == (ResponseCode.SYSTEM_BUSY if differs else ResponseCode.SUCCESS)
    assert (b"lost by the master" in answer.body) != differs
