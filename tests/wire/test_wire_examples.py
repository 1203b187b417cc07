"""Plain examples of what the properties of these tests hold for any value: quick, and readable."""

from typing import Any

import msgspec
import pytest

from reliable_mq.errors import FrameError, MessageRefused, RecordError
from reliable_mq.limits import (
    FIELDS_MAX,
    PROPERTIES_SIZE_MAX,
    RECORD_SIZE_MAX,
    SHORT_HEADER_SIZE,
)
from reliable_mq.wire.batch_body import BatchItem, decode_batch, encode_batch
from reliable_mq.wire.codes import RequestCode
from reliable_mq.wire.command import (
    Command,
    decode_command,
    decode_request,
    encode_command,
    reply,
    request,
)
from reliable_mq.wire.frame import JSON, ROCKETMQ, Frame, FrameReader, encode_frame
from reliable_mq.wire.java_hash import KeyHashes, index_hash, index_hashes
from reliable_mq.wire.record import (
    RECORD_HEAD_SIZE_MAX,
    Record,
    decode_record,
    holds_records_of,
    iter_records,
    pack_host,
)
from reliable_mq.wire.record_encode import encode_record, record_size, record_sizes, topic_part
from reliable_mq.wire.record_head import body_end_in, properties_behind_body
from reliable_mq.wire.record_run import RecordRun
from reliable_mq.wire.record_scan import (
    are_valid,
    head_at,
    holds_records,
    valid_size_at,
)

IPV4, OTHER_IPV4, IPV6 = (
    pack_host("10.0.0.1", 1),
    pack_host("10.0.0.2", 65_535),
    pack_host("::1", 9),
)
HOSTS = [(IPV4, OTHER_IPV4), (IPV6, IPV4), (IPV4, IPV6), (IPV6, IPV6)]
TOPICS = ["", "orders", "x" * 127, "é" * 64, "x" * 128, "y" * 255]
TEXTS = ["", "v", "TAGS\1red\2", "KEYS\1kü\2TAGS\1red\2"]


def a_record(**changes: Any) -> Record:
    known = Record(
        topic="orders",
        body=b"some body",
        properties=b"KEYS\1k\2",
        queue_id=3,
        flag=9,
        queue_offset=70,
        commit_log_offset=1_000,
        sys_flag=1,
        born_time_ms=4,
        born_host=IPV4,
        store_time_ms=5,
        store_host=OTHER_IPV4,
        reconsume_times=2,
        prepared_transaction_offset=0,
    )
    return msgspec.structs.replace(known, **changes)


RECORDS = [
    *(a_record(topic=topic) for topic in TOPICS),
    *(a_record(born_host=born, store_host=store) for born, store in HOSTS),
    *(a_record(properties=text.encode()) for text in TEXTS),
    a_record(body=b""),
    a_record(sys_flag=4, prepared_transaction_offset=77),
    a_record(queue_id=2**31 - 1, queue_offset=2**63 - 1, flag=-1, reconsume_times=-2),
]


@pytest.mark.parametrize("record", RECORDS)
def test_a_record_is_read_as_it_was_written_by_each_way(record: Record) -> None:
    stored = encode_record(record)
    buffer = memoryview(b"xyz" + stored + b"\xff" * 50)
    decoded = decode_record(buffer, 3, check_body=True)
    assert decoded == msgspec.structs.replace(
        record, size=len(stored), body_crc=decoded.body_crc, sys_flag=decoded.sys_flag
    )
    assert decoded.sys_flag & ~0x30 == record.sys_flag
    _, topic = topic_part(record.topic.encode())
    fields = (record.body, record.properties, record.born_host, record.store_host)
    assert record_size(topic, *fields) == len(stored)
    assert valid_size_at(buffer, 3, 1_000) == len(stored)
    assert tuple(head_at(buffer, 3)) == (
        *(record.topic, record.queue_id, record.queue_offset),
        *(decoded.sys_flag, record.store_time_ms, record.properties),
    )
    head, tail = stored[:RECORD_HEAD_SIZE_MAX], stored[body_end_in(stored) :]
    assert properties_behind_body(head, tail) == record.property_map()
    assert list(iter_records(stored * 2)) == [decoded, decoded]
    assert holds_records(stored * 2, 2)
    assert not holds_records(stored * 2, 1)
    assert not holds_records(stored * 2, 3)
    assert not holds_records(stored * 2 + b"x", 2)
    assert holds_records_of(stored * 3, (len(stored),) * 3)
    assert not holds_records_of(stored * 3, (len(stored),) * 2)
    assert not holds_records_of(stored * 2, (len(stored) - 1, len(stored) + 1))


@pytest.mark.parametrize("record", RECORDS)
def test_a_record_that_ends_early_is_damaged(record: Record) -> None:
    stored = encode_record(record)
    for size in (0, 1, 35, 36, 40, 87, 90, len(stored) - 3, len(stored) - 1):
        with pytest.raises(RecordError):
            decode_record(stored[: min(size, len(stored) - 1)])
        assert not are_valid(stored[: min(size, len(stored) - 1)], (1_000,), (len(stored),))


def test_records_of_different_sizes_are_told_apart() -> None:
    parts = [encode_record(a_record(body=b"b" * size)) for size in (0, 5, 5, 60)]
    sizes = tuple(map(len, parts))
    assert holds_records_of(b"".join(parts), sizes)
    assert not holds_records_of(b"".join(parts), sizes[::-1])
    assert not holds_records_of(b"".join(parts)[:-1], sizes)
    long_topic = encode_record(a_record(topic="y" * 200))
    assert holds_records_of(long_topic * 2, (len(long_topic),) * 2)


@pytest.mark.parametrize(("born", "store"), HOSTS)
@pytest.mark.parametrize("topic", ["orders", "y" * 200])
def test_records_that_are_encoded_together_are_what_each_is(
    topic: str, born: bytes, store: bytes
) -> None:
    records = [
        a_record(
            topic=topic,
            body=b"b" * number,
            properties=b"p" * (9 - number),
            flag=number,
            queue_offset=70 + number,
            commit_log_offset=5_000 * number,
            born_host=born,
            store_host=store,
        )
        for number in range(4)
    ]
    single = [encode_record(record) for record in records]
    magic, named = topic_part(topic.encode())
    run = RecordRun(magic, named, 3, 1, 4, born, 5, store, 2)
    sizes = [len(each) for each in single]
    bodies = [record.body for record in records]
    properties = [record.properties for record in records]
    assert list(record_sizes(named, bodies, properties, born, store)) == sizes
    joined = run.encode(sizes, [0, 5_000, 10_000, 15_000], 70, range(4), bodies, properties)
    assert joined == b"".join(single)


FRAMES = [
    Frame(JSON, b"", b""),
    Frame(ROCKETMQ, b"header", b""),
    Frame(255, b"h" * 300, b"b" * 70_000),
    Frame(JSON, b"", b"body"),
]
STREAM = b"".join(encode_frame(each.serialize_type, each.header, each.body) for each in FRAMES)


@pytest.mark.parametrize("size", [1, 2, 3, 4, 5, 7, 8, 9, 13, 50, 4096, 80_000])
def test_frames_are_the_same_in_pieces_of_any_size(size: int) -> None:
    reader = FrameReader()
    found: list[Frame] = []
    done = 0
    for at in range(0, len(STREAM), size):
        found += reader.feed(STREAM[at : at + size])
        done = min(at + size, len(STREAM))
        whole = sum(8 + len(each.header) + len(each.body) for each in found)
        assert reader.kept_size == done - whole
    assert (found, reader.kept_size, done) == (FRAMES, 0, len(STREAM))


@pytest.mark.parametrize("topic", ["", "orders", "Ünï", "\uffff" * 9])
def test_keys_of_any_length_have_their_hash_when_many_are_computed_at_once(topic: str) -> None:
    hashes = KeyHashes(f"{topic}#")
    keys = ["k" * length for length in range(256)] + [f"{n:040d}z~\x7f" for n in range(600)]
    cut = [hashes.cut(key.encode()) for key in keys]
    assert None not in cut
    halves = [each for each in cut if each]
    together = index_hashes([share for share, _ in halves], [tail for _, tail in halves])
    assert together == [index_hash(topic, key) for key in keys]
    assert hashes.cut(b"k" * 256) is hashes.cut("é".encode()) is None
    assert hashes.whole("é".encode()) == index_hash(topic, "é")


@pytest.mark.parametrize(
    ("body", "properties", "is_refused"),
    [
        (b"", bytes(PROPERTIES_SIZE_MAX), False),
        (b"", bytes(PROPERTIES_SIZE_MAX + 1), True),
        (bytes(RECORD_SIZE_MAX), b"", True),
    ],
)
def test_a_batch_with_one_record_that_is_too_long_is_refused(
    body: bytes, properties: bytes, is_refused: bool
) -> None:
    _, topic = topic_part(b"orders")
    bodies, of_each = [b"x", body], [b"", properties]
    if is_refused:
        with pytest.raises(MessageRefused):
            record_sizes(topic, bodies, of_each, IPV4, IPV4)
    else:
        assert len(record_sizes(topic, bodies, of_each, IPV4, IPV4)) == 2


@pytest.mark.parametrize("size", [1, 19, 21, 22, 23, 44, 100])
def test_zeros_are_no_batch(size: int) -> None:
    with pytest.raises(RecordError):
        decode_batch(bytes(size))
    assert decode_batch(b"") == []


@pytest.mark.parametrize("count", [1, 2, 3, 5])
@pytest.mark.parametrize("alike", [True, False])
def test_a_batch_is_read_as_it_was_written(count: int, alike: bool) -> None:
    items = [
        BatchItem(number, b"b" * (3 if alike else number), b"p" * (2 if alike else 9 - number))
        for number in range(count)
    ]
    body = encode_batch(items)
    assert decode_batch(body) == items
    for cut in (1, 5, len(body) - 1):
        with pytest.raises(RecordError):
            decode_batch(body[:-cut])


def test_requests_and_replies_are_told_by_their_flags() -> None:
    asked = request(RequestCode.HEART_BEAT, {"a": "b"}, b"body")
    oneway = request(RequestCode.HEART_BEAT, oneway=True)
    answer = reply(Command(5, opaque=7, serialize_type=ROCKETMQ), 3, "no", {"c": "d"}, b"x")
    told = [(each.is_reply, each.is_oneway) for each in (asked, oneway, answer)]
    assert told == [(False, False), (False, True), (True, False)]
    assert (answer.code, answer.opaque, answer.remark) == (3, 7, "no")
    assert (answer.ext_fields, answer.body, answer.serialize_type) == ({"c": "d"}, b"x", ROCKETMQ)
    assert (asked.language, asked.version, asked.ext_fields) == ("PYTHON", 493, {"a": "b"})
    assert (reply(asked).code, reply(asked).remark, reply(asked).serialize_type) == (0, None, JSON)


COMMANDS = [
    Command(10),
    Command(-1, opaque=-2, flag=3, language="JAVA", version=493, remark="why"),
    Command(361, 7, 0, "GO", 1, None, {"a": "b", "ü": "", "": "x" * 500}, b"body"),
    Command(0, 1, 1, "NODE_JS", 2, 'r\n"é', {"k": "v"}, b""),
]


@pytest.mark.parametrize("command", COMMANDS)
@pytest.mark.parametrize("form", [JSON, ROCKETMQ])
def test_a_command_is_read_as_it_was_written(form: int, command: Command) -> None:
    command = msgspec.structs.replace(command, serialize_type=form)
    (frame,) = FrameReader().feed(encode_command(command))
    assert frame.serialize_type == form
    assert decode_command(frame) == command


def test_the_compact_form_has_sixteen_bits_for_a_code_and_one_byte_for_a_language() -> None:
    for code, read in ((2**15 - 1, 2**15 - 1), (2**15, -(2**15)), (2**16 + 5, 5), (-1, -1)):
        command = Command(code, language="COBOL", serialize_type=ROCKETMQ)
        (frame,) = FrameReader().feed(encode_command(command))
        got = decode_command(frame)
        assert (got.code, got.language) == (read, "OTHER")
        unknown = bytearray(frame.header)
        unknown[2] = 200
        assert decode_command(Frame(ROCKETMQ, bytes(unknown), b"")).language == "OTHER"


def test_a_compact_header_that_ends_early_or_lies_is_refused() -> None:
    command = Command(1, remark="why", ext_fields={"a": "b"}, serialize_type=ROCKETMQ)
    (frame,) = FrameReader().feed(encode_command(command))
    for size in range(len(frame.header)):
        with pytest.raises(FrameError):
            decode_command(Frame(ROCKETMQ, frame.header[:size], b""))
    for at in (13, 20, 24, 27):  # the highest byte of a length
        for value in (0x01, 0xFF):
            spoiled = bytearray(frame.header)
            spoiled[at] = value
            with pytest.raises(FrameError):
                decode_command(Frame(ROCKETMQ, bytes(spoiled), b""))


SEND = {"a": "g", "b": "t", "c": "d", "d": 4, "e": 0, "f": 0, "g": 1, "h": 0}


def send_frame(fields: int, *, of_numbers: int = 0) -> Frame:
    """Return a send with so many more fields of text, which have four quotes, and of numbers."""
    more: dict[str, object] = {f"x{number}": "y" * 8 for number in range(fields)}
    more |= {f"n{number}": number for number in range(of_numbers)}  # two quotes each
    header = msgspec.json.encode({"code": 310, "extFields": {**SEND, **more}, "opaque": 7})
    assert len(header) > SHORT_HEADER_SIZE
    return Frame(JSON, header, b"")


def test_a_long_header_is_read_up_to_a_number_of_fields() -> None:
    """A field has four quotes; the names of a command count as six fields more."""
    quotes = send_frame(5_000).header.count(b'"') - 4 * 5_000
    room = 4 * (FIELDS_MAX + 6) - quotes
    fields, half = divmod(room, 4)
    assert decode_request(send_frame(fields, of_numbers=half // 2)).send_header is not None
    with pytest.raises(FrameError, match="more than 10000 fields"):
        decode_request(send_frame(fields + 1, of_numbers=half // 2))


@pytest.mark.parametrize("code", [310, 320])
def test_a_send_is_read_in_one_pass(code: int) -> None:
    header = msgspec.json.encode({"code": code, "extFields": SEND, "opaque": 7})
    command = decode_request(Frame(JSON, header, b"body"))
    assert command.send_header is not None
    assert (command.send_header.topic, command.send_header.queue_id) == ("t", 0)
    assert (command.body, command.ext_fields, command.pull_header) == (b"body", {}, None)
