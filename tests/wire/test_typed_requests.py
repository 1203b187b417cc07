"""Headers that are read in one pass: what they say is what the general way reads."""

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.wire.strategies import TEXT

from reliable_mq.wire.codes import RequestCode
from reliable_mq.wire.command import (
    decode_command,
    decode_reply,
    decode_request,
    encode_command,
    request,
)
from reliable_mq.wire.frame import JSON, ROCKETMQ, Frame, FrameReader
from reliable_mq.wire.headers import (
    HeaderInvalid,
    PullMessageHeader,
    PullResultHeader,
    SendResultHeader,
)
from reliable_mq.wire.pop_headers import AckMessageHeader

# In the order of Apache's client, fields of the same name in its super classes among them.
PULL = {
    "queueId": "3",
    "maxMsgNums": "32",
    "sysFlag": "3",
    "suspendTimeoutMillis": "15000",
    "commitOffset": "64",
    "topic": "bench",
    "queueOffset": "96",
    "expressionType": "TAG",
    "subVersion": "1763715000000",
    "consumerGroup": "readers",
    "maxMsgBytes": "2147483647",
    "bname": "apache",
    "lo": "false",
}
ODD = (
    st.integers(-(2**70), 2**70)
    | st.integers(-(2**70), 2**70).map(str)
    | st.sampled_from(["", " 1", "1 ", "+1", "01", "-0", "1.0", "1e2", "0x1", "null", "true", "१"])
    | st.none()
    | st.booleans()
    | st.floats()
    | st.lists(st.integers(), max_size=2)
    | TEXT
)


def frame_of(ext: object, code: int = RequestCode.PULL_MESSAGE) -> Frame:
    fields = {"code": code, "extFields": ext, "flag": 0, "language": "JAVA", "opaque": 7}
    header = msgspec.json.encode({**fields, "serializeTypeCurrentRPC": "JSON", "version": 493})
    return Frame(JSON, header, b"")


@pytest.mark.parametrize("code", [RequestCode.PULL_MESSAGE, RequestCode.LITE_PULL_MESSAGE])
def test_a_pull_is_read_in_one_pass(code: int) -> None:
    command = decode_request(frame_of(PULL, code))
    general = decode_command(frame_of(PULL, code))

    assert command.pull_header == PullMessageHeader.decode(PULL)
    assert command.ext_fields == {}
    assert (command.code, command.opaque, command.flag) == (code, 7, 0)
    assert (command.language, command.version) == (general.language, general.version)


def test_a_pull_in_the_compact_form_is_read_in_general() -> None:
    pull = request(RequestCode.PULL_MESSAGE, PULL)
    pull.serialize_type = ROCKETMQ
    (frame,) = FrameReader().feed(encode_command(pull))

    assert decode_request(frame) == decode_command(frame)


@given(st.dictionaries(st.sampled_from(sorted(PULL)) | TEXT, ODD, max_size=4), st.integers(0, 3))
def test_what_reads_as_typed_reads_the_same_in_general(
    ext: dict[str, object], missing: int
) -> None:
    kept = list(PULL.items())[missing:]
    frame = frame_of({**dict(kept), **ext})

    command, general = decode_request(frame), decode_command(frame)

    if command.pull_header is None:
        assert command == general
        return
    try:
        assert command.pull_header == PullMessageHeader.decode(general.ext_fields)
    except HeaderInvalid as error:
        pytest.fail(f"the general way refuses it: {error}")


# In the order of Apache's client.
ACK = {
    "queueId": "3",
    "extraInfo": "96 1763715000000 60000 5 0 apache 3 97",
    "offset": "97",
    "topic": "bench",
    "consumerGroup": "readers",
    "bname": "apache",
}


def test_an_acknowledgement_is_read_in_one_pass() -> None:
    command = decode_request(frame_of(ACK, RequestCode.ACK_MESSAGE))

    assert command.ack_header == AckMessageHeader.decode(ACK)
    assert command.ext_fields == {}
    assert (command.code, command.opaque) == (RequestCode.ACK_MESSAGE, 7)


@given(st.dictionaries(st.sampled_from(sorted(ACK)) | TEXT, ODD, max_size=4), st.integers(0, 3))
def test_an_acknowledgement_that_reads_as_typed_reads_the_same_in_general(
    ext: dict[str, object], missing: int
) -> None:
    kept = list(ACK.items())[missing:]
    frame = frame_of({**dict(kept), **ext}, RequestCode.ACK_MESSAGE)

    command, general = decode_request(frame), decode_command(frame)

    if command.ack_header is None:
        assert command == general
        return
    try:
        assert command.ack_header == AckMessageHeader.decode(general.ext_fields)
    except HeaderInvalid as error:
        pytest.fail(f"the general way refuses it: {error}")


def test_no_header_can_bring_its_own_typed_one() -> None:
    for header in (
        b'{"code":11,"pull_header":{"topic":"t"},"extFields":{}}',
        b'{"code":34,"pull_header":null,"send_header":null}',
    ):
        command = decode_request(Frame(JSON, header, b""))
        assert (command.pull_header, command.send_header) == (None, None)


# In the order of Apache's broker.
SEND_RESULT = {
    "queueId": "3",
    "TRACE_ON": "true",
    "MSG_REGION": "DefaultRegion",
    "msgId": "7F00000100002A9F0000000000000000",
    "queueOffset": "12",
}


def test_the_reply_to_a_send_is_read_in_one_pass() -> None:
    frame = frame_of(SEND_RESULT, 0)
    command, general = decode_reply(frame), decode_command(frame)

    assert command.send_result == SendResultHeader.decode(SEND_RESULT)
    assert command.ext_fields == {}
    assert (command.code, command.opaque, command.flag) == (0, 7, 0)
    assert (command.language, command.version) == (general.language, general.version)


@pytest.mark.parametrize("code", [1, 10, 215])
def test_a_reply_with_another_code_is_read_in_general(code: int) -> None:
    assert decode_reply(frame_of(SEND_RESULT, code)) == decode_command(frame_of(SEND_RESULT, code))


def test_a_reply_in_the_compact_form_is_read_in_general() -> None:
    command = request(0, SEND_RESULT)
    command.serialize_type = ROCKETMQ
    (frame,) = FrameReader().feed(encode_command(command))

    assert decode_reply(frame) == decode_command(frame)


@given(st.dictionaries(st.sampled_from(sorted(SEND_RESULT)) | TEXT, ODD, max_size=4))
def test_a_result_that_reads_as_typed_reads_the_same_in_general(ext: dict[str, object]) -> None:
    frame = frame_of({**SEND_RESULT, **ext}, 0)

    command, general = decode_reply(frame), decode_command(frame)

    if command.send_result is None:
        assert command == general
        return
    try:
        assert command.send_result == SendResultHeader.decode(general.ext_fields)
    except HeaderInvalid as error:
        pytest.fail(f"the general way refuses it: {error}")


PULL_RESULT = {
    "suggestWhichBrokerId": "0",
    "nextBeginOffset": "9",
    "minOffset": "3",
    "maxOffset": "12",
    "topicSysFlag": "0",
    "groupSysFlag": "0",
}


def test_the_reply_to_a_pull_is_read_in_one_pass() -> None:
    frame = frame_of(PULL_RESULT, 0)
    command, general = decode_reply(frame), decode_command(frame)

    assert command.pull_result == PullResultHeader.decode(PULL_RESULT)
    assert command.ext_fields == {}
    assert (command.code, command.opaque, command.flag) == (0, 7, 0)
    assert (command.remark, command.version) == (general.remark, general.version)


@given(st.dictionaries(st.sampled_from(sorted(PULL_RESULT)) | TEXT, ODD, max_size=4))
def test_a_pulls_result_that_reads_as_typed_reads_the_same_in_general(
    ext: dict[str, object],
) -> None:
    frame = frame_of({**PULL_RESULT, **ext}, 0)

    command, general = decode_reply(frame), decode_command(frame)

    if command.pull_result is None:
        assert command == general or command.send_result is not None
        return
    try:
        assert command.pull_result == PullResultHeader.decode(general.ext_fields)
    except HeaderInvalid as error:
        pytest.fail(f"the general way refuses it: {error}")


@pytest.mark.parametrize(
    "name", ["send_result", "pull_result", "ext_fields", "body", "serialize_type"]
)
def test_no_name_in_a_header_is_taken_for_a_field_of_ours(name: str) -> None:
    fields = {"code": 0, "extFields": SEND_RESULT, "flag": 1, "opaque": 7, name: "x"}
    frame = Frame(JSON, msgspec.json.encode(fields), b"")

    command, general = decode_reply(frame), decode_command(frame)

    assert command.send_result == SendResultHeader.decode(SEND_RESULT)
    assert (general.send_result, general.body, general.serialize_type) == (None, b"", JSON)
