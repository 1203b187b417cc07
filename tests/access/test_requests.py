"""A broker with access control: who may do what."""

import logging

import pytest
from tests.access.access_world import ROOT, SECRET, AccessWorld, is_let_in, secret_of
from tests.broker_core.broker_world import (
    GROUP,
    TOPIC,
    BrokerWorld,
    connection,
    heartbeat,
    pull_header,
    send_header,
)

from reliable_mq.broker_core.requests.handlers import HANDLERS
from reliable_mq.line_limit import LINES_A_MINUTE, TEXTS_MAX, LineLimit
from reliable_mq.wire.codes import RequestCode as Ask
from reliable_mq.wire.codes import ResponseCode as Code
from reliable_mq.wire.command import decode_request, encode_command, request
from reliable_mq.wire.frame import JSON, ROCKETMQ, Frame, FrameReader
from reliable_mq.wire.request_signature import SIGNATURE, add_signature

SEND = Ask.SEND_MESSAGE_V2


@pytest.fixture
def world() -> AccessWorld:
    world = AccessWorld()
    world.make_user("joe")
    return world


def test_who_does_not_sign_gets_nothing(world: AccessWorld) -> None:
    end = world.state.store.log.end
    for code in (SEND, Ask.GET_BROKER_CONFIG, Ask.HEART_BEAT, 99_999):
        answer = world.ask(code, send_header(), b"x")
        assert (answer.code, answer.remark) == (Code.NO_PERMISSION, "username cannot be null.")
    assert world.state.store.log.end == end


def test_the_refusals_of_authentication_are_apaches(world: AccessWorld) -> None:
    def remark(user: str, secret: str = "") -> str | None:
        answer = world.ask_as(user, SEND, send_header(), b"x", secret=secret)
        assert answer.code == Code.NO_PERMISSION
        return answer.remark

    assert remark("nobody") == "User:nobody is not found."
    assert remark(ROOT, "another secret") == "check signature failed."
    world.change_user("joe", userStatus="disable")
    assert remark("joe") == "User:joe is disabled."
    assert remark("joe", "another secret") == "User:joe is disabled."


def test_an_address_with_a_wrong_secret_is_told_once_a_minute_and_hides_no_other_refusal(
    world: AccessWorld, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING, logger="reliable_mq"):
        for code in (SEND, Ask.HEART_BEAT, Ask.PULL_MESSAGE) * 30:
            world.ask_as(ROOT, code, send_header(), b"x", secret="another secret")
        world.ask_as("joe", SEND, send_header(), b"x")

    told = [record.getMessage() for record in caplog.records]
    assert len(told) == 2, told
    assert told[0].endswith("is refused: check signature failed.")
    assert "User:joe has no permission" in told[1]


def test_refusals_of_many_addresses_are_counted_together_and_do_not_fill_the_memory() -> None:
    limit = LineLimit(1, lambda record: str(record.args))
    lines = [
        logging.makeLogRecord({"msg": "%s", "args": (number,), "levelno": logging.WARNING})
        for number in range(1_000)
    ]

    assert sum(limit.filter(line) for line in lines) <= TEXTS_MAX + LINES_A_MINUTE
    assert len(limit._counts) <= TEXTS_MAX + 1


def test_a_changed_field_body_or_order_breaks_the_signature(world: AccessWorld) -> None:
    command = request(SEND, {k: str(v) for k, v in send_header().items() if v is not None}, b"x")
    add_signature(command, ROOT, SECRET)
    fields = command.ext_fields

    assert world.ask(SEND, fields, b"x").code == Code.SUCCESS
    backwards = dict(reversed(fields.items()))
    assert world.ask(SEND, backwards, b"x").code == Code.SUCCESS, "the order does not matter"
    for changed in (
        {**fields, "b": "other"},
        {**fields, "more": "1"},
        {name: value for name, value in fields.items() if name != "h"},
        {**fields, SIGNATURE: ""},
        {**fields, SIGNATURE: fields[SIGNATURE].lower()},
        {**fields, SIGNATURE: "ä"},
    ):
        assert world.ask(SEND, changed, b"x").remark == "check signature failed."
    assert world.ask(SEND, fields, b"y").remark == "check signature failed."


def test_a_one_way_request_that_is_refused_stores_nothing(world: AccessWorld) -> None:
    end = world.state.store.log.end
    assert world.begin(SEND, send_header(), b"x", oneway=True) is None
    assert world.state.store.log.end == end


def test_a_user_without_policies_may_do_nothing(world: AccessWorld) -> None:
    answer = world.ask_as("joe", SEND, send_header(), b"x")
    assert answer.code == Code.NO_PERMISSION
    assert answer.remark == (
        "User:joe has no permission to access Topic:orders from 10.0.0.1, no matched policies."
    )


def test_a_policy_allows_and_another_one_denies_again(world: AccessWorld) -> None:
    world.allow("joe", "Topic:*", actions=["Pub"])
    assert world.ask_as("joe", SEND, send_header(), b"x").code == Code.SUCCESS

    world.put_policy("joe", ["Topic:orders"], ["Pub"], decision="Deny")
    answer = world.ask_as("joe", SEND, send_header(), b"x")
    assert answer.remark == (
        "User:joe has no permission to access Topic:orders from 10.0.0.1, the decision is deny."
    )
    assert world.ask_as("joe", SEND, send_header("other"), b"x").code == Code.SUCCESS


def test_each_change_takes_effect_at_the_next_request(world: AccessWorld) -> None:
    def send() -> bool:
        return is_let_in(world.ask_as("joe", SEND, send_header(), b"x"))

    world.allow("joe", "Topic:orders")
    assert send()
    world.ask_as(ROOT, Ask.AUTH_DELETE_ACL, {"subject": "User:joe", "resource": "Topic:orders"})
    assert not send()
    world.allow("joe", "Topic:orders")
    assert send()
    world.change_user("joe", userStatus="disable")
    assert not send()
    world.change_user("joe", userStatus="enable")
    assert send()
    world.change_user("joe", password="a new secret")
    assert not send()
    world.ask_as(ROOT, Ask.AUTH_DELETE_USER, {"username": "joe"})
    world.make_user("joe")
    assert not send(), "the policies went with the user"


def test_a_policy_for_an_address_is_for_this_address(world: AccessWorld) -> None:
    world.put_policy("joe", ["Topic:orders"], ["Pub"], ips=["192.0.2.0/24"])
    assert not is_let_in(world.ask_as("joe", SEND, send_header(), b"x"))
    world.put_policy("joe", ["Topic:orders"], ["Pub"], ips=["10.0.0.0/8"])
    assert is_let_in(world.ask_as("joe", SEND, send_header(), b"x"))


def test_a_pull_needs_the_topic_and_the_group(world: AccessWorld) -> None:
    world.create_topic_as_root()
    for resource in (f"Topic:{TOPIC}", f"Group:{GROUP}"):
        assert not is_let_in(world.ask_as("joe", Ask.PULL_MESSAGE, pull_header()))
        world.allow("joe", resource, actions=["Sub"])
    assert is_let_in(world.ask_as("joe", Ask.PULL_MESSAGE, pull_header()))


@pytest.mark.parametrize("code", [Ask.PULL_MESSAGE, Ask.LITE_PULL_MESSAGE])
def test_the_retry_topic_of_another_group_cannot_be_pulled(world: AccessWorld, code: int) -> None:
    world.allow("joe", f"Group:{GROUP}", actions=["Sub"])

    own = world.ask_as("joe", code, pull_header(topic=f"%RETRY%{GROUP}"))
    other = world.ask_as("joe", code, pull_header(topic="%RETRY%others"))

    assert is_let_in(own)
    assert not is_let_in(other)


def test_a_send_to_a_retry_topic_needs_its_group(world: AccessWorld) -> None:
    world.allow("joe", "Group:mine", actions=["Sub"])

    def send(group: str) -> bool:
        header = {**send_header(f"%RETRY%{group}"), "a": "mine"}
        return is_let_in(world.ask_as("joe", SEND, header, b"x"))

    assert send("mine")
    assert not send("others")


def test_a_heartbeat_needs_each_group_and_each_topic(world: AccessWorld) -> None:
    body = heartbeat("one", "two", of=1, group="g")
    for resource in ("Group:g", "Topic:one", "Topic:two"):
        assert not is_let_in(world.ask_as("joe", Ask.HEART_BEAT, {}, body))
        world.allow("joe", resource, actions=["Sub"])
    assert is_let_in(world.ask_as("joe", Ask.HEART_BEAT, {}, body))


def test_a_producer_may_send_heartbeats(world: AccessWorld) -> None:
    body = b'{"clientID":"c","producerDataSet":[{"groupName":"p"}],"consumerDataSet":[]}'
    assert world.ask_as("joe", Ask.HEART_BEAT, {}, body).code == Code.SUCCESS


@pytest.mark.parametrize(
    "body",
    [
        b"{",
        b"[]",
        b'{"consumerDataSet":7}',
        b'{"consumerDataSet":[7]}',
        b'{"consumerDataSet":[{}]}',
        b'{"consumerDataSet":[{"groupName":7}]}',
        b'{"consumerDataSet":[{"groupName":"g","subscriptionDataSet":[{"topic":["a"]}]}]}',
    ],
)
def test_a_body_that_cannot_be_read_is_refused(world: AccessWorld, body: bytes) -> None:
    world.allow("joe", "Group:g")
    assert not is_let_in(world.ask_as("joe", Ask.HEART_BEAT, {}, body))


def test_a_name_that_a_header_has_twice_is_read_once(world: AccessWorld) -> None:
    """The guard and the handler see the same topic: a typed header would be read on its own."""
    world.allow("joe", "Topic:open")
    command = request(SEND, {k: str(v) for k, v in send_header("open").items() if v is not None})
    add_signature(command, "joe", secret_of("joe"))
    (frame,) = FrameReader().feed(encode_command(command))
    for more in (b'"b":"forbidden",', b'"b":"open","b":"forbidden",'):
        header = frame.header.replace(b'"b":"open",', more)
        assert header != frame.header
        world.core.receive(connection(1), world.core.decode(Frame(JSON, header, b"")), 0)
        world.finish_turn()
        (answer,) = world.inbox.pop(1)
        assert answer.remark == "check signature failed."
    assert world.records("forbidden") == []


def test_a_message_cannot_be_read_by_its_place_without_its_topic(world: AccessWorld) -> None:
    world.create_topic_as_root("secret")
    world.ask_as(ROOT, SEND, send_header("secret"), b"a secret message")
    world.create_topic_as_root("open")
    world.allow("joe", "Topic:open", "Group:g")
    fields: dict[str, object] = {"offset": 0}

    assert not is_let_in(world.ask_as("joe", Ask.VIEW_MESSAGE_BY_ID, fields))


def test_codes_of_a_whitelist_are_not_checked() -> None:
    world = AccessWorld(authenticationWhitelist="30, 31", authorizationWhitelist="30,31,26")
    world.make_user("joe")

    assert is_let_in(world.ask(Ask.GET_MAX_OFFSET, {"topic": TOPIC, "queueId": 0}))
    assert not is_let_in(world.ask(Ask.GET_EARLIEST_MSG_STORETIME, {"topic": TOPIC, "queueId": 0}))
    assert is_let_in(world.ask_as("joe", Ask.GET_BROKER_CONFIG, {}))
    forged = {"topic": TOPIC, "queueId": 0, "AccessKey": ROOT, SIGNATURE: "x"}
    assert not is_let_in(world.ask(Ask.GET_MAX_OFFSET, forged)), "a claim is always checked"


def test_whoever_is_not_known_is_not_authorized_either() -> None:
    world = AccessWorld(authenticationWhitelist="30")
    answer = world.ask(Ask.GET_MAX_OFFSET, {"topic": TOPIC, "queueId": 0})
    assert answer.code == Code.NO_PERMISSION
    assert (answer.remark or "").startswith("Authorization failed.")


def test_authentication_alone_lets_every_known_user_do_everything() -> None:
    world = AccessWorld(authorizationEnabled="false")
    world.make_user("joe")
    assert world.ask_as("joe", SEND, send_header(), b"x").code == Code.SUCCESS
    assert not is_let_in(world.ask(SEND, send_header(), b"x"))


def test_an_old_client_that_adds_a_flag_after_signing_is_known(world: AccessWorld) -> None:
    """Apache: up to V4_9_3, _UNIQUE_KEY_QUERY was not part of the signature."""
    fields = {"topic": TOPIC, "key": "k", "maxNum": "32", "beginTimestamp": "0"}
    command = request(Ask.QUERY_MESSAGE, {**fields, "endTimestamp": "1"})
    add_signature(command, ROOT, SECRET)
    late = {**command.ext_fields, "_UNIQUE_KEY_QUERY": "true"}

    assert is_let_in(world.ask(Ask.QUERY_MESSAGE, late, version=399))
    assert not is_let_in(world.ask(Ask.QUERY_MESSAGE, late, version=401))


@pytest.mark.parametrize("format_of_header", [JSON, ROCKETMQ])
def test_both_formats_of_a_header_are_signed_alike(
    world: AccessWorld, format_of_header: int
) -> None:
    fields = {name: str(value) for name, value in send_header().items() if value is not None}
    for secret, code in ((SECRET, Code.SUCCESS), ("wrong", Code.NO_PERMISSION)):
        command = request(SEND, fields, b"x")
        command.serialize_type = format_of_header
        add_signature(command, ROOT, secret)
        (frame,) = FrameReader().feed(encode_command(command))
        world.core.receive(connection(1), world.core.decode(frame), world.now_ms)
        world.finish_turn()
        (answer,) = world.inbox.pop(1)
        assert answer.code == code


def test_without_access_control_nothing_is_wrapped() -> None:
    world = BrokerWorld()
    assert world.state.guard is None
    assert world.core.decode is decode_request
    assert world.core._serving.handler_of == HANDLERS.get


def test_a_decision_is_kept_only_while_names_are_short(world: AccessWorld) -> None:
    world.allow("joe", "Topic:*")
    for number in range(50):
        world.ask_as("joe", SEND, send_header("x" * 10_000 + str(number)), b"x")
    assert len(world.state.access.decided) < 5
    assert world.ask_as("joe", SEND, send_header(), b"x").code == Code.SUCCESS
    assert world.state.access.decided


@pytest.mark.parametrize("code", [Ask.ACK_MESSAGE, Ask.CHANGE_MESSAGE_INVISIBLETIME])
@pytest.mark.parametrize("separator", ["_", "+"])
def test_a_message_that_came_back_belongs_to_its_group_and_topic(code: int, separator: str) -> None:
    """Apache asks for a group that is named like the rest of the retry topic."""
    world = AccessWorld()
    world.make_user("joe")
    world.allow("joe", "Topic:t", "Group:g", actions=["Sub"])
    ext = {"consumerGroup": "g", "queueId": "0", "offset": "0", "extraInfo": "x"}

    assert is_let_in(world.ask_as("joe", code, {**ext, "topic": f"%RETRY%g{separator}t"}))
    for name in (f"%RETRY%g{separator}other", f"%RETRY%h{separator}t", "%RETRY%h"):
        assert not is_let_in(world.ask_as("joe", code, {**ext, "topic": name}))
