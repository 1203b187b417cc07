"""The stored record, v1 and v2, with hosts of both kinds. W1: decode after encode is identity."""

import struct

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.wire.strategies import RECORD, damaged

from reliable_mq.errors import MessageRefused, RecordError, UsageError
from reliable_mq.limits import PROPERTIES_SIZE_MAX, RECORD_SIZE_MAX
from reliable_mq.wire.message_id import encode_offset_message_id
from reliable_mq.wire.properties import encode_properties
from reliable_mq.wire.record import (
    BORN_HOST_V6,
    RECORD_HEAD_SIZE_MAX,
    RECORD_SIZE_MIN,
    STORE_HOST_V6,
    Record,
    blank_size_at,
    body_checksum,
    decode_record,
    encode_blank,
    iter_records,
    pack_host,
    record_size_at,
    unpack_host,
)
from reliable_mq.wire.record_encode import encode_record
from reliable_mq.wire.record_head import body_end_in, properties_behind_body

# The head of the first record that an Apache RocketMQ 5.4.0 broker wrote: 1276 bytes in all.
APACHE_HEAD = bytes.fromhex(
    "000004fc daa320a7 7c5597b9 00000007 00000000 0000000000000000 0000000000000000 00000000"
    "000001a1fb5f0249 7f000001 0000b418 000001a1fb5f0276 7f000001 00002a9f 00000000"
    "0000000000000000 00000400"
)
APACHE_PROPERTIES = {
    "MSG_REGION": "DefaultRegion",
    "UNIQ_KEY": "FD00" + "0" * 52,
    "CLUSTER": "DefaultCluster",
    "TAGS": "TagA",
    "KEYS": "k0",
    "WAIT": "true",
    "TRACE_ON": "true",
}

BORN_V4, BORN_V6 = "0a000001 0000c738", "20010db8000000000000000000000001 0000c738"
STORE_V4, STORE_V6 = "0a000002 00002a9f", "20010db8000000000000000000000002 00002a9f"

# One record as Apache's MessageDecoder 5.4.0 encodes it, with all four pairs of hosts.
LAYOUTS = [
    ("10.0.0.1", "10.0.0.2", "0000006a", "00000000", BORN_V4, STORE_V4),
    ("10.0.0.1", "2001:db8::2", "00000076", "00000020", BORN_V4, STORE_V6),
    ("2001:db8::1", "10.0.0.2", "00000076", "00000010", BORN_V6, STORE_V4),
    ("2001:db8::1", "2001:db8::2", "00000082", "00000030", BORN_V6, STORE_V6),
]


def some_record(**changes: object) -> Record:
    return msgspec.structs.replace(Record(topic="orders", body=b"hello"), **changes)


@given(RECORD)
def test_decode_after_encode_is_the_identity(record: Record) -> None:
    stored = encode_record(record)

    got = decode_record(stored, check_body=True)

    assert got == msgspec.structs.replace(
        record, size=len(stored), body_crc=body_checksum(record.body), sys_flag=got.sys_flag
    )
    hosts = BORN_HOST_V6 | STORE_HOST_V6
    assert got.sys_flag & ~hosts == record.sys_flag & ~hosts
    assert encode_record(got) == stored


@pytest.mark.parametrize(("born", "store", "size", "sys_flag", "born_hex", "store_hex"), LAYOUTS)
def test_a_record_has_the_bytes_that_apache_writes(
    born: str, store: str, size: str, sys_flag: str, born_hex: str, store_hex: str
) -> None:
    stored = bytes.fromhex(
        f"{size} daa320a7 3610a686 00000003 00000009"
        f"0000000000000005 0000011f71fb04cb {sys_flag}"
        f"0000018bcfe56800 {born_hex} 0000018bcfe56801 {store_hex}"
        "00000002 000000000000004d"
        "00000005 68656c6c6f 06 6f7264657273 0004 6b017602"
    )
    record = Record(
        topic="orders",
        body=b"hello",
        properties=b"k\x01v\x02",
        queue_id=3,
        flag=9,
        queue_offset=5,
        commit_log_offset=1_234_567_890_123,
        sys_flag=int(sys_flag, 16),
        born_time_ms=1_700_000_000_000,
        born_host=pack_host(born, 51_000),
        store_time_ms=1_700_000_000_001,
        store_host=pack_host(store, 10_911),
        reconsume_times=2,
        prepared_transaction_offset=77,
        body_crc=0x3610A686,
        size=len(stored),
    )

    assert encode_record(record) == stored
    assert decode_record(stored, check_body=True) == record
    assert unpack_host(record.born_host) == (born, 51_000)
    ip, port = record.store_host[:-4], 10_911
    assert record.offset_message_id() == encode_offset_message_id(
        ip, port, record.commit_log_offset
    )


def test_the_first_record_of_a_real_store_is_read_and_written_back() -> None:
    properties = encode_properties(APACHE_PROPERTIES)
    stored = APACHE_HEAD + b"a" * 1024 + b"\x05bench" + b"\x00\x9c" + properties

    record = decode_record(stored, check_body=True)

    assert len(stored) == 1276 == 91 + 1024 + 5 + 156
    assert (record.topic, record.queue_id, record.body) == ("bench", 7, b"a" * 1024)
    assert record.body_crc == body_checksum(b"a" * 1024) == 0x7C5597B9
    assert unpack_host(record.store_host) == ("127.0.0.1", 10_911)
    assert record.property_map() == APACHE_PROPERTIES
    assert encode_record(record) == stored


def test_a_checksum_has_no_sign_bit() -> None:
    assert body_checksum(b"b") == 0x71BEEFF9
    assert body_checksum(b"a") == 0xE8B7BE43 & 0x7FFFFFFF


@pytest.mark.parametrize(("length", "magic", "extra"), [(127, "a7", 0), (128, "ab", 1)])
def test_a_topic_of_128_bytes_makes_a_record_of_the_second_version(
    length: int, magic: str, extra: int
) -> None:
    stored = encode_record(some_record(topic="t" * length, body=b""))

    assert stored[4:8] == bytes.fromhex("daa320" + magic)
    assert len(stored) == 91 + length + extra
    assert decode_record(stored).topic == "t" * length


def test_flags_of_hosts_are_computed_and_not_taken_from_a_peer() -> None:
    for host in ("10.0.0.1", "::1"):
        for sys_flag in (0x10, 0x20, 0x30, -1):
            record = some_record(born_host=pack_host(host, 1), sys_flag=sys_flag)
            assert decode_record(encode_record(record)).born_host == record.born_host


@pytest.mark.parametrize(
    ("changes", "what"),
    [
        ({"properties": bytes(PROPERTIES_SIZE_MAX + 1)}, "properties of 32768 bytes"),
        ({"topic": "t" * 256}, "topic of 256 bytes"),
        ({"body": bytes(RECORD_SIZE_MAX)}, "a record of"),
        ({"flag": 2**31}, "does not fit"),
        ({"born_time_ms": 2**63}, "does not fit"),
    ],
)
def test_a_record_that_no_reader_could_take_back_is_refused(
    changes: dict[str, object], what: str
) -> None:
    with pytest.raises(MessageRefused, match=what):
        encode_record(some_record(**changes))


def test_a_host_that_is_not_packed_is_refused() -> None:
    with pytest.raises(UsageError, match="pack_host"):
        encode_record(some_record(born_host=b"127.0.0.1:80"))


def changed(at: int, form: str, value: int) -> bytes:
    stored = bytearray(encode_record(some_record()))
    struct.pack_into(form, stored, at, value)
    return bytes(stored)


@pytest.mark.parametrize(
    "stored",
    [
        b"",
        encode_record(some_record())[:-2],
        changed(0, ">i", -1),
        changed(0, ">i", RECORD_SIZE_MIN - 1),
        changed(0, ">i", 2**31 - 1),
        changed(4, ">I", 0),
        changed(4, ">I", 0xCBD43194),
        changed(36, ">i", 0x10),  # hosts that are not of the size that the flags say
        changed(84, ">i", -1),
        changed(84, ">i", 2**31 - 1),
        changed(93, ">B", 255),  # a topic length: Java reads -1
        changed(94, ">B", 0xFF),  # no UTF-8
        changed(100, ">h", -1),
        changed(100, ">h", 1),
    ],
)
def test_a_record_whose_sizes_lie_is_a_record_error(stored: bytes) -> None:
    with pytest.raises(RecordError):
        decode_record(stored)
    with pytest.raises(RecordError):
        decode_record(stored + b"\xff" * 64)


def test_a_negative_topic_length_of_the_second_version_is_a_record_error() -> None:
    stored = bytearray(encode_record(some_record(topic="t" * 128, body=b"")))
    struct.pack_into(">h", stored, 88, -2)  # then the properties' length would be read at 88
    struct.pack_into(">i", stored, 0, len(stored))

    with pytest.raises(RecordError):
        decode_record(bytes(stored))


def test_a_changed_body_is_found_when_asked_for() -> None:
    stored = encode_record(some_record()).replace(b"hello", b"hallo")

    assert decode_record(stored).body == b"hallo"
    with pytest.raises(RecordError, match="checksum"):
        decode_record(stored, check_body=True)


@given(st.lists(RECORD, max_size=4), st.booleans())
def test_records_that_lie_behind_each_other_are_read_one_by_one(
    records: list[Record], is_view: bool
) -> None:
    stored = [encode_record(record) for record in records]
    buffer = b"".join(stored)

    got = list(iter_records(memoryview(buffer) if is_view else buffer))

    assert [encode_record(record) for record in got] == stored
    assert [record.size for record in got] == list(map(len, stored))


@given(
    st.binary(max_size=200)
    | damaged(
        st.lists(RECORD, max_size=3).map(lambda records: b"".join(map(encode_record, records)))
    )
)
def test_damaged_records_give_records_or_a_record_error(buffer: bytes) -> None:
    try:
        for record in iter_records(buffer):
            assert RECORD_SIZE_MIN <= record.size <= len(buffer)
    except RecordError:
        pass


def test_a_record_is_known_by_its_size_and_magic() -> None:
    stored = encode_record(some_record())

    assert record_size_at(b"xx" + stored, 2) == len(stored)
    assert record_size_at(stored[: RECORD_SIZE_MIN - 1], 0) == 0
    assert record_size_at(bytes(RECORD_SIZE_MIN), 0) == 0
    assert record_size_at(changed(0, ">i", RECORD_SIZE_MAX + 1), 0) == 0
    assert RECORD_SIZE_MIN == 91


def test_a_blank_is_its_size_and_its_magic() -> None:
    assert encode_blank(300) == bytes.fromhex("0000012c cbd43194")
    assert blank_size_at(b"x" + encode_blank(300), 1) == 300
    assert blank_size_at(bytes(8), 0) == 0  # zeros are the end of what is valid, not a blank
    assert blank_size_at(encode_blank(7), 0) == 0
    assert blank_size_at(encode_blank(300)[:7], 0) == 0


def test_a_host_must_be_an_address() -> None:
    with pytest.raises(ValueError, match="localhost"):
        pack_host("localhost", 1)


@given(RECORD)
def test_properties_are_read_without_the_body(record: Record) -> None:
    stored = encode_record(record)
    head = stored[:RECORD_HEAD_SIZE_MAX]
    tail = stored[body_end_in(head) :]
    assert properties_behind_body(head, tail) == decode_record(stored).property_map()
    for cut in range(len(tail)):
        with pytest.raises(RecordError):
            properties_behind_body(head, tail[:cut])
