"""The short way of signed sends: it says yes where the general way does, and nothing else."""

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.access.access_world import ROOT, AccessWorld, is_let_in, signed
from tests.broker_core.broker_world import TOPIC, connection

from reliable_mq.wire.codes import RequestCode as Ask
from reliable_mq.wire.codes import ResponseCode as Code
from reliable_mq.wire.command import Command, decode_command, encode_command, request
from reliable_mq.wire.frame import Frame, FrameReader
from reliable_mq.wire.headers import SendMessageHeaderV2
from reliable_mq.wire.request_signature import (
    SIGNATURE,
    RequestSigner,
    add_signature,
    content_of_send,
)
from reliable_mq.wire.signed_send import SignedSend, decode_signed_request

SEND = Ask.SEND_MESSAGE_V2
# As Apache's client 5.4 sends it.
JAVA = {
    "a": "producers",
    "b": TOPIC,
    "c": "TBW102",
    "d": "4",
    "e": "0",
    "f": "0",
    "g": "1764384000000",
    "h": "0",
    "i": "UNIQ_KEY\x017F00\x02WAIT\x01true\x02",
    "j": "0",
    "k": "false",
    "m": "false",
    "n": "broker-a",
}
NUMBERS = st.integers(-(2**31), 2**31 - 1).map(str)
BOOLS = st.sampled_from(["true", "false"])
FIELDS = st.fixed_dictionaries(
    {
        **dict.fromkeys("abc", st.text(max_size=6)),
        **dict.fromkeys("defh", NUMBERS),
        "g": st.integers(-(2**63), 2**63 - 1).map(str),
    },
    optional={
        **dict.fromkeys("in", st.text(max_size=9)),
        **dict.fromkeys("jl", NUMBERS),
        **dict.fromkeys("km", BOOLS),
    },
)


def frame_of(command: Command) -> Frame:
    (frame,) = FrameReader().feed(encode_command(command))
    return frame


def decoded(fields: dict[str, str]) -> Command:
    command = request(SEND, fields, b"x")
    add_signature(command, "joe", "secret")
    return decode_signed_request(frame_of(command))


@pytest.fixture
def world() -> AccessWorld:
    """A broker whose user joe has sent to the topic already."""
    world = AccessWorld()
    world.create_topic_as_root()
    world.make_user("joe")
    world.allow("joe", f"Topic:{TOPIC}", actions=["Pub"])
    assert send(world).code == Code.SUCCESS
    return world


def send(world: AccessWorld, **changes: str) -> Command:
    return world.ask_as("joe", SEND, {**JAVA, **changes}, b"x")


def general_ways(monkeypatch: pytest.MonkeyPatch) -> list[Command]:
    """Return a list that gets every send that the short way leaves to the general one."""
    left: list[Command] = []
    whole: Callable[[SignedSend], Command] = SignedSend.in_general

    def in_general(command: SignedSend) -> Command:
        left.append(command)
        return whole(command)

    monkeypatch.setattr(SignedSend, "in_general", in_general)
    return left


@given(FIELDS)
def test_what_is_signed_of_a_send_is_the_same_as_in_general(fields: dict[str, str]) -> None:
    command = decoded(fields)

    assert type(command) is SignedSend
    header = command.send_header
    made = RequestSigner(b"secret").of_content(content_of_send(header), b"x")
    assert made.decode() == header.signature
    general = command.in_general()
    assert SendMessageHeaderV2.decode(general.ext_fields) == SendMessageHeaderV2.decode(fields)
    as_texts = {name: value for name, value in fields.items() if value or name not in "in"}
    seen = {name: value for name, value in header.to_ext().items() if name in as_texts}
    assert seen == as_texts


def test_a_signed_send_has_the_bytes_of_its_frame() -> None:
    command = request(SEND, JAVA, b"x")
    command.opaque = 7
    add_signature(command, "joe", "secret")
    frame = frame_of(command)

    found = decode_signed_request(frame)

    assert type(found) is SignedSend
    assert (found.opaque, found.body, found.ext_fields) == (7, b"x", {})
    assert found.in_general() == decode_command(frame)


@pytest.mark.parametrize("field", ["SecurityToken", "ns", "o", "topic"])
def test_a_send_with_another_field_goes_the_general_way(field: str) -> None:
    found = decoded({**JAVA, field: "x"})

    assert type(found) is Command
    assert found.ext_fields[field] == "x"


def test_a_send_without_a_signature_goes_the_general_way() -> None:
    found = decode_signed_request(frame_of(request(SEND, JAVA)))
    assert (type(found), found.ext_fields) == (Command, JAVA)


def test_the_second_send_of_a_user_goes_the_short_way(
    world: AccessWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert world.ask_as(ROOT, SEND, JAVA, b"x").code == Code.SUCCESS
    left = general_ways(monkeypatch)
    assert send(world, e="-1").code == Code.SUCCESS
    assert world.ask_as(ROOT, SEND, JAVA, b"x").code == Code.SUCCESS
    assert left == []


def test_names_that_no_topic_has_are_not_kept(world: AccessWorld) -> None:
    world.make_user("all")
    world.allow("all", "Topic:*")
    kept = len(world.state.access.senders)
    for number in range(5):
        world.ask_as("all", SEND, {**JAVA, "b": "x" * 10_000 + str(number)}, b"x")
    assert len(world.state.access.senders) <= kept


@pytest.mark.parametrize("odd", [{"d": "04"}, {"e": "-0"}, {"j": "00"}, {"g": "01"}])
def test_a_number_that_java_would_not_write_so_is_signed_as_it_was_sent(
    world: AccessWorld, odd: dict[str, str]
) -> None:
    answer = send(world, **odd)
    expected = AccessWorld()
    expected.create_topic_as_root()
    assert answer.code == expected.ask_as(ROOT, SEND, {**JAVA, **odd}, b"x").code
    assert is_let_in(answer)


@pytest.mark.parametrize("name", [*sorted(JAVA.keys() - {"i"}), "AccessKey", SIGNATURE])
def test_a_field_that_was_changed_after_the_signature_is_refused(
    world: AccessWorld, name: str
) -> None:
    world.make_user("joe1")
    fields = signed("joe", SEND, JAVA, b"x")
    value = fields[name]
    other = {"true": "false", "false": "true"}.get(value, f"{value}1")
    end = world.state.store.log.end

    answer = world.ask(SEND, {**fields, name: other}, b"x")

    assert (answer.code, answer.remark) == (Code.NO_PERMISSION, "check signature failed.")
    assert not is_let_in(world.ask(SEND, fields, b"y")), "another body"
    assert world.state.store.log.end == end


def test_signatures_are_compared_in_constant_time(
    world: AccessWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    compared = []

    def noted(made: bytes, given: bytes) -> bool:
        compared.append(given)
        return False

    monkeypatch.setattr("reliable_mq.access.guard.hmac.compare_digest", noted)
    assert send(world).remark == "check signature failed."
    assert len(compared) == 2, "in the short way, then in the general one"


def test_a_change_of_a_user_or_a_policy_counts_for_the_next_send(world: AccessWorld) -> None:
    world.put_policy("joe", [f"Topic:{TOPIC}"], ["Pub"], decision="Deny")
    assert "the decision is deny" in (send(world).remark or "")
    world.allow("joe", f"Topic:{TOPIC}", actions=["Pub"])
    assert is_let_in(send(world))
    assert is_let_in(send(world))

    world.change_user("joe", password="another one")
    assert send(world).remark == "check signature failed."
    world.change_user("joe", password="a secret of joe")
    assert is_let_in(send(world))

    world.change_user("joe", userStatus="disable")
    assert send(world).remark == "User:joe is disabled."
    world.ask_as(ROOT, Ask.AUTH_DELETE_USER, {"username": "joe"})
    assert send(world).remark == "User:joe is not found."


def test_a_captured_request_can_be_sent_again(world: AccessWorld) -> None:
    """Only TLS prevents it; the page about security says so."""
    captured = signed("joe", SEND, JAVA, b"x")
    end = world.state.store.log.end
    for _ in range(2):
        assert world.ask(SEND, captured, b"x", of=2).code == Code.SUCCESS
    assert world.state.store.log.end > end


def test_a_send_from_another_address_is_decided_anew(world: AccessWorld) -> None:
    here = connection(1).address.rpartition(":")[0]
    world.put_policy("joe", [f"Topic:{TOPIC}"], ["Pub"], ips=[here])
    assert is_let_in(send(world))
    assert is_let_in(send(world))

    far = connection(1).__class__(9, b"\x0a\x09\x09\x09\x00\x00\x10\x00", "10.9.9.9:4096")
    fields = signed("joe", SEND, {**JAVA}, b"x")
    world.core.receive(far, world.core.decode(frame_of(request(SEND, fields, b"x"))), world.now_ms)
    world.finish_turn()
    (answer,) = world.inbox.pop(9)
    assert "from 10.9.9.9, no matched policies" in (answer.remark or "")


def test_a_topic_of_a_batch_is_decided_for_batches(world: AccessWorld) -> None:
    """What is kept has the code: what may be sent alone is asked again for a batch."""
    kept = len(world.state.access.senders)
    world.ask_as("joe", Ask.SEND_BATCH_MESSAGE, JAVA, b"")
    assert len(world.state.access.senders) == kept + 1
