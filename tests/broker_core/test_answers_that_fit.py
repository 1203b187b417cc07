"""An answer always fits a frame: what would not is an error answer, and the peer's own matter."""

import pytest
from tests.broker_core.broker_world import GROUP, TOPIC, BrokerWorld, connection, send_header
from tests.fuzz.requests import NAMES

from reliable_mq.broker_core.requests.handlers import HANDLERS
from reliable_mq.wire import frame
from reliable_mq.wire.answer import encode_answer
from reliable_mq.wire.codes import RequestCode, ResponseCode
from reliable_mq.wire.command import Command, decode_request, encode_command
from reliable_mq.wire.frame import JSON, ROCKETMQ, FrameReader

FRAME_MAX = 32 * 1024
LONG = "\x01" * (FRAME_MAX // 6 - 100)  # JSON spells such a character with six


@pytest.fixture
def small_frames(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the longest frame be short, so that many can be tried."""
    monkeypatch.setattr(frame, "LENGTH_MAX", FRAME_MAX)


def world() -> BrokerWorld:
    broker = BrokerWorld()
    broker.ask(RequestCode.SEND_MESSAGE_V2, send_header(TOPIC), b"x")
    broker.ask(
        RequestCode.HEART_BEAT,
        body=b'{"clientID":"c","consumerDataSet":[{"groupName":"%b"}]}' % GROUP.encode(),
    )
    return broker


def asked(broker: BrokerWorld, command: Command) -> list[Command]:
    """Send a command as it is, and return what came back."""
    (cut,) = FrameReader().feed(encode_command(command))
    broker.core.receive(connection(1), decode_request(cut), broker.now_ms)
    while broker.core.index_some(broker.now_ms):
        pass
    broker.now_ms += 60_000
    broker.core.tick(broker.now_ms)
    broker.finish_turn()
    return broker.inbox.pop(1, [])


@pytest.mark.usefixtures("small_frames")
@pytest.mark.parametrize("form", [JSON, ROCKETMQ])
def test_no_field_of_a_request_is_too_long_for_an_answer(form: int) -> None:
    broker = world()
    text = LONG if form == JSON else "x" * (FRAME_MAX - 1_000)
    for code in HANDLERS:
        for name in NAMES:
            ext = {"topic": TOPIC, "group": GROUP, "consumerGroup": GROUP, "queueId": "0"}
            command = Command(int(code), 7, ext_fields=ext | {name: text}, serialize_type=form)
            answers = [answer for answer in asked(broker, command) if answer.is_reply]
            assert all(answer.opaque == 7 for answer in answers), (code, name)
            assert sum(len(answer.remark or "") for answer in answers) < 5_000, (code, name)


@pytest.mark.usefixtures("small_frames")
def test_an_answer_that_fits_no_frame_says_so() -> None:
    broker = BrokerWorld()
    for number in range(400):
        broker.ask(
            RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, body=b'{"groupName":"%064d"}' % number
        )
    answer = broker.ask(RequestCode.GET_SYSTEM_TOPIC_LIST_FROM_BROKER)
    assert answer.code == ResponseCode.SUCCESS
    answer = broker.ask(RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG)
    assert answer.code == ResponseCode.SYSTEM_ERROR
    told = "the answer to this request cannot be sent: frame length "
    assert (answer.remark or "").startswith(told)


@pytest.mark.parametrize(
    ("ext", "reason"),
    [
        (
            {"k" * 70_000: "v"},
            "a name or a number of the header is too large for the ROCKETMQ format",
        ),
        ({"k": "\ud800"}, "the header contains half a surrogate pair"),
    ],
)
def test_an_answer_whose_field_does_not_fit_its_header_says_so(
    ext: dict[str, str], reason: str
) -> None:
    answer = Command(0, 7, flag=1, ext_fields=ext, serialize_type=ROCKETMQ)
    (cut,) = FrameReader().feed(encode_answer(answer))
    told = decode_request(cut)
    assert (told.code, told.opaque) == (ResponseCode.SYSTEM_ERROR, 7)
    assert told.remark == f"the answer to this request cannot be sent: {reason}"
