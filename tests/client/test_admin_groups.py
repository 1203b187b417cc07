"""Consumer groups looked after: settings, members, producers, progress."""

import msgspec
import pytest
from tests.client.masters import by_broker, cluster, echo, json, key, queue, table, world
from tests.client.script import World, fails, says

from reliable_mq.client.administering import groups, members, progress
from reliable_mq.client.administering.groups import GroupChange, GroupSettings
from reliable_mq.client.administering.members import version_text
from reliable_mq.errors import (
    ConfigurationError,
    NotFound,
    ProtocolError,
    RemoteError,
    RequestTimeout,
    UsageError,
)
from reliable_mq.wire import fastjson
from reliable_mq.wire.codes import RequestCode, ResponseCode

ALL = RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG
PUT = RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP
DELETE = RequestCode.DELETE_SUBSCRIPTIONGROUP
CONSUMERS = RequestCode.GET_CONSUMER_CONNECTION_LIST
CONSUMED = RequestCode.GET_CONSUME_STATS
AWAY = fails(RequestTimeout("b:10911 did not answer"))
OFFLINE = says(ResponseCode.CONSUMER_NOT_ONLINE, remark="the consumer group[g] not online")
ROW = {
    "groupName": "g",
    "consumeEnable": True,
    "retryMaxTimes": 5,
    "unheardOf": {"x": 1},
    "attributes": {"priority.factor": "1"},
}


def has(**rows: object) -> object:
    return json({"dataVersion": {}, "subscriptionGroupTable": rows})


def two(answers: dict[int, object] | None = None) -> World:
    told = {ALL: has(), PUT: echo, DELETE: echo, CONSUMERS: OFFLINE}
    return world({**told, **(answers or {})})  # type: ignore[dict-item]


def row_of(playing: World) -> dict[str, object]:
    (call,) = playing.calls_of(PUT)
    found: dict[str, object] = msgspec.json.decode(call.command.body)
    return found


def test_a_group_is_made_at_every_master_that_lacks_it() -> None:
    playing = two({ALL: by_broker({"a": has(g=ROW), "b": has()})})  # type: ignore[dict-item]

    told = playing.play(groups.create(cluster(), "g", GroupChange(retries_max=5)))

    assert told.value == ["b"]
    assert row_of(playing) == {"groupName": "g", "retryMaxTimes": 5}


def test_a_group_that_is_there_with_other_settings_is_not_overwritten() -> None:
    playing = two({ALL: has(g=ROW)})

    with pytest.raises(UsageError, match="broker a has group g with other settings"):
        playing.play(groups.create(cluster(), "g", GroupChange(retries_max=6)))

    assert playing.calls_of(PUT) == []


def test_a_change_keeps_all_that_it_does_not_name_also_what_nobody_here_knows() -> None:
    playing = two({ALL: by_broker({"a": has(g=ROW), "b": has()})})  # type: ignore[dict-item]

    told = playing.play(groups.update(cluster(), "g", GroupChange(may_consume=False)))

    assert told.value == ["a"]
    # attributes that are sent are changes of attributes, in a form of their own
    assert row_of(playing) == {**ROW, "consumeEnable": False, "attributes": {}}


def test_a_group_is_not_asked_for_by_name_because_that_makes_it_at_apaches_broker() -> None:
    playing = two({ALL: has(g=ROW)})

    told = playing.play(groups.settings(cluster(), "g"))

    assert told.value["a"] == GroupSettings(retries_max=5)
    assert playing.calls_of(RequestCode.GET_SUBSCRIPTIONGROUP_CONFIG) == []
    with pytest.raises(NotFound, match="no broker has group h"):
        playing.play(groups.settings(cluster(), "h"))


def test_groups_of_the_brokers_are_left_out_unless_all_are_wanted() -> None:
    rows: dict[str, object] = {"g": {}, "TOOLS_CONSUMER": {}, "CID_RMQ_SYS_TRANS": {}}
    playing = two({ALL: by_broker({"a": has(**rows), "b": AWAY})})  # type: ignore[dict-item]

    applications = playing.play(groups.groups(cluster(), everything=False))

    assert list(applications.value) == ["g"]
    assert list(applications.failures) == ["b"]
    assert len(playing.play(groups.groups(cluster(), everything=True)).value) == 3


def test_settings_that_do_not_read_are_a_protocol_error() -> None:
    with pytest.raises(ProtocolError, match="settings of a group"):
        two({ALL: has(g={"retryMaxTimes": "many"})}).play(groups.settings(cluster(), "g"))


def test_a_negative_number_is_no_setting() -> None:
    with pytest.raises(ConfigurationError, match="retries_max is -1"):
        GroupChange(retries_max=-1)


def consumers(*client_ids: str, name: str = "a") -> object:
    return json(
        {
            "connectionSet": [
                {
                    "clientId": each,
                    "clientAddr": f"10.0.0.1:{name}",
                    "language": "JAVA",
                    "version": 493,
                }
                for each in client_ids
            ],
            "consumeType": "CONSUME_PASSIVELY",
            "messageModel": "CLUSTERING",
            "consumeFromWhere": "CONSUME_FROM_LAST_OFFSET",
            "subscriptionTable": {"t": {"subString": "red || green", "topic": "t"}},
        }
    )


def test_a_group_with_members_is_not_deleted_under_them() -> None:
    playing = two({ALL: has(g=ROW), CONSUMERS: consumers("me@1")})

    with pytest.raises(UsageError, match="stop them first: me@1"):
        playing.play(groups.delete(cluster(), "g", offsets=True))

    assert playing.calls_of(DELETE) == []


def test_a_broker_that_does_not_tell_of_members_is_a_failure_before_a_delete() -> None:
    one = by_broker({"a": OFFLINE, "b": AWAY})
    playing = two({ALL: has(g=ROW), CONSUMERS: one})

    told = playing.play(groups.delete(cluster(), "g", offsets=True, dry_run=True))

    assert (told.value, list(told.failures)) == (["a", "b"], ["b"])


def test_a_group_is_deleted_with_its_retry_topic_and_its_dead_letters() -> None:
    playing = two(
        {
            ALL: has(g=ROW),
            RequestCode.GET_TOPIC_CONFIG: json(
                {"readQueueNums": 1, "writeQueueNums": 1, "perm": 6}
            ),
            RequestCode.GET_ROUTEINFO_BY_TOPIC: says(ResponseCode.TOPIC_NOT_EXIST),
            RequestCode.DELETE_TOPIC_IN_BROKER: echo,
            RequestCode.DELETE_TOPIC_IN_NAMESRV: echo,
            RequestCode.DELETE_KV_CONFIG: echo,
        }
    )

    told = playing.play(groups.delete(cluster(), "g", offsets=True))

    assert told.value == ["a", "b"]
    assert {call.command.ext_fields["cleanOffset"] for call in playing.calls_of(DELETE)} == {"true"}
    topics = playing.calls_of(RequestCode.DELETE_TOPIC_IN_NAMESRV)
    assert [call.command.ext_fields["topic"] for call in topics] == ["%RETRY%g", "%DLQ%g"]


def test_a_member_is_told_of_once_with_the_brokers_that_see_it() -> None:
    seen = by_broker({"a": consumers("y", "x"), "b": consumers("x", name="b")})  # type: ignore[dict-item]

    told = two({CONSUMERS: seen}).play(members.connections(cluster(), "g"))

    found = [(each.client_id, each.brokers) for each in told.value.members]
    assert found == [("x", ("a", "b")), ("y", ("a",))]
    assert (told.value.kind, told.value.model) == ("push", "clustering")
    assert told.value.subscriptions == {"t": "red || green"}
    assert told.value.members[0].version == "5.4.0"


def test_a_group_that_is_offline_everywhere_has_no_members_and_no_failures() -> None:
    told = two().play(members.connections(cluster(), "g"))

    assert (told.value.members, told.failures) == ((), {})


def test_a_broker_that_does_not_tell_of_members_is_named() -> None:
    one = by_broker({"a": OFFLINE, "b": AWAY})
    assert list(two({CONSUMERS: one}).play(members.connections(cluster(), "g")).failures) == ["b"]

    with pytest.raises(RequestTimeout):
        two({CONSUMERS: AWAY}).play(members.connections(cluster(), "g"))


def test_members_tell_of_their_queues_and_one_that_does_not_is_named() -> None:
    row = {"commitOffset": 3, "cachedMsgCount": 2, "locked": True, "lastConsumeTimestamp": 9}
    state = fastjson.dumps(
        {"mqTable": {key("a"): row}, "properties": {"PROP_CONSUMEORDERLY": True}}
    )
    said = {
        "x": says(body=state),
        "y": says(ResponseCode.CONSUME_MSG_TIMEOUT, remark="Timeout"),
    }
    playing = two(
        {
            CONSUMERS: by_broker({"a": consumers("x", "y"), "b": OFFLINE}),  # type: ignore[dict-item]
            RequestCode.GET_CONSUMER_RUNNING_INFO: lambda call: said[
                call.command.ext_fields["clientId"]
            ](call),
        }
    )

    told = playing.play(members.members(cluster(), "g"))

    (x,) = told.value
    (held,) = x.queues
    assert (x.client_id, x.properties) == ("x", {"PROP_CONSUMEORDERLY": "True"})
    assert (held.queue, held.committed, held.held, held.is_locked) == (queue("a"), 3, 2, True)
    assert list(told.failures) == ["y"]


def test_producers_of_a_group_are_those_of_all_brokers() -> None:
    code = RequestCode.GET_PRODUCER_CONNECTION_LIST
    none = says(ResponseCode.SYSTEM_ERROR, remark="the producer group[p] not exist")
    some = json({"connectionSet": [{"clientId": "x", "clientAddr": "1.2.3.4:5", "version": 401}]})

    told = two({code: by_broker({"a": none, "b": some})}).play(members.producers(cluster(), "p"))

    (client,) = told.value["p"]
    assert (client.client_id, client.version, client.brokers) == ("x", "4.9.4", ("b",))
    assert told.failures == {}
    with pytest.raises(NotFound, match="no producer of group p is connected"):
        two({code: none}).play(members.producers(cluster(), "p"))
    on_fire = says(ResponseCode.SYSTEM_ERROR, remark="on fire")
    with pytest.raises(RemoteError, match="on fire"):
        two({code: on_fire}).play(members.producers(cluster(), "p"))


def test_all_producers_are_told_of_by_group() -> None:
    every = {
        "p": [{"clientId": "x", "remoteIP": "/1.2.3.4:5", "language": "PYTHON", "version": 493}]
    }
    playing = two({RequestCode.GET_ALL_PRODUCER_INFO: json({"data": every})})

    (client,) = playing.play(members.producers(cluster())).value["p"]

    assert (client.address, client.brokers) == ("1.2.3.4:5", ("a", "b"))


@pytest.mark.parametrize(
    ("number", "text"),
    [
        (493, "5.4.0"),
        (401, "4.9.4"),
        (293, "4.4.0"),
        (232, "4.1.0-SNAPSHOT"),
        (121, "before 4.0"),
        (612, "after 5.9.9"),
    ],
)
def test_a_version_is_told_as_its_release(number: int, text: str) -> None:
    assert version_text(number) == text


def test_progress_is_that_of_all_brokers_by_queue_and_the_retry_topic_counts() -> None:
    row = {"brokerOffset": 9, "consumerOffset": 4, "pullOffset": 6, "lastTimestamp": 7}
    retry = {"brokerOffset": 2, "consumerOffset": 1, "pullOffset": 0, "lastTimestamp": 0}
    answers = {
        "a": says(
            body=fastjson.dumps(
                {
                    "offsetTable": {key("a", "t"): row, key("a", "%RETRY%g"): retry},
                    "consumeTps": 1.0,
                }
            )
        ),
        "b": table({"b": {0: row}})["b"],
    }

    told = two({CONSUMED: by_broker(answers)}).play(progress.progress(cluster(), "g"))

    rows = [(row.queue, row.lag, row.in_flight, row.last_consumed_ms) for row in told.value.queues]
    assert rows == [
        (queue("a", "%RETRY%g"), 1, 0, None),
        (queue("a"), 5, 2, 7),
        (queue("b"), 5, 2, 7),
    ]
    assert (told.value.lag, told.value.in_flight, told.value.per_second) == (11, 4, 1.0)


def test_progress_that_one_broker_does_not_tell_is_named_and_the_rest_is_told() -> None:
    row = {"brokerOffset": 9, "consumerOffset": 4}
    answers = by_broker({"a": table({"a": {0: row}})["a"], "b": AWAY})

    told = two({CONSUMED: answers}).play(progress.progress(cluster(), "g"))

    assert told.value.lag == 5
    assert list(told.failures) == ["b"]


def test_a_group_that_is_nowhere_has_no_progress() -> None:
    nothing = json({"offsetTable": {}})
    with pytest.raises(NotFound, match="no broker has group g"):
        two({CONSUMED: nothing}).play(progress.progress(cluster(), "g"))

    new = two({CONSUMED: nothing, ALL: has(g=ROW)}).play(progress.progress(cluster(), "g"))
    assert new.value.queues == []


@pytest.mark.parametrize(
    "body", [b"", b"{}", b'{"offsetTable":[]}', b'{"offsetTable":{{"topic":"t"}:{}}}']
)
def test_progress_that_does_not_read_is_a_protocol_error(body: bytes) -> None:
    with pytest.raises(ProtocolError):
        two({CONSUMED: says(body=body)}).play(progress.progress(cluster(), "g"))
