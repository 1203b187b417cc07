"""Where a consumer by the message pops, and what it refuses to begin."""

from typing import Any

import msgspec
import pytest
from tests.client.pop_broker import popping_group
from tests.client.script import World, fails, says

from reliable_mq.client.consuming.pop_shares import shares_of
from reliable_mq.client.consuming.popping import check_popping
from reliable_mq.client.consuming.subscription import Subscription
from reliable_mq.errors import ConfigurationError, RequestTimeout
from reliable_mq.wire.codes import RequestCode, ResponseCode


def _assignment(mode: str, *queue_ids: int) -> bytes:
    queues = [{"brokerName": "a", "queueId": each, "topic": "t"} for each in queue_ids]
    rows = [{"attachments": None, "messageQueue": each, "mode": mode} for each in queues]
    return msgspec.json.encode({"messageQueueAssignments": rows})


@pytest.mark.parametrize(
    ("code", "remark", "advice"),
    [
        (
            ResponseCode.REQUEST_CODE_NOT_SUPPORTED,
            " request type 200050 not supported",
            (
                'broker a cannot deliver by the message: consume with by="queue", or use a broker'
                r" that answers POP_MESSAGE \(ours, or Apache RocketMQ 5.0 and later\)"
            ),
        ),
        (
            ResponseCode.SYSTEM_ERROR,
            "the broker[1.2.3.4] pop message is forbidden because timerWheelEnable is false",
            (
                "broker a delivers by the message only with timerWheelEnable=true: set that at the"
                ' broker, or consume with by="queue"'
            ),
        ),
    ],
)
def test_a_broker_that_cannot_pop_is_refused_at_the_start(
    code: int, remark: str, advice: str
) -> None:
    world = World()
    group = popping_group(world)
    world.answers[RequestCode.POP_MESSAGE] = says(code, remark=remark)
    with pytest.raises(ConfigurationError, match=f"^{advice}$"):
        world.play(check_popping(group))


@pytest.mark.parametrize(
    ("code", "remark"),
    [
        (ResponseCode.INVALID_PARAMETER, "queueId[2147483647] is illegal"),
        (ResponseCode.TOPIC_NOT_EXIST, "topic[t] not exist"),
        (ResponseCode.SYSTEM_ERROR, "something else"),
        (ResponseCode.POLLING_TIMEOUT, ""),
    ],
)
def test_a_broker_that_can_pop_is_accepted(code: int, remark: str) -> None:
    world = World()
    group = popping_group(world)
    world.answers[RequestCode.POP_MESSAGE] = says(code, remark=remark)
    world.play(check_popping(group))
    world.answers[RequestCode.POP_MESSAGE] = fails(RequestTimeout("silent"))
    world.play(check_popping(group))


@pytest.mark.parametrize(
    ("wishes", "text"),
    [
        ({"by": "topic"}, "by is 'topic': give queue or message"),
        ({"by": "message"}, "keeps no order: add ordered=False"),
        ({"by": "message", "broadcasting": True}, "choose one of them"),
        ({"by": "message", "from_where": "timestamp"}, "reset the offsets of the group"),
        ({"invisible_seconds": 60.0}, 'invisible_seconds=60.0 needs by="message"'),
        (
            {"by": "message", "invisible_seconds": 0},
            "invisible_seconds is 0: give 1 to 43200 seconds",
        ),
        (
            {"by": "message", "invisible_seconds": -1.0},
            "invisible_seconds is -1.0: give 1 to 43200 seconds",
        ),
        (
            {"by": "message", "invisible_seconds": 43_201},
            "invisible_seconds is 43201: give 1 to 43200 seconds",
        ),
        (
            {"by": "message", "invisible_seconds": float("nan")},
            "invisible_seconds is nan: give 1 to 43200",
        ),
        (
            {"by": "message", "invisible_seconds": "60"},
            "invisible_seconds is '60': give 1 to 43200 seconds",
        ),
    ],
)
def test_wishes_that_do_not_fit_are_refused(wishes: dict[str, Any], text: str) -> None:
    ordered = {"ordered": "keeps no order" in text}
    with pytest.raises(ConfigurationError, match=text):
        Subscription(group="g", topics={"t": "*"}, **(ordered | wishes))


@pytest.mark.parametrize(
    ("body", "shares"),
    [
        (b'{"messageQueueAssignments":null}', {-1}),
        (b"{}", {-1}),
        (b"[]", {-1}),
        (b"no JSON", {-1}),
        (_assignment("PULL", 0), {-1}),
        (_assignment("POP", -1), {-1}),
        (_assignment("POP", 1, 3), {1, 3}),
    ],
)
def test_a_member_pops_from_all_queues_unless_an_administrator_has_divided_them(
    body: bytes, shares: set[int]
) -> None:
    world = World({RequestCode.QUERY_ASSIGNMENT: says(body=body)})
    group = popping_group(world)
    looked = world.play(shares_of(group))
    assert {share.queue_id for share in looked.shares if share.topic == "t"} == shares
    assert {share.queue_id for share in looked.shares if share.topic == "%RETRY%g"} == {-1}
    world.dead.add("a:10911")
    assert {share.queue_id for share in world.play(shares_of(group)).shares} == {-1}
