"""Offsets set by hand: by time, to the end, to an offset, as another group's."""

from typing import Any

import pytest
from tests.client.masters import by_broker, cluster, echo, json, queue, table, world
from tests.client.script import World, fails, route_body, says

from reliable_mq.client.administering import offset_resets
from reliable_mq.client.administering.offset_resets import END
from reliable_mq.client.flow import Call
from reliable_mq.errors import NotFound, RemoteError, RequestTimeout, UsageError
from reliable_mq.wire import fastjson
from reliable_mq.wire.codes import RequestCode, ResponseCode
from reliable_mq.wire.command import Command, reply

RESET = RequestCode.INVOKE_BROKER_TO_RESET_OFFSET
COMMIT = RequestCode.UPDATE_CONSUMER_OFFSET
SEARCH = RequestCode.SEARCH_OFFSET_BY_TIMESTAMP
CLONE = RequestCode.CLONE_GROUP_OFFSET
CONSUMED = RequestCode.GET_CONSUME_STATS
CONSUMERS = RequestCode.GET_CONSUMER_CONNECTION_LIST
MAXIMUM, MINIMUM = RequestCode.GET_MAX_OFFSET, RequestCode.GET_MIN_OFFSET
ROW = {"brokerOffset": 9, "consumerOffset": 4}
NOT_ONLINE = says(ResponseCode.CONSUMER_NOT_ONLINE, remark="Consumer not online")
ONLINE = json({"connectionSet": [{"clientId": "x"}]})
AWAY = fails(RequestTimeout("b:10911 did not answer"))


def two(answers: dict[int, Any] | None = None) -> World:
    """Return two masters with a queue of topic t each, in which group g has come to 4 of 9."""
    told: dict[int, Any] = {
        RequestCode.GET_ROUTEINFO_BY_TOPIC: says(body=route_body({"a": 1, "b": 1})),
        CONSUMED: by_broker(table({"a": {0: ROW}, "b": {0: ROW}})),
        RESET: by_broker(table({"a": {0: 2}, "b": {0: 3}})),
        SEARCH: says(ext={"offset": "2"}),
        MAXIMUM: says(ext={"offset": "9"}),
        MINIMUM: says(ext={"offset": "1"}),
        COMMIT: echo,
        CONSUMERS: NOT_ONLINE,
        RequestCode.GET_BROKER_CONFIG: says(body=b"useServerSideResetOffset=true\n"),
    }
    return world({**told, **(answers or {})})


def test_a_reset_by_time_is_asked_of_every_broker_and_tells_before_and_after() -> None:
    playing = two()

    told = playing.play(offset_resets.to_time(cluster(), "g", "t", 1234))

    rows = [(row.queue, row.before, row.after) for row in told.value]
    assert rows == [(queue("a"), 4, 2), (queue("b"), 4, 3)]
    ext = playing.calls_of(RESET)[0].command.ext_fields
    assert (ext["timestamp"], ext["isForce"], ext["queueId"]) == ("1234", "true", "-1")


def test_a_dry_run_asks_where_the_time_is_and_resets_nothing() -> None:
    playing = two()

    by_time = playing.play(offset_resets.to_time(cluster(), "g", "t", 1234, dry_run=True))
    to_end = playing.play(offset_resets.to_time(cluster(), "g", "t", END, dry_run=True))

    assert [row.after for row in by_time.value] == [2, 2]
    assert [row.after for row in to_end.value] == [9, 9]
    assert playing.calls_of(RESET) == playing.calls_of(COMMIT) == []


def test_a_broker_that_leaves_a_reset_to_members_has_it_written_for_a_group_without_any() -> None:
    reset = by_broker({"a": NOT_ONLINE, "b": table({"b": {0: 3}})["b"]})
    playing = two({RESET: reset})

    told = playing.play(offset_resets.to_time(cluster(), "g", "t", 1234))

    (call,) = playing.calls_of(COMMIT)
    assert (call.address, call.command.ext_fields["commitOffset"]) == ("a:10911", "2")
    assert [row.after for row in told.value] == [2, 3]
    assert told.failures == {}


def test_a_broker_that_does_not_answer_is_named_and_the_other_resets() -> None:
    playing = two({RESET: by_broker({"a": table({"a": {0: 2}})["a"], "b": AWAY})})

    told = playing.play(offset_resets.to_time(cluster(), "g", "t", 1234))

    assert [row.queue for row in told.value] == [queue("a")]
    assert list(told.failures) == ["b"]


def test_a_group_that_brokers_do_not_know_is_told_in_their_words() -> None:
    unknown = says(ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST, remark="Group g does not exist")

    with pytest.raises(NotFound, match="Group g does not exist"):
        two({RESET: unknown}).play(offset_resets.to_time(cluster(), "g", "t", 0))


def test_a_time_before_the_epoch_is_refused() -> None:
    with pytest.raises(UsageError, match="before 1970"):
        two().play(offset_resets.to_time(cluster(), "g", "t", END - 1))


def test_one_queue_is_set_by_a_broker_that_keeps_resets_itself() -> None:
    playing = two({CONSUMERS: ONLINE})

    reset = playing.play(offset_resets.to_offset(cluster(), "g", queue("a"), 7))

    (call,) = playing.calls_of(RESET)
    ext = call.command.ext_fields
    assert (ext["queueId"], ext["offset"]) == ("0", "7")
    assert (reset.before, reset.after) == (4, 7)


def test_one_queue_is_never_asked_of_a_broker_that_would_reset_all_of_them() -> None:
    # With useServerSideResetOffset=false, or before 5.0, the queue of the request is not read.
    old: dict[int, Any] = {RequestCode.GET_BROKER_CONFIG: says(body=b"brokerName=a\n")}
    offline = two(old)

    offline.play(offset_resets.to_offset(cluster(), "g", queue("a"), 7))

    assert offline.calls_of(RESET) == []
    assert offline.calls_of(COMMIT)[0].command.ext_fields["commitOffset"] == "7"
    with pytest.raises(UsageError, match="stop the members of g first"):
        two({**old, CONSUMERS: ONLINE}).play(offset_resets.to_offset(cluster(), "g", queue("a"), 7))


@pytest.mark.parametrize(
    ("place", "offset", "why"),
    [
        (queue("a"), 10, "give 1 to 9"),
        (queue("a"), 0, "give 1 to 9"),
        (queue("a", queue_id=5), 3, "has no queue 5 of t"),
        (queue("z"), 3, "no broker z"),
    ],
)
def test_a_place_that_is_not_there_is_refused(place: Any, offset: int, why: str) -> None:
    playing = two()

    with pytest.raises(UsageError, match=why):
        playing.play(offset_resets.to_offset(cluster(), "g", place, offset))

    assert playing.calls_of(RESET) == playing.calls_of(COMMIT) == []


class Offsets:
    """Two groups at two brokers; a clone copies g's offsets to h."""

    def __init__(self) -> None:
        self.of = {"g": 4, "h": 0}

    def consumed(self, call: Call) -> Command:
        group, name = call.command.ext_fields["consumerGroup"], call.address[0]
        row = {"brokerOffset": 9, "consumerOffset": self.of[group]}
        rows = {
            (("brokerName", name), ("queueId", 0), ("topic", topic)): row
            for topic in ("t", "%RETRY%g")
        }
        return reply(call.command, body=fastjson.dumps({"offsetTable": rows}))

    def clone(self, call: Call) -> Command:
        self.of["h"] = self.of["g"]
        return reply(call.command)


def test_a_clone_names_each_topic_and_tells_what_the_brokers_have_then() -> None:
    offsets = Offsets()
    playing = two({CONSUMED: offsets.consumed, CLONE: offsets.clone})

    dry = playing.play(offset_resets.clone(cluster(), "g", "h", dry_run=True))
    told = playing.play(offset_resets.clone(cluster(), "g", "h"))

    rows = [(row.queue, row.before, row.after) for row in told.value]
    assert rows == [(queue("a"), 0, 4), (queue("b"), 0, 4)]
    assert [(row.queue, row.before, row.after) for row in dry.value] == rows
    clones = playing.calls_of(CLONE)
    # without a topic Apache's broker looks up the topic "null"; retries are a group's own
    assert [call.command.ext_fields["topic"] for call in clones] == ["t", "t"]


def test_a_clone_to_a_group_that_is_online_would_be_undone_by_it() -> None:
    playing = two({CONSUMERS: ONLINE})

    with pytest.raises(UsageError, match="group h has members that are connected"):
        playing.play(offset_resets.clone(cluster(), "g", "h"))


def test_a_group_that_has_committed_nothing_is_no_source() -> None:
    offsets = Offsets()
    offsets.of["g"] = 0

    with pytest.raises(NotFound, match="group g has committed nothing in any topic"):
        two({CONSUMED: offsets.consumed}).play(offset_resets.clone(cluster(), "g", "h"))


def test_a_refusal_of_all_brokers_is_raised() -> None:
    refusal = says(ResponseCode.SYSTEM_ERROR, remark="Can not reset offset in slave broker")

    with pytest.raises(RemoteError, match="slave broker"):
        two({RESET: refusal}).play(offset_resets.to_time(cluster(), "g", "t", 0))
