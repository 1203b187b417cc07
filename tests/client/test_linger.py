"""Which messages leave together: never too many, never out of order, and never left behind."""

from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.client.script import random_bytes

from reliable_mq.client.sending.linger import LingeringMessage, LingerQueues, SendBatch
from reliable_mq.client.sending.outgoing import prepared_message
from reliable_mq.errors import InvariantBroken
from reliable_mq.message import Message, MessageQueue

QUEUES = [MessageQueue("t", "a", at) for at in range(2)]
LINGER = 5.0


def rows_of(*, count: int = 3, size: int = 1000, under_way: int = 2) -> LingerQueues:
    return LingerQueues(
        count_max=count,
        size_max=size,
        linger=LINGER,
        under_way_max=under_way,
        is_sent_alone=lambda out: out.message.is_delayed,
    )


def parcel(name: object, *, size: int = 1, level: int = 0, topic: str = "t") -> LingeringMessage:
    message = Message(topic=topic, body=b"x" * size, message_id=str(name), delay_level=level)
    return LingeringMessage(prepared_message(message, 0, random_bytes), name)


def names(batches: list[SendBatch]) -> list[list[object]]:
    return [[each.owner for each in batch.waiting] for batch in batches]


def test_a_batch_leaves_when_it_is_full_and_not_before() -> None:
    rows = rows_of()
    assert not rows.add(parcel(1), None, 0.0)
    assert not rows.add(parcel(2), None, 1.0)
    assert rows.take_due_batches(1.0) == []
    assert rows.add(parcel(3), None, 2.0)
    assert names(rows.take_due_batches(2.0)) == [[1, 2, 3]]


def test_a_batch_leaves_when_its_first_message_has_waited_long_enough() -> None:
    rows = rows_of()
    rows.add(parcel(1), None, 10.0)
    rows.add(parcel(2), None, 12.0)
    assert rows.next_send_time() == 10.0 + LINGER
    assert rows.take_due_batches(14.9) == []
    assert names(rows.take_due_batches(15.0)) == [[1, 2]]
    assert rows.next_send_time() is None


def test_bytes_fill_a_batch_as_messages_do() -> None:
    rows = rows_of(count=100, size=300)
    for at in range(3):
        full = rows.add(parcel(at, size=100), None, 0.0)
    assert full
    assert names(rows.take_due_batches(0.0)) == [[0, 1]], "the third would be too much"
    rows.send_soon()
    assert names(rows.take_due_batches(0.0)) == [[2]]


def test_a_message_larger_than_a_batch_leaves_alone_and_at_once() -> None:
    rows = rows_of(size=300)
    assert rows.add(parcel(1, size=5000), None, 0.0)
    assert names(rows.take_due_batches(0.0)) == [[1]]


def test_a_delayed_message_never_shares_a_batch() -> None:
    rows = rows_of(count=10)
    rows.add(parcel(1), QUEUES[0], 0.0)
    rows.add(parcel(2, level=1), QUEUES[0], 0.0)
    rows.add(parcel(3), QUEUES[0], 0.0)
    rows.send_soon()
    sent = []
    for _ in range(3):
        (batch,) = rows.take_due_batches(0.0)
        sent += names([batch])
        rows.end_batch(batch, failed=False)
    assert sent == [[1], [2], [3]]


def test_of_a_queue_that_keeps_an_order_one_batch_is_under_way() -> None:
    rows = rows_of(count=2)
    for at in range(5):
        rows.add(parcel(at), QUEUES[0], 0.0)
    (first,) = rows.take_due_batches(100.0)
    assert rows.take_due_batches(100.0) == []
    assert rows.next_send_time() is None, "nothing is late that may not leave"
    rows.invariants()
    assert rows.end_batch(first, failed=False) == []
    (second,) = rows.take_due_batches(100.0)
    assert names([first, second]) == [[0, 1], [2, 3]]


def test_behind_a_batch_that_failed_nothing_of_its_queue_is_sent() -> None:
    rows = rows_of(count=2)
    for at in range(4):
        rows.add(parcel(at), QUEUES[0], 0.0)
        rows.add(parcel(f"other {at}"), QUEUES[1], 0.0)
    first, other = rows.take_due_batches(0.0)
    assert [each.owner for each in rows.end_batch(first, failed=True)] == [2, 3]
    assert rows.end_batch(other, failed=False) == []
    assert names(rows.take_due_batches(0.0)) == [["other 2", "other 3"]]
    rows.add(parcel("later"), QUEUES[0], 0.0)
    rows.send_soon()
    assert names(rows.take_due_batches(0.0)) == [["later"]], "what comes afterwards is sent"


def test_messages_that_any_queue_may_take_are_under_way_side_by_side_but_not_all() -> None:
    rows = rows_of(count=1, under_way=2)
    for at in range(4):
        rows.add(parcel(at), None, 0.0)
    first, second = rows.take_due_batches(0.0)
    rows.invariants()
    assert rows.take_due_batches(0.0) == []
    assert rows.end_batch(first, failed=True) == [], "who is bound to no queue waits behind nobody"
    assert names(rows.take_due_batches(0.0)) == [[2]]
    rows.end_batch(second, failed=False)
    assert names(rows.take_due_batches(0.0)) == [[3]]


def test_a_topic_keeps_no_row_when_nothing_of_it_is_left() -> None:
    rows = rows_of(count=1)
    for at in range(100):
        rows.add(parcel(at, topic=f"t{at}"), None, 0.0)
    for batch in rows.take_due_batches(0.0):
        rows.end_batch(batch, failed=False)
    assert rows._rows == {}


def test_an_invariant_that_is_broken_is_told() -> None:
    rows = rows_of()
    rows.add(parcel(1), QUEUES[0], 0.0)
    (row,) = rows._rows.values()
    row.under_way = 2
    with pytest.raises(InvariantBroken, match="2 batches"):
        rows.invariants()
    row.under_way = 0
    row.size = 0
    with pytest.raises(InvariantBroken, match="bytes"):
        rows.invariants()


steps = st.lists(
    st.one_of(
        st.tuples(st.just("add"), st.sampled_from([None, *QUEUES]), st.integers(1, 400)),
        st.tuples(st.just("wait"), st.floats(0.0, 6.0)),
        st.tuples(st.just("end"), st.integers(0, 9), st.booleans()),
        st.tuples(st.just("hurry")),
    ),
    max_size=60,
)


def ending(under_way: list[SendBatch]) -> Iterator[SendBatch]:
    while under_way:
        yield under_way.pop(0)


@given(steps=steps, count=st.integers(1, 4))
def test_every_message_leaves_or_is_held_back_once_in_order_and_in_time(
    steps: list[tuple[object, ...]], count: int
) -> None:
    rows = rows_of(count=count, size=500)
    now = 0.0
    added: list[tuple[int, MessageQueue | None]] = []
    under_way: list[SendBatch] = []
    left: list[tuple[int, MessageQueue | None]] = []
    held_back: list[object] = []

    def depart() -> None:
        for batch in rows.take_due_batches(now):
            assert 1 <= len(batch.waiting) <= count
            size = sum(each.prepared.batch_size for each in batch.waiting)
            assert size <= 500 or len(batch.waiting) == 1
            under_way.append(batch)
            left.extend((each.owner, batch.row.queue) for each in batch.waiting)
        rows.invariants()
        due = rows.next_send_time()
        assert due is None or due > now

    def end(batch: SendBatch, *, failed: bool) -> None:
        held_back.extend(each.owner for each in rows.end_batch(batch, failed=failed))

    for step in steps:
        if step[0] == "add":
            _, queue, size = step
            added.append((len(added), queue))  # type: ignore[arg-type]
            rows.add(parcel(len(added) - 1, size=size), queue, now)  # type: ignore[arg-type]
        elif step[0] == "wait":
            now += step[1]  # type: ignore[operator]
        elif step[0] == "hurry":
            rows.send_soon()
        elif under_way:
            end(under_way.pop(step[1] % len(under_way)), failed=bool(step[2]))  # type: ignore[operator]
        depart()
    rows.send_soon()
    depart()
    for batch in ending(under_way):
        end(batch, failed=False)
        depart()
    assert rows._rows == {}
    assert sorted([name for name, _ in left] + held_back) == list(range(len(added)))  # type: ignore[type-var]
    for queue in QUEUES:
        of_queue = [name for name, to in left if to == queue]
        assert of_queue == sorted(of_queue)
