"""Sending: which queue, which broker next, what is tried again and what is not."""

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
from reliable_mq.client.sending.batching import plan_many
from reliable_mq.client.sending.outgoing import read_batch_results
from reliable_mq.client.sending.producer import SendFlows
from reliable_mq.client.sending.queue_choice import queue_of_key
from reliable_mq.client.sending.send_retries import RoundRobin
from reliable_mq.client.settings import ClientSettings
from reliable_mq.errors import (
    ConfigurationError,
    ConnectionLost,
    MessageRefused,
    NotSent,
    ProtocolError,
    Refused,
    RemoteError,
    RequestTimeout,
)
from reliable_mq.message import Message, MessageQueue, SendResult, SendStatus
from reliable_mq.message_checks import check_message
from reliable_mq.wire.batch_body import decode_batch
from reliable_mq.wire.codes import RequestCode, ResponseCode
from reliable_mq.wire.command import Command, reply
from reliable_mq.wire.headers import SendMessageHeaderV2
from reliable_mq.wire.properties import decode_properties

SEND = RequestCode.SEND_MESSAGE_V2
BATCH = RequestCode.SEND_BATCH_MESSAGE
TWO_BROKERS = {"t": {"a": 2, "b": 2}}
STORED = {"msgId": "7F00000100002A9F0000000000000000", "queueId": "1", "queueOffset": "7"}


def world_of(
    topics: dict[str, dict[str, int]], settings: ClientSettings | None = None
) -> tuple[World, SendFlows]:
    world = World(
        {
            RequestCode.GET_ROUTEINFO_BY_TOPIC: routes_answer(topics),
            SEND: says(ext=STORED),
            BATCH: stores_the_batch,
        }
    )
    settings = settings or ClientSettings()
    return world, SendFlows(settings, route_table(settings), random_bytes)


def stores_the_batch(call: Call) -> Command:
    count = len(decode_batch(call.command.body))
    ids = ",".join(f"{at:032X}" for at in range(count))
    queue_id = call.command.ext_fields["e"]
    return reply(call.command, ext={"msgId": ids, "queueId": queue_id, "queueOffset": "100"})


def addresses(world: World) -> list[str]:
    return [call.address for call in world.calls_of(SEND)]


def test_a_message_carries_its_fields_and_a_new_id() -> None:
    world, producer = world_of({"t": {"a": 2}})
    result = world.play(
        producer.send(
            Message(
                topic="t",
                body=b"hello",
                tag="paid",
                keys=("k1", "k2"),
                delay_level=3,
                flag=9,
                properties={"colour": "red"},
            )
        )
    )
    command = world.calls_of(SEND)[0].command
    header = SendMessageHeaderV2.decode(command.ext_fields)
    properties = decode_properties((header.properties or "").encode())
    assert command.body == b"hello"
    assert (header.topic, header.flag, header.batch) == ("t", 9, False)
    assert (header.default_topic, header.default_topic_queue_nums) == ("TBW102", 4)
    assert properties == {
        "UNIQ_KEY": result.message_id,
        "WAIT": "true",
        "TAGS": "paid",
        "KEYS": "k1 k2",
        "DELAY": "3",
        "colour": "red",
    }
    assert len(result.message_id) == 32
    assert result.queue == MessageQueue("t", "a", 1)
    assert result.queue_offset == 7


def test_an_id_that_a_message_has_is_kept() -> None:
    world, producer = world_of({"t": {"a": 1}})
    assert (
        world.play(producer.send(Message(topic="t", body=b"x", message_id="ID"))).message_id == "ID"
    )


@pytest.mark.parametrize("status", SendStatus)
def test_every_code_that_means_stored_is_a_result(status: SendStatus) -> None:
    world, producer = world_of({"t": {"a": 1}})
    world.answers[SEND] = says(status.value, STORED)
    assert world.play(producer.send(Message(topic="t", body=b"x"))).status is status


def test_a_lost_connection_sends_the_message_to_the_other_broker_without_waiting() -> None:
    world, producer = world_of(TWO_BROKERS)
    world.answers[SEND] = in_turn(fails(ConnectionLost("gone")), says(ext=STORED))
    world.play(producer.send(Message(topic="t", body=b"x")))
    first, second = addresses(world)
    assert first != second
    assert world.waits == []


def test_the_only_broker_is_given_a_moment_before_the_next_try() -> None:
    world, producer = world_of({"t": {"a": 2}})
    world.answers[SEND] = in_turn(fails(ConnectionLost("gone")), says(ext=STORED))
    world.play(producer.send(Message(topic="t", body=b"x")))
    assert len(world.waits) == 1


@pytest.mark.parametrize("code", [1, 2, 14, 16, 17, 204, 205, 215, 1500])
def test_a_code_that_may_pass_is_tried_again(code: int) -> None:
    world, producer = world_of(TWO_BROKERS)
    world.answers[SEND] = in_turn(says(code, remark="busy"), says(ext=STORED))
    world.play(producer.send(Message(topic="t", body=b"x")))
    assert len(addresses(world)) == 2


def test_a_code_that_will_not_pass_is_raised_at_once() -> None:
    world, producer = world_of(TWO_BROKERS)
    world.answers[SEND] = says(ResponseCode.MESSAGE_ILLEGAL, remark="too large")
    with pytest.raises(RemoteError, match="too large") as caught:
        world.play(producer.send(Message(topic="t", body=b"x")))
    assert caught.value.code == ResponseCode.MESSAGE_ILLEGAL
    assert len(addresses(world)) == 1


def test_the_tries_end_with_the_last_failure() -> None:
    world, producer = world_of(TWO_BROKERS, ClientSettings(retries=2))
    world.answers[SEND] = says(ResponseCode.SYSTEM_BUSY, remark="busy")
    with pytest.raises(RemoteError, match="busy"):
        world.play(producer.send(Message(topic="t", body=b"x")))
    assert len(addresses(world)) == 3


def test_all_tries_share_one_time_out() -> None:
    world, producer = world_of(TWO_BROKERS)

    def takes_two_seconds(call: Call) -> Command:
        world.seconds += min(2.0, call.timeout)
        raise RequestTimeout("slow")

    world.answers[SEND] = takes_two_seconds
    with pytest.raises(RequestTimeout):
        world.play(producer.send(Message(topic="t", body=b"x"), timeout=3.0))
    first, second, third = (call.timeout for call in world.calls_of(SEND))
    assert (first, second) == (1.0, 1.0)
    assert third == pytest.approx(1.0 - sum(world.waits))


def test_an_ordering_key_is_tried_again_at_its_own_queue_only() -> None:
    world, producer = world_of(TWO_BROKERS)
    world.answers[SEND] = in_turn(fails(ConnectionLost("gone")), says(ext=STORED))
    world.play(producer.send(Message(topic="t", body=b"x", ordering_key="k")))
    calls = world.calls_of(SEND)
    assert calls[0].address == calls[1].address
    assert calls[0].command.ext_fields["e"] == calls[1].command.ext_fields["e"]
    assert len(world.waits) == 1, "the same broker is given a moment"


def test_a_queue_that_the_caller_names_is_used() -> None:
    world, producer = world_of(TWO_BROKERS)
    world.play(producer.send(Message(topic="t", body=b"x"), queue=MessageQueue("t", "b", 1)))
    call = world.calls_of(SEND)[0]
    assert (call.address, call.command.ext_fields["e"]) == ("b:10911", "1")


def test_messages_without_a_key_go_to_all_queues_in_turn() -> None:
    world, producer = world_of(TWO_BROKERS)
    for _ in range(8):
        world.play(producer.send(Message(topic="t", body=b"x")))
    used = [(call.address, call.command.ext_fields["e"]) for call in world.calls_of(SEND)]
    assert sorted(used[:4]) == [(f"{x}:10911", y) for x in "ab" for y in "01"]
    assert used[:4] == used[4:]


def test_a_turn_skips_the_broker_to_avoid_unless_there_is_no_other() -> None:
    queues = [MessageQueue("t", name, at) for name in "ab" for at in range(2)]
    turns = RoundRobin(0)
    assert {turns.choose(queues, "a").broker_name for _ in range(6)} == {"b"}
    assert turns.choose(queues[:2], "a").broker_name == "a"


def test_the_queue_of_an_ordering_key_never_changes() -> None:
    """Golden: CRC-32 of the UTF-8 key. Another hash would break the order across an upgrade."""
    queues = [MessageQueue("t", "a", at) for at in range(8)]
    homes = {key: queue_of_key(key, queues).queue_id for key in ("customer-1", "customer-2", "ä")}
    assert homes == {"customer-1": 5, "customer-2": 7, "ä": 3}


def test_keys_that_java_producers_send_too_go_where_theirs_go() -> None:
    """Golden, by Java's `String.hashCode`; that of the fourth has no absolute value in 32 bits."""
    queues = [MessageQueue("t", "a", at) for at in range(7)]
    codes = {
        "": 0,
        "a": 97,
        "customer-1": -1_581_185_534,
        "polygenelubricants": -(2**31),
        "ä😀": 1_992_007,
    }
    homes = {key: queue_of_key(key, queues, "java").queue_id for key in codes}
    assert homes == {key: abs(code) % 7 for key, code in codes.items()}


def test_every_way_of_sending_follows_the_hash_that_is_set() -> None:
    world, producer = world_of({"t": {"a": 8}}, ClientSettings(key_hash="java"))
    keyed = Message(topic="t", body=b"x", ordering_key="a")
    world.play(producer.send(keyed))
    world.play(producer.send_batch([keyed, keyed]))
    planned = world.play(
        plan_many(producer, producer._routes, ClientSettings(key_hash="java"), [keyed])
    )
    assert {call.command.ext_fields["e"] for call in world.calls_of(SEND)} == {"1"}
    assert {call.command.ext_fields["e"] for call in world.calls_of(BATCH)} == {"1"}
    assert [group.queue for group in planned.groups] == [MessageQueue("t", "a", 1)]


@pytest.mark.parametrize(
    "message",
    [
        Message(topic="", body=b"x"),
        Message(topic="a b", body=b"x"),
        Message(topic="x" * 128, body=b"x"),
        Message(topic="t", body=b""),
        Message(topic="t", body=bytes(4 * 1024 * 1024 + 1)),
        Message(topic="t", body=b"x", delay_level=19),
        Message(topic="t", body=b"x", keys=("a b",)),
        Message(topic="t", body=b"x", tag="a\x01b"),
        Message(topic="t", body=b"x", properties={"UNIQ_KEY": "mine"}),
        Message(topic="t", body=b"x", properties={"long": "v" * 32_767}),
    ],
)
def test_a_message_that_breaks_a_limit_is_refused_before_anything_is_sent(message: Message) -> None:
    world, producer = world_of({"t": {"a": 1}})
    with pytest.raises(MessageRefused):
        world.play(producer.send(message))
    assert world.calls == []


def test_a_batch_is_one_request_and_its_offsets_follow_one_another() -> None:
    world, producer = world_of({"t": {"a": 4}})
    messages = [Message(topic="t", body=bytes([at]), tag=f"tag{at}") for at in range(3)]
    result = world.play(producer.send_batch(messages))
    (call,) = world.calls_of(BATCH)
    items = decode_batch(call.command.body)
    assert [item.body for item in items] == [b"\0", b"\1", b"\2"]
    assert [decode_properties(item.properties)["TAGS"] for item in items] == [
        "tag0",
        "tag1",
        "tag2",
    ]
    assert result.queue_offset == 100
    assert len(result.message_id.split(",")) == 3


@pytest.mark.parametrize(
    "messages",
    [
        [],
        [Message(topic="t", body=b"x"), Message(topic="u", body=b"x")],
        [Message(topic="t", body=b"x"), Message(topic="t", body=b"x", delay_level=1)],
        [Message(topic="t", body=b"x", ordering_key=key) for key in ("customer-1", "customer-2")],
    ],
)
def test_what_cannot_be_one_batch_is_refused(messages: list[Message]) -> None:
    world, producer = world_of({"t": {"a": 8}, "u": {"a": 8}})
    with pytest.raises(MessageRefused):
        world.play(producer.send_batch(messages))
    assert world.calls_of(BATCH) == []


def test_after_a_batch_that_failed_the_later_ones_of_its_queue_are_not_sent() -> None:
    world, producer = world_of({"t": {"a": 1}}, ClientSettings(retries=0))
    letters = [
        producer.prepare(Message(topic="t", body=b"x", ordering_key="k"), 0) for _ in range(6)
    ]
    batches = [letters[:2], letters[2:4], letters[4:]]
    world.answers[BATCH] = in_turn(stores_the_batch, fails(ConnectionLost("gone")))
    outcomes = world.play(producer.send_in_order(batches, MessageQueue("t", "a", 0)))
    assert [type(outcome) for outcome in outcomes] == [
        *(SendResult, SendResult),
        *(ConnectionLost, ConnectionLost),
        *(NotSent, NotSent),
    ]
    assert len(world.calls_of(BATCH)) == 2


def refuses_odd_ones(call: Call) -> Command:
    """Answer as a broker does that takes a whole request for what one of its messages is."""
    if b"odd" in call.command.body:
        return reply(call.command, ResponseCode.MESSAGE_ILLEGAL, "too long")
    return stores_the_batch(call) if call.command.code == BATCH else says(ext=STORED)(call)


@pytest.mark.parametrize("key", ["", "k"])
def test_a_message_that_is_illegal_fails_none_that_was_sent_in_one_request_with_it(
    key: str,
) -> None:
    world, producer = world_of({"t": {"a": 1}})
    world.answers |= {BATCH: refuses_odd_ones, SEND: refuses_odd_ones}
    bodies = [b"1", b"2", b"odd", b"3"]
    letters = [producer.prepare(Message(topic="t", body=b, ordering_key=key), 0) for b in bodies]
    queue = MessageQueue("t", "a", 0) if key else None
    outcomes = world.play(producer.send_in_order([letters], queue))
    # In a queue that keeps an order nothing is sent behind one that failed.
    last = NotSent if key else SendResult
    expected = [SendResult, SendResult, Refused, last]
    assert [type(outcome) for outcome in outcomes] == expected
    assert len(world.calls_of(BATCH)) == 1


def test_a_reply_with_too_few_ids_is_not_believed() -> None:
    command = Command(code=0, ext_fields=STORED)
    with pytest.raises(ProtocolError, match="2 messages were sent, the broker reports 1"):
        read_batch_results(command, ["a", "b"], MessageQueue("t", "a", 0))


def test_a_one_way_message_asks_for_no_reply() -> None:
    world, producer = world_of({"t": {"a": 1}})
    world.play(producer.send_oneway(Message(topic="t", body=b"x")))
    (post,) = world.posts
    assert post.command.is_oneway
    assert world.calls_of(SEND) == []


def test_a_one_way_message_goes_to_another_broker_when_one_cannot_be_reached() -> None:
    world, producer = world_of(TWO_BROKERS)
    world.dead.add("a:10911")
    for _ in range(4):
        world.play(producer.send_oneway(Message(topic="t", body=b"x")))
    assert {post.address for post in world.posts} == {"b:10911"}
    assert len(world.posts) == 4
    assert world.waits == []


def test_a_one_way_message_of_a_key_waits_for_its_own_broker_and_gives_up_in_time() -> None:
    world, producer = world_of({"t": {"a": 1}})
    world.dead.add("a:10911")
    with pytest.raises(ConnectionLost, match="dead"):
        world.play(producer.send_oneway(Message(topic="t", body=b"x", ordering_key="k")))
    assert len(world.waits) == 2
    assert world.posts == []


@pytest.mark.parametrize(
    "settings",
    [
        {"producer_group": ""},
        {"request_timeout_seconds": 0},
        {"retries": -1},
        {"lock_renew_seconds": 30.0},
        {"pull_suspend_seconds": 40.0},
        {"body_bytes_max": 16 * 1024 * 1024},
        {"body_bytes_max": 1000, "batch_bytes_max": 1001},
        {"compress_from_bytes": 0},
        {"key_hash": "md5"},
        {"backoff_seconds_max": 0.0},
    ],
)
def test_settings_that_cannot_work_are_refused(settings: dict[str, object]) -> None:
    with pytest.raises(ConfigurationError):
        ClientSettings(**settings)  # type: ignore[arg-type]


def test_a_body_of_text_is_refused_with_the_type_that_is_needed() -> None:
    message = Message(topic="t", body="text")  # type: ignore[arg-type]

    with pytest.raises(MessageRefused, match="of type str, it must be bytes"):
        check_message(message)
