"""Requests to the controller, and its answers: each message and each wrong answer."""

import pytest

from reliable_mq.failover import controller_messages as messages
from reliable_mq.failover.controller_messages import Leadership, LiveState, Replica
from reliable_mq.failover.identity import Identity
from reliable_mq.wire import fastjson
from reliable_mq.wire.codes import RequestCode, ResponseCode
from reliable_mq.wire.command import Command, decode_command, encode_command
from reliable_mq.wire.frame import FrameReader

WHO = Identity("cluster", "pair", 2, "127.0.0.1:10911;5")


def answer(code: int = 0, body: object = None, **fields: object) -> Command:
    text = {name: str(value) for name, value in fields.items()}
    return Command(code, ext_fields=text, body=b"" if body is None else fastjson.dumps(body))


def sent(command: Command) -> Command:
    """Return a request as the controller decodes it."""
    (frame,) = FrameReader().feed(encode_command(command))
    return decode_command(frame)


def test_the_requests_have_the_fields_of_apaches_broker() -> None:
    found = {
        each.code: each.ext_fields
        for each in map(
            sent,
            (
                messages.ask_leader(),
                messages.ask_next_id("cluster", "pair"),
                messages.apply_id(WHO),
                messages.register(WHO, "127.0.0.1:10911", 7),
                messages.ask_leadership("pair"),
                messages.elect(WHO, 7),
            ),
        )
    }

    names = {"clusterName": "cluster", "brokerName": "pair"}
    assert found == {
        RequestCode.CONTROLLER_GET_METADATA_INFO: {},
        RequestCode.CONTROLLER_GET_NEXT_BROKER_ID: names,
        RequestCode.CONTROLLER_APPLY_BROKER_ID: {
            **names,
            "appliedBrokerId": "2",
            "registerCheckCode": "127.0.0.1:10911;5",
        },
        RequestCode.CONTROLLER_REGISTER_BROKER: {
            **names,
            "brokerId": "2",
            "brokerAddress": "127.0.0.1:10911",
            "invokeTime": "7",
        },
        RequestCode.CONTROLLER_GET_REPLICA_INFO: {"brokerName": "pair"},
        RequestCode.CONTROLLER_ELECT_MASTER: {
            **names,
            "brokerId": "2",
            "designateElect": "false",
            "invokeTime": "7",
        },
    }


def test_a_heartbeat_says_how_far_the_broker_is() -> None:
    beat = sent(messages.heartbeat(WHO, "127.0.0.1:10911", LiveState(3, 900, 800), 10_000, 5))

    assert beat.code == RequestCode.BROKER_HEARTBEAT
    assert beat.ext_fields == {
        "clusterName": "cluster",
        "brokerAddr": "127.0.0.1:10911",
        "brokerName": "pair",
        "brokerId": "2",
        "epoch": "3",
        "maxOffset": "900",
        "confirmOffset": "800",
        "heartbeatTimeoutMills": "10000",
        "electionPriority": "5",
    }


def test_a_change_of_the_set_names_the_epochs_of_master_and_set() -> None:
    leadership = Leadership(2, "127.0.0.1:10911", 4, frozenset({2}), 6)
    asked = sent(messages.alter_in_sync(WHO, leadership, frozenset({3, 2}), 7))

    assert asked.ext_fields == {
        "brokerName": "pair",
        "masterBrokerId": "2",
        "masterEpoch": "4",
        "invokeTime": "7",
    }
    assert fastjson.loads(asked.body) == {"syncStateSet": [2, 3], "syncStateSetEpoch": 6}
    found = messages.in_sync_of(answer(body={"syncStateSet": [3, 2], "syncStateSetEpoch": 7}))
    assert found == (frozenset({2, 3}), 7)


def test_all_brokers_of_a_name_are_asked_for_by_a_list() -> None:
    assert sent(messages.ask_replicas("pair")).body == b'["pair"]'
    rows = {
        "inSyncReplicas": [{"brokerId": 1, "brokerAddress": "a:1", "alive": True}],
        "notInSyncReplicas": [{"brokerId": 2, "brokerAddress": "b:2", "alive": False}],
    }
    body = {"replicasInfoTable": {"pair": rows}}

    found = messages.replicas_of(answer(body=body), "pair")
    assert found == [Replica(1, "a:1", True), Replica(2, "b:2", False)]
    assert messages.replicas_of(answer(body=body), "other") == []
    assert messages.replicas_of(answer(body={}), "pair") == []


def test_who_leads_and_who_is_the_master_are_read_from_the_answers() -> None:
    assert messages.leader_of(answer(controllerLeaderAddress="c:1", isLeader="true")) == "c:1"
    assert messages.leader_of(answer()) == ""
    assert messages.next_id_of(answer(nextBrokerId=3)) == 3
    members = {"syncStateSet": [1, 2], "syncStateSetEpoch": 9}
    told = messages.leadership_of(
        answer(0, members, masterBrokerId=1, masterAddress="a:1", masterEpoch=4)
    )
    assert told == Leadership(1, "a:1", 4, frozenset({1, 2}), 9)
    elected = answer(
        ResponseCode.CONTROLLER_MASTER_STILL_EXIST,
        {"syncStateSet": [1]},
        masterBrokerId=1,
        masterAddress="a:1",
        masterEpoch=4,
        syncStateSetEpoch=9,
    )
    assert messages.leadership_of(elected) == Leadership(1, "a:1", 4, frozenset({1}), 9)
    nobody = messages.leadership_of(answer(0, members, masterEpoch=4))
    assert nobody == Leadership(0, "", 4, frozenset({1, 2}), 9)


def test_an_id_that_another_broker_has_is_not_granted() -> None:
    assert messages.is_granted(answer())
    assert not messages.is_granted(answer(ResponseCode.CONTROLLER_BROKER_ID_INVALID))
    assert not messages.is_elected(answer(ResponseCode.CONTROLLER_ELECT_MASTER_FAILED))


@pytest.mark.parametrize(
    "read",
    [
        messages.leader_of,
        messages.next_id_of,
        messages.is_granted,
        messages.leadership_of,
        messages.in_sync_of,
        lambda told: messages.replicas_of(told, "pair"),
    ],
)
def test_a_refusal_is_told_with_its_code_and_reason(read: object) -> None:
    refused = Command(2008, remark="Broker metadata is not existed")

    with pytest.raises(ValueError, match="the controller answers 2008: Broker metadata is not"):
        read(refused)  # type: ignore[operator]


@pytest.mark.parametrize(
    "body", [b"<html>", b"[]", b'{"syncStateSet":"x"}', b'{"syncStateSet":[1.5]}', b"\xff"]
)
def test_a_body_of_something_else_is_an_error(body: bytes) -> None:
    with pytest.raises(ValueError):  # noqa: PT011 - msgspec's errors are such, too
        messages.leadership_of(Command(0, body=body))
    with pytest.raises(ValueError):  # noqa: PT011
        messages.in_sync_of(Command(0, body=body))


def test_an_error_is_no_refusal() -> None:
    """A controller that fails may have changed the set; one that refuses has not."""
    assert all(messages.is_refused(Command(code)) for code in (2000, 2001, 2003, 2006, 2013))
    assert not any(messages.is_refused(Command(code)) for code in (0, 1, 2, 16))
