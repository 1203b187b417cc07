"""Request and reply: the broker brings a reply to the client that asked."""

import errno

import pytest
from tests.broker_core.broker_world import BrokerWorld, connection, send_header
from tests.broker_core.half_world import produce

from reliable_mq.errors import MessageRefused, StoreError
from reliable_mq.wire.codes import RequestCode, ResponseCode
from reliable_mq.wire.command import Command, reply
from reliable_mq.wire.properties import decode_properties

TOPIC = "DefaultCluster_REPLY_TOPIC"
ASKER, RESPONDER = 1, 2


@pytest.fixture
def world(world: BrokerWorld) -> BrokerWorld:
    produce(world, of=ASKER)
    return world


def replying(to: str | None = "client-1", **changes: object) -> dict[str, object]:
    named = {} if to is None else {"REPLY_TO_CLIENT": to}
    return {**send_header(TOPIC, 0, CORRELATION_ID="7", **named), "f": 1, **changes}


def respond(world: BrokerWorld, header: dict[str, object]) -> Command | None:
    return world.begin(RequestCode.SEND_REPLY_MESSAGE_V2, header, b"answer", of=RESPONDER)


def pushed(world: BrokerWorld) -> Command:
    (command,) = world.notices(ASKER)
    assert command.code == RequestCode.PUSH_REPLY_MESSAGE_TO_CLIENT
    return command


def take(world: BrokerWorld, push: Command, code: int = 0) -> None:
    """Let the asker answer the broker."""
    world.core.receive(connection(ASKER), reply(push, code), world.now_ms)
    world.finish_turn()


def test_a_reply_is_pushed_to_the_asker_and_then_acknowledged_and_kept(world: BrokerWorld) -> None:
    assert respond(world, replying()) is None
    opaque = world.last_opaque
    push = pushed(world)
    assert push.body == b"answer"
    assert push.ext_fields["sysFlag"] == "1"
    assert push.ext_fields["bornHost"] == "10.0.0.1:2"
    named = decode_properties(push.ext_fields["properties"])
    assert named["CORRELATION_ID"] == "7"
    assert named["PUSH_REPLY_TIME"] == str(world.now_ms)
    assert not push.is_oneway
    take(world, push)
    answer = world.reply_to(opaque, of=RESPONDER)
    assert answer is not None
    assert (answer.code, answer.ext_fields["queueOffset"]) == (0, "0")
    (kept,) = world.records(TOPIC)
    assert (kept.body, kept.sys_flag) == (b"answer", 1)
    assert "PUSH_REPLY_TIME" not in kept.property_map()


def test_the_old_form_of_a_reply_is_understood(world: BrokerWorld) -> None:
    header = replying()
    names = dict(
        zip(
            "abcdefghi",
            (
                *("producerGroup", "topic", "defaultTopic", "defaultTopicQueueNums", "queueId"),
                *("sysFlag", "bornTimestamp", "flag", "properties"),
            ),
            strict=True,
        )
    )
    old = {names[letter]: value for letter, value in header.items()}
    world.begin(RequestCode.SEND_REPLY_MESSAGE, old, b"answer", of=RESPONDER)
    assert pushed(world).body == b"answer"


@pytest.mark.parametrize(
    ("to", "remark"),
    [
        ("nobody", "push reply message fail, channel of <nobody> not found."),
        (None, "reply message properties[REPLY_TO_CLIENT] is null"),
    ],
)
def test_a_reply_that_reaches_nobody_is_kept_and_says_so(
    world: BrokerWorld, to: str | None, remark: str
) -> None:
    answer = respond(world, replying(to))
    assert answer is not None
    assert (answer.code, answer.remark) == (ResponseCode.SYSTEM_ERROR, remark)
    assert [record.body for record in world.records(TOPIC)] == [b"answer"]


@pytest.mark.parametrize("how", ["refuses", "leaves", "is silent"])
def test_an_asker_that_does_not_take_its_reply_is_a_failure(world: BrokerWorld, how: str) -> None:
    respond(world, replying())
    opaque = world.last_opaque
    if how == "refuses":
        take(world, pushed(world), code=1)
    elif how == "leaves":
        world.core.disconnected(ASKER)
        world.finish_turn()
    else:
        world.pass_time(11_000, step=1_000)
    answer = world.reply_to(opaque, of=RESPONDER)
    assert answer is not None
    assert answer.code == ResponseCode.SYSTEM_ERROR
    assert answer.remark == "push reply message to client-1fail."


def test_replies_need_not_be_kept() -> None:
    world = BrokerWorld(storeReplyMessageEnable="false")
    produce(world, of=ASKER)
    respond(world, replying())
    opaque = world.last_opaque
    take(world, pushed(world))
    answer = world.reply_to(opaque, of=RESPONDER)
    assert answer is not None
    assert (answer.code, answer.ext_fields["msgId"]) == (0, "0")
    assert world.records(TOPIC) == []


def test_a_reply_to_a_queue_that_is_not_there_is_refused(world: BrokerWorld) -> None:
    answer = respond(world, replying(e=1))
    assert answer is not None
    assert answer.code == ResponseCode.INVALID_PARAMETER
    assert world.records(TOPIC) == []


def test_a_client_is_found_as_long_as_one_of_its_producers_is_registered(
    world: BrokerWorld,
) -> None:
    clients = world.state.clients
    produce(world, of=ASKER, group="more")
    clients.unregister_producer("more", ASKER)
    assert clients.find_producer("client-1") == ASKER
    world.core.disconnected(ASKER)
    assert clients.find_producer("client-1") is None
    clients.invariants()


@pytest.mark.parametrize("how", ["answered", "late", "gone"])
@pytest.mark.parametrize(
    "fault", [MessageRefused("too long"), OSError(errno.ENOSPC, "No space left on device")]
)
def test_who_replied_is_told_how_it_went_though_the_reply_cannot_be_kept(
    world: BrokerWorld, monkeypatch: pytest.MonkeyPatch, how: str, fault: Exception
) -> None:
    assert respond(world, replying()) is None
    opaque = world.last_opaque
    push = pushed(world)

    def refuse(_message: object, _now_ms: int) -> None:
        if isinstance(fault, OSError):
            raise StoreError("commitlog") from fault
        raise fault

    monkeypatch.setattr(world.state, "append", refuse)

    if how == "answered":
        take(world, push)
    elif how == "late":
        world.pass_time(20_000)
    else:
        world.core.disconnected(ASKER)
        world.finish_turn()

    answer = world.reply_to(opaque, of=RESPONDER)
    assert answer is not None
    assert (answer.code == ResponseCode.SUCCESS) == (how == "answered")
    assert world.records(TOPIC) == []
