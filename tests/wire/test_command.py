"""Commands in both header forms. W1: decode after encode is the identity."""

import struct
from collections.abc import Callable

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.wire.strategies import I16, I32, TEXT, damaged

from reliable_mq.errors import FrameError
from reliable_mq.limits import FIELDS_MAX
from reliable_mq.wire.codes import RequestCode
from reliable_mq.wire.command import (
    VERSION,
    Command,
    decode_command,
    decode_request,
    encode_command,
    reply,
    request,
)
from reliable_mq.wire.frame import JSON, ROCKETMQ, Frame, FrameReader, encode_frame
from reliable_mq.wire.headers import SendMessageHeaderV2
from reliable_mq.wire.properties import decode_properties

# In the order of Apache's LanguageCode, which is also their byte in a binary header.
LANGUAGE_CODES = (
    *("JAVA", "CPP", "DOTNET", "PYTHON", "DELPHI", "ERLANG", "RUBY"),
    *("OTHER", "HTTP", "GO", "PHP", "OMS", "RUST", "NODE_JS"),
)
LANGUAGES = st.sampled_from(LANGUAGE_CODES)
EXT = st.dictionaries(TEXT, TEXT, max_size=6)
BODY = st.binary(max_size=40)

JSON_COMMAND = st.builds(
    Command,
    code=I32,
    opaque=I32,
    flag=I32,
    language=LANGUAGES,
    version=I32,
    remark=st.none() | TEXT,
    ext_fields=EXT,
    body=BODY,
    serialize_type=st.just(JSON),
)
COMPACT_COMMAND = st.builds(
    Command,
    code=I16,
    opaque=I32,
    flag=I32,
    language=LANGUAGES,
    version=I16,
    remark=st.none() | st.text(min_size=1, max_size=20),  # this form has no empty remark
    ext_fields=EXT,
    body=BODY,
    serialize_type=st.just(ROCKETMQ),
)
COMMAND = JSON_COMMAND | COMPACT_COMMAND

SEND_PROPERTIES = (
    "UNIQ_KEY2\x01𝄞\x02KEYS\x01k0\x02stadt\x01Köln\x02WAIT\x01true\x02TAGS\x01TagA\x02"
    'sep\x01a"b\\c/d\x02'
)

# What Apache's RemotingCommand 5.4.0 wrote for one SEND_MESSAGE_V2, in both forms.
APACHE_SEND_JSON = (
    b"\x00\x00\x01\x86"  # 390 = 4 + 381 + 5
    b"\x00\x00\x01\x7d"  # JSON, 381
    b'{"code":310,"extFields":{"a":"shop","b":"orders","c":"TBW102","d":"4","e":"3","f":"0",'
    b'"g":"1700000000000","h":"0","i":"UNIQ_KEY2\\u0001\xf0\x9d\x84\x9e\\u0002KEYS\\u0001k0'
    b"\\u0002stadt\\u0001K\xc3\xb6ln\\u0002WAIT\\u0001true\\u0002TAGS\\u0001TagA\\u0002sep"
    b'\\u0001a\\"b\\\\c/d\\u0002","j":"0","k":"false","m":"false","n":"broker-a"},"flag":0,'
    b'"language":"JAVA","opaque":7,"serializeTypeCurrentRPC":"JSON","version":0}'
    b"hello"
)
APACHE_SEND_COMPACT = bytes.fromhex(
    "000000f0 010000e7"  # 240 = 4 + 231 + 5; ROCKETMQ, 231
    "0136 00 0000 00000007 00000000"  # 310, JAVA, version 0, opaque 7, flag 0
    "00000000 000000d2"  # no remark, 210 bytes of ext fields
    "0001 61 00000004 73686f70"
    "0001 62 00000006 6f7264657273"
    "0001 63 00000006 544257313032"
    "0001 64 00000001 34"
    "0001 65 00000001 33"
    "0001 66 00000001 30"
    "0001 67 0000000d 31373030303030303030303030"
    "0001 68 00000001 30"
    "0001 69 00000043 554e49515f4b45593201f09d849e024b455953016b30027374616474014bc3b66c6e02"
    "57414954017472756502544147530154616741027365700161" + "22625c632f6402"
    "0001 6a 00000001 30"
    "0001 6b 00000005 66616c7365"
    "0001 6d 00000005 66616c7365"
    "0001 6e 00000008 62726f6b65722d61"
    "68656c6c6f"
)


def decoded(data: bytes) -> Command:
    (frame,) = FrameReader().feed(data)
    return decode_command(frame)


def of_json(header: bytes) -> Command:
    return decode_command(Frame(JSON, header, b""))


@given(COMMAND)
def test_decode_after_encode_is_the_identity(command: Command) -> None:
    assert decoded(encode_command(command)) == command


@pytest.mark.parametrize("data", [APACHE_SEND_JSON, APACHE_SEND_COMPACT])
def test_a_send_as_apaches_java_client_writes_it_is_read(data: bytes) -> None:
    command = decoded(data)

    assert (command.code, command.opaque, command.language) == (310, 7, "JAVA")
    assert not command.is_reply
    assert not command.is_oneway
    assert command.body == b"hello"
    header = SendMessageHeaderV2.decode(command.ext_fields)
    assert header == SendMessageHeaderV2(
        producer_group="shop",
        topic="orders",
        default_topic="TBW102",
        default_topic_queue_nums=4,
        queue_id=3,
        sys_flag=0,
        born_timestamp=1_700_000_000_000,
        flag=0,
        properties=SEND_PROPERTIES,
        reconsume_times=0,
        unit_mode=False,
        batch=False,
    )
    assert decode_properties(header.properties or "")["stadt"] == "Köln"


def test_the_compact_form_is_written_as_apaches_java_client_writes_it() -> None:
    assert encode_command(decoded(APACHE_SEND_COMPACT)) == APACHE_SEND_COMPACT


def test_replies_are_written_as_apaches_java_broker_writes_them() -> None:
    # Given what RemotingCommand.createResponseCommand(17, "no topic") gave with opaque -5
    apache_json = (
        b"\x00\x00\x00\x77\x00\x00\x00\x73"
        b'{"code":17,"flag":1,"language":"JAVA","opaque":-5,"remark":"no topic",'
        b'"serializeTypeCurrentRPC":"JSON","version":0}'
    )
    apache_compact = bytes.fromhex(
        "00000021 0100001d 0011 00 0000 fffffffb 00000001 00000008 6e6f20746f706963 00000000"
    )

    for form, expected in ((JSON, apache_json), (ROCKETMQ, apache_compact)):
        command = Command(
            code=17, opaque=-5, flag=1, language="JAVA", remark="no topic", serialize_type=form
        )
        assert encode_command(command) == expected
        assert decoded(expected) == command


def test_a_json_header_has_sorted_names_and_leaves_out_what_is_not_there() -> None:
    header = (
        b'{"code":105,"extFields":{"topic":"T"},"flag":0,"language":"PYTHON","opaque":0,'
        b'"serializeTypeCurrentRPC":"JSON","version":493}'
    )
    bare = b'{"code":34,"flag":2,"language":"PYTHON","opaque":0,"serializeTypeCurrentRPC":"JSON",'

    assert encode_command(request(105, {"topic": "T"})) == encode_frame(JSON, header)
    assert encode_command(request(34, oneway=True, body=b"{}")) == encode_frame(
        JSON, bare + b'"version":493}', b"{}"
    )


@pytest.mark.parametrize("form", [JSON, ROCKETMQ])
def test_a_reply_has_the_opaque_the_form_and_our_version(form: int) -> None:
    asked = Command(code=105, opaque=-7, language="GO", version=317, serialize_type=form)

    answer = decoded(encode_command(reply(asked, 17, "none", {"a": "b"}, b"body")))

    assert answer.is_reply
    assert (answer.opaque, answer.serialize_type, answer.version) == (-7, form, VERSION)
    assert (answer.code, answer.remark, answer.ext_fields) == (17, "none", {"a": "b"})
    assert answer.body == b"body"


def test_a_header_of_another_client_is_read_though_it_looks_different() -> None:
    # Go sends empty fields; others numbers, nulls and names of their own, in any order.
    go = b'{"version":317,"remark":"","extFields":{},"language":"GO","flag":0,"opaque":1,"code":34}'
    odd = (
        b'{"extFields":{"n":5,"t":true,"z":null,"o":{"a":[1]}},"code":"11","opaque":null,'
        b'"language":null,"remark":null,"body":7,"serialize_type":"x","own":[{}]}'
    )

    assert of_json(go) == Command(code=34, opaque=1, language="GO", version=317, remark="")
    assert of_json(odd) == Command(
        code=11, ext_fields={"n": "5", "t": "true", "o": '{"a":[1]}'}, language="OTHER"
    )
    assert of_json(b'{"code":1}') == Command(code=1)


def test_of_two_values_for_one_name_the_last_counts() -> None:
    twice = bytes.fromhex("0001 61 00000001 310001 61 00000001 32")
    compact = bytes.fromhex("000a 00 0000 00000000 00000000 00000000 00000010") + twice

    assert of_json(b'{"code":1,"code":2,"extFields":{"a":"1","a":"2"}}') == Command(
        code=2, ext_fields={"a": "2"}
    )
    assert decode_command(Frame(ROCKETMQ, compact, b"")).ext_fields == {"a": "2"}


def test_the_compact_form_cuts_the_code_to_16_bits_as_apache_does() -> None:
    command = Command(code=200_050, serialize_type=ROCKETMQ)

    assert decoded(encode_command(command)).code == 3_442


@pytest.mark.parametrize(("byte", "language"), list(enumerate(LANGUAGE_CODES)))
def test_a_language_has_apaches_byte_in_the_compact_form(byte: int, language: str) -> None:
    header = bytes.fromhex(f"0001 {byte:02x} 0000 00000000 00000000 00000000 00000000")

    assert decode_command(Frame(ROCKETMQ, header, b"")).language == language
    asked = Command(code=1, language=language, serialize_type=ROCKETMQ)
    assert encode_command(asked)[8:11] == bytes((0, 1, byte))


def test_an_unknown_language_becomes_other() -> None:
    command = Command(code=1, language="COBOL", serialize_type=ROCKETMQ)
    unknown_byte = bytes.fromhex("0001 c8 0000 00000000 00000000 00000000 00000000")

    assert decoded(encode_command(command)).language == "OTHER"
    assert decode_command(Frame(ROCKETMQ, unknown_byte, b"")).language == "OTHER"


def test_bytes_behind_the_ext_fields_of_the_compact_form_are_left_alone() -> None:
    data = encode_command(Command(code=1, ext_fields={"a": "b"}, serialize_type=ROCKETMQ))
    (frame,) = FrameReader().feed(data)

    assert decode_command(Frame(ROCKETMQ, frame.header + b"more", b"")).ext_fields == {"a": "b"}


@pytest.mark.parametrize(
    "header",
    [
        b"",
        b"{}",
        b"[]",
        b"null",
        b'{"code":1',
        b'{"code":null}',
        b'{"code":"x"}',
        b'{"code":1.5}',
        b'{"code":1e300}',
        b'{"code":1,"opaque":2147483648}',  # could not be answered
        b'{"code":1,"opaque":99999999999999999999999}',
        b'{"code":1,"extFields":[1]}',
        b'{"code":1,"extFields":{"a":"\xff"}}',
        b'{"code":1,"extFields":' + b"[" * 100_000,
        b'{"code":1,"x":' + b'{"a":' * 100_000,
    ],
)
def test_a_header_that_is_no_command_is_a_frame_error(header: bytes) -> None:
    with pytest.raises(FrameError, match="not a command"):
        of_json(header)


def test_a_header_of_very_many_fields_is_refused_before_they_are_read() -> None:
    many, few = FIELDS_MAX + 7, FIELDS_MAX
    for code in (1, RequestCode.SEND_MESSAGE_V2, RequestCode.PULL_MESSAGE):
        begin = b'{"code":%d,"extFields":{' % code
        header = begin + b",".join(b'"%05x":"1"' % number for number in range(many)) + b"}}"
        with pytest.raises(FrameError, match="more than 10000 fields"):
            decode_request(Frame(JSON, header, b""))
    header = b'{"code":1,"extFields":{' + b",".join(b'"%05x":"1"' % n for n in range(few)) + b"}}"
    assert len(decode_request(Frame(JSON, header, b"")).ext_fields) == few

    size = struct.pack(">i", 8 * many)
    compact = bytes.fromhex("000a 00 0000 00000000 00000000 00000000") + size
    same_name = bytes.fromhex("0001 61 00000001 31") * many
    with pytest.raises(FrameError, match="more than 10000 fields"):
        decode_command(Frame(ROCKETMQ, compact + same_name, b""))


def test_a_long_text_with_quotes_in_it_is_no_field() -> None:
    text = '"' * 200_000
    data = encode_command(Command(code=1, ext_fields={"a": text}))

    assert decoded(data).ext_fields == {"a": text}


def test_a_long_header_of_another_form_is_refused_before_its_escapes_are_read() -> None:
    header = b'{"code":1,"extFields":{"n":1,"a":"%s"}}' % (rb"\n" * 200_000)

    with pytest.raises(FrameError, match="up to 262144 bytes"):
        of_json(header)


@pytest.mark.parametrize("form", [2, 255])
def test_an_unknown_form_is_refused_both_ways(form: int) -> None:
    with pytest.raises(FrameError, match="serialize type"):
        decode_command(Frame(form, b"{}", b""))
    with pytest.raises(FrameError, match="serialize type"):
        encode_command(Command(code=1, serialize_type=form))


@pytest.mark.parametrize(
    "command",
    [
        Command(code=1, version=2**15, serialize_type=ROCKETMQ),
        Command(code=1, opaque=2**31, serialize_type=ROCKETMQ),
        Command(code=1, ext_fields={"k" * 2**15: ""}, serialize_type=ROCKETMQ),
        Command(code=1, remark="\ud834", serialize_type=ROCKETMQ),
        Command(code=1, remark="\ud834"),
        Command(code=1, body=bytes(16 * 1024 * 1024)),
    ],
)
def test_what_does_not_fit_its_form_is_refused(command: Command) -> None:
    with pytest.raises(FrameError):
        encode_command(command)


@given(st.sampled_from((JSON, ROCKETMQ)), st.binary(max_size=80))
def test_random_headers_give_commands_or_a_frame_error(form: int, header: bytes) -> None:
    try:
        command = decode_command(Frame(form, header, b""))
    except FrameError:
        return
    assert encode_command(command)


@given(damaged(COMMAND.map(encode_command)))
def test_damaged_commands_give_commands_or_a_frame_error(data: bytes) -> None:
    try:
        for frame in FrameReader().feed(data):
            encode_command(decode_command(frame))
    except FrameError:
        pass


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | TEXT,
        lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXT, inner, max_size=3),
    ),
    st.sampled_from(("code", "opaque", "flag", "language", "version", "remark", "extFields", "x")),
)
def test_any_json_in_any_field_gives_a_command_that_can_be_answered_or_a_frame_error(
    value: object, name: str
) -> None:
    try:
        command = of_json(msgspec.json.encode({"code": 1, name: value}))
    except (FrameError, OverflowError):  # OverflowError: msgspec cannot write the number
        return
    assert decoded(encode_command(reply(command))).opaque == command.opaque


@pytest.mark.parametrize(
    ("escaped", "text"),
    [
        (rb"\ud800", "?"),
        (rb"a\uDFFFb", "a?b"),
        (rb"\ud83d\ude00\ud83d", "😀?"),
        (rb"\ud800\ud83d\ude00", "?😀"),
        (rb"\\ud800\ud800", "\\ud800?"),
    ],
)
@pytest.mark.parametrize("decode", [decode_command, decode_request])
def test_half_a_pair_of_surrogates_is_read_as_java_writes_it(
    decode: Callable[[Frame], Command], escaped: bytes, text: str
) -> None:
    header = b'{"code":310,"extFields":{"i":"' + escaped + b'"},"opaque":7}'

    command = decode(Frame(JSON, header, b"body"))

    assert (command.opaque, command.ext_fields) == (7, {"i": text})


@pytest.mark.parametrize("header", [rb'{"code":\ud800}', rb'{"code":1,"remark":"\ud800', rb"\ud8"])
def test_half_a_pair_makes_no_header_of_what_is_none(header: bytes) -> None:
    with pytest.raises(FrameError):
        of_json(header)
