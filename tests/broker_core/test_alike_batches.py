"""Batches of alike messages leave every byte as the general way leaves it."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.broker_core.broker_world import TOPIC
from tests.broker_core.two_sides import KEY, LONG, NARROW, Side, send_frame

from reliable_mq.broker_core.requests import alike_batches
from reliable_mq.broker_core.statistics import TOPIC_PUT_LATENCY
from reliable_mq.wire.batch_body import (
    AlikeBatch,
    BatchItem,
    decode_alike,
    decode_batch,
    encode_batch,
)
from reliable_mq.wire.codes import RequestCode
from reliable_mq.wire.frame import JSON, ROCKETMQ

SIZES = {"maxMessageSize": "131072", "mappedFileSizeCommitLog": "196608"}
PLAIN = "UNIQ_KEY\x01{key}\x02WAIT\x01true\x02"
PROPERTIES = (
    PLAIN,
    "TAGS\x01paid\x02UNIQ_KEY\x01{key}\x02WAIT\x01true\x02",
    "KEYS\x01a b\x02UNIQ_KEY\x01{key}\x02TAGS\x01paid\x02",
    "KEYS\x01order-{key}\x02UNIQ_KEY\x01{key}\x02",
    "TAGS\x01UNIQ_KEY\x01{key}\x02",
    "XUNIQ_KEY\x01{key}\x02",
    "UNIQ_KEY\x01{key}\x02UNIQ_KEY\x01{key}1\x02",
    "UNIQ_KEY\x01{key}\x02POP_CK\x010 1\x02",
    "1ST_POP_TIME\x017\x02UNIQ_KEY\x01{key}\x02",
    "POP_x\x01y\x02UNIQ_KEY\x01{key}\x02POP_x\x01y\x02",
    "UNIQ_KEY\x01{key}\x02DELAY\x013\x02",
    "UNIQ_KEY\x01{key}\x02town\x01Köln\x02",
    "UNIQ_KEY\x01{key}\x02last\x01one",
    "UNIQ_KEY\x01{key}",
    "UNIQ_KEY\x01\x02WAIT\x01true\x02",
    "WAIT\x01true\x02",
    "",
)


def items_of(count: int, properties: str = PLAIN, size: int = 30, flag: int = 0) -> list[BatchItem]:
    """Return messages that differ only in body and unique key."""
    return [
        BatchItem(flag, bytes([n % 256]) * size, properties.format(key=f"{KEY}{n:03X}").encode())
        for n in range(count)
    ]


@st.composite
def batches(draw: st.DrawFn) -> list[BatchItem]:
    """Draw a batch; most have alike messages, and some only look so."""
    items = items_of(
        draw(st.integers(1, 12)),
        draw(st.just(PLAIN) | st.sampled_from(PROPERTIES)),
        draw(st.sampled_from((30, 0, 200))),
        draw(st.sampled_from((0, 0, -5, 2**31 - 1))),
    )
    if not draw(st.integers(0, 2)):  # one message is another one
        at = draw(st.integers(0, len(items) - 1))
        flag, body, properties = items[at]
        items[at] = draw(
            st.sampled_from(
                (
                    BatchItem(flag + 1 if flag < 5 else 0, body, properties),
                    BatchItem(flag, body + b"x", properties),
                    BatchItem(flag, body, properties + b"a\x01b\x02"),
                    BatchItem(flag, body, properties.replace(b"true", b"trux")),
                    BatchItem(flag, body, properties.replace(b"WAIT", b"TAGS")),
                    BatchItem(flag, body, properties.replace(KEY[-4:].encode(), b"\x02a\x01b")),
                    BatchItem(flag, body, properties.replace(KEY[-4:].encode(), b"a b-")),
                    BatchItem(flag, body, properties.replace(b"UNIQ_KEY", b"KEYS_OF_")),
                )
            )
        )
    return items


@st.composite
def frames(draw: st.DrawFn) -> bytes:
    """Draw a send of a batch."""
    body = encode_batch(draw(batches()))
    if not draw(st.integers(0, 9)):  # one byte is another one
        at = draw(st.integers(0, len(body) - 1))
        body = body[:at] + bytes((draw(st.integers(0, 255)),)) + body[at + 1 :]
    changes: dict[str, Any] = {
        "e": draw(st.sampled_from(("3", "3", "4"))),
        "i": "",
        "m": "true",
        "code": RequestCode.SEND_BATCH_MESSAGE,
        "kind": draw(st.sampled_from((JSON, ROCKETMQ))),
    }
    odd: dict[str, st.SearchStrategy[Any]] = {
        "b": st.sampled_from((NARROW, LONG, "missing", "%RETRY%g", "SCHEDULE_TOPIC_XXXX")),
        "e": st.sampled_from(("0", "-1", "99")),
        "f": st.sampled_from(("1", "4", "16", "32", "48")),
        "h": st.just("5"),
        "j": st.sampled_from(("1", None)),
        "m": st.just("false"),
        "flag": st.just(2),
        "code": st.sampled_from((10, 310)),
    }
    for name in draw(st.lists(st.sampled_from(sorted(odd)), max_size=1)):
        changes[name] = draw(odd[name])
    return send_frame(7, body=body, **changes)


@given(st.lists(st.tuples(frames(), st.integers(1, 2), st.booleans()), min_size=1, max_size=8))
def test_any_batches_leave_the_same_bytes_whether_they_are_recognised_or_not(
    history: list[tuple[bytes, int, bool]],
) -> None:
    """What is compared: log, queues, answers, statistics, tables, index."""
    sides = Side(knows=True), Side(knows=False)
    for frame, of, is_end in history:
        for side in sides:
            side.receive(frame, of)
            if is_end:
                side.end_turn()
                side.world.now_ms += 7
    recognised, general = (side.seen() for side in sides)
    for seen in (recognised, general):  # of two queues that grow at once, either is counted first
        counters: dict[Any, Any] = seen["counters"]  # type: ignore[assignment]
        seen["counters"] = {key: counters[key] for key in counters if key[0] != TOPIC_PUT_LATENCY}
    assert recognised == general


def batch_frame(items: list[BatchItem], **changes: Any) -> bytes:
    """Return a send of a batch as Apache's Java client writes it."""
    odd = {"i": "", "m": "true", "code": RequestCode.SEND_BATCH_MESSAGE, **changes}
    return send_frame(9, body=encode_batch(items), **odd)


@pytest.mark.parametrize("properties", PROPERTIES)
@pytest.mark.parametrize("topic", [TOPIC, LONG, "SCHEDULE_TOPIC_XXXX"])
def test_a_batch_of_every_kind_leaves_the_same_bytes(topic: str, properties: str) -> None:
    sides = Side(knows=True), Side(knows=False)
    for side in sides:
        for count in (1, 2, 9):
            side.receive(batch_frame(items_of(count, properties), b=topic, e="0"))
    assert sides[0].seen() == sides[1].seen()


def test_the_batches_of_a_client_are_recognised() -> None:
    side = Side(knows=True)
    for count in (1, 2, 30):
        side.receive(batch_frame(items_of(count)))
    assert side.alike == 2


@pytest.mark.parametrize("odd", [b"\x02a\x01b", b"a b-", b"\x01abc", "kéy".encode()])
def test_a_batch_with_a_key_of_other_characters_leaves_the_same_bytes(odd: bytes) -> None:
    items = items_of(3)
    flag, body, properties = items[1]
    end = properties.index(b"\x02")
    items[1] = BatchItem(flag, body, properties[: end - 6] + odd + b"00" + properties[end:])
    assert len(items[1].properties) == len(properties)
    sides = Side(knows=True), Side(knows=False)
    for side in sides:
        side.receive(batch_frame(items))
    assert sides[0].alike == 0
    assert sides[0].seen() == sides[1].seen()


@pytest.mark.parametrize("size", [20_000, 1_000, 900])
def test_a_batch_with_long_properties_leaves_the_same_bytes(size: int) -> None:
    sides = Side(knows=True), Side(knows=False)
    for side in sides:
        side.receive(batch_frame(items_of(2, f"a\x01{'x' * size}\x02{PLAIN}")))
    assert sides[0].alike == 1
    assert sides[0].seen() == sides[1].seen()


def test_a_batch_that_fits_in_no_file_of_the_log_is_refused_in_the_same_words() -> None:
    sides = [Side(knows=knows, **SIZES) for knows in (True, False)]
    for side in sides:
        side.receive(batch_frame(items_of(1_200)))
    seen = sides[0].seen()
    assert seen == sides[1].seen()
    assert "a file of the log holds" in str(seen["answers"])


def test_what_is_remembered_of_batches_is_limited() -> None:
    side = Side(knows=True)
    for number in range(alike_batches._FORMS_MAX + 9):
        side.receive(batch_frame(items_of(2, f"n\x01{number}\x02{PLAIN}")))
    assert alike_batches._form.cache_info().currsize == alike_batches._FORMS_MAX


@given(batches())
def test_alike_messages_of_a_batch_are_what_the_general_decoder_reads(
    items: list[BatchItem],
) -> None:
    body = encode_batch(items)
    found = decode_alike(body)
    if found is not None:
        assert decode_batch(body) == [
            BatchItem(found.flag, own, found.before + key + found.behind)
            for own, key in zip(found.bodies, found.keys, strict=True)
        ]


@pytest.mark.parametrize("cut", range(1, 40))
def test_a_batch_that_is_cut_is_not_recognised(cut: int) -> None:
    body = encode_batch(items_of(3))
    assert decode_alike(body) == AlikeBatch(
        0,
        tuple(item.body for item in items_of(3)),
        b"UNIQ_KEY\x01",
        tuple(f"{KEY}{n:03X}".encode() for n in range(3)),
        b"\x02WAIT\x01true\x02",
    )
    assert decode_alike(body[:-cut]) is None
    assert decode_alike(body[:cut]) is None
