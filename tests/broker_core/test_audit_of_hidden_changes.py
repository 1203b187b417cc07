"""No change hides from the audit: behind a long list, blanks, or an offset that stays the same."""

import json

import pytest
from tests.broker_core.broker_world import GROUP, TOPIC
from tests.broker_core.test_audit import AuditWorld

from reliable_mq.wire.codes import RequestCode


@pytest.fixture
def world() -> AuditWorld:
    return AuditWorld()


@pytest.mark.parametrize("kind", ["topic", "group"])
def test_a_change_behind_the_rows_that_are_looked_at_counts(world: AuditWorld, kind: str) -> None:
    """Given a list whose first 20 rows change nothing, then its line does not say so of all."""
    code = {
        "topic": RequestCode.UPDATE_AND_CREATE_TOPIC_LIST,
        "group": RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST,
    }[kind]
    rows = [{f"{kind}Name": f"n{number}"} for number in range(21)]
    world.ask(code, body=json.dumps({f"{kind}ConfigList": rows[:20]}).encode())
    world.took()
    world.ask(code, body=json.dumps({f"{kind}ConfigList": rows[:20]}).encode())
    assert world.took()["changed"] == 0
    world.ask(code, body=json.dumps({f"{kind}ConfigList": rows}).encode())
    assert world.took()["changed"] == 1


def test_a_setting_among_many_names_is_on_record(world: AuditWorld) -> None:
    """Given a setting behind more names than a line shows, then its line has both values of it."""
    others = "".join(f"a{number}=1\n" for number in range(2_000))
    world.ask(RequestCode.UPDATE_BROKER_CONFIG, body=f"{others}transactionCheckMax=7\n".encode())
    row = world.took()

    assert row["changed"] == 1
    assert (len(row["detail"]["on"]["settings"]), row["detail"]["on"]["count"]) == (20, 2_001)
    assert row["detail"]["before"] == {"transactionCheckMax": "15"}
    assert row["detail"]["after"] == {"transactionCheckMax": "7"}


def test_a_threshold_among_many_groups_is_on_record(world: AuditWorld) -> None:
    body = "".join(f"g{number}={number % 2}\n" for number in range(100))
    world.ask(RequestCode.UPDATE_COLD_DATA_FLOW_CTR_CONFIG, body=body.encode())
    world.took()
    world.ask(RequestCode.UPDATE_COLD_DATA_FLOW_CTR_CONFIG, body=f"{body}g99=5".encode())
    row = world.took()

    assert (row["detail"]["before"], row["detail"]["after"]) == ({"g99": 1}, {"g99": 5})


def test_offsets_that_are_not_looked_at_may_have_changed(world: AuditWorld) -> None:
    """Given offsets behind those of a line, and a group without settings, then changes count."""
    settings = json.dumps({"groupName": GROUP}).encode()
    world.ask(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, body=settings)
    group = {"consumerGroup": GROUP, "queueId": 0}
    for number in range(21):
        world.create_topic(f"t{number:02}")
        place = {**group, "topic": f"t{number:02}", "commitOffset": 0}
        assert world.ask(RequestCode.UPDATE_CONSUMER_OFFSET, place).code == 0
    clone = {"srcGroup": GROUP, "destGroup": "copy"}
    world.rows = []
    for _ in range(2):
        world.ask(RequestCode.CLONE_GROUP_OFFSET, clone)
        assert world.took()["changed"] == 1
    world.ask(RequestCode.DELETE_SUBSCRIPTIONGROUP, {"groupName": GROUP})
    world.rows = []
    world.ask(RequestCode.DELETE_SUBSCRIPTIONGROUP, {"groupName": GROUP, "cleanOffset": "true"})
    row = world.took()
    assert (row["changed"], row["detail"]["after"]) == (1, None)
    assert row["detail"]["before"]["offsets"]["t00"] == {"0": 0}


@pytest.mark.parametrize("topic", [f" {TOPIC} ", " ", ""])
def test_cloned_offsets_of_a_topic_with_blanks_are_on_record(world: AuditWorld, topic: str) -> None:
    """Given blanks, which the broker leaves out, then the line has the offsets of the topic."""
    world.create_topic(TOPIC)
    world.subscribe(TOPIC)
    place = {"consumerGroup": GROUP, "topic": TOPIC, "queueId": 0, "commitOffset": 0}
    assert world.ask(RequestCode.UPDATE_CONSUMER_OFFSET, place).code == 0
    world.rows = []
    clone = {"srcGroup": GROUP, "destGroup": "copy", "topic": topic}
    world.ask(RequestCode.CLONE_GROUP_OFFSET, clone)
    row = world.took()

    assert (row["changed"], row["detail"]["after"]) == (1, {TOPIC: {"0": 0}})


@pytest.mark.parametrize("is_kept_by_broker", ["true", "false"])
def test_a_reset_to_the_same_offset_is_on_record(is_kept_by_broker: str) -> None:
    """Consumers go back to it: at once, or when they have committed what the broker told them."""
    world = AuditWorld(useServerSideResetOffset=is_kept_by_broker)
    world.create_topic(TOPIC, queues=1)
    world.subscribe(TOPIC)
    place = {"consumerGroup": GROUP, "topic": TOPIC, "queueId": 0, "commitOffset": 0}
    assert world.ask(RequestCode.UPDATE_CONSUMER_OFFSET, place).code == 0
    world.rows = []
    reset = {"group": GROUP, "topic": TOPIC, "timestamp": 0, "isForce": "true"}
    answer = world.ask(RequestCode.INVOKE_BROKER_TO_RESET_OFFSET, reset)

    assert answer.code == 0, answer
    assert world.took()["changed"] == 1
