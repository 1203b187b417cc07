"""What may be sent to a topic of a message type, and what a message keeps on its way."""

import zlib

import pytest
from tests.broker_core.broker_world import TOPIC, BrokerWorld, pull_header, send_header

from reliable_mq.broker_core.state import PeerConnection
from reliable_mq.testing.memory_disk import MemoryDisk
from reliable_mq.wire.codes import RequestCode, ResponseCode
from reliable_mq.wire.command import Command, request
from reliable_mq.wire.record import BORN_HOST_V6, COMPRESSED, STORE_HOST_V6, pack_host

NORMAL: dict[str, str] = {}
FIFO = {"__SHARDINGKEY": "k"}
DELAY = {"DELAY": "1"}
TRANSACTION = {"TRAN_MSG": "true", "PGROUP": "p"}
CHECKED = {"enableTopicMessageTypeCheck": "true", "enableMixedMessageType": "true"}


def typed_world(message_type: str, **properties: str) -> BrokerWorld:
    world = BrokerWorld(None, **properties)
    answer = create(world, message_type)
    assert answer.code == 0, answer.remark
    return world


def create(world: BrokerWorld, message_type: str) -> Command:
    return world.ask(
        RequestCode.UPDATE_AND_CREATE_TOPIC,
        {
            "topic": TOPIC,
            "readQueueNums": 1,
            "writeQueueNums": 1,
            "perm": 6,
            "attributes": f"+message.type={message_type}",
        },
    )


@pytest.mark.parametrize(
    ("message_type", "sent", "actual"),
    [
        ("FIFO", NORMAL, "NORMAL"),
        ("NORMAL", FIFO, "FIFO"),
        ("TRANSACTION", DELAY, "DELAY"),
        ("DELAY", TRANSACTION, "TRANSACTION"),
        ("UNSPECIFIED", NORMAL, "NORMAL"),
    ],
)
def test_a_message_of_another_type_is_refused_when_types_are_checked(
    message_type: str, sent: dict[str, str], actual: str
) -> None:
    world = typed_world(message_type, **CHECKED)
    answer = world.ask(RequestCode.SEND_MESSAGE_V2, send_header(TOPIC, 0, **sent), b"x")
    assert answer.code == ResponseCode.MESSAGE_ILLEGAL
    assert answer.remark == (
        f"TopicMessageType validate failed, the expected type is {message_type}, "
        f"but actual type is {actual}"
    )


@pytest.mark.parametrize(
    ("message_type", "sent"),
    [
        *(("FIFO", FIFO), ("DELAY", DELAY), ("TRANSACTION", TRANSACTION), ("NORMAL", NORMAL)),
        *(("MIXED", FIFO), ("MIXED", TRANSACTION), ("MIXED", NORMAL)),
        ("FIFO", {"TRANSFER_FLAG": "t"}),
    ],
)
def test_a_message_of_its_topics_type_is_taken(message_type: str, sent: dict[str, str]) -> None:
    world = typed_world(message_type, **CHECKED)
    assert world.ask(RequestCode.SEND_MESSAGE_V2, send_header(TOPIC, 0, **sent), b"x").code == 0


def test_retries_are_of_any_type() -> None:
    world = typed_world("FIFO", **CHECKED)
    assert world.ask(RequestCode.SEND_MESSAGE_V2, send_header("%RETRY%g"), b"x").code == 0


def test_types_are_not_checked_unless_it_is_asked_for() -> None:
    world = typed_world("FIFO")
    assert (
        world.ask(RequestCode.SEND_MESSAGE_V2, send_header(TOPIC, 0, **TRANSACTION), b"x").code == 0
    )


def test_mixed_topics_must_be_allowed() -> None:
    assert create(BrokerWorld(), "MIXED").code == ResponseCode.INVALID_PARAMETER


def test_a_compressed_body_is_passed_on_as_it_came() -> None:
    world = BrokerWorld()
    body = zlib.compress(b"x" * 5_000)
    header = {**send_header(), "f": COMPRESSED}
    assert world.ask(RequestCode.SEND_MESSAGE_V2, header, body).code == 0
    (record,) = world.records(TOPIC)
    assert (record.body, record.sys_flag) == (body, COMPRESSED)
    assert body in world.ask(RequestCode.PULL_MESSAGE, pull_header()).body


def test_hosts_may_have_ipv6_addresses() -> None:
    disk = MemoryDisk()
    world = BrokerWorld(disk, brokerIP1="2001:db8::1")
    asker = PeerConnection(9, pack_host("2001:db8::9", 4711), "2001:db8::9:4711")
    command = request(
        RequestCode.SEND_MESSAGE_V2,
        {name: str(value) for name, value in send_header(TAGS="t").items() if value is not None},
        b"six",
    )
    world.core.receive(asker, command, world.now_ms)
    world.finish_turn()
    (answer,) = world.inbox[9]
    assert len(answer.ext_fields["msgId"]) == 56
    world.send(b"four")
    six, four = world.records(TOPIC)
    assert six.sys_flag == BORN_HOST_V6 | STORE_HOST_V6
    assert four.sys_flag == STORE_HOST_V6
    assert (six.born_host, six.store_host[:16]) == (asker.host, pack_host("2001:db8::1", 0)[:16])
    for opened in (BrokerWorld(disk), BrokerWorld(disk, brokerIP1="2001:db8::1")):
        assert [record.body for record in opened.records(TOPIC)] == [b"six", b"four"]
        found = opened.ask(RequestCode.VIEW_MESSAGE_BY_ID, {"offset": six.commit_log_offset})
        assert found.body.count(b"six") == 1
