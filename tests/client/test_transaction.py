"""Half messages on the wire: how they are sent, how they end, and what a broker asks."""

from typing import Any

import msgspec
import pytest
from tests.client.script import (
    World,
    fails,
    in_turn,
    random_bytes,
    route_table,
    routes_answer,
    says,
)

from reliable_mq.client.flow import Call
from reliable_mq.client.sending.producer import SendFlows
from reliable_mq.client.sending.transaction import TransactionFlows, read_check_back
from reliable_mq.client.settings import ClientSettings
from reliable_mq.errors import (
    MessageRefused,
    NotSent,
    ProtocolError,
    RemoteError,
    RequestTimeout,
    Unavailable,
    UsageError,
)
from reliable_mq.message import Decision, Half, Message, MessageQueue, SendResult
from reliable_mq.wire.codes import RequestCode, ResponseCode
from reliable_mq.wire.command import Command, reply, request
from reliable_mq.wire.headers import (
    CheckTransactionHeader,
    EndTransactionHeader,
    SendMessageHeaderV2,
)
from reliable_mq.wire.properties import decode_properties, encode_properties
from reliable_mq.wire.record import Record, pack_host
from reliable_mq.wire.record_encode import encode_record

END = RequestCode.END_TRANSACTION
MAX_OFFSET = RequestCode.GET_MAX_OFFSET
STORED = {"msgId": "7F00000100002A9F0000000000000123", "queueId": "1", "queueOffset": "7"}
GROUP = "shop_half_1"


@pytest.fixture
def world() -> World:
    return World(
        {
            RequestCode.GET_ROUTEINFO_BY_TOPIC: routes_answer({"t": {"a": 2}}),
            RequestCode.SEND_MESSAGE_V2: says(ext=STORED),
            END: says(),
            MAX_OFFSET: says(ext={"offset": "42"}),
        }
    )


@pytest.fixture
def flows(world: World) -> TransactionFlows:
    settings = ClientSettings()
    routes = route_table(settings)
    world.play(routes.of("t"))
    world.calls.clear()
    producer = SendFlows(settings, routes, random_bytes)
    return TransactionFlows(settings, routes, producer)


def half(name: str = "m", *, key: str = "", asked_by: str = "", queue_id: int = 1) -> Half:
    return Half(
        message_id=name,
        group=GROUP,
        queue=MessageQueue("t", "a", queue_id),
        ordering_key=key,
        half_offset=7,
        commit_log_offset=0x123,
        asked_by=asked_by,
    )


def ends(world: World) -> list[EndTransactionHeader]:
    return [EndTransactionHeader.decode(call.command.ext_fields) for call in world.calls_of(END)]


def test_a_half_says_who_is_to_be_asked_and_knows_its_place(
    world: World, flows: TransactionFlows
) -> None:
    message = Message(topic="t", body=b"x", tag="paid", message_id="M" * 32, ordering_key="k")

    sent = world.play(flows.send(message, GROUP, timeout=3.0))

    (call,) = world.calls_of(RequestCode.SEND_MESSAGE_V2)
    header = SendMessageHeaderV2.decode(call.command.ext_fields)
    properties = decode_properties(header.properties or "")
    assert (header.producer_group, header.sys_flag) == (GROUP, 4)
    assert (properties["TRAN_MSG"], properties["PGROUP"]) == ("true", GROUP)
    assert (properties["TAGS"], properties["UNIQ_KEY"]) == ("paid", "M" * 32)
    assert (sent.message_id, sent.group, sent.ordering_key) == ("M" * 32, GROUP, "k")
    assert (sent.half_offset, sent.commit_log_offset) == (7, 0x123)
    assert sent.queue == MessageQueue("t", "a", 1)


def test_a_delayed_half_is_refused_before_anything_is_sent(
    world: World, flows: TransactionFlows
) -> None:
    message = Message(topic="t", body=b"x", delay_level=3)
    with pytest.raises(MessageRefused, match="delayed"):
        world.play(flows.send(message, GROUP, timeout=3.0))
    assert world.calls == []


def test_a_half_that_a_crash_may_take_is_taken_back_and_counts_as_not_sent(
    world: World, flows: TransactionFlows
) -> None:
    flush_timed_out = says(ResponseCode.FLUSH_DISK_TIMEOUT, STORED)
    world.answers[RequestCode.SEND_MESSAGE_V2] = flush_timed_out

    with pytest.raises(Unavailable, match="may be lost in a crash"):
        world.play(flows.send(Message(topic="t", body=b"x"), GROUP, timeout=3.0))

    (post,) = world.posts
    assert EndTransactionHeader.decode(post.command.ext_fields).commit_or_rollback == 12


@pytest.mark.parametrize(("decision", "said"), [(Decision.COMMIT, 8), (Decision.ROLLBACK, 12)])
def test_an_end_names_the_half_and_is_waited_for(
    world: World, flows: TransactionFlows, decision: Decision, said: int
) -> None:
    world.play(flows.end(half(), decision))

    (call,) = world.calls_of(END)
    header = EndTransactionHeader.decode(call.command.ext_fields)
    assert call.address == "a:10911"
    assert header == EndTransactionHeader(
        producer_group=GROUP,
        tran_state_table_offset=7,
        commit_log_offset=0x123,
        commit_or_rollback=said,
        from_transaction_check=False,
        msg_id="m",
        transaction_id="m",
    )


def test_nobody_ends_a_half_by_not_knowing(world: World, flows: TransactionFlows) -> None:
    with pytest.raises(UsageError):
        world.play(flows.end(half(), Decision.UNKNOWN))
    word: Any = "commit"
    with pytest.raises(UsageError, match="'commit' is not a Decision"):
        world.play(flows.end(half(), word))
    world.play(flows.post(half(), Decision.UNKNOWN))
    assert (world.calls, world.posts) == ([], [])


def test_an_answer_goes_to_the_broker_that_asked(world: World, flows: TransactionFlows) -> None:
    world.play(flows.post(half(asked_by="b:10911"), Decision.ROLLBACK))

    (post,) = world.posts
    header = EndTransactionHeader.decode(post.command.ext_fields)
    assert post.address == "b:10911"
    assert (header.from_transaction_check, header.commit_or_rollback) == (True, 12)


def test_an_end_that_comes_after_the_time_reserved_for_it_is_said_as_an_answer(
    world: World, flows: TransactionFlows
) -> None:
    too_late = says(ResponseCode.ILLEGAL_OPERATION)
    world.answers[END] = in_turn(too_late, says())

    world.play(flows.end(half(), Decision.COMMIT))

    assert [header.from_transaction_check for header in ends(world)] == [False, True]


def test_an_end_that_is_refused_raises(world: World, flows: TransactionFlows) -> None:
    world.answers[END] = says(ResponseCode.SYSTEM_ERROR, remark="The producer group wrong")
    with pytest.raises(RemoteError, match="producer group"):
        world.play(flows.end(half(), Decision.COMMIT))


def test_a_half_of_a_broker_that_nobody_knows_cannot_be_ended(
    world: World, flows: TransactionFlows
) -> None:
    stranger = msgspec.structs.replace(half(), queue=MessageQueue("t", "z", 0))
    with pytest.raises(Unavailable, match="broker z"):
        world.play(flows.end(stranger, Decision.COMMIT))


def test_a_half_of_another_client_is_ended_by_the_route_of_its_topic(world: World) -> None:
    settings = ClientSettings()
    routes = route_table(settings)
    flows = TransactionFlows(settings, routes, SendFlows(settings, routes, random_bytes))

    (result,) = world.play(flows.commit_many([half(asked_by="a:10911")]))

    assert isinstance(result, SendResult)
    assert [call.address for call in world.calls_of(MAX_OFFSET)] == ["a:10911"]


def test_commits_tell_where_the_messages_are_at_most(world: World, flows: TransactionFlows) -> None:
    results = world.play(flows.commit_many([half("m1"), half("m2"), half("m3", queue_id=0)]))

    assert [result.message_id for result in results if isinstance(result, SendResult)] == [
        *("m1", "m2", "m3")
    ]
    assert {r.queue_offset for r in results if isinstance(r, SendResult)} == {41}
    assert len(world.calls_of(MAX_OFFSET)) == 2  # one for each queue, not for each message


def test_commits_of_one_key_follow_one_another_and_stop_at_a_failure(
    world: World, flows: TransactionFlows
) -> None:
    def answer(call: Call) -> Command:
        header = EndTransactionHeader.decode(call.command.ext_fields)
        bad = header.msg_id == "a2"
        return reply(call.command, ResponseCode.SYSTEM_ERROR if bad else ResponseCode.SUCCESS, "no")

    world.answers[END] = answer
    halves = [half("a1", key="a"), half("b1", key="b"), half("a2", key="a"), half("a3", key="a")]

    results = world.play(flows.commit_many([*halves, half("x"), half("b2", key="b")]))

    assert [type(result) for result in results] == [
        *(SendResult, SendResult, RemoteError, NotSent, SendResult, SendResult)
    ]
    said = [header.msg_id for header in ends(world)]
    assert said == ["a1", "b1", "x", "a2", "b2"]


def test_a_commit_without_an_answer_is_none(world: World, flows: TransactionFlows) -> None:
    world.answers[END] = fails(RequestTimeout("no answer"))
    (result,) = world.play(flows.commit_many([half()]))
    assert isinstance(result, RequestTimeout)
    assert world.calls_of(MAX_OFFSET) == []


def test_a_commit_whose_place_nobody_tells_is_sent_again(
    world: World, flows: TransactionFlows
) -> None:
    world.answers[MAX_OFFSET] = fails(RequestTimeout("no answer"))
    (result,) = world.play(flows.commit_many([half()]))
    assert isinstance(result, RequestTimeout)


def question(body: bytes) -> Command:
    header = CheckTransactionHeader(
        topic="RMQ_SYS_TRANS_HALF_TOPIC",
        tran_state_table_offset=9,
        commit_log_offset=0x456,
        msg_id="M" * 32,
        transaction_id="M" * 32,
        offset_msg_id="7F00000100002A9F0000000000000456",
        broker_name="a",
    )
    return request(RequestCode.CHECK_TRANSACTION_STATE, header.to_ext(), body, oneway=True)


def test_a_check_back_tells_the_message_and_the_place_of_its_newest_copy() -> None:
    properties = {"UNIQ_KEY": "M" * 32, "PGROUP": GROUP, "__SHARDINGKEY": "k", "TAGS": "paid"}
    record = Record(
        topic="t",
        body=b"x",
        properties=encode_properties(properties),
        queue_id=1,
        queue_offset=9,
        commit_log_offset=0x456,
        flag=0,
        sys_flag=0,
        born_time_ms=1,
        born_host=pack_host("127.0.0.1", 1),
        store_time_ms=2,
        store_host=pack_host("127.0.0.1", 10911),
    )

    asked = read_check_back(question(encode_record(record)), "a:10911")

    assert asked.half == Half(
        message_id="M" * 32,
        group=GROUP,
        queue=MessageQueue("t", "a", 1),
        ordering_key="k",
        half_offset=9,
        commit_log_offset=0x456,
        asked_by="a:10911",
    )
    assert (asked.message.topic, asked.message.body, asked.message.tag) == ("t", b"x", "paid")


def test_a_check_back_that_does_not_read_is_refused() -> None:
    with pytest.raises(ProtocolError):
        read_check_back(question(b"no record"), "a:10911")
