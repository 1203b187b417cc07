"""Names with odd characters, of topics, groups and resources of policies: refused, or kept as they
are. Files stay readable, and no name becomes a path.
"""

import json

import pytest
from tests.access.access_world import ROOT, AccessWorld
from tests.broker_core.broker_world import BrokerWorld, send_header

from reliable_mq.wire.codes import RequestCode as Ask
from reliable_mq.wire.codes import ResponseCode as Code

ODD = [
    *("", " ", "with space", "a/b", "../../etc/passwd", "..", ".", "a\\b", "C:", "a:b", "a,b", "*"),
    *("a\nb", "a\x00b", "a\tb", "\x7f", "\u202egnal", "ünïcode", "用户", '"quoted"', "it's", "{}"),
    *("%RETRY%x", "%DLQ%x", "%s%n", "${jndi}", "a@b", "a$b", "-", "--help", "_", "|", "x" * 127),
    *("x" * 128, "x" * 5_000, "TBW102", "SCHEDULE_TOPIC_XXXX", "null", "true", "1e9", "__proto__"),
]


def restarted(world: BrokerWorld) -> BrokerWorld:
    world.stop()
    return BrokerWorld(world.disk)


@pytest.mark.parametrize("name", ODD)
def test_a_topic_of_an_odd_name_is_refused_or_works_also_after_a_restart(name: str) -> None:
    world = BrokerWorld()
    before = set(world.state.topics.by_name)
    fields = {"topic": name, "readQueueNums": 1, "writeQueueNums": 1, "perm": 6}
    answer = world.ask(Ask.UPDATE_AND_CREATE_TOPIC, fields)
    if answer.code != Code.SUCCESS:
        assert answer.remark
        assert set(world.state.topics.by_name) == before
    sent = world.ask(Ask.SEND_MESSAGE_V2, send_header(name), b"x")
    assert sent.code == Code.SUCCESS or sent.remark
    again = restarted(world)
    assert set(again.state.topics.by_name) == set(world.state.topics.by_name)
    for path in world.disk.paths():
        assert ".." not in path.split("/")
        assert "\0" not in path
    if sent.code == Code.SUCCESS:
        assert b"x" in [each.body for each in again.records(name)]


@pytest.mark.parametrize("name", ODD)
def test_a_group_of_an_odd_name_is_refused_or_kept_also_after_a_restart(name: str) -> None:
    world = BrokerWorld()
    before = set(world.state.groups.by_name)
    body = json.dumps({"groupName": name}).encode()
    answer = world.ask(Ask.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, {}, body)
    if answer.code != Code.SUCCESS:
        assert answer.remark
        assert set(world.state.groups.by_name) == before
    else:
        assert name in world.state.groups.by_name
    assert set(restarted(world).state.groups.by_name) == set(world.state.groups.by_name)


@pytest.mark.parametrize("name", ODD)
def test_a_policy_on_an_odd_name_is_refused_or_is_about_just_this_name(name: str) -> None:
    """It opens nothing else, whatever the name looks like."""
    world = AccessWorld()
    world.make_user("joe2")
    rows = {
        "policies": [
            {"policyType": "CUSTOM", "entries": [{"resource": f"Topic:{name}", "actions": ["Pub"]}]}
        ]
    }
    body = json.dumps(rows).encode()
    answer = world.ask_as(ROOT, Ask.AUTH_CREATE_ACL, {"subject": "User:joe2"}, body)
    assert answer.code == Code.SUCCESS or answer.remark
    sent = world.ask_as("joe2", Ask.SEND_MESSAGE_V2, send_header("orders"), b"x")
    assert (sent.code == Code.SUCCESS) == (name == "*" and answer.code == Code.SUCCESS)
    kept = world.ask_as(ROOT, Ask.AUTH_LIST_ACL, {}).body
    again = AccessWorld(world.disk)
    assert again.ask_as(ROOT, Ask.AUTH_LIST_ACL, {}).body == kept
