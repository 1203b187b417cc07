"""The answer to a send is cut from a template: whatever the broker is called, it is the same."""

import pytest
from tests.broker_core.broker_world import TOPIC, BrokerWorld, send_header

from reliable_mq.broker_core.answers import SendReply
from reliable_mq.broker_core.store.appender import AppendResult
from reliable_mq.wire.codes import RequestCode as Ask
from reliable_mq.wire.command import Command, decode_command, encode_command, reply
from reliable_mq.wire.frame import JSON, ROCKETMQ, FrameReader

REGIONS = (
    "DefaultRegion",
    "eu-west-11",
    "-12-13-11",
    "1000000000",
    "1000000003 1000000004 1000000009",
    "@log-offset@",
    "100 %d %s %016X",
    'a "quoted" \\ one, é',
    "",
)


@pytest.mark.parametrize("region", REGIONS)
@pytest.mark.parametrize("host", [b"\x7f\0\0\1", b"\x10" * 16, b"\x10\0\0\0" * 4])
def test_the_answer_names_the_place_whatever_the_region_is_called(region: str, host: bytes) -> None:
    send_reply = SendReply(host, 10_911, region, trace_on=True)

    frame = send_reply.encode(
        Command(code=310, opaque=77), 3, AppendResult(0xABC, 4_000_000_000, 0xBCD)
    )

    answer = decode_command(*FrameReader().feed(frame))
    assert (answer.opaque, answer.ext_fields["queueId"]) == (77, "3")
    assert answer.ext_fields["queueOffset"] == "4000000000"
    assert answer.ext_fields["MSG_REGION"] == region
    assert answer.ext_fields["msgId"] == f"{host.hex()}{10_911:08x}{0xABC:016x}".upper()


@pytest.mark.parametrize("region", REGIONS)
@pytest.mark.parametrize("host", [b"\x7f\0\0\1", b"\x10" * 16])
@pytest.mark.parametrize("kind", [JSON, ROCKETMQ])
def test_the_answer_to_a_batch_names_all_places(kind: int, region: str, host: bytes) -> None:
    send_reply = SendReply(host, 10_911, region, trace_on=True)
    command = Command(code=320, opaque=-7, serialize_type=kind)
    place, offsets = AppendResult(0xABC, 4_000_000_000, 0xBCD), [0xABC, 0xDEF, 2**40]

    frame = send_reply.encode(command, 12, place, offsets)

    ids = [f"{host.hex()}{10_911:08x}{offset:016x}".upper() for offset in offsets]
    answer = reply(command, ext={**send_reply.ext, "msgId": ",".join(ids)})
    answer.ext_fields |= {"queueId": "12", "queueOffset": "4000000000"}
    assert frame == encode_command(answer)


@pytest.mark.parametrize("size", range(256))
def test_an_answer_with_a_compact_header_is_made_for_names_of_any_length(size: int) -> None:
    """A length in the header may have any byte, also that of a digit."""
    send_reply = SendReply(b"\x7f\0\0\1", 10_911, "r" * size, trace_on=True)
    command = Command(code=310, opaque=-2, serialize_type=ROCKETMQ)
    frame = send_reply.encode(command, 3, AppendResult(0xABC, 9, 0xBCD))
    answer = reply(command, ext={**send_reply.ext, "msgId": f"7F00000100002A9F{0xABC:016X}"})
    answer.ext_fields |= {"queueId": "3", "queueOffset": "9"}
    assert frame == encode_command(answer)


@pytest.mark.parametrize("kind", [JSON, ROCKETMQ])
@pytest.mark.parametrize("region", [*REGIONS, *("r" * size for size in range(0, 256, 5))])
@pytest.mark.parametrize("queue_offsets", [(0, 3, 9), (9, 10, 4_000_000_000)])
def test_many_answers_are_those_to_each_alone(
    kind: int, region: str, queue_offsets: tuple[int, ...]
) -> None:
    """Some lengths of an answer have the byte of a percent sign."""
    send_reply = SendReply(b"\x7f\0\0\1", 10_911, region, trace_on=True)
    opaques, queues, offsets = (10, 55, 99), (7, 0, 3), (0xABC, 0xDEF, 2**40)
    texts = [b"%d" % each if kind == JSON else each.to_bytes(4) for each in opaques]

    many = send_reply.encode_many(
        kind, offsets, [b"%d" % queue for queue in queues], queue_offsets, texts
    )

    each = zip(offsets, queues, queue_offsets, opaques, strict=True)
    assert list(many) == [send_reply.encode_plain(kind, numbers) for numbers in each]


def test_a_send_in_a_region_with_a_number_is_answered_as_stored() -> None:
    world = BrokerWorld(regionId="eu-west-11")
    world.create_topic()

    for offset in range(2):
        answer = world.ask(Ask.SEND_MESSAGE_V2, send_header(TOPIC, 0), b"hello")

        assert (answer.code, answer.ext_fields["queueOffset"]) == (0, str(offset))
