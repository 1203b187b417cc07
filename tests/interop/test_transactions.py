"""Transactions and requests of Apache's Java client at both brokers; halves that move between."""

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import msgspec
import pytest
from bench.apache_rocketmq import ApacheRocketMQ
from bench.reliable_mq_broker import ReliableMQBroker
from tests.broker_core.broker_world import SMALL, BrokerWorld
from tests.broker_core.raw_client import RawClient
from tests.interop.java_shell import run_source
from tests.waiting import until
from tests.with_java import INTEROP, Broker, started

from reliable_mq.broker_core.config import BrokerConfig
from reliable_mq.broker_core.names import HALF_TOPIC, OP_TOPIC
from reliable_mq.broker_core.state import PeerConnection
from reliable_mq.runtime.file_disk import FileDisk
from reliable_mq.testing.memory_disk import MemoryDisk
from reliable_mq.wire.codes import RequestCode
from reliable_mq.wire.command import Command, request
from reliable_mq.wire.message_id import decode_offset_message_id
from reliable_mq.wire.properties import encode_properties
from reliable_mq.wire.record import (
    TRANSACTION_COMMIT,
    TRANSACTION_PREPARED,
    TRANSACTION_ROLLBACK,
    Record,
    iter_records,
    pack_host,
)

TOPIC = "transfers"
ASKED = "questions"
PRODUCERS = "transaction_producers"
# A producer may come late, on a busy machine: nothing is given up meanwhile.
HASTY = {"transactionCheckInterval": "1000", "transactionTimeOut": "3000"}
HASTY["transactionCheckMax"] = "200"
# Apache writes its op records late; what it checks meanwhile it would deliver twice.
HASTY_THERE = {**HASTY, "transactionOpBatchInterval": "200"}
SAID = [
    *("commit", "rollback", "unknown-commit", "unknown-rollback", "unknown-unknown-commit"),
    *("commit", "commit"),
]
DELIVERIES = 5

pytestmark = INTEROP
_FIELDS = {field.encode_name: field for field in msgspec.structs.fields(BrokerConfig)}


def apache(directory: Path) -> ApacheRocketMQ:
    return ApacheRocketMQ(directory, "ASYNC_FLUSH", settings=HASTY_THERE)


def ours(directory: Path) -> ReliableMQBroker:
    return ReliableMQBroker(directory, settings=HASTY)


def create_topics(broker: Broker) -> None:
    """Consumers of a topic that is there need not wait for their next look at the routes."""
    with RawClient(broker.address) as client:
        for topic in (TOPIC, ASKED):
            ext = {"topic": topic, "readQueueNums": 2, "writeQueueNums": 2, "perm": 6}
            ext |= {"defaultTopic": "TBW102", "topicFilterType": "SINGLE_TAG", "order": "false"}
            assert client.ask(RequestCode.UPDATE_AND_CREATE_TOPIC, ext).code == 0


@pytest.fixture(scope="module", params=[apache, ours], ids=["apache", "ours"])
def broker(request: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    with started(request.param(tmp_path_factory.mktemp("transactions"))) as broker:
        create_topics(broker)
        yield broker


def test_the_java_client_commits_rolls_back_and_answers_check_backs(
    broker: Broker, tmp_path: Path
) -> None:
    printed = run_source(
        "Transactions", tmp_path, broker.name_server_address, TOPIC, "readers", DELIVERIES, 3, *SAID
    )
    assert sorted(printed) == sorted(
        [
            *(f"sent {said} SEND_OK" for said in SAID),
            "received commit commit=true half=true id=true tagged=paid times=3",
            "received unknown-commit commit=true half=true id=true tagged=paid times=1",
            "received unknown-unknown-commit commit=true half=true id=true tagged=paid times=1",
            f"checked unknown-commit topic={TOPIC} times=1",
            f"checked unknown-rollback topic={TOPIC} times=1",
            f"checked unknown-unknown-commit topic={TOPIC} times=2",
        ]
    )


def test_one_java_client_answers_the_requests_of_another(broker: Broker, tmp_path: Path) -> None:
    printed = run_source(
        "RequestReply", tmp_path, broker.name_server_address, ASKED, "DefaultCluster"
    )
    assert sorted(printed) == sorted(
        [
            "answer re: one 7 bytes topic=DefaultCluster_REPLY_TOPIC",
            "answer re: two 7 bytes topic=DefaultCluster_REPLY_TOPIC",
            "answer re: xxxxxxxx 8196 bytes topic=DefaultCluster_REPLY_TOPIC",
            "no answer, code 10006",
            *(["sent answer SEND_OK"] * 3),
        ]
    )


def half_header(body: str, said: str, now_ms: int, flag: int = 0) -> dict[str, object]:
    properties = {"TRAN_MSG": "true", "PGROUP": PRODUCERS, "UNIQ_KEY": f"KEY-{body}"}
    properties |= {"KEYS": said, "TAGS": "paid"}
    header: dict[str, object] = dict(
        zip("abcdefgh", (PRODUCERS, TOPIC, "TBW102", 2, 0), strict=False)
    )
    header |= {"f": TRANSACTION_PREPARED, "g": now_ms, "h": flag}
    return header | {"i": encode_properties(properties).decode(), "m": "false"}


def prepare(client: RawClient, body: str, said: str, now_ms: int, flag: int = 0) -> Command:
    """Send a half whose producer will answer check-backs by `said`."""
    header = half_header(body, said, now_ms, flag)
    answer = client.ask(RequestCode.SEND_MESSAGE_V2, header, body.encode())
    assert answer.code == 0, answer.remark
    return answer


def ending(sent: Command, decision: int) -> dict[str, object]:
    place = decode_offset_message_id(sent.ext_fields["msgId"])
    return {
        "producerGroup": PRODUCERS,
        "tranStateTableOffset": sent.ext_fields["queueOffset"],
        "commitLogOffset": place.commit_log_offset,
        "commitOrRollback": decision,
        "msgId": sent.ext_fields["transactionId"],
    }


def end(client: RawClient, sent: Command, decision: int) -> None:
    assert client.ask(RequestCode.END_TRANSACTION, ending(sent, decision)).code == 0


def test_both_brokers_refuse_the_same_ends(broker: Broker) -> None:
    with RawClient(broker.address) as client:
        sent = prepare(client, "refused", "rollback", int(time.time() * 1000))
        offset = decode_offset_message_id(sent.ext_fields["msgId"]).commit_log_offset
        wrong: list[tuple[str, object]] = [
            ("producerGroup", "others"),
            ("tranStateTableOffset", 10**6),
            *(("commitLogOffset", place) for place in (offset + 1, -1, 10**12)),
        ]
        header = ending(sent, TRANSACTION_COMMIT)
        answers = [
            client.ask(RequestCode.END_TRANSACTION, header | {name: value}) for name, value in wrong
        ]
        end(client, sent, TRANSACTION_ROLLBACK)
    nothing = "Find prepared transaction message failed"
    assert [(answer.code, answer.remark) for answer in answers] == [
        (1, "The producer group wrong"),
        (1, "The transaction state table offset wrong"),
        *([(1, nothing)] * 3),
    ]


def test_both_brokers_store_the_same_of_a_transaction(broker: Broker) -> None:
    with RawClient(broker.address) as client:
        sent = prepare(client, "stored", "commit", int(time.time() * 1000), flag=7)
        end(client, sent, TRANSACTION_COMMIT)
        half = found(client, HALF_TOPIC, "stored", int(sent.ext_fields["queueOffset"]))
        message = found(client, TOPIC, "stored")
        op = found(client, OP_TOPIC, str(half.queue_offset))
    named = half.property_map()
    assert sent.ext_fields["transactionId"] == named["__transactionId__"] == "KEY-stored"
    assert (named.pop("REAL_TOPIC"), named.pop("REAL_QID")) == (TOPIC, "0")
    assert message.property_map() == named
    assert named == {
        "TRAN_MSG": "true",
        "PGROUP": PRODUCERS,
        "KEYS": "commit",
        "TAGS": "paid",
        "UNIQ_KEY": "KEY-stored",
        "__transactionId__": "KEY-stored",
        "CLUSTER": "DefaultCluster",
        "MSG_REGION": "DefaultRegion",
        "TRACE_ON": "true",
    }
    assert (half.flag, half.sys_flag, half.prepared_transaction_offset) == (7, 0, 0)
    assert (message.flag, message.sys_flag) == (7, TRANSACTION_COMMIT)
    assert message.prepared_transaction_offset == half.commit_log_offset
    assert (op.property_map(), op.flag, op.sys_flag) == ({"TAGS": "d", "WAIT": "true"}, 0, 0)


def found(client: RawClient, topic: str, word: str, offset: int = 0) -> Record:
    """Return the message with a word in its body; Apache's broker may take its time."""

    hits: list[Record] = []

    def is_there() -> bool:
        records = pulled(client, topic, offset)
        hits.extend(each for each in records if word in each.body.decode().split(","))
        return bool(hits)

    until(is_there, lambda: f"no {word} in {topic}", seconds=40, look_seconds=0.1)
    return hits[0]


def pulled(client: RawClient, topic: str, offset: int) -> list[Record]:
    header = {"consumerGroup": "TOOLS_CONSUMER", "topic": topic, "queueId": 0}
    header |= {"queueOffset": offset, "maxMsgNums": 32, "sysFlag": 4, "commitOffset": 0}
    header |= {"suspendTimeoutMillis": 0, "subscription": "*", "subVersion": 0}
    return list(iter_records(client.ask(RequestCode.PULL_MESSAGE, header).body))


def test_neither_broker_holds_messages_against_their_topics_type(broker: Broker) -> None:
    with RawClient(broker.address) as client:
        ext = {"topic": "ordered", "readQueueNums": 1, "writeQueueNums": 1, "perm": 6}
        ext |= {"defaultTopic": "TBW102", "topicFilterType": "SINGLE_TAG", "order": "false"}
        ext |= {"attributes": "+message.type=FIFO"}
        assert client.ask(RequestCode.UPDATE_AND_CREATE_TOPIC, ext).code == 0
        header = {**half_header("x", "commit", 1), "b": "ordered"}
        assert client.ask(RequestCode.SEND_MESSAGE_V2, header, b"x").code == 0


def bodies(broker: Broker) -> list[str]:
    """Return what lies in the topic's first queue."""
    with RawClient(broker.address) as client:
        return [record.body.decode() for record in pulled(client, TOPIC, 0)]


def prepare_over_ipv6(store: Path, body: str, said: str) -> None:
    """Let a client with an IPv6 address send a half to a broker of ours with another one."""
    disk = FileDisk(store)
    sizes = {name: str(field.default) for name, field in _FIELDS.items() if name in SMALL}
    properties = {**sizes, "brokerName": "broker-a", "brokerIP1": "2001:db8::1"}
    world = BrokerWorld(cast("MemoryDisk", disk), **properties)
    world.now_ms = int(time.time() * 1000)
    header = {name: str(value) for name, value in half_header(body, said, world.now_ms).items()}
    command = request(RequestCode.SEND_MESSAGE_V2, header, body.encode())
    client = PeerConnection(6, pack_host("2001:db8::6", 4711), "[2001:db8::6]:4711")
    world.core.receive(client, command, world.now_ms)
    world.finish_turn()
    assert world.inbox[6][0].code == 0, world.inbox
    world.stop()
    disk.close()


def test_pending_halves_move_between_the_brokers_and_are_settled_once(tmp_path: Path) -> None:
    """Ours is killed, Apache's goes on and is killed, and ours takes over again."""
    prepare_over_ipv6(tmp_path / "store", "six", "unknown-commit")
    with started(ours(tmp_path)) as first:
        create_topics(first)
        with RawClient(first.address) as client:
            now_ms = int(time.time() * 1000)
            end(client, prepare(client, "a", "commit", now_ms), TRANSACTION_COMMIT)
            end(client, prepare(client, "b", "rollback", now_ms), TRANSACTION_ROLLBACK)
            prepare(client, "c", "unknown-commit", now_ms)
            prepare(client, "d", "unknown-rollback", now_ms)
            prepare(client, "e", "unknown-commit", now_ms)

    with started(apache(tmp_path)) as second:
        printed = run_source(
            "Transactions", tmp_path, second.name_server_address, TOPIC, "g2", 4, 3
        )
        received = sorted(line.split()[1] for line in printed if line.startswith("received"))
        assert received == ["a", "c", "e", "six"]
        assert sum("times=1" in line for line in printed) == 8, printed
        with RawClient(second.address) as client:
            now_ms = int(time.time() * 1000)
            end(client, prepare(client, "f", "commit", now_ms), TRANSACTION_COMMIT)
            end(client, prepare(client, "g", "rollback", now_ms), TRANSACTION_ROLLBACK)
            prepare(client, "h", "unknown-commit", now_ms)
    # What Apache's broker had not yet written of the ends of f and g is lost with it.

    with started(ours(tmp_path)) as third:
        printed = run_source("Transactions", tmp_path, third.name_server_address, TOPIC, "g3", 6, 3)
        received = sorted(line.split()[1] for line in printed if line.startswith("received"))
        assert received == ["a", "c", "e", "f", "h", "six"]
        assert sum("times=1" in line for line in printed if line.startswith("received")) == 6
        assert sorted(bodies(third)) == ["a", "c", "e", "f", "h", "six"]
