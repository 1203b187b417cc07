"""A slave takes over from its master, both ours or Apache's: what waited for its time comes.

Half messages are asked about again. Once is enough; more than once is allowed.
"""

import time
from contextlib import ExitStack
from datetime import timedelta
from pathlib import Path

import pytest
from tests.broker_core.half_world import COMMIT, PRODUCERS, answering, half_header
from tests.broker_core.raw_client import RawClient
from tests.interop.test_replication import MASTER, SLAVE, Make, apaches, log_end, ours
from tests.interop.test_timers import kill
from tests.waiting import until
from tests.with_java import INTEROP, Broker

from reliable_mq.client.thread_client import Client
from reliable_mq.message import Message
from reliable_mq.wire import fastjson
from reliable_mq.wire.codes import RequestCode as Ask
from reliable_mq.wire.codes import ResponseCode as Code
from reliable_mq.wire.record import iter_records

pytestmark = INTEROP

CHECKS = {"transactionCheckInterval": "2000", "transactionTimeOut": "1000"}
PATIENCE = 240.0  # Apache's slave asks for tables after a minute, and then each minute
HALF = b"half"
WAITS = 25  # seconds; longer than a kill and a start take


def bodies_in(address: str) -> set[bytes]:
    """Return what a topic holds, as a new group reads it."""
    found: set[bytes] = set()
    with RawClient(address) as client:
        for queue_id in range(2):
            offset = 0
            while True:
                header = {
                    "consumerGroup": "g",
                    "topic": "t",
                    "queueId": queue_id,
                    "queueOffset": offset,
                    "maxMsgNums": 32,
                    "sysFlag": 4,
                    "commitOffset": 0,
                    "suspendTimeoutMillis": 0,
                    "subscription": "*",
                    "subVersion": 0,
                }
                answer = client.ask(Ask.PULL_MESSAGE, header)
                if answer.code != Code.SUCCESS:
                    break
                found |= {record.body for record in iter_records(answer.body)}
                offset = int(answer.ext_fields["nextBeginOffset"])
    return found


def knows(address: str, text: str, code: int) -> bool:
    with RawClient(address) as client:
        return text in client.ask(code).body.decode()


def send(client: Client, name: str, seconds: int, level: int) -> set[bytes]:
    """Send delayed and timed messages; return their bodies."""
    bodies = {b"%s %d" % (name.encode(), number) for number in range(20)}
    for number, body in enumerate(sorted(bodies)):
        late = {"delay_level": level} if number % 2 else {"delay": timedelta(seconds=seconds)}
        client.send(Message(topic="t", body=body, **late))
    return bodies


def prepare_half(address: str) -> None:
    """Send a half message that nobody ends."""
    with RawClient(address) as client:
        header = {**half_header(), "b": "t", "e": 0, "g": int(time.time() * 1000)}
        assert client.ask(Ask.SEND_MESSAGE_V2, header, HALF).code == Code.SUCCESS


def commit_when_asked(address: str) -> None:
    """Be the producer of the half message: wait for the question, and commit."""
    beat = fastjson.dumps({"clientID": "late", "producerDataSet": [{"groupName": PRODUCERS}]})
    with RawClient(address) as client:
        assert client.ask(Ask.HEART_BEAT, {}, beat).code == Code.SUCCESS
        question = client.wait_for_push(PATIENCE)
        while question.code != Ask.CHECK_TRANSACTION_STATE:
            question = client.wait_for_push(PATIENCE)
        client.begin(Ask.END_TRANSACTION, answering(question, COMMIT), oneway=True)
        client.ask(-1)  # the commit has been read before this is answered


@pytest.mark.parametrize("slave_is", [ours, apaches])
@pytest.mark.parametrize("master_is", [ours, apaches])
def test_messages_that_wait_for_their_time_come_from_a_promoted_slave(
    master_is: Make, slave_is: Make, tmp_path: Path
) -> None:
    with ExitStack() as stack:
        master: Broker = master_is(tmp_path / "master", {**MASTER, **CHECKS}, "")
        stack.enter_context(master)
        slave: Broker = slave_is(tmp_path / "slave", SLAVE, master.name_server_address)
        stack.enter_context(slave)
        with Client(master.name_server_address) as client:
            client.create_topic("t", 2)
            sent = send(client, "early", 2, 1)
            until(lambda: knows(slave.address, '"t"', Ask.GET_ALL_TOPIC_CONFIG), seconds=PATIENCE)
            until(lambda: bodies_in(master.address) == sent, seconds=PATIENCE)
            mode = {"topic": "t", "consumerGroup": "g", "mode": "POP", "popShareQueueNum": 1}
            with RawClient(master.address) as raw:
                raw.ask(Ask.SET_MESSAGE_REQUEST_MODE, {}, fastjson.dumps(mode))
            if slave_is is ours:
                until(lambda: knows(slave.address, '"POP"', Ask.GET_ALL_MESSAGE_REQUEST_MODE))
            prepare_half(master.address)
            sent |= send(client, "late", WAITS, 4)
            until(lambda: log_end(slave.address) == log_end(master.address))
        kill(master)
        slave.stop()
        settings = {**SLAVE, **CHECKS, "brokerRole": "ASYNC_MASTER", "brokerId": "0"}
        promoted: Broker = slave_is(tmp_path / "slave", settings, "")
        stack.enter_context(promoted)
        commit_when_asked(promoted.address)
        sent.add(HALF)
        until(
            lambda: bodies_in(promoted.address) == sent,
            lambda: f"missing: {sorted(sent - bodies_in(promoted.address))}",
            seconds=PATIENCE,
        )
