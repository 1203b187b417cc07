"""Offsets that an application asks for and commits by itself."""

import pytest
from tests.client.script import World, fails, group_of, says

from reliable_mq.client.consuming.consumer_group import ConsumerGroup
from reliable_mq.client.consuming.pulling import pull_once
from reliable_mq.client.consuming.queue_offsets import (
    Place,
    commit_offsets,
    committed_offsets,
    offsets_at,
)
from reliable_mq.client.consuming.subscription import Sql, Subscription
from reliable_mq.errors import ConnectionLost, NoRoute, NotPermitted
from reliable_mq.message import MessageQueue
from reliable_mq.wire.codes import RequestCode, ResponseCode
from reliable_mq.wire.headers import PullMessageHeader

HERE, THERE = MessageQueue("t", "a", 0), MessageQueue("t", "b", 0)
COMMIT = RequestCode.UPDATE_CONSUMER_OFFSET


def polled(wanted: str | Sql = "*", *, is_member: bool = False) -> tuple[World, ConsumerGroup]:
    world = World()
    subscription = Subscription(group="g", topics={"t": wanted}, ordered=False)
    group = group_of(world, subscription, queues={"a": 1, "b": 1}, polled=True, is_member=is_member)
    return world, group


@pytest.mark.parametrize(
    ("place", "code"),
    [
        ("begin", RequestCode.GET_MIN_OFFSET),
        ("end", RequestCode.GET_MAX_OFFSET),
        (1_700_000_000_000, RequestCode.SEARCH_OFFSET_BY_TIMESTAMP),
    ],
)
def test_the_master_of_each_queue_is_asked_for_its_offset(place: Place, code: int) -> None:
    world, group = polled()
    world.answers[code] = says(ext={"offset": "17"})
    assert world.play(offsets_at(group, [HERE, THERE], place)) == {HERE: 17, THERE: 17}
    assert [call.address for call in world.calls] == ["a:10911", "b:10911"]
    assert world.calls[0].command.ext_fields.get("timestamp") == (
        str(place) if isinstance(place, int) else None
    )


def test_a_queue_that_never_had_a_message_begins_at_0_also_where_a_broker_says_otherwise() -> None:
    world, group = polled()
    world.answers[RequestCode.GET_MIN_OFFSET] = says(ext={"offset": "-1"})
    assert world.play(offsets_at(group, [HERE, THERE], "begin")) == {HERE: 0, THERE: 0}


def test_a_queue_without_a_commit_has_none_and_a_broker_is_told_not_to_make_one_up() -> None:
    world, group = polled()
    world.answers[RequestCode.QUERY_CONSUMER_OFFSET] = says(ResponseCode.QUERY_NOT_FOUND)
    assert world.play(committed_offsets(group, [HERE])) == {HERE: None}
    assert world.calls[0].command.ext_fields["setZeroIfNotFound"] == "false"


def test_a_queue_of_a_broker_that_nobody_knows_is_no_route() -> None:
    world, group = polled()
    with pytest.raises(NoRoute, match="nowhere"):
        world.play(offsets_at(group, [MessageQueue("t", "nowhere", 0)], "end"))
    with pytest.raises(NoRoute, match="nowhere"):
        world.play(commit_offsets(group, {MessageQueue("t", "nowhere", 0): 3}))


def test_a_commit_that_fails_at_one_broker_is_raised_when_the_others_have_theirs() -> None:
    world, group = polled()
    first, second = group.assign(HERE), group.assign(THERE)
    world.dead = {"a:10911"}
    world.answers[COMMIT] = says()
    with pytest.raises(ConnectionLost):
        world.play(commit_offsets(group, {HERE: 3, THERE: 4}))
    assert (first.committed_offset, second.committed_offset) == (-1, 4)


def test_a_commit_that_is_refused_is_raised() -> None:
    world, group = polled()
    world.answers[COMMIT] = says(ResponseCode.NO_PERMISSION, remark="not you")
    with pytest.raises(NotPermitted, match="not you"):
        world.play(commit_offsets(group, {HERE: 3}))


@pytest.mark.parametrize(
    ("wanted", "text", "kind"),
    [("*", "*", "TAG"), ("a || b", "a || b", "TAG"), (Sql("x > 1"), "x > 1", "SQL92")],
)
def test_who_is_no_member_says_with_each_pull_what_it_wants_and_commits_nothing(
    wanted: str | Sql, text: str, kind: str
) -> None:
    world, group = polled(wanted)
    assigned = group.assign(HERE)
    assigned.start_at(3)
    world.answers[RequestCode.PULL_MESSAGE] = fails(ConnectionLost("gone"))
    world.play(pull_once(group, assigned))
    header = PullMessageHeader.decode(world.calls[-1].command.ext_fields)
    assert (header.sys_flag, header.commit_offset) == (0b110, 0)
    assert (header.subscription, header.expression_type) == (text, kind)


def test_a_member_that_is_polled_commits_nothing_with_its_pulls() -> None:
    world, group = polled(is_member=True)
    assigned = group.assign(HERE)
    assigned.start_at(3)
    world.answers[RequestCode.PULL_MESSAGE] = fails(ConnectionLost("gone"))
    world.play(pull_once(group, assigned))
    header = PullMessageHeader.decode(world.calls[-1].command.ext_fields)
    assert (header.sys_flag, header.commit_offset, header.subscription) == (0b10, 0, None)
