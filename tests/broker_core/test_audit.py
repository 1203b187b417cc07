"""The audit: each change by an administrator has a line that says who, from where and what."""

import json
import math
from typing import Any

import msgspec
import pytest
from tests.broker_core.broker_world import GROUP, START_MS, TOPIC, BrokerWorld, connection

from reliable_mq.broker_core.answers import Answer
from reliable_mq.broker_core.audit import REFUSED_AT_ONCE, REFUSED_PAUSE_MS, AuditRecord
from reliable_mq.broker_core.config_reading import broker_config
from reliable_mq.broker_core.requests import audited
from reliable_mq.broker_core.requests.audited import AUDITED, NOT_AUDITED
from reliable_mq.broker_core.requests.handlers import HANDLERS
from reliable_mq.broker_core.state import Request
from reliable_mq.limits import REQUEST_BODY_SIZE_MAX
from reliable_mq.wire.codes import RequestCode, ResponseCode
from reliable_mq.wire.command import encode_command, request
from reliable_mq.wire.frame import FrameReader

Row = dict[str, Any]


class AuditWorld(BrokerWorld):
    """A broker whose lines are kept."""

    def start(self) -> None:
        self.rows: list[Row] = []
        super().start()

    def finish_turn(self) -> None:
        self.core.state.works.run(math.inf)
        self.rows += map(json.loads, self.core.state.audit.take())
        super().finish_turn()

    def took(self) -> Row:
        """Return the only new line."""
        (row,) = self.rows
        self.rows = []
        return row


@pytest.fixture
def world() -> AuditWorld:
    return AuditWorld()


CHANGING = (
    *("UPDATE", "DELETE", "CLEAN", "SET_", "RESET", "CLONE", "PUT_", "REMOVE", "ADD_", "WIPE"),
    *("REGISTER", "CREATE", "AUTH_", "RESUME", "INVOKE", "TRIGGER", "CHANGE", "ELECT", "SWITCH"),
)
OTHERS = {
    "UPDATE_CONSUMER_OFFSET": "consumers commit with it",
    "CHANGE_MESSAGE_INVISIBLETIME": "consumers extend their time with it; not answered",
    "INVOKE_BROKER_TO_GET_CONSUMER_STATUS": "reads",
    "AUTH_GET_USER": "reads",
    "AUTH_LIST_USER": "reads",
    "AUTH_GET_ACL": "reads",
    "AUTH_LIST_ACL": "reads",
}
"""Codes that sound like changes and have no line."""


def test_every_answered_request_is_audited_or_has_a_reason_not_to_be() -> None:
    """Given a new handler, then it must be put into one of the two tables."""
    without = frozenset().union(*NOT_AUDITED.values())

    assert not HANDLERS.keys() - AUDITED.keys() - without
    assert not AUDITED.keys() & without


@pytest.mark.parametrize("code", list(RequestCode), ids=lambda code: code.name)
def test_no_code_that_sounds_like_a_change_is_forgotten(code: RequestCode) -> None:
    """Given any code of Apache, then it is audited, is no change, or nobody answers it."""
    sounds_like_a_change = code.name.startswith(CHANGING)
    if code in AUDITED or code not in HANDLERS:
        return

    assert not sounds_like_a_change or code.name in OTHERS


def test_a_topic_is_created_changed_and_deleted_on_record(world: AuditWorld) -> None:
    world.create_topic(TOPIC, queues=4)
    created = world.took()
    world.create_topic(TOPIC, queues=8)
    changed = world.took()
    world.ask(RequestCode.DELETE_TOPIC_IN_BROKER, {"topic": TOPIC})
    deleted = world.took()

    assert created == {
        "create_date": "2023-11-14T22:13:20.000+00:00",
        "actor": "-",
        "address": "10.0.0.1:1",
        "action": "UPDATE_AND_CREATE_TOPIC",
        "message_id": "",
        "run_id": None,
        "changed": 1,
        "result": "SUCCESS",
        "detail": {"on": {"topic": TOPIC}, "before": None, "after": created["detail"]["after"]},
    }
    assert created["detail"]["after"]["readQueueNums"] == 4
    assert changed["detail"]["before"] == created["detail"]["after"]
    assert changed["detail"]["after"]["readQueueNums"] == 8
    assert (deleted["action"], deleted["detail"]["after"]) == ("DELETE_TOPIC_IN_BROKER", None)
    assert deleted["detail"]["before"] == changed["detail"]["after"]


def test_what_changes_nothing_says_so(world: AuditWorld) -> None:
    world.create_topic()
    world.took()
    world.create_topic()
    assert world.took()["changed"] == 0
    world.ask(RequestCode.DELETE_TOPIC_IN_BROKER, {"topic": "nowhere"})
    row = world.took()
    assert (row["changed"], row["result"]) == (0, "SUCCESS")


def test_a_refused_request_has_the_reason(world: AuditWorld) -> None:
    world.ask(RequestCode.DELETE_TOPIC_IN_BROKER, {"topic": "RMQ_SYS_TRACE_TOPIC"})
    row = world.took()

    assert (row["changed"], row["result"]) == (0, "INVALID_PARAMETER")
    assert "conflict with system topic" in row["detail"]["why"]


def test_groups_offsets_and_rules_have_values_before_and_after(world: AuditWorld) -> None:
    world.create_topic(queues=2)
    world.send(b"1")
    group = json.dumps({"groupName": GROUP, "retryMaxTimes": 3}).encode()
    world.ask(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, body=group)
    commit = {"consumerGroup": GROUP, "topic": TOPIC, "queueId": 0, "commitOffset": 1}
    world.ask(RequestCode.UPDATE_CONSUMER_OFFSET, commit)
    assert [each["action"] for each in world.rows] == [
        "UPDATE_AND_CREATE_TOPIC",
        "UPDATE_AND_CREATE_SUBSCRIPTIONGROUP",
    ], "sends and commits have no line"
    assert world.rows[1]["detail"]["after"]["retryMaxTimes"] == 3
    world.rows = []

    reset = {"topic": TOPIC, "group": GROUP, "timestamp": 0, "isForce": "true"}
    world.ask(RequestCode.INVOKE_BROKER_TO_RESET_OFFSET, reset)
    row = world.took()
    assert row["detail"]["before"][TOPIC] == {"0": 1}
    assert row["detail"]["after"][TOPIC]["0"] == 0
    world.ask(RequestCode.CLONE_GROUP_OFFSET, {"srcGroup": GROUP, "destGroup": "copy"})
    assert world.took()["detail"]["after"][TOPIC]["0"] == 0

    rule = {"group": GROUP, "topic": TOPIC}
    world.ask(RequestCode.UPDATE_AND_GET_GROUP_FORBIDDEN, rule)
    assert world.rows == [], "it only asks"
    world.ask(RequestCode.UPDATE_AND_GET_GROUP_FORBIDDEN, {**rule, "readable": "false"})
    assert world.took()["detail"]["after"] == {"readable": False}
    mode = json.dumps({"topic": TOPIC, "consumerGroup": GROUP, "mode": "POP"}).encode()
    world.ask(RequestCode.SET_MESSAGE_REQUEST_MODE, body=mode)
    assert world.took()["detail"]["after"]["mode"] == "POP"
    world.ask(RequestCode.UPDATE_COLD_DATA_FLOW_CTR_CONFIG, body=f"{GROUP}=5".encode())
    assert world.took()["detail"]["after"] == {GROUP: 5}
    world.ask(RequestCode.REMOVE_COLD_DATA_FLOW_CTR_CONFIG, body=GROUP.encode())
    assert world.took()["detail"]["before"] == {GROUP: 5}
    world.ask(RequestCode.SET_COMMITLOG_READ_MODE, {"READ_AHEAD_MODE": "1"})
    assert world.took()["detail"]["after"] == {"dataReadAheadEnable": False}
    world.ask(RequestCode.DELETE_SUBSCRIPTIONGROUP, {"groupName": GROUP, "cleanOffset": "true"})
    row = world.took()
    assert row["detail"]["on"] == {"group": GROUP, "clean_offset": "true"}
    assert row["detail"]["after"] is None


@pytest.mark.parametrize(
    ("name", "field"),
    [("auditFileSize", "audit_file_size"), ("auditFileCount", "audit_file_count")],
)
def test_no_request_lets_old_lines_go(world: AuditWorld, name: str, field: str) -> None:
    before = getattr(world.state.config, field)
    for number, code in ((before - 1, ResponseCode.NO_PERMISSION), (before + 1, 0)):
        body = f"{name}={number}".encode()
        assert world.ask(RequestCode.UPDATE_BROKER_CONFIG, body=body).code == code
    assert getattr(world.state.config, field) == before + 1


def test_settings_have_values_but_no_secrets(world: AuditWorld) -> None:
    world.ask(RequestCode.UPDATE_BROKER_CONFIG, body=b"transactionCheckMax=7\nodd=1\n")
    row = world.took()

    assert row["detail"]["on"] == {"settings": ["odd", "transactionCheckMax"]}
    assert row["detail"]["before"] == {"transactionCheckMax": "15"}
    assert row["detail"]["after"] == {"transactionCheckMax": "7"}
    for name in ("initAuthenticationUser", "innerClientAuthenticationCredentials"):
        assert audited.SECRET_NAME.search(name), name


def test_lists_are_cut_and_counted(world: AuditWorld) -> None:
    rows = [{"topicName": f"t{number}", "perm": 6} for number in range(50)]
    body = json.dumps({"topicConfigList": rows}).encode()
    world.ask(RequestCode.UPDATE_AND_CREATE_TOPIC_LIST, body=body)
    row = world.took()

    assert row["detail"]["on"]["count"] == 50
    assert len(row["detail"]["on"]["topics"]) == len(row["detail"]["after"]) == 20


@pytest.mark.parametrize("odd", [b"1e999", b'"\xff"'])
def test_a_topic_is_named_also_if_a_field_of_its_row_cannot_be_read(
    world: AuditWorld, odd: bytes
) -> None:
    row = b'{"topicName":"hidden","readQueueNums":1,"writeQueueNums":1,"perm":6,"note":%b}' % odd
    body = b'{"topicConfigList":[%b]}' % row
    world.ask(RequestCode.UPDATE_AND_CREATE_TOPIC_LIST, body=body)

    assert world.took()["detail"]["on"] == {"topics": ["hidden"]}


@pytest.mark.parametrize("code", sorted(AUDITED), ids=lambda code: RequestCode(code).name)
@pytest.mark.parametrize(
    ("ext", "body"),
    [
        ({}, b""),
        ({"topic": "x" * 60_000, "group": "\x1b[31m\n", "groupName": "g", "username": "u"}, b"[]"),
        ({"subject": "User:u", "readable": "maybe"}, b'{"topicConfigList": 3}'),
        ({}, b"\xff" * 100),
        ({}, b"[" * 5_000),
        (
            {},
            b'{"groupName":[1],"topic":7,"consumerGroup":{},"topicConfigList":[{"topicName":[1]}]}',
        ),
        ({}, b'{"groupName":%d,"topic":{"a":{}},"consumerGroup":1e400}' % 10**40),
        ({}, b'{"groupName":{{"a":1}:2},"groupConfigList":[{"groupName":{{"a":1}:2}}]}'),
        ({}, b'{"groupName":{"a":"%s"},"topic":["%s"]}' % (b"x" * 99_000, b"y" * 99_000)),
    ],
)
def test_a_request_that_cannot_be_read_harms_nobody(
    code: int, ext: dict[str, str], body: bytes, world: AuditWorld
) -> None:
    """Given odd requests, then each has an answer, and at most one short line without a break."""
    answer = world.begin(code, ext, body)

    assert answer is not None
    lines = [msgspec.json.encode(row) for row in world.rows]
    assert len(lines) <= 1
    assert all(len(line) < 40_000 and b"\n" not in line for line in lines)
    world.create_topic()
    assert world.rows[-1]["action"] == "UPDATE_AND_CREATE_TOPIC"


def test_a_body_that_is_too_large_is_not_read(world: AuditWorld) -> None:
    """Given more bytes than a request may have, then its line has no names."""
    body = json.dumps({"topicConfigList": [{"topicName": "t"}], "pad": "x" * REQUEST_BODY_SIZE_MAX})
    world.ask(RequestCode.UPDATE_AND_CREATE_TOPIC_LIST, body=body.encode())
    row = world.took()

    assert (row["changed"], row["detail"]["on"]) == (0, {})


def test_nobody_can_fill_the_audit_with_refused_requests(world: AuditWorld) -> None:
    """Given a flood of refusals, then a hundred have lines; the next one counts the others."""
    for _ in range(REFUSED_AT_ONCE + 900):
        world.ask(RequestCode.DELETE_TOPIC_IN_BROKER, {"topic": ""})
    assert len(world.rows) == REFUSED_AT_ONCE
    world.rows = []
    world.create_topic()
    assert world.took()["detail"]["left_out"] == 900, "a change always has a line"
    world.now_ms = START_MS + REFUSED_PAUSE_MS
    for _ in range(2):
        world.ask(RequestCode.DELETE_TOPIC_IN_BROKER, {"topic": ""})
    assert world.took()["changed"] == 0


def test_a_flood_of_a_month_does_not_push_older_lines_out() -> None:
    """Given the largest refusals of strangers, for a month, then they fill less than all files."""
    record, size = AuditRecord(), 0
    names = {f"name {number}": "\x01" * 5_000 for number in range(20)}
    values = {"value": "x" * 10_000}
    for minute in range(30 * 24 * 60):
        for _ in range(3):
            record.note(
                now_ms=START_MS + minute * 60_000,
                actor="-",
                address="203.0.113.7:40000",
                action="UPDATE_AND_CREATE_TOPIC_LIST",
                on=names,
                seen=(values, values),
                result="NO_PERMISSION",
                is_done=False,
                why="\x01" * 5_000,
                claims="\x01" * 5_000,
            )
        size += sum(len(line) + 1 for line in record.take())

    config, _ = broker_config({})
    assert 0 < size < config.audit_file_size * config.audit_file_count


def test_a_name_without_proof_is_told_apart_from_a_user(world: AuditWorld) -> None:
    """Given a request that names a user, and nobody checks it, then the actor stays unknown."""
    world.ask(RequestCode.DELETE_TOPIC_IN_BROKER, {"topic": "x", "AccessKey": "root" * 100})
    row = world.took()

    assert row["actor"] == "-"
    assert row["detail"]["claims"].startswith("rootroot")
    assert len(row["detail"]["claims"]) < 350


def test_the_user_of_a_request_is_its_actor(world: AuditWorld) -> None:
    """Given a request whose signer is known, then the line has the name."""
    handle = world.core._handle

    def as_admin(request: Request) -> None:
        request.user = "admin"
        handle(request)

    world.core._handle = as_admin  # type: ignore[method-assign]
    world.create_topic()

    assert world.took()["actor"] == "admin"


@pytest.mark.parametrize("report", ["the log is stored", "slaves have reported"])
def test_no_reply_leaves_before_its_line_though_others_may_leave_now(report: str) -> None:
    """With many speakers, a turn comes later in the loop than what the disk and slaves report."""
    world, left = BrokerWorld(), list[Answer]()
    core, end = world.core, world.state.store.log.end
    command = request(RequestCode.UPDATE_BROKER_CONFIG, {}, b"traceOn=false\n")
    (frame,) = FrameReader().feed(encode_command(command))
    core.receive(connection(1), core.decode(frame), START_MS)
    if report == "the log is stored":
        assert core.stored(end, durable=True, answer=left.extend), "a turn is due"
    else:
        left += core.replicated(end, has_slaves=True)
    assert not left
    turn = core.take_turn()
    assert (len(turn.audit), [of for of, _ in turn.replies]) == (1, [1])
    assert core.replicated(end, has_slaves=True) == []
