"""Every member computes the shares alone, so they must agree, with each other and with Java."""

from hypothesis import given
from hypothesis import strategies as st

from reliable_mq.client.rebalance import allocate_averagely
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


@given(count=st.integers(1, 40), members=st.sets(st.text("abc@#", min_size=1), min_size=1))
def test_every_share_is_the_one_that_javas_client_computes(count: int, members: set[str]) -> None:
    ordered_queues = sorted(queues(count))
    ordered_members = sorted(members)
    for member in members:
        share = allocate_averagely(member, queues(count), list(members))
        expected = [ordered_queues[at] for at in as_java(member, count, ordered_members)]
        assert share == expected


@given(count=st.integers(0, 40), members=st.sets(st.text("abc", min_size=1), min_size=1))
def test_the_shares_of_all_members_are_all_queues_each_once(count: int, members: set[str]) -> None:
    shares = [allocate_averagely(member, queues(count), members) for member in members]
    assert sorted(queue for share in shares for queue in share) == sorted(queues(count))
    sizes = [len(share) for share in shares]
    assert max(sizes) - min(sizes) <= 1


def test_a_member_that_the_broker_does_not_list_reads_nothing() -> None:
    assert allocate_averagely("c", queues(8), ["a", "b"]) == []


def test_queues_are_dealt_by_topic_broker_and_queue_id_not_by_the_order_they_came_in() -> None:
    shuffled = [MessageQueue("t", "b", 1), MessageQueue("t", "a", 10), MessageQueue("t", "a", 9)]
    assert allocate_averagely("m", shuffled, ["m"]) == sorted(shuffled)
    assert allocate_averagely("m", shuffled, ["m", "z"])[0] == MessageQueue("t", "a", 9)
