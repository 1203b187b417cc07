"""Topics looked after: all masters are asked, and one that does not answer spoils nothing."""

import pytest
from tests.client.masters import by_broker, cluster, echo, json, key, queue, world
from tests.client.script import World, fails, in_turn, route_body, says

from reliable_mq.client.administering import topic_changes, topics
from reliable_mq.client.administering.topic_settings import (
    TopicChange,
    TopicSettings,
    permission_number,
    permission_text,
)
from reliable_mq.errors import (
    ConfigurationError,
    ConnectionLost,
    NoRoute,
    NotFound,
    ProtocolError,
    Refused,
    RequestTimeout,
    UsageError,
)
from reliable_mq.wire import fastjson
from reliable_mq.wire.codes import RequestCode, ResponseCode

CONFIG = RequestCode.GET_TOPIC_CONFIG
PUT = RequestCode.UPDATE_AND_CREATE_TOPIC
ROUTE = RequestCode.GET_ROUTEINFO_BY_TOPIC
STATS = RequestCode.GET_TOPIC_STATS_INFO
DELETE = RequestCode.DELETE_TOPIC_IN_BROKER
FORGET = RequestCode.DELETE_TOPIC_IN_NAMESRV
ORDER = RequestCode.DELETE_KV_CONFIG

HAS = json({"topicName": "t", "readQueueNums": 4, "writeQueueNums": 4, "perm": 6, "order": False})
HAS_NOT = says(ResponseCode.TOPIC_NOT_EXIST, remark="No topic in this broker. topic: t")
AWAY = fails(RequestTimeout("b:10911 did not answer"))
WANTED = TopicSettings(read_queues=4, write_queues=4)


def two(answers: dict[int, object] | None = None) -> World:
    """Return two masters without the topic, that tell of it as soon as they are told."""
    told = {
        CONFIG: HAS_NOT,
        PUT: echo,
        ROUTE: says(body=route_body({"a": 4, "b": 4})),
        DELETE: echo,
        FORGET: echo,
        ORDER: says(ResponseCode.QUERY_NOT_FOUND),
    }
    return world({**told, **(answers or {})})  # type: ignore[dict-item]


def test_a_topic_is_made_at_every_master_that_lacks_it() -> None:
    playing = two({CONFIG: by_broker({"a": HAS, "b": HAS_NOT})})

    told = playing.play(topic_changes.create(cluster(), "t", WANTED))

    assert (told.value, told.failures) == (["b"], {})
    (call,) = playing.calls_of(PUT)
    assert call.address == "b:10911"
    assert call.command.ext_fields["readQueueNums"] == "4"


def test_a_master_that_does_not_answer_is_named_and_the_other_makes_the_topic() -> None:
    playing = two({PUT: by_broker({"a": echo, "b": AWAY})})

    told = playing.play(topic_changes.create(cluster(), "t", WANTED))

    assert told.value == ["a"]
    assert isinstance(told.failures["b"], RequestTimeout)


def test_a_topic_that_is_there_with_other_settings_is_not_overwritten() -> None:
    playing = two({CONFIG: by_broker({"a": HAS, "b": HAS_NOT})})

    with pytest.raises(UsageError, match=r"broker a has topic t.*write_queues 4, not 9"):
        playing.play(
            topic_changes.create(cluster(), "t", TopicSettings(read_queues=4, write_queues=9))
        )

    assert playing.calls_of(PUT) == []


def test_a_dry_run_says_where_and_changes_nothing() -> None:
    playing = two()

    told = playing.play(topic_changes.create(cluster(), "t", WANTED, dry_run=True))

    assert told.value == ["a", "b"]
    assert playing.calls_of(PUT) == []


def test_a_topic_counts_as_made_when_the_name_server_tells_of_it() -> None:
    later = in_turn(
        says(ResponseCode.TOPIC_NOT_EXIST),
        says(body=route_body({"a": 4})),
        says(body=route_body({"a": 4, "b": 4})),
    )
    playing = two({ROUTE: later})

    playing.play(topic_changes.create(cluster(), "t", WANTED))

    assert len(playing.calls_of(ROUTE)) == 3
    with pytest.raises(NoRoute, match="did not register it"):
        two({ROUTE: says(ResponseCode.TOPIC_NOT_EXIST)}).play(
            topic_changes.create(cluster(), "t", WANTED)
        )


def test_a_change_keeps_what_it_does_not_name_at_each_broker() -> None:
    ordered = json(
        {
            "topicName": "t",
            "readQueueNums": 2,
            "writeQueueNums": 3,
            "perm": 4,
            "order": True,
            "attributes": {"queue.type": "SimpleCQ", "gone": "1"},
        }
    )
    playing = two(
        {
            CONFIG: by_broker({"a": ordered, "b": HAS_NOT}),
            ROUTE: says(
                body=route_body({"a": 3}, permission=6).replace(
                    b'"readQueueNums":3', b'"readQueueNums":2'
                )
            ),
        }
    )
    change = TopicChange(permission="rw", attributes={"message.type": "FIFO", "gone": None})

    told = playing.play(topic_changes.update(cluster(), "t", change))

    (call,) = playing.calls_of(PUT)
    ext = call.command.ext_fields
    assert told.value == ["a"]
    assert (ext["readQueueNums"], ext["writeQueueNums"], ext["perm"]) == ("2", "3", "6")
    assert ext["order"] == "true"
    assert ext["attributes"] == "+message.type=FIFO,-gone"  # queue.type may not be set twice


def test_a_change_of_a_topic_that_nobody_has_is_told() -> None:
    with pytest.raises(NotFound, match="no broker has topic t"):
        two().play(topic_changes.update(cluster(), "t", TopicChange(permission="r")))


@pytest.mark.parametrize(
    ("topic", "wanted"),
    [
        ("a b", TopicSettings()),
        ("t", TopicSettings(permission="rwz")),
        ("t", TopicSettings(read_queues=-1)),
    ],
)
def test_what_cannot_be_is_refused_before_anybody_is_asked(
    topic: str, wanted: TopicSettings
) -> None:
    playing = two()

    with pytest.raises(ConfigurationError):
        playing.play(topic_changes.create(cluster(), topic, wanted))

    assert playing.calls == []


def test_a_broker_that_nobody_knows_is_named_with_those_that_are_there() -> None:
    with pytest.raises(UsageError, match="no broker z; there are a, b"):
        two().play(topic_changes.create(cluster(), "t", WANTED, only=["z"]))


def test_name_servers_forget_a_topic_when_every_broker_has_deleted_it() -> None:
    playing = two({CONFIG: HAS})

    told = playing.play(topic_changes.delete(cluster(), "t"))

    assert (told.value, told.failures) == (["a", "b"], {})
    assert len(playing.calls_of(FORGET)) == 1
    codes = [call.command.code for call in playing.calls]
    assert codes.index(FORGET) > codes.index(DELETE)


def test_name_servers_keep_a_topic_that_a_broker_could_not_delete() -> None:
    playing = two({CONFIG: HAS, DELETE: by_broker({"a": echo, "b": AWAY})})

    told = playing.play(topic_changes.delete(cluster(), "t"))

    assert (told.value, list(told.failures)) == (["a"], ["b"])
    assert playing.calls_of(FORGET) == []


def test_a_topic_that_only_name_servers_know_is_forgotten() -> None:
    playing = two()

    assert playing.play(topic_changes.delete(cluster(), "t")).value == []
    assert len(playing.calls_of(FORGET)) == 1

    unknown = two({ROUTE: says(ResponseCode.TOPIC_NOT_EXIST)})
    with pytest.raises(NotFound):
        unknown.play(topic_changes.delete(cluster(), "t"))


def test_a_topic_of_the_brokers_is_refused_in_their_words() -> None:
    refusal = says(ResponseCode.INVALID_PARAMETER, remark="is conflict with system topic")

    with pytest.raises(Refused, match="conflict with system topic"):
        two({CONFIG: HAS, DELETE: refusal}).play(topic_changes.delete(cluster(), "TBW102"))


def stats(name: str, *, end: int) -> bytes:
    row = {"minOffset": 1, "maxOffset": end, "lastUpdateTimestamp": 5 if end else 0}
    return fastjson.dumps({"offsetTable": {key(name): row}, "topicPutTps": 1.5})


def test_the_status_of_a_topic_is_that_of_all_its_queues() -> None:
    playing = two(
        {
            ROUTE: says(body=route_body({"b": 1, "a": 1})),
            STATS: by_broker(
                {"a": says(body=stats("a", end=7)), "b": says(body=stats("b", end=0))}
            ),
        }
    )

    told = playing.play(topics.status(cluster(), "t"))

    rows = [(row.queue, row.first, row.end, row.last_stored_ms) for row in told.value.queues]
    assert rows == [(queue("a"), 1, 7, 5), (queue("b"), 1, 0, None)]
    assert told.value.per_second == 3.0


@pytest.mark.parametrize("body", [b"", b"nonsense", b"[]", b'{"offsetTable":{"x":{}}}'])
def test_a_broken_answer_is_a_protocol_error_of_its_broker(body: bytes) -> None:
    one = {ROUTE: says(body=route_body({"a": 1})), STATS: says(body=body)}
    with pytest.raises(ProtocolError):
        two(one).play(topics.status(cluster(), "t"))  # type: ignore[arg-type]

    both = {
        ROUTE: says(body=route_body({"a": 1, "b": 1})),
        STATS: by_broker({"a": says(body=stats("a", end=7)), "b": says(body=body)}),
    }
    told = two(both).play(topics.status(cluster(), "t"))  # type: ignore[arg-type]
    assert [row.queue for row in told.value.queues] == [queue("a")]
    assert isinstance(told.failures["b"], ProtocolError)


def test_when_nobody_tells_the_words_of_all_are_told() -> None:
    lost = fails(ConnectionLost("gone"))
    playing = two({ROUTE: says(body=route_body({"a": 1, "b": 1})), STATS: lost})

    with pytest.raises(ConnectionLost, match="broker a: gone; broker b: gone"):
        playing.play(topics.status(cluster(), "t"))


def test_topics_of_brokers_and_groups_are_left_out_unless_all_are_wanted() -> None:
    known = ["t", "%RETRY%g", "%DLQ%g", "TBW102", "a", "c", "rmq_sys_x"]
    playing = two(
        {
            RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER: json({"topicList": known}),
            RequestCode.GET_SYSTEM_TOPIC_LIST_FROM_BROKER: by_broker(
                {"a": json({"topicList": ["TBW102"]}), "b": AWAY}
            ),
        }
    )

    applications = playing.play(topics.names(cluster(), everything=False))

    assert (applications.value, list(applications.failures)) == (["t"], ["b"])
    assert playing.play(topics.names(cluster(), everything=True)).value == sorted(known)


def test_the_topics_of_brokers_are_left_out_though_no_broker_may_be_asked() -> None:
    playing = two(
        {
            RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER: json({"topicList": ["t", "TBW102"]}),
            RequestCode.GET_SYSTEM_TOPIC_LIST_FROM_BROKER: by_broker({"a": AWAY, "b": AWAY}),
        }
    )

    assert playing.play(topics.names(cluster(), everything=False)).value == ["t"]


def test_the_groups_of_a_topic_are_those_of_all_brokers() -> None:
    playing = two(
        {
            RequestCode.QUERY_TOPIC_CONSUME_BY_WHO: by_broker(
                {"a": json({"groupList": ["x", "y"]}), "b": json({"groupList": ["w", "x"]})}
            )
        }
    )

    assert playing.play(topics.consumers(cluster(), "t")).value == ["w", "x", "y"]


def test_a_route_says_how_many_queues_are_where_and_who_may_do_what() -> None:
    playing = two({ROUTE: says(body=route_body({"b": 2}, permission=4))})

    (place,) = playing.play(topics.route(cluster(), "t"))

    assert (place.broker, place.cluster, place.addresses) == ("b", "c", {0: "b:10911"})
    assert (place.read_queues, place.write_queues, place.permission) == (2, 2, "r")


@pytest.mark.parametrize(
    ("number", "text"), [(6, "rw"), (4, "r"), (2, "w"), (0, "none"), (7, "rwx")]
)
def test_a_permission_reads_both_ways(number: int, text: str) -> None:
    assert permission_text(number) == text
    assert permission_number(text) == number
