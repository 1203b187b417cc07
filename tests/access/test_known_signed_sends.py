"""Signed sends of a known shape: admitted, refused and stored as the general way does each."""

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.access.access_world import ROOT, AccessWorld, secret_of
from tests.broker_core.broker_world import START_MS, TOPIC
from tests.broker_core.test_known_sends import KEYS, PROPERTIES
from tests.broker_core.two_sides import KEY, LONG, NARROW, QUEUES, Side, columns_from, send_command

from reliable_mq.wire.codes import RequestCode
from reliable_mq.wire.command import decode_command, encode_command, request
from reliable_mq.wire.frame import JSON, ROCKETMQ, Frame, FrameReader
from reliable_mq.wire.known_send import shape_of
from reliable_mq.wire.request_signature import ACCESS_KEY, SIGNATURE, add_signature

SIGNS_ONLY = {"authorizationEnabled": "false"}
WORLDS: tuple[dict[str, str], ...] = (
    {},
    SIGNS_ONLY,
    {"authenticationWhitelist": "310"},
    {"authorizationWhitelist": "310"},
)
GROUPS = (50, 50), (50, 50, 50), (50, 51, 50, 52), (50, 50, 50, 50)  # bodies of one read
JAVA, OURS, FIRST = "java", "ours", "first"  # where a client puts the two fields


class SignedWorld(AccessWorld):
    """A broker whose users joe and ann may send to some topics."""

    def create_topic(self, name: str = TOPIC, queues: int = 1, perm: int = 6) -> None:
        fields = {"topic": name, "readQueueNums": queues, "writeQueueNums": queues, "perm": perm}
        assert self.ask_as(ROOT, RequestCode.UPDATE_AND_CREATE_TOPIC, fields).code == 0


class SignedSide(Side):
    """A broker that recognises signed sends, or decodes and checks each in general."""

    general = staticmethod(decode_command)

    def __init__(self, *, knows: bool, **properties: str) -> None:
        super().__init__(knows=knows, **properties)
        for name in ("joe", "ann"):
            self.world.make_user(name)  # type: ignore[attr-defined]
            for topic in (TOPIC, NARROW):
                self.world.allow(name, f"Topic:{topic}", actions=["Pub"])  # type: ignore[attr-defined]

    def new_world(self, properties: dict[str, str]) -> SignedWorld:
        """Return a broker with access control."""
        return SignedWorld(None, **properties)

    def seen(self) -> dict[str, object]:
        """Return everything that a send may change, with what was refused."""
        guard = self.world.state.guard
        assert guard is not None
        return {**super().seen(), "not admitted": guard.refused}


def placed(fields: Mapping[str, str], order: str) -> dict[str, str]:
    """Return the fields in the order in which a client writes them."""
    own = {name: value for name, value in fields.items() if name not in (ACCESS_KEY, SIGNATURE)}
    two = {name: fields[name] for name in (SIGNATURE, ACCESS_KEY) if name in fields}
    if order == FIRST:
        return {**two, **own}
    return {**own, **(two if order == JAVA else dict(reversed(two.items())))}


def signed_frame(
    opaque: int = 100,
    *,
    user: str = "joe",
    secret: str = "",
    order: str = JAVA,
    spoilt: str = "",
    **fields: Any,
) -> bytes:
    """Return a `send_command` that is signed, as Apache's Java client writes it.

    `spoilt`: what is changed after it was signed: "body", a field, or the "=" of the signature.
    """
    command = send_command(opaque, **fields)
    if user:
        add_signature(command, user, secret or secret_of(user))
    command.ext_fields = placed(command.ext_fields, order)
    if spoilt == "body":
        command.body += b"?"
    elif spoilt:
        name = SIGNATURE if spoilt == "=" else spoilt
        value = command.ext_fields[name]
        at = len(value) - (2 if spoilt == SIGNATURE else 1)
        other = "A" if value[at] in "=123456789" else "1"
        command.ext_fields[name] = value[:at] + (other if spoilt != "e" else "4") + value[at + 1 :]
    return encode_command(command)


def alike(
    count: int, kind: int = JSON, begin: int = 0, *, size: int = 50, **changes: Any
) -> list[bytes]:
    """Return signed sends that differ only where those of one client do."""
    return [
        signed_frame(
            100 + n,
            kind=kind,
            body=b"%d" % n * size,
            **{
                "e": str(n % 10),
                "g": str(START_MS + n),
                "i": f"UNIQ_KEY\x01{KEY}{n % 16:X}\x02TAGS\x01t\x02",
                **changes,
            },
        )
        for n in range(begin, begin + count)
    ]


def as_root(code: int, body: bytes = b"", **fields: object) -> bytes:
    """Return a request of the super user."""
    command = request(code, {name: str(value) for name, value in fields.items()}, body)
    add_signature(command, ROOT, secret_of(ROOT))
    return encode_command(command)


def user_change(**row: object) -> bytes:
    body = msgspec.json.encode({"username": "joe", **row})
    return as_root(RequestCode.AUTH_UPDATE_USER, body, username="joe")


def policy(decision: str, ips: Sequence[str] | None = None, topic: str = TOPIC) -> bytes:
    entry = {
        "resource": f"Topic:{topic}",
        "actions": ["Pub"],
        "decision": decision,
        "sourceIps": ips,
    }
    body = msgspec.json.encode({"subject": "User:joe", "policies": [{"entries": [entry]}]})
    return as_root(RequestCode.AUTH_CREATE_ACL, body, subject="User:joe")


def topic_change(perm: int, queues: int) -> bytes:
    return as_root(
        RequestCode.UPDATE_AND_CREATE_TOPIC,
        topic=TOPIC,
        readQueueNums=queues,
        writeQueueNums=queues,
        perm=perm,
    )


def setting(text: bytes) -> bytes:
    return as_root(RequestCode.UPDATE_BROKER_CONFIG, text)


CHANGES: dict[str, bytes] = {
    "another secret": user_change(password="another secret"),
    "the same secret": user_change(password=secret_of("joe")),
    "disabled": user_change(userStatus="disable"),
    "enabled": user_change(userStatus="enable"),
    "a super user": user_change(userType="Super"),
    "a normal user": user_change(userType="Normal"),
    "deleted": as_root(RequestCode.AUTH_DELETE_USER, username="joe"),
    "created": as_root(
        RequestCode.AUTH_CREATE_USER,
        msgspec.json.encode({"username": "joe", "password": secret_of("joe")}),
        username="joe",
    ),
    "denied": policy("Deny"),
    "allowed": policy("Allow"),
    "allowed elsewhere": policy("Allow", ["10.9.9.9"]),
    "no policies": as_root(
        RequestCode.AUTH_DELETE_ACL, subject="User:joe", resource="", policyType=""
    ),
    "no policy": as_root(
        RequestCode.AUTH_DELETE_ACL, subject="User:joe", resource=f"Topic:{TOPIC}"
    ),
    "read only": topic_change(4, QUEUES),
    "fewer queues": topic_change(6, 2),
    "no topic": as_root(RequestCode.DELETE_TOPIC_IN_BROKER, topic=TOPIC),
    "small": setting(b"maxMessageSize=40\n"),
    "quota of users": setting(b"maxMessagesPerSecondOfUser=3\n"),
}

SPOILT: tuple[dict[str, Any], ...] = (
    {"secret": "not the secret"},
    {"user": "ann"},
    {"user": "nobody"},
    {"user": ""},
    {"spoilt": SIGNATURE},
    {"spoilt": "="},
    {"spoilt": "body"},
    {"spoilt": "e"},
    {"spoilt": "i"},
    {"spoilt": ACCESS_KEY},
    {"b": LONG},
    {"b": NARROW, "e": "0"},
    {"code": 320},
    {"flag": 2},
    {"m": "true"},
    {"SecurityToken": "t"},
    {"i": f"TAGS\x01é€𝄞\x02UNIQ_KEY\x01{KEY}0\x02"},
    {"i": f"UNIQ_KEY\x01{KEY}0\x02Signature\x01{'A' * 27}=\x02"},
    {"n": f'Signature":"{"A" * 27}="'},
)


def broken(frame: bytes, at: int, byte: int) -> bytes:
    """Return the frame with another byte in its header."""
    at = 8 + at % int.from_bytes(frame[5:8], "big")
    return frame[:at] + bytes((byte,)) + frame[at + 1 :]


KINDS = st.sampled_from((JSON, ROCKETMQ))
FRAMES = st.builds(
    lambda spoilt, **more: signed_frame(**{**more, **spoilt}),
    st.just({}) | st.sampled_from(SPOILT),
    opaque=st.sampled_from((7, 8, 99, 100, 123_456, -5)),
    kind=KINDS,
    order=st.sampled_from((JAVA, OURS, FIRST)),
    body=st.sampled_from((b"x", b"", b"z" * 300)),
    e=st.sampled_from(("1", "2", "10", "03", "99")),
    g=st.sampled_from((str(START_MS), str(START_MS + 1), "0")),
    i=st.builds(str.format, st.sampled_from(PROPERTIES[:3]), key=st.sampled_from(KEYS)),
)
BURSTS = st.builds(
    lambda count, kind, spoilt: alike(count, kind, **spoilt),
    st.integers(1, 12),
    KINDS,
    st.just({}) | st.sampled_from(SPOILT),
)
SOME = st.one_of(
    st.lists(FRAMES | st.builds(broken, FRAMES, st.integers(0), st.integers(0, 255)), max_size=8),
    BURSTS,
    st.builds(lambda one, two: [*one, *two], BURSTS, BURSTS),
    st.builds(
        lambda change, one, two: [*one, change, *two],
        st.sampled_from(list(CHANGES.values())),
        BURSTS,
        BURSTS,
    ),
)
STEPS = st.tuples(
    st.sampled_from(("read", "read", "read", "turn", "time")), st.integers(1, 2), SOME
)

Story = Sequence[tuple[str, int, Sequence[bytes]]]


def play(steps: Story, properties: Mapping[str, str]) -> SignedSide:
    """Play steps at a broker that recognises sends, and at one that does not, and compare."""
    sides = SignedSide(knows=True, **properties), SignedSide(knows=False, **properties)
    warm = [("read", of, [*alike(1, kind)]) for of in (1, 2) for kind in (JSON, ROCKETMQ)]
    for verb, of, made in (*warm, *warm, ("turn", 1, []), *steps):
        for side in sides:
            if verb == "turn":
                side.end_turn()
            if verb == "time":
                side.world.now_ms += 300
                side.world.core.tick(side.world.now_ms)
        if verb == "read" and made:
            assert len({side.receive(b"".join(made), of) for side in sides}) == 1
    known, general = (side.seen() for side in sides)
    assert known == general
    return sides[0]


@given(st.lists(STEPS, max_size=10), st.sampled_from(WORLDS), st.sampled_from((1, 4)))
def test_any_history_leaves_the_same_bytes_whether_signed_sends_are_recognised_or_not(
    steps: list[tuple[str, int, list[bytes]]], properties: dict[str, str], few: int
) -> None:
    with columns_from(few):
        play(steps, properties)


@pytest.mark.parametrize("properties", WORLDS)
@pytest.mark.parametrize("change", CHANGES)
def test_a_change_counts_for_the_next_send_of_a_known_shape(
    change: str, properties: dict[str, str]
) -> None:
    story: Story = [
        ("read", 1, alike(9)),
        ("read", 1, [*alike(6), CHANGES[change], *alike(6)]),
        ("turn", 1, []),
        ("read", 2, alike(9, ROCKETMQ)),
        ("read", 1, [CHANGES["the same secret"], CHANGES["created"], CHANGES["allowed"]]),
        ("read", 1, alike(9)),
    ]
    side = play(story, properties)
    assert side.known > 40, "also after the change, when it is asked each time"


@pytest.mark.parametrize("spoilt", SPOILT, ids=str)
@pytest.mark.parametrize("kind", [JSON, ROCKETMQ])
def test_a_send_that_is_not_right_is_refused_alone(kind: int, spoilt: dict[str, Any]) -> None:
    right = alike(6, kind, i=f"UNIQ_KEY\x01{KEY}0\x02WAIT\x01true\x02")
    wrong = signed_frame(103, **{"kind": kind, "body": b"3" * 50, **spoilt})
    play([("read", 1, [*right[:3], wrong, *right[3:]]), ("read", 1, [wrong]), ("turn", 1, [])], {})


def test_a_wrong_signature_among_right_ones_keeps_only_its_own_send_out() -> None:
    side = SignedSide(knows=True)
    for each in alike(3):
        side.receive(each)
    end = len(side.seen()["answers"])  # type: ignore[arg-type]
    sends = [*alike(4), *alike(1, begin=4, secret="not the secret"), *alike(4, begin=5)]
    side.receive(b"".join(sends))
    assert side.known == 10, "one of 12 was learnt, another admitted first"
    answers: Any = side.seen()["answers"]
    codes = [decode_command(FrameReader().feed(frame)[0]).code for _, frame in answers[end:]]
    assert (codes.count(0), len(codes)) == (8, 9)
    assert side.seen()["not admitted"] == 1


@pytest.mark.parametrize("kind", [JSON, ROCKETMQ])
@pytest.mark.parametrize(
    ("sizes", "wrong"), [(sizes, at) for sizes in GROUPS for at in range(len(sizes))], ids=str
)
def test_a_wrong_signature_in_a_small_group_keeps_only_its_own_send_out(
    kind: int, sizes: tuple[int, ...], wrong: int
) -> None:
    side = SignedSide(knows=True)
    for each in alike(3, kind):
        side.receive(each)
    end = len(side.seen()["answers"])  # type: ignore[arg-type]
    sends = [
        alike(1, kind, begin=at, secret="not his" if at == wrong else "", size=size)[0]
        for at, size in enumerate(sizes)
    ]
    side.receive(b"".join(sends))
    answers: Any = side.seen()["answers"]
    codes = [decode_command(FrameReader().feed(frame)[0]).code for _, frame in answers[end:]]
    assert (codes.count(0), len(codes)) == (len(sizes) - 1, len(sizes))
    assert side.seen()["not admitted"] == 1


@pytest.mark.parametrize("order", [JAVA, OURS, FIRST])
@pytest.mark.parametrize("kind", [JSON, ROCKETMQ])
def test_signed_sends_of_one_client_are_recognised_after_one_was_admitted(
    kind: int, order: str
) -> None:
    side = SignedSide(knows=True)
    for each in alike(10, kind, order=order):
        side.receive(each)
    side.receive(b"".join(alike(30, kind, order=order)))
    assert side.known == 38
    assert side.seen()["not admitted"] == 0


@pytest.mark.parametrize(
    "of", [{"secret": "wrong"}, {"user": "nobody"}, {"user": ""}, {"b": LONG}, {"user": ROOT}]
)
def test_nobody_unknown_makes_a_broker_remember_a_shape(of: dict[str, Any]) -> None:
    side = SignedSide(knows=True)
    for each in alike(9, **of):
        side.receive(each)
    assert side.known == (7 if of.get("user") == ROOT else 0)


def test_sends_that_are_signed_at_a_broker_without_access_control_are_recognised_too() -> None:
    sides = Side(knows=True), Side(knows=False)
    for side in sides:
        for each in (*alike(2, user="nobody"), *alike(9, user="nobody", spoilt=SIGNATURE)):
            side.receive(each)
    assert sides[0].known == 10
    assert sides[0].seen() == sides[1].seen()


@pytest.mark.parametrize("count", [1, 3, 5])
def test_the_signatures_of_known_sends_are_compared_in_constant_time(
    count: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    side = SignedSide(knows=True)
    for each in alike(3):
        side.receive(each)
    compared: list[bytes] = []

    def noted(_made: bytes, given: bytes) -> bool:
        compared.append(given)
        return True

    monkeypatch.setattr("reliable_mq.wire.send_signature.hmac.compare_digest", noted)
    side.receive(b"".join(alike(count)))
    assert len(compared) == (count if count < 4 else 1), "four and more come as columns"
    assert sum(map(len, compared)) == 28 * count


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (b'"AccessKey":', b'"Signature":"x","AccessKey":'),  # the last of two counts
        (b'"a":', b'"x":{"Signature":"%b="},"a":' % (b"A" * 27)),
    ],
)
def test_a_header_whose_signature_may_be_elsewhere_has_no_shape(old: bytes, new: bytes) -> None:
    (frame,) = FrameReader().feed(signed_frame())
    assert shape_of(frame) is not None
    assert old in frame.header
    assert shape_of(Frame(JSON, frame.header.replace(old, new, 1), frame.body)) is None
