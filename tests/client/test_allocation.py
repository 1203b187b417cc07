"""Every member computes the shares alone, so they must agree, with each other and with Java."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from reliable_mq.client.consuming.allocation import (
    Allocation,
    Configured,
    ConsistentHash,
    MachineRoom,
    MachineRoomNearby,
    allocate,
    average,
    circle,
)
from reliable_mq.errors import ConfigurationError
from reliable_mq.message import MessageQueue


def queues(count: int) -> list[MessageQueue]:
    return [MessageQueue("t", f"b{index % 3}", index // 3) for index in range(count)]


def as_java(client_id: str, count: int, members: list[str]) -> list[int]:
    """AllocateMessageQueueAveragely.allocate, line by line, on positions."""
    index = members.index(client_id)
    mod = count % len(members)
    if count <= len(members):
        average = 1
    else:
        average = count // len(members) + (1 if mod > 0 and index < mod else 0)
    start = index * average if mod > 0 and index < mod else index * average + mod
    return [(start + step) % count for step in range(max(0, min(average, count - start)))]


@settings(deadline=None)  # on a machine that others use a step may take long
@given(count=st.integers(1, 40), members=st.sets(st.text("abc@#", min_size=1), min_size=1))
def test_every_share_is_the_one_that_javas_client_computes(count: int, members: set[str]) -> None:
    ordered_queues = sorted(queues(count))
    ordered_members = sorted(members)
    for member in members:
        share = allocate(average, member, queues(count), list(members))
        expected = [ordered_queues[at] for at in as_java(member, count, ordered_members)]
        assert share == expected


@settings(deadline=None)  # on a machine that others use a step may take long
@given(count=st.integers(0, 40), members=st.sets(st.text("abc", min_size=1), min_size=1))
def test_the_shares_of_all_members_are_all_queues_each_once(count: int, members: set[str]) -> None:
    shares = [allocate(average, member, queues(count), members) for member in members]
    assert sorted(queue for share in shares for queue in share) == sorted(queues(count))
    sizes = [len(share) for share in shares]
    assert max(sizes) - min(sizes) <= 1


def test_a_member_that_the_broker_does_not_list_reads_nothing() -> None:
    assert allocate(average, "c", queues(8), ["a", "b"]) == []


def test_queues_are_dealt_by_topic_broker_and_queue_id_not_by_the_order_they_came_in() -> None:
    shuffled = [MessageQueue("t", "b", 1), MessageQueue("t", "a", 10), MessageQueue("t", "a", 9)]
    assert allocate(average, "m", shuffled, ["m"]) == sorted(shuffled)
    assert allocate(average, "m", shuffled, ["m", "z"])[0] == MessageQueue("t", "a", 9)


def room_of(name: str) -> str:
    return name[-1]


COMPLETE = [average, circle, ConsistentHash(), MachineRoomNearby(room_of, room_of)]


@settings(deadline=None)  # on a machine that others use a step may take long
@given(count=st.integers(0, 40), members=st.sets(st.text("012", min_size=1), min_size=1))
@pytest.mark.parametrize("allocation", COMPLETE)
def test_whatever_the_allocation_each_queue_is_read_by_one_member(
    allocation: Allocation, count: int, members: set[str]
) -> None:
    shares = [allocate(allocation, member, queues(count), members) for member in members]
    assert sorted(queue for share in shares for queue in share) == sorted(queues(count))


def test_a_queue_is_read_in_the_room_of_its_broker_unless_nobody_is_there() -> None:
    nearby = MachineRoomNearby(room_of, room_of)
    members = ["x0", "y0", "x1"]
    shares = {member: allocate(nearby, member, queues(9), members) for member in members}
    rooms = {m: sorted(q.broker_name for q in share) for m, share in shares.items()}
    assert rooms == {"x0": ["b0", "b0", "b2"], "x1": ["b1", "b1", "b1", "b2"], "y0": ["b0", "b2"]}


@pytest.mark.parametrize("name", ["room", "room@", "", "@", "a@b@c", "room@@x"])
def test_a_broker_that_names_no_room_is_read_by_nobody(name: str) -> None:
    there = MessageQueue("t", "room@b", 0)
    rooms = MachineRoom(frozenset({"room", "", "a"}))
    assert allocate(rooms, "m", [MessageQueue("t", name, 0), there], ["m"]) == [there]


def test_a_room_that_is_not_told_is_a_fault_of_the_configuration() -> None:
    def nowhere(_: str) -> str:
        return ""

    for nearby in (MachineRoomNearby(nowhere, room_of), MachineRoomNearby(room_of, nowhere)):
        with pytest.raises(ConfigurationError, match="is unknown"):
            allocate(nearby, "m", queues(1), ["m"])


def test_an_allocation_that_raises_or_invents_queues_takes_none() -> None:
    def fails(*_: object) -> list[MessageQueue]:
        raise LookupError("no such host")

    with pytest.raises(ConfigurationError, match="no such host"):
        allocate(fails, "m", queues(1), ["m"])
    nowhere = MessageQueue("t", "nowhere", 0)
    assert allocate(lambda *_: [nowhere, *queues(1)], "m", queues(2), ["m"]) == queues(1)


def test_queues_that_were_shared_out_by_hand_are_read_if_the_topic_has_them() -> None:
    by_hand = Configured((*queues(2), MessageQueue("t", "gone", 0)))
    assert allocate(by_hand, "m", queues(8), ["m", "other"]) == queues(2)


def test_one_member_less_moves_only_its_own_queues_on_a_ring() -> None:
    before = {m: set(allocate(ConsistentHash(), m, queues(40), "abcd")) for m in "abcd"}
    after = {m: set(allocate(ConsistentHash(), m, queues(40), "abc")) for m in "abc"}
    assert all(before[member] <= after[member] for member in "abc")
