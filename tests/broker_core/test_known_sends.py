"""Sends of a known shape leave every byte as the general way leaves it."""

import re
from collections.abc import Iterable, Iterator
from itertools import chain
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.broker_core.broker_world import START_MS, TOPIC
from tests.broker_core.two_sides import KEY, LONG, NARROW, QUEUES, Side, columns_from, send_frame

from reliable_mq.broker_core.requests import known_sends
from reliable_mq.wire.codes import RequestCode
from reliable_mq.wire.command import encode_command, request
from reliable_mq.wire.frame import JSON, ROCKETMQ

PROPERTIES = (
    "UNIQ_KEY\x01{key}\x02WAIT\x01true\x02",
    "TAGS\x01paid\x02UNIQ_KEY\x01{key}\x02WAIT\x01true\x02",
    "UNIQ_KEY\x01{key}\x02TAGS\x01paid\x02KEYS\x01order\x02",
    "UNIQ_KEY\x01{key}\x02DELAY\x013\x02",
    "UNIQ_KEY\x01{key}\x02TRAN_MSG\x01true\x02PGROUP\x01p\x02",
    "UNIQ_KEY\x01{key}\x02WAIT\x01true",
    'UNIQ_KEY\x01{key}\x02town\x01Köln "\\/\x02',
    "UNIQ_KEY\x01{key}\x02UNIQ_KEY\x01{key}\x02",
    "XUNIQ_KEY\x01{key}\x02WAIT\x01true\x02",
    "TAGS\x01UNIQ_KEY\x01{key}\x02",
    "UNIQ_KEY\x01{key}\x02KEYS\x01a b\x02UNIQ_KEY\x01{key}1\x02",
    "WAIT\x01true\x02",
    "",
)
KEYS = (
    *(f"{KEY}{digit:X}" for digit in range(16)),
    f"{KEY}\x02",
    f"{KEY[:-6]}\x02TAGS\x01x",
    f"{KEY[:-7]}\x02DELAY\x013",
    f'{KEY}"',
    f"{KEY}é",
    KEY,
)


@st.composite
def frames(draw: st.DrawFn) -> bytes:
    """Draw a send; most are alike, and some only look so."""
    opaque = draw(st.sampled_from((7, 8, 9, 10, 99, 100, 123_456, 2**31 - 1, -5)))
    key = draw(st.sampled_from(KEYS[:8]) | st.sampled_from(KEYS))
    kinds: dict[str, Any] = {
        "kind": draw(st.sampled_from((JSON, ROCKETMQ))),
        "e": draw(st.sampled_from(("1", "2", "3", "10", "11"))),
        "g": draw(st.sampled_from((str(START_MS), str(START_MS + 1)))),
        "i": PROPERTIES[0].format(key=key),
        "body": draw(st.sampled_from((b"x", b"y", b"", b"z" * 300))),
    }
    odd: dict[str, st.SearchStrategy[Any]] = {
        "e": st.sampled_from(("03", "-1", "12", "99", "3 ", "+3")),
        "g": st.sampled_from(("0", "-1", "0700000000000", "99999999999999", "170000000000x")),
        "i": st.sampled_from(PROPERTIES).map(lambda text: text.format(key=key)),
        "b": st.sampled_from((NARROW, LONG, "missing", "%RETRY%g", "SCHEDULE_TOPIC_XXXX", "")),
        "f": st.sampled_from(("1", "4", "16", "32", "8")),
        "h": st.sampled_from(("5", "-7", "2147483647")),
        "j": st.sampled_from(("1", "17", None)),
        "m": st.just("true"),
        "n": st.just(None),
        "flag": st.sampled_from((1, 2, 3, 6)),
        "code": st.sampled_from((10, 320, 325, 11)),
        "x": st.sampled_from(("1", '"e":"5"')),
        "body": st.just(b"z" * 70_000) | st.builds(send_frame, st.just(7)),
    }
    for name in draw(st.lists(st.sampled_from(sorted(odd)), max_size=2)):
        if draw(st.booleans()):
            kinds[name] = draw(odd[name])
    made = send_frame(opaque, **kinds)
    if not draw(st.integers(0, 9)):  # one byte of its header is another one
        at = draw(st.integers(8, min(len(made), 330) - 1))
        made = made[:at] + bytes((draw(st.integers(0, 255)),)) + made[at + 1 :]
    if not draw(st.integers(0, 9)):  # a name stands there twice
        made = twice(made)
    return made


def twice(frame: bytes) -> bytes:
    """Return the frame with a second queue in its JSON header; another one as it is."""
    size = int.from_bytes(frame[5:8], "big")
    header, count = re.subn(rb'"h":', b'"e":"2","h":', frame[8 : 8 + size], count=1)
    body = frame[8 + size :]
    head = (4 + len(header) + len(body)).to_bytes(4, "big") + frame[4:5]
    return head + len(header).to_bytes(3, "big") + header + body if count else frame


def admin(code: int, body: bytes = b"", **fields: object) -> bytes:
    """Return a request that changes what sends rely on."""
    ext = {name: str(value) for name, value in fields.items()}
    return encode_command(request(code, ext, body))


def topic_change(perm: int, queues: int) -> bytes:
    """Return the request that gives the topic other rights and queues."""
    return admin(
        RequestCode.UPDATE_AND_CREATE_TOPIC,
        topic=TOPIC,
        readQueueNums=queues,
        writeQueueNums=queues,
        perm=perm,
    )


CHANGES = (
    topic_change(4, QUEUES),
    topic_change(6, 2),
    topic_change(6, QUEUES),
    admin(RequestCode.DELETE_TOPIC_IN_BROKER, topic=TOPIC),
    admin(RequestCode.UPDATE_BROKER_CONFIG, b"maxMessageSize=40\n"),
    admin(RequestCode.UPDATE_BROKER_CONFIG, b"maxMessagesPerSecondOfTopic=3\n"),
    admin(RequestCode.UPDATE_BROKER_CONFIG, b"enableTopicMessageTypeCheck=true\n"),
    admin(RequestCode.GET_MAX_OFFSET, topic=TOPIC, queueId=3),
)


def alike(count: int, kind: int = JSON, **changes: Any) -> list[bytes]:
    """Return sends that differ only where those of one client do."""
    properties = changes.pop("i", "UNIQ_KEY\x01{key}\x02TAGS\x01t\x02")
    return [
        send_frame(
            100 + n,
            kind=kind,
            **{
                "body": b"%d" % n * 50,
                "e": str(n % 10),
                "g": str(START_MS + n),
                "i": properties.format(key=f"{KEY}{n % 16:X}"),
                **changes,
            },
        )
        for n in range(count)
    ]


ODD: tuple[dict[str, Any], ...] = (
    {},
    {"m": "true"},
    {"f": "4"},
    {"f": "48"},
    {"flag": 2},
    {"flag": 1},
    {"h": "5", "j": "3"},
    {"b": NARROW, "e": "0"},
    {"i": "UNIQ_KEY\x01{key}\x02DELAY\x013\x02"},
    {"i": "KEYS\x01a b\x02UNIQ_KEY\x01{key}\x02TAGS\x01t\x02"},
    {"i": "TAGS\x01UNIQ_KEY\x01{key}\x02"},
)
BURSTS = st.builds(
    lambda count, kind, odd: alike(count, kind, **odd),
    st.integers(1, 12),
    st.sampled_from((JSON, ROCKETMQ)),
    st.just({}) | st.sampled_from(ODD),
)


def changed(burst: list[bytes], which: int, at: int, byte: int) -> list[bytes]:
    """Return sends of which one has another byte somewhere before its body."""
    which %= len(burst)
    of = burst[which]
    at %= 8 + int.from_bytes(of[5:8], "big")
    other = of[:at] + bytes((byte,)) + of[at + 1 :]
    return [*burst[:which], other, *burst[which + 1 :]]


SPOILT_BURSTS = st.builds(changed, BURSTS, st.integers(0), st.integers(0), st.integers(0, 255))
LONG_BURSTS = st.integers(13, 50).map(lambda count: alike(count, body=b"x"))
STEPS = st.one_of(
    st.tuples(st.just("read"), st.integers(1, 2), st.lists(frames(), min_size=1, max_size=12)),
    st.tuples(st.just("read"), st.just(1), BURSTS | LONG_BURSTS | SPOILT_BURSTS),
    st.tuples(
        st.just("read"),
        st.just(1),
        st.builds(lambda change, burst: [change, *burst], st.sampled_from(CHANGES), BURSTS),
    ),
    st.tuples(st.sampled_from(("turn", "index")), st.just(0), st.just(())),
    st.tuples(st.just("time"), st.integers(-50, 400), st.just(())),
    st.tuples(st.just("split"), st.integers(1, 900), st.lists(frames(), min_size=1, max_size=6)),
)


def reads(verb: str, number: int, made: Iterable[bytes]) -> Iterator[tuple[int, bytes]]:
    """Yield what comes of which connection."""
    data = b"".join(made)
    if verb == "split":
        yield from ((1, data[at : at + number]) for at in range(0, len(data), number))
    elif data:
        yield number, data


@given(st.lists(STEPS, max_size=14), st.sampled_from((1, known_sends.FEW)))
def test_any_history_leaves_the_same_bytes_whether_sends_are_recognised_or_not(
    steps: list[tuple[str, int, list[bytes]]], few: int
) -> None:
    """What is compared: log, queues, answers, statistics, tables."""
    with columns_from(few):
        play(steps)


Story = list[tuple[str, int, list[bytes]]]


@pytest.mark.parametrize("few", [1, known_sends.FEW])
@pytest.mark.parametrize("change", range(len(CHANGES)))
def test_a_change_counts_for_the_next_send_of_a_known_shape(change: int, few: int) -> None:
    story: Story = [
        ("read", 1, alike(12)),
        ("read", 1, [*alike(6), CHANGES[change], *alike(6)]),
        ("turn", 0, []),
        ("read", 1, alike(12)),
        ("time", 300, []),
        ("read", 1, alike(12)),
    ]
    with columns_from(few):
        play(story)


@pytest.mark.parametrize("few", [1, known_sends.FEW])
@pytest.mark.parametrize("odd", ODD)
@pytest.mark.parametrize("kind", [JSON, ROCKETMQ])
def test_a_shape_of_every_kind_leaves_the_same_bytes(
    kind: int, odd: dict[str, Any], few: int
) -> None:
    mixed = list(chain(*zip(alike(9, kind), alike(9, kind, h="9"), strict=True)))
    story: Story = [
        *(("read", 1, [each]) for each in alike(4, kind, **odd)),
        ("read", 1, alike(9, kind, **odd)),
        ("turn", 0, []),
        ("full", 1, []),
        ("read", 1, alike(9, kind, **odd)),
        ("full", 0, []),
        *(("read", 1, [each]) for each in mixed[:4]),
        ("read", 1, [*mixed, *alike(3, 1 - kind)]),
    ]
    with columns_from(few):
        play(story)


def play(steps: Story) -> None:
    """Play steps at a broker that recognises sends, and at one that does not, and compare."""
    sides = Side(knows=True), Side(knows=False)
    warm = ("read", 1, [*alike(3), *alike(3, ROCKETMQ)])
    for verb, number, made in (warm, ("turn", 0, []), *steps):
        for side in sides:
            if verb == "turn":
                side.end_turn()
            if verb == "index":
                side.index()
            if verb == "full":
                side.world.state.pressure.note_room(has_room=not number)
            if verb == "time":
                side.world.now_ms += number
                side.world.core.tick(side.world.now_ms)
        for of, data in reads(verb, number, made):
            assert len({side.receive(data, of) for side in sides}) == 1
    known, general = (side.seen() for side in sides)
    assert known == general


def test_sends_of_one_client_are_recognised_after_the_first_of_them() -> None:
    for kind in (JSON, ROCKETMQ):
        side = Side(knows=True)
        for frame in alike(10, kind):
            side.receive(frame)
        side.receive(b"".join(alike(30, kind)))
        assert side.known == 39
        assert len(side.seen()["answers"]) == 40  # type: ignore[arg-type]


def test_a_send_that_wants_no_answer_gets_none() -> None:
    side = Side(knows=True)
    for frame in alike(10, flag=2):
        side.receive(frame)
    assert (side.known, side.seen()["answers"]) == (9, [])


def test_sends_that_do_not_fit_into_a_file_of_the_log_are_stored_as_if_they_came_alone() -> None:
    sides = Side(knows=True), Side(knows=False)
    many = [
        send_frame(100 + n, body=bytes(6_500), e=str(n % 10), i=PROPERTIES[0].format(key=KEYS[0]))
        for n in range(60)
    ]
    for side in sides:
        for at in range(0, len(many), 9):
            side.receive(b"".join(many[at : at + 9]))
            side.end_turn()
    assert sides[0].known > 50
    assert sides[0].world.state.store.log.end > 256 * 1024
    assert sides[0].seen() == sides[1].seen()


def test_a_broker_that_is_no_longer_the_master_stores_no_send_of_a_known_shape() -> None:
    sides = Side(knows=True), Side(knows=False)
    for side in sides:
        side.receive(alike(1)[0])
        side.world.core.fence()
        side.receive(b"".join(alike(6)))
    assert sides[0].known == 6
    assert sides[0].seen() == sides[1].seen()
