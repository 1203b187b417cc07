"""Which queues a member reads: shares, locks, where to begin, and giving back."""

import msgspec
import pytest
from tests.client.script import Answer, World, fails, group_of, route_table, says
from tests.client.scripted_consumer import answers_to_a_member, grant_all, grant_none, members

from reliable_mq.client.consuming.assignment import give_all_back, give_back, keep_ready, rebalance
from reliable_mq.client.consuming.consumer_group import ConsumerGroup
from reliable_mq.client.consuming.offsets import commit, read_reset
from reliable_mq.client.consuming.subscription import Subscription
from reliable_mq.client.consuming.subscription_version import raise_version
from reliable_mq.client.flow import Call
from reliable_mq.errors import ConnectionLost, ProtocolError, UsageError
from reliable_mq.message import MessageQueue, ReceivedMessage
from reliable_mq.wire.codes import RequestCode, ResponseCode
from reliable_mq.wire.command import Command

LOCK = RequestCode.LOCK_BATCH_MQ
UNLOCK = RequestCode.UNLOCK_BATCH_MQ
MEMBERS = RequestCode.GET_CONSUMER_LIST_BY_GROUP
COMMITTED = RequestCode.QUERY_CONSUMER_OFFSET
UPDATE = RequestCode.UPDATE_CONSUMER_OFFSET


def world_and_group(*, ordered: bool = True, **wishes: object) -> tuple[World, ConsumerGroup]:
    world = World(answers_to_a_member(committed=5))
    subscription = Subscription(group="g", topics={"t": "*"}, ordered=ordered, **wishes)  # type: ignore[arg-type]
    return world, group_of(world, subscription, queues={"a": 4})


def received(queue: MessageQueue, offset: int, key: str = "") -> ReceivedMessage:
    return ReceivedMessage(topic="t", body=b"x", ordering_key=key, queue=queue, queue_offset=offset)


def started(*, ordered: bool = True, **wishes: object) -> tuple[World, ConsumerGroup]:
    world, group = world_and_group(ordered=ordered, **wishes)
    world.play(rebalance(group))
    assert world.play(keep_ready(group))
    world.calls.clear()
    return world, group


def in_topic(group: ConsumerGroup) -> list[int]:
    return sorted(queue.queue_id for queue in group.assigned_of("t"))


def test_a_lone_member_reads_every_queue_and_the_retry_topic() -> None:
    world, group = world_and_group()
    changes = world.play(rebalance(group))
    assert changes.settled
    assert in_topic(group) == [0, 1, 2, 3]
    assert len(group.assigned_of("%RETRY%g")) == 1


def test_a_member_that_joins_takes_half_and_what_is_left_is_given_back_later() -> None:
    world, group = world_and_group()
    world.play(rebalance(group))
    world.answers[MEMBERS] = members("client-a", "client-b")
    changes = world.play(rebalance(group))
    assert in_topic(group) == [0, 1]
    assert sorted(q.queue.queue_id for q in changes.left if q.queue.topic == "t") == [2, 3]
    assert all(group.is_leaving(q.queue) for q in changes.left)
    group.invariants()


def test_a_queue_that_comes_back_before_it_was_given_back_has_to_wait() -> None:
    world, group = world_and_group()
    world.play(rebalance(group))
    world.answers[MEMBERS] = members("client-a", "client-b")
    left = world.play(rebalance(group)).left
    world.answers[MEMBERS] = members("client-a")
    assert not world.play(rebalance(group)).settled
    for assigned in left:
        world.play(give_back(group, assigned))
    assert world.play(rebalance(group)).settled
    assert in_topic(group) == [0, 1, 2, 3]


@pytest.mark.parametrize(
    ("answer", "is_told"),
    [
        (says(ResponseCode.SYSTEM_ERROR, remark="no consumer"), True),
        (fails(ConnectionLost("gone")), False),  # its connection tells it
    ],
)
def test_a_member_list_that_cannot_be_had_changes_nothing(answer: Answer, is_told: bool) -> None:
    world, group = world_and_group()
    world.play(rebalance(group))
    world.answers[MEMBERS] = answer
    changes = world.play(rebalance(group))
    assert (changes.added, changes.left, changes.settled) == ([], [], False)
    assert any("topic t cannot be read" in each for each in changes.obstacles) == is_told
    assert in_topic(group) == [0, 1, 2, 3]


def test_an_ordered_queue_starts_only_when_it_is_locked() -> None:
    world, group = world_and_group()
    world.answers[LOCK] = grant_none
    world.play(rebalance(group))
    assert not world.play(keep_ready(group))
    assert [q.queue.topic for q in group.assigned if q.is_started] == ["%RETRY%g"]
    world.answers[LOCK] = grant_all
    assert world.play(keep_ready(group))
    assert all(q.next_offset == 5 and q.holds_lock(world.seconds) for q in group.assigned)


def test_the_lock_is_asked_for_before_the_offset() -> None:
    """Until it is granted, the last owner may still commit."""
    world, group = world_and_group()
    world.play(rebalance(group))
    world.play(keep_ready(group))
    of_topic = [
        call.command.code
        for call in world.calls
        if call.command.code == LOCK or call.command.ext_fields.get("topic") == "t"
    ]
    assert of_topic[0] == LOCK


def test_without_order_no_lock_is_asked_for() -> None:
    world, _ = started(ordered=False)
    assert world.calls_of(LOCK) == []


def test_a_lock_is_trusted_from_when_it_was_asked_for() -> None:
    world, group = world_and_group()

    def slowly(call: Call) -> Command:
        world.seconds += 2
        return grant_all(call)

    world.answers[LOCK] = slowly
    began = world.seconds
    world.play(rebalance(group))
    world.play(keep_ready(group))
    (assigned, *_) = [q for q in group.assigned if q.needs_lock]
    assert assigned.holds_lock(began + 29.9)
    assert not assigned.holds_lock(began + 30)


def test_a_renewal_that_is_refused_takes_the_lock_away() -> None:
    world, group = started()
    world.answers[LOCK] = grant_none
    assert not world.play(keep_ready(group))
    assert not any(q.holds_lock(world.seconds) for q in group.assigned if q.needs_lock)


def test_a_renewal_without_answer_leaves_the_lock_to_run_out() -> None:
    world, group = started()
    world.answers[LOCK] = fails(ConnectionLost("gone"))
    assert not world.play(keep_ready(group))
    ordered = [q for q in group.assigned if q.needs_lock]
    assert all(q.holds_lock(world.seconds) for q in ordered)
    world.seconds += 30
    assert not any(q.holds_lock(world.seconds) for q in ordered)


def test_a_lost_connection_takes_the_locks_of_that_broker() -> None:
    world, group = started()
    group.broker_lost({"another"})
    assert all(q.holds_lock(world.seconds) for q in group.assigned)
    group.broker_lost({"a"})
    assert not any(q.holds_lock(world.seconds) for q in group.assigned if q.needs_lock)


def test_after_a_lost_lock_nothing_runs_that_another_owner_finished_meanwhile() -> None:
    world, group = started()
    assigned = next(q for q in group.assigned if q.needs_lock)
    assigned.add_pulled([received(assigned.queue, at, "k") for at in range(5, 10)], 10)
    group.broker_lost({"a"})
    world.answers[COMMITTED] = says(ext={"offset": "8"})
    assert world.play(keep_ready(group))
    assert [m.queue_offset for m in group.take_ready(world.seconds)] == [8]


def test_a_lock_is_not_used_until_it_is_known_what_another_owner_finished() -> None:
    world, group = started()
    group.broker_lost({"a"})
    world.answers[COMMITTED] = fails(ConnectionLost("gone"))
    assert not world.play(keep_ready(group))
    assert not any(q.holds_lock(world.seconds) for q in group.assigned if q.needs_lock)


def test_commits_are_sent_for_what_moved_and_only_once() -> None:
    world, group = started()
    assert world.play(commit(group, group.assigned)) == 5, "where a group begins is committed too"
    world.calls.clear()
    assigned = group.assigned[0]
    assigned.add_pulled([], 9)
    assert world.play(commit(group, group.assigned)) == 1
    (call,) = world.calls_of(UPDATE)
    assert call.command.ext_fields["commitOffset"] == "9"
    assert world.play(commit(group, group.assigned)) == 0


def test_a_queue_without_its_lock_commits_nothing() -> None:
    """Another owner may be further; its commit must not be set back."""
    world, group = started()
    world.play(commit(group, group.assigned))
    group.broker_lost({"a"})
    committed = world.play(commit(group, group.assigned))
    assert committed == 1, "only the retry topic, which has no lock"


def test_a_commit_that_a_broker_did_not_get_is_sent_again() -> None:
    world, group = started()
    world.dead.add("a:10911")
    assert world.play(commit(group, group.assigned)) == 0
    world.dead.clear()
    world.answers[UPDATE] = says(ResponseCode.SYSTEM_ERROR)
    assert world.play(commit(group, group.assigned)) == 0
    world.answers[UPDATE] = says()
    assert world.play(commit(group, group.assigned)) == 5


def test_a_commit_waits_for_the_broker_because_an_older_one_under_way_could_set_it_back() -> None:
    world, group = started()
    world.play(commit(group, group.assigned))
    assert world.posts == []
    assert not any(call.command.is_oneway for call in world.calls_of(UPDATE))


def test_a_queue_is_committed_before_it_is_unlocked() -> None:
    world, group = started()
    assigned = next(q for q in group.assigned if q.needs_lock)
    group.leave(assigned.queue)
    world.play(give_back(group, assigned))
    assert [call.command.code for call in world.calls] == [UPDATE, UNLOCK]
    assert world.calls[0].command.ext_fields["commitOffset"] == "5"
    assert group.find(assigned.queue) is None


def test_closing_gives_every_queue_back_but_keeps_the_lock_of_what_still_runs() -> None:
    world, group = started()
    busy = next(q for q in group.assigned if q.needs_lock)
    busy.add_pulled([received(busy.queue, 5)], 6)
    assert busy.take_ready(1, world.seconds)
    world.play(give_all_back(group))
    (unlock,) = world.calls_of(UNLOCK)
    unlocked = {item["queueId"] for item in msgspec.json.decode(unlock.command.body)["mqSet"]}
    assert unlocked == {0, 1, 2, 3} - {busy.queue.queue_id}
    committed = {
        (call.command.ext_fields["topic"], call.command.ext_fields["queueId"])
        for call in world.calls_of(UPDATE)
    }
    assert len(committed) == 5
    assert group.all_queues == []


def test_a_reset_of_offsets_reads_in_fastjsons_form() -> None:
    body = b'{"offsetTable":{{"brokerName":"a","queueId":2,"topic":"t"}:17}}'
    assert read_reset(body) == {MessageQueue("t", "a", 2): 17}
    with pytest.raises(ProtocolError):
        read_reset(b'{"offsetTable":[{"topic":"t"}]}')


@pytest.mark.parametrize(
    ("wishes", "code", "expected"),
    [
        ({"from_where": "first"}, None, 0),
        ({"from_where": "last"}, RequestCode.GET_MAX_OFFSET, 77),
        (
            {"from_where": "timestamp", "from_time_ms": 123},
            RequestCode.SEARCH_OFFSET_BY_TIMESTAMP,
            77,
        ),
    ],
)
def test_a_group_without_offsets_begins_where_it_wants(
    wishes: dict[str, object], code: int | None, expected: int
) -> None:
    world, group = world_and_group(ordered=False, **wishes)
    world.answers[COMMITTED] = says(ResponseCode.QUERY_NOT_FOUND)
    if code is not None:
        world.answers[code] = says(ext={"offset": "77"})
    world.play(rebalance(group))
    assert world.play(keep_ready(group))
    starts = {q.queue.topic: q.next_offset for q in group.assigned}
    assert starts == {"t": expected, "%RETRY%g": 0}


@pytest.mark.parametrize(
    "wishes",
    [
        {"group": ""},
        {"group": "a b"},
        {"topics": {}},
        {"topics": {"a/b": "*"}},
        {"concurrency": 0},
        {"batch": 0},
        {"max_attempts": 0},
        {"from_where": "middle"},
        {"retry_waits": (1.0, 0.0)},
        {"retry_waits": (float("inf"),)},
        {"handling_seconds": 0.0},
        {"handling_seconds": float("nan")},
    ],
)
def test_a_subscription_that_cannot_work_is_refused(wishes: dict[str, object]) -> None:
    legal: dict[str, object] = {"group": "g", "topics": {"t": "*"}}
    with pytest.raises(UsageError):
        Subscription(**{**legal, **wishes})  # type: ignore[arg-type]


def test_a_batch_is_gathered_from_several_queues_but_from_one_topic() -> None:
    world, group = started(batch=3)
    first, second, *_, retry = sorted(
        group.assigned, key=lambda q: (q.queue.topic != "t", q.queue.queue_id)
    )
    first.add_pulled([received(first.queue, at) for at in (5, 6)], 7)
    second.add_pulled([received(second.queue, at) for at in (5, 6)], 7)
    elsewhere = msgspec.structs.replace(received(retry.queue, 5), topic="another")
    retry.add_pulled([elsewhere], 6)
    batches = [group.take_ready(world.seconds) for _ in range(3)]
    by_topic = sorted((batch[0].topic, len(batch)) for batch in batches)
    assert by_topic == [("another", 1), ("t", 1), ("t", 3)]
    assert all(len({message.topic for message in batch}) == 1 for batch in batches)


def test_a_topic_that_nobody_has_sent_to_yet_is_missing_and_no_obstacle() -> None:
    world, group = world_and_group()
    group.routes = route_table(group.settings)  # it has never heard of any topic
    world.answers[RequestCode.GET_ROUTEINFO_BY_TOPIC] = says(
        ResponseCode.TOPIC_NOT_EXIST, remark="No topic route info"
    )
    changes = world.play(rebalance(group))
    assert (changes.settled, changes.obstacles) == (False, frozenset())
    assert changes.missing == {"t", "%RETRY%g"}


def only_a_slave(group: ConsumerGroup) -> None:
    """Let the broker have lost its master."""
    addresses = group.routes.broker("a").addresses  # type: ignore[union-attr]
    addresses[1] = "slave:10911"
    del addresses[0]


def test_without_a_master_a_slave_tells_where_to_read_on() -> None:
    world, group = world_and_group(ordered=False)
    world.play(rebalance(group))
    only_a_slave(group)
    assert world.play(keep_ready(group))
    assert {call.address for call in world.calls_of(COMMITTED)} == {"slave:10911"}
    assert {assigned.next_offset for assigned in group.assigned} == {5}


def test_a_slave_that_knows_no_offset_makes_nobody_begin_anew() -> None:
    """The group may have offsets at the master that the slave has not heard of."""
    world, group = world_and_group(ordered=False, from_where="last")
    world.play(rebalance(group))
    only_a_slave(group)
    world.answers[COMMITTED] = says(ResponseCode.QUERY_NOT_FOUND)
    assert not world.play(keep_ready(group))
    assert not any(assigned.is_started for assigned in group.assigned)


def connections(*versions: int) -> Answer:
    table = {f"t{at}": {"subVersion": version} for at, version in enumerate(versions)}
    return says(body=msgspec.json.encode({"subscriptionTable": table, "connectionSet": []}))


@pytest.mark.parametrize(
    ("answer", "ahead"),
    [
        (connections(1, 2_000_000_000_000, 3), 2_000_000_000_001),
        (connections(5), None),
        (connections(), None),
        (says(ResponseCode.CONSUMER_NOT_ONLINE), None),
        (says(body=b"no list"), None),
        (fails(ConnectionLost("gone")), None),
    ],
)
def test_a_subscription_is_made_newer_than_what_brokers_know_after_the_clock_was_set_back(
    answer: Answer, ahead: int | None
) -> None:
    world, group = world_and_group()
    before = group.version
    world.answers[RequestCode.GET_CONSUMER_CONNECTION_LIST] = answer
    assert world.play(raise_version(group)) == (ahead is not None)
    assert group.version == (ahead or before)
