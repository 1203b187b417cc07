"""The unfinished messages of a queue: what may run, what waits, what may be committed."""

from collections.abc import Callable

import msgspec
import pytest
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from reliable_mq.client.consuming.assigned_queue import MESSAGE_OVERHEAD, AssignedQueue
from reliable_mq.client.consuming.flow_budget import FlowBudget
from reliable_mq.client.settings import ClientSettings
from reliable_mq.errors import InvariantBroken
from reliable_mq.message import MessageQueue, ReceivedMessage

QUEUE = MessageQueue("t", "a", 0)
NOW = 100.0


def message(offset: int, key: str = "", *, topic: str = "t", size: int = 1) -> ReceivedMessage:
    return ReceivedMessage(
        topic=topic, body=bytes(size), ordering_key=key, queue=QUEUE, queue_offset=offset
    )


def assigned(
    *, ordered: bool = True, needs_lock: bool = False, settings: ClientSettings | None = None
) -> AssignedQueue:
    queue = AssignedQueue(
        QUEUE, ordered=ordered, needs_lock=needs_lock, settings=settings or ClientSettings()
    )
    queue.start_at(0)
    return queue


def filled(*keys: str) -> AssignedQueue:
    queue = assigned()
    queue.add_pulled([message(at, key) for at, key in enumerate(keys)], len(keys))
    return queue


def offsets(messages: list[ReceivedMessage]) -> list[int]:
    return [one.queue_offset for one in messages]


def test_messages_of_one_key_run_one_at_a_time_and_other_keys_meanwhile() -> None:
    queue = filled("a", "a", "b", "", "a")
    assert offsets(queue.take_ready(10, NOW)) == [0, 2, 3]
    assert queue.take_ready(10, NOW) == []
    queue.finish(0)
    assert offsets(queue.take_ready(10, NOW)) == [1]


def test_a_message_that_is_held_blocks_its_key_only_and_runs_first_when_it_is_due() -> None:
    queue = filled("a", "a", "b")
    queue.take_ready(2, NOW)
    queue.postpone(0, NOW + 5, counts=True)
    queue.finish(2)
    queue.wake(NOW + 4.9)
    assert queue.take_ready(10, NOW + 4.9) == []
    assert queue.next_due() == NOW + 5
    queue.wake(NOW + 5)
    (again,) = queue.take_ready(10, NOW + 5)
    assert (again.queue_offset, again.reconsume_times) == (0, 1)


def test_an_attempt_that_does_not_count_leaves_the_count_alone() -> None:
    queue = filled("a")
    queue.take_ready(1, NOW)
    queue.postpone(0, NOW, counts=False)
    queue.wake(NOW)
    assert queue.take_ready(1, NOW)[0].reconsume_times == 0


def test_without_order_every_message_is_ready_at_once() -> None:
    queue = assigned(ordered=False)
    queue.add_pulled([message(at, "a") for at in range(3)], 3)
    assert offsets(queue.take_ready(10, NOW)) == [0, 1, 2]


def test_the_commit_offset_stays_at_the_lowest_unfinished_message() -> None:
    queue = filled("", "", "")
    queue.take_ready(3, NOW)
    queue.finish(2)
    queue.finish(1)
    assert queue.commit_offset == 0
    queue.finish(0)
    assert queue.commit_offset == 3


def test_offsets_that_a_filter_skipped_are_committed_when_nothing_is_unfinished() -> None:
    queue = assigned()
    queue.add_pulled([], 50)
    assert queue.commit_offset == 50


def test_nothing_starts_without_the_lock_that_is_needed() -> None:
    queue = assigned(needs_lock=True)
    queue.add_pulled([message(0)], 1)
    assert queue.take_ready(1, NOW) == []
    queue.lock_until(NOW + 30)
    assert queue.take_ready(1, NOW + 30) == [], "a lock that has run out counts for nothing"
    assert offsets(queue.take_ready(1, NOW + 29)) == [0]


def test_a_lost_lock_starts_nothing_new_and_what_runs_may_finish() -> None:
    queue = assigned(needs_lock=True)
    queue.lock_until(NOW + 30)
    queue.add_pulled([message(0, "a"), message(1, "a")], 2)
    queue.take_ready(1, NOW)
    queue.lose_lock()
    queue.finish(0)
    assert queue.take_ready(1, NOW) == []
    assert queue.commit_offset == 1


def test_one_call_gets_messages_of_one_topic() -> None:
    queue = assigned()
    queue.add_pulled([message(0), message(1), message(2, topic="u")], 3)
    assert offsets(queue.take_ready(10, NOW)) == [0, 1]
    assert offsets(queue.take_ready(10, NOW)) == [2]


@pytest.mark.parametrize(
    ("settings", "size"),
    [
        (ClientSettings(held_count_max=3), 1),
        (ClientSettings(held_bytes_max=30), 10),
        (ClientSettings(held_offset_span_max=3), 1),
    ],
)
def test_each_flow_limit_stops_the_pulls_until_messages_finish(
    settings: ClientSettings, size: int
) -> None:
    queue = assigned(settings=settings)
    queue.add_pulled([message(0, size=size), message(1, size=size)], 2)
    assert queue.has_room
    queue.add_pulled([message(2, size=size)], 3)
    assert not queue.has_room
    queue.take_ready(1, NOW)
    queue.finish(0)
    assert queue.has_room


def test_one_unfinished_message_stops_the_pulls_when_the_span_is_used_up() -> None:
    queue = assigned(settings=ClientSettings(held_offset_span_max=10))
    queue.add_pulled([message(at) for at in range(10)], 10)
    for at in offsets(queue.take_ready(10, NOW))[1:]:
        queue.finish(at)
    assert queue.unfinished == 1
    assert not queue.has_room


def test_what_another_owner_finished_is_dropped_and_its_key_goes_on() -> None:
    queue = filled("a", "a", "", "a", "b")
    queue.forget_below(3)
    assert sorted(offsets(queue.take_ready(10, NOW))) == [3, 4]
    assert queue.commit_offset == 3


def test_a_running_message_survives_what_another_owner_finished() -> None:
    queue = filled("a", "a", "a")
    queue.take_ready(1, NOW)
    queue.forget_below(2)
    queue.invariants()
    assert queue.take_ready(1, NOW) == []
    queue.finish(0)
    assert offsets(queue.take_ready(1, NOW)) == [2]


def test_a_pull_that_was_under_way_does_not_bring_back_what_was_dropped() -> None:
    queue = filled("", "")
    queue.forget_below(10)
    queue.add_pulled([message(2), message(10)], 11)
    assert offsets(queue.take_ready(10, NOW)) == [10]


def test_an_empty_queue_jumps_where_the_broker_wants_it() -> None:
    queue = assigned()
    queue.committed_offset = 500
    assert queue.jump_to(500)
    assert queue.committed_offset != 500  # nobody knows what the group has now: it is told again
    assert (queue.next_offset, queue.commit_offset) == (500, 500)


def test_a_queue_with_unfinished_messages_leaves_and_commits_what_the_broker_wants() -> None:
    queue = filled("", "")
    queue.take_ready(1, NOW)
    assert not queue.jump_to(500)
    assert queue.leaving
    assert queue.commit_offset == 500
    assert queue.take_ready(1, NOW) == []


def test_a_paused_queue_starts_nothing_and_goes_on_where_it_was() -> None:
    queue = filled("a", "")
    queue.take_ready(1, NOW)
    queue.paused = True
    assert queue.take_ready(10, NOW) == []
    assert (queue.ready, queue.has_ready) == (0, False)
    queue.finish(0)
    queue.paused = False
    assert offsets(queue.take_ready(10, NOW)) == [1]


def test_the_lag_counts_from_the_lowest_unfinished_message_to_the_end_that_was_told() -> None:
    queue = filled("", "", "")
    assert queue.lag == 0, "nobody has told an end"
    queue.note_end(10, NOW)
    queue.take_ready(3, NOW)
    queue.finish(1)
    assert queue.lag == 10
    queue.finish(0)
    assert queue.lag == 8


def test_the_lag_is_never_negative_when_the_end_that_was_told_is_older() -> None:
    queue = assigned()
    queue.add_pulled([], 3)
    queue.note_end(1, NOW)
    assert (queue.commit_offset, queue.lag) == (3, 0)


def test_reading_never_goes_back_to_what_was_pulled() -> None:
    queue = filled("", "", "")
    queue.forget_below(1)
    assert queue.next_offset == 3
    queue.skip_to(2)
    queue.add_pulled([], 2)
    assert queue.next_offset == 3
    queue.skip_to(8)
    assert queue.next_offset == 8


def test_a_held_message_that_another_owner_finished_does_not_come_due() -> None:
    queue = filled("a", "b", "b")
    queue.take_ready(2, NOW)
    queue.postpone(0, NOW + 5, counts=True)
    queue.postpone(1, NOW + 9, counts=True)
    queue.forget_below(1)
    assert queue.next_due() == NOW + 9
    queue.wake(NOW + 10)
    assert offsets(queue.take_ready(5, NOW + 10)) == [1]


def test_the_values_of_properties_take_room_as_the_body_does() -> None:
    queue = assigned()
    queue.add_pulled([message(0, size=10)], 1)
    without = queue.cost
    queue.add_pulled([msgspec.structs.replace(message(1, size=10), properties={"a": "x" * 300})], 2)
    assert queue.cost - without == without + 300
    assert queue.size == 20


def test_a_message_takes_room_of_the_budget_until_it_is_finished_or_its_queue_given_back() -> None:
    budget = FlowBudget(1024 * 1024)
    queues = [
        AssignedQueue(
            QUEUE, ordered=False, needs_lock=False, settings=ClientSettings(), budget=budget
        )
        for _ in range(2)
    ]
    for queue in queues:
        queue.start_at(0)
        queue.add_pulled([message(0, size=5000), message(1, size=7000)], 2)
    assert budget.held == 2 * (12_000 + 2 * MESSAGE_OVERHEAD)
    queues[0].take_ready(1, NOW)
    queues[0].finish(0)
    queues[1].release()
    assert budget.held == queues[0].cost == 7000 + MESSAGE_OVERHEAD


def test_what_ends_after_its_queue_was_given_back_gives_no_room_twice() -> None:
    budget = FlowBudget(1024 * 1024)
    queue = AssignedQueue(
        QUEUE, ordered=False, needs_lock=False, settings=ClientSettings(), budget=budget
    )
    queue.start_at(0)
    queue.add_pulled([message(0, size=5000)], 1)
    queue.take_ready(1, NOW)
    queue.release()
    queue.finish(0)
    budget.invariants()
    assert budget.held == 0


@pytest.mark.parametrize(
    "illegal",
    [
        lambda queue: queue.finish(0),
        lambda queue: queue.finish(99),
        lambda queue: queue.postpone(0, NOW, counts=True),
        lambda queue: queue.may_run_twice(0),
    ],
)
def test_what_does_not_run_can_neither_finish_nor_be_held(
    illegal: Callable[[AssignedQueue], None],
) -> None:
    queue = filled("a")
    with pytest.raises(InvariantBroken):
        illegal(queue)
    assert offsets(queue.take_ready(1, NOW)) == [0], "an illegal event changes nothing"


class QueueMachine(RuleBasedStateMachine):
    """Any order of pulls, starts, ends, delays and dropped messages keeps every promise."""

    def __init__(self) -> None:
        super().__init__()
        self.queue = assigned(needs_lock=True)
        self.now = NOW
        self.running: dict[int, ReceivedMessage] = {}
        self.done: dict[str, list[int]] = {}
        self.finished: set[int] = set()
        self.pulled = 0

    @rule(keys=st.lists(st.sampled_from(["", "a", "b", "c"]), max_size=5))
    def pull(self, keys: list[str]) -> None:
        start = self.queue.next_offset
        messages = [message(start + at, key) for at, key in enumerate(keys)]
        self.queue.add_pulled(messages, start + len(keys))
        self.pulled = start + len(keys)

    @rule(count=st.integers(1, 4))
    def take(self, count: int) -> None:
        for one in self.queue.take_ready(count, self.now):
            key = one.ordering_key
            assert not key or key not in {other.ordering_key for other in self.running.values()}
            assert one.queue_offset not in self.finished
            self.running[one.queue_offset] = one

    @precondition(lambda self: self.running)
    @rule(data=st.data())
    def finish(self, data: st.DataObject) -> None:
        offset = data.draw(st.sampled_from(sorted(self.running)))
        key = self.running.pop(offset).ordering_key
        self.queue.finish(offset)
        self.finished.add(offset)
        if key:
            order = self.done.setdefault(key, [])
            order.append(offset)
            assert order == sorted(order), "a key's messages finish in order"

    @precondition(lambda self: self.running)
    @rule(data=st.data(), delay=st.floats(0, 3))
    def hold(self, data: st.DataObject, delay: float) -> None:
        offset = data.draw(st.sampled_from(sorted(self.running)))
        del self.running[offset]
        self.queue.postpone(offset, self.now + delay, counts=True)

    @precondition(lambda self: self.running)
    @rule(data=st.data(), is_sent_back=st.booleans())
    def overrun(self, data: st.DataObject, is_sent_back: bool) -> None:
        """A handler hangs: what has no ordering key goes on without it, what has one waits."""
        offset = data.draw(st.sampled_from(sorted(self.running)))
        key = self.running[offset].ordering_key
        assert self.queue.may_run_twice(offset) == (not key)
        if key:
            return
        del self.running[offset]
        if is_sent_back:
            self.queue.finish(offset)
            self.finished.add(offset)
        else:
            self.queue.postpone(offset, self.now, counts=False)

    @rule(is_paused=st.booleans())
    def pause(self, is_paused: bool) -> None:
        self.queue.paused = is_paused
        if is_paused:
            assert not self.queue.has_ready
            assert self.queue.take_ready(1, self.now) == []

    @rule(seconds=st.floats(0, 5))
    def time_passes(self, seconds: float) -> None:
        self.now += seconds
        self.queue.wake(self.now)

    @rule(is_held=st.booleans())
    def lock(self, is_held: bool) -> None:
        if is_held:
            self.queue.lock_until(self.now + 10)
        else:
            self.queue.lose_lock()

    @rule(ahead=st.integers(0, 3))
    def another_owner_was_there(self, ahead: int) -> None:
        self.queue.forget_below(self.queue.commit_offset + ahead)

    @invariant()
    def promises_hold(self) -> None:
        self.queue.invariants()
        self.queue.budget.invariants()
        assert self.queue.budget.held == self.queue.cost
        assert all(offset >= self.queue.commit_offset for offset in self.running)


TestQueueMachine = QueueMachine.TestCase
TestQueueMachine.settings = hypothesis_settings(max_examples=60, stateful_step_count=40)
