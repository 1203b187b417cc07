"""Messages found: by their names, keys, places and times."""

import zlib
from datetime import UTC, datetime
from random import Random
from typing import Any

import pytest
from tests.client.masters import by_broker, cluster, json, key, world
from tests.client.script import World, fails, route_body, says

from reliable_mq.client.administering import messages
from reliable_mq.client.administering.cluster_reply import AdminTarget, epoch_ms
from reliable_mq.client.administering.scanning import TopicScan
from reliable_mq.client.administering.tracking import Track, tracks
from reliable_mq.client.flow import Call
from reliable_mq.errors import NoRoute, NotFound, RequestTimeout, UsageError
from reliable_mq.message import MessageQueue, ReceivedMessage
from reliable_mq.wire import fastjson
from reliable_mq.wire.codes import RequestCode, ResponseCode
from reliable_mq.wire.command import Command, reply
from reliable_mq.wire.message_id import encode_offset_message_id
from reliable_mq.wire.properties import encode_properties
from reliable_mq.wire.record import COMPRESSED, Record, pack_host
from reliable_mq.wire.record_encode import encode_record

VIEW, QUERY = RequestCode.VIEW_MESSAGE_BY_ID, RequestCode.QUERY_MESSAGE
AWAY = fails(RequestTimeout("b:10911 did not answer"))
ABSENT = says(ResponseCode.SYSTEM_ERROR, remark="can not find message by the offset, 700")
HOST = pack_host("10.0.0.7", 10911)
PLACE = encode_offset_message_id(HOST[:4], 10911, 700)


def record(number: int, keys: str = "k", *, stored_ms: int = 0) -> bytes:
    return encode_record(
        Record(
            topic="t",
            body=b"%d" % number,
            properties=encode_properties({"UNIQ_KEY": f"ID{number}", "KEYS": keys}),
            queue_offset=number,
            commit_log_offset=700,
            store_host=HOST,
            store_time_ms=stored_ms,
        )
    )


def two(answers: dict[int, Any]) -> World:
    route = says(body=route_body({"a": 1, "b": 1}))
    return world({RequestCode.GET_ROUTEINFO_BY_TOPIC: route, **answers})


def test_a_message_is_asked_of_the_broker_that_its_offset_id_names() -> None:
    at_it = {"a": "10.0.0.7:10911", "b": "10.0.0.8:10911"}
    rows = {name: {"brokerAddrs": {0: address}} for name, address in at_it.items()}
    brokers = fastjson.dumps({"brokerAddrTable": rows})
    playing = two(
        {RequestCode.GET_BROKER_CLUSTER_INFO: says(body=brokers), VIEW: says(body=record(3))}
    )

    found = playing.play(messages.by_offset_id(cluster(), PLACE.lower()))

    (call,) = playing.calls_of(VIEW)
    assert (call.address, call.command.ext_fields["offset"]) == (at_it["a"], "700")
    assert (found.message_id, found.queue) == ("ID3", MessageQueue("t", "a", 0))


def test_behind_another_address_all_brokers_are_asked_and_only_that_very_message_counts() -> None:
    other = record(9).replace(HOST, pack_host("10.0.0.9", 10911))
    playing = two({VIEW: by_broker({"a": says(body=other), "b": says(body=record(3))})})

    found = playing.play(messages.by_offset_id(cluster(), PLACE))

    assert (found.message_id, found.queue.broker_name) == ("ID3", "b")


@pytest.mark.parametrize("answer", [ABSENT, says(body=b"\0" * 200), says(body=record(3)[:40])])
def test_where_no_message_is_none_is_found_whatever_bytes_come(answer: Any) -> None:
    with pytest.raises(NotFound, match=f"no broker has a message {PLACE}"):
        two({VIEW: answer}).play(messages.by_offset_id(cluster(), PLACE))


def test_a_message_that_may_be_at_a_broker_that_is_away_is_not_called_absent() -> None:
    with pytest.raises(RequestTimeout):
        two({VIEW: by_broker({"a": ABSENT, "b": AWAY})}).play(
            messages.by_offset_id(cluster(), PLACE)
        )


@pytest.mark.parametrize("text", ["", "0", "X" * 32, "A" * 33])
def test_what_is_no_offset_id_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match="32 or 56 hexadecimal digits"):
        two({}).play(messages.by_offset_id(cluster(), text))


def test_a_key_finds_only_messages_that_bear_it_in_the_order_of_their_times() -> None:
    late, early = record(2, "k other", stored_ms=9), record(1, "k", stored_ms=5)
    collides = record(3, "kk", stored_ms=7)
    playing = two({QUERY: by_broker({"a": says(body=late + collides), "b": says(body=early)})})

    told = playing.play(messages.by_key(cluster(), "t", "k"))

    assert [message.message_id for message in told.value] == ["ID1", "ID2"]
    within = playing.play(messages.by_key(cluster(), "t", "k", 5, 8))
    assert [message.message_id for message in within.value] == ["ID1"]
    ext = playing.calls_of(QUERY)[-1].command.ext_fields
    assert (ext["beginTimestamp"], ext["endTimestamp"]) == ("5", "8")
    assert "_UNIQUE_KEY_QUERY" not in ext


def test_a_broker_that_cannot_look_is_named_and_what_others_found_is_told() -> None:
    playing = two({QUERY: by_broker({"a": says(body=record(1)), "b": AWAY})})

    told = playing.play(messages.by_message_id(cluster(), "t", "ID1"))

    assert [message.message_id for message in told.value] == ["ID1"]
    assert list(told.failures) == ["b"]


def test_a_message_is_found_by_an_id_that_no_ledger_can_hold() -> None:
    odd = "order 7 " * 40
    stored = encode_record(
        Record(topic="t", body=b"7", properties=encode_properties({"UNIQ_KEY": odd}))
    )
    playing = two({QUERY: by_broker({"a": says(body=stored), "b": says(body=record(1))})})

    (found,) = playing.play(messages.by_message_id(cluster(), "t", odd)).value

    assert found.body == b"7"
    (same,) = playing.play(messages.by_message_id(cluster(), "t", found.message_id)).value
    assert same == found


def test_what_is_found_is_unpacked_where_it_keeps_nobody_waiting() -> None:
    body = Random(7).randbytes(20_000)
    stored = encode_record(
        Record(
            topic="t",
            body=zlib.compress(body),
            sys_flag=COMPRESSED,
            properties=encode_properties({"UNIQ_KEY": "ID1"}),
        )
    )
    playing = two({QUERY: by_broker({"a": says(body=stored), "b": says(body=record(2))})})

    (found,) = playing.play(messages.by_message_id(cluster(), "t", "ID1")).value

    assert (found.body, playing.works) == (body, 1)


class Queue:
    """A queue at each broker whose messages were stored at 0, 10, 20, … ms, two a pull."""

    def __init__(self, count: int) -> None:
        self.count = count

    def search(self, call: Call) -> Command:
        offset = -(-int(call.command.ext_fields["timestamp"]) // 10)
        return reply(call.command, ext={"offset": str(min(offset, self.count))})

    def pull(self, call: Call) -> Command:
        at = int(call.command.ext_fields["queueOffset"])
        numbers = range(at, min(at + 2, self.count))
        ext = {
            "suggestWhichBrokerId": "0",
            "nextBeginOffset": str(at + len(numbers)),
            "minOffset": "0",
            "maxOffset": str(self.count),
        }
        code = ResponseCode.SUCCESS if numbers else ResponseCode.PULL_NOT_FOUND
        body = b"".join(record(number, stored_ms=10 * number) for number in numbers)
        return reply(call.command, code, None, ext, body)

    def answers(self) -> dict[int, Any]:
        return {
            RequestCode.GET_MIN_OFFSET: says(ext={"offset": "0"}),
            RequestCode.GET_MAX_OFFSET: says(ext={"offset": str(self.count)}),
            RequestCode.SEARCH_OFFSET_BY_TIMESTAMP: self.search,
            RequestCode.PULL_MESSAGE: self.pull,
        }


def read(playing: World, scan: TopicScan) -> list[ReceivedMessage]:
    found: list[ReceivedMessage] = []
    while (page := playing.play(scan.next_page())) is not None:
        found += page
    return found


def numbers(found: list[ReceivedMessage], broker: str) -> list[int]:
    return [each.queue_offset for each in found if each.queue.broker_name == broker]


def test_a_topic_is_read_between_two_times_queue_after_queue() -> None:
    playing = two(Queue(7).answers())

    found = read(playing, TopicScan(cluster(), "t", 15, 45))

    assert numbers(found, "a") == numbers(found, "b") == [2, 3, 4]
    assert [each.queue.broker_name for each in found] == ["a"] * 3 + ["b"] * 3


def test_a_topic_is_read_up_to_what_it_held_when_a_queue_was_begun() -> None:
    queue = Queue(5)
    playing = two(queue.answers())
    scan = TopicScan(cluster(), "t")

    first = playing.play(scan.next_page()) or []
    queue.count = 9  # somebody writes on
    rest = read(playing, scan)

    assert numbers(first + rest, "a") == [0, 1, 2, 3, 4]


def test_a_broker_that_fails_is_left_out_and_the_others_are_read() -> None:
    queue = Queue(3)
    playing = two(
        {**queue.answers(), RequestCode.PULL_MESSAGE: by_broker({"a": AWAY, "b": queue.pull})}
    )
    scan = TopicScan(cluster(), "t")

    found = read(playing, scan)

    assert (numbers(found, "a"), numbers(found, "b")) == ([], [0, 1, 2])
    assert list(scan.failures) == ["a"]


@pytest.mark.parametrize(
    ("moment", "why"),
    [
        (datetime(2026, 11, 22, 8, 0), "has no time zone"),  # noqa: DTZ001 - that is the fault
        (datetime(1969, 12, 31, tzinfo=UTC), "before 1970"),
    ],
)
def test_a_moment_that_may_mean_another_one_is_refused(moment: datetime, why: str) -> None:
    with pytest.raises(UsageError, match=why):
        epoch_ms(moment)


def test_an_empty_topic_is_read_to_its_end_at_once() -> None:
    assert read(two(Queue(0).answers()), TopicScan(cluster(), "t")) == []


def test_a_topic_that_may_not_be_read_says_so() -> None:
    route = says(body=route_body({"a": 1}, permission=2))

    with pytest.raises(NoRoute, match="no queue that may be read"):
        read(two({RequestCode.GET_ROUTEINFO_BY_TOPIC: route}), TopicScan(cluster(), "t"))


def test_a_place_gives_the_messages_from_there_on_and_fewer_at_the_end() -> None:
    playing = two(Queue(5).answers())
    place = MessageQueue("t", "a", 0)
    asked: AdminTarget = cluster()

    def at(offset: int, count: int) -> list[int]:
        found = playing.play(messages.at(asked, place, offset, count))
        return [each.queue_offset for each in found]

    assert at(1, 3) == [1, 2, 3]
    assert at(3, 9) == [3, 4]
    assert at(7, 1) == []
    with pytest.raises(UsageError, match="none may be negative"):
        at(-1, 1)


def stats(committed: int) -> Any:
    row = {"brokerOffset": 9, "consumerOffset": committed}
    return says(body=fastjson.dumps({"offsetTable": {key("a"): row}}))


def online(expression: str = "*", model: str = "CLUSTERING", kind: str = "TAG") -> Any:
    wanted = {"subString": expression, "expressionType": kind}
    return json(
        {
            "connectionSet": [{"clientId": "x"}],
            "messageModel": model,
            "subscriptionTable": {"t": wanted},
        }
    )


AWAY_GROUP = says(ResponseCode.CONSUMER_NOT_ONLINE)


@pytest.mark.parametrize(
    ("committed", "consumers", "state"),
    [
        (3, AWAY_GROUP, "done"),
        (2, AWAY_GROUP, "waits"),
        (0, online("red"), "waits"),
        (9, online("blue || green"), "filtered"),
        (9, online("colour = 'blue'", kind="SQL92"), "done"),
        (0, online(model="BROADCASTING"), "unknown"),
    ],
)
def test_a_message_is_tracked_by_what_each_group_has_committed(
    committed: int, consumers: Any, state: str
) -> None:
    message = ReceivedMessage(
        topic="t", body=b"", tag="red", queue=MessageQueue("t", "a", 0), queue_offset=2
    )
    playing = two(
        {
            RequestCode.QUERY_TOPIC_CONSUME_BY_WHO: json({"groupList": ["g"]}),
            RequestCode.GET_CONSUME_STATS: stats(committed),
            RequestCode.GET_CONSUMER_CONNECTION_LIST: consumers,
        }
    )

    told = playing.play(tracks(cluster(), message))

    assert told.value == [Track("g", state)]
    assert {call.address for call in playing.calls_of(RequestCode.GET_CONSUME_STATS)} == {"a:10911"}


def test_a_group_whose_state_is_not_told_is_named() -> None:
    message = ReceivedMessage(topic="t", body=b"", queue=MessageQueue("t", "a", 0), queue_offset=2)
    playing = two(
        {
            RequestCode.QUERY_TOPIC_CONSUME_BY_WHO: json({"groupList": ["g"]}),
            RequestCode.GET_CONSUME_STATS: AWAY,
            RequestCode.GET_CONSUMER_CONNECTION_LIST: AWAY_GROUP,
        }
    )

    told = playing.play(tracks(cluster(), message))

    assert told.value == []
    assert list(told.failures) == ["a, group g"]
