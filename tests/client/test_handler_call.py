"""A handler call and its outcomes: a call that hangs is bypassed, and nothing is settled twice."""

from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule
from tests.client.script import World, group_of

from reliable_mq.client.consuming.assigned_queue import AssignedQueue
from reliable_mq.client.consuming.asyncio_handler_call import HandlerCall
from reliable_mq.client.consuming.consumer_group import ConsumerGroup
from reliable_mq.client.consuming.subscription import Subscription
from reliable_mq.message import MessageQueue, ReceivedMessage

QUEUE = MessageQueue("t", "a", 0)


def group_with(*keys: str, ordered: bool = True) -> tuple[ConsumerGroup, AssignedQueue]:
    subscription = Subscription(group="g", topics={"t": "*"}, ordered=ordered, batch=4)
    group = group_of(World(), subscription, queues={"a": 1})
    assigned = read(group)
    put(assigned, keys)
    return group, assigned


def read(group: ConsumerGroup) -> AssignedQueue:
    assigned = group.assign(QUEUE)
    assigned.start_at(0)
    assigned.lock_until(float("inf"))
    return assigned


def put(assigned: AssignedQueue, keys: tuple[str, ...] | list[str]) -> None:
    begin = assigned.next_offset
    messages = [
        ReceivedMessage(topic="t", body=b"x", ordering_key=key, queue=QUEUE, queue_offset=at)
        for at, key in enumerate(keys, begin)
    ]
    assigned.add_pulled(messages, begin + len(keys))


def begin(group: ConsumerGroup) -> HandlerCall:
    return HandlerCall(group, group.take_ready(0.0), 0.0)


def test_a_call_is_over_its_limit_until_its_handler_has_ended() -> None:
    group, _ = group_with("")
    call = begin(group)
    assert not call.is_over(10, 11), "its handler is still to be called"
    call.is_called = True
    assert not call.is_over(10, 9.9)
    assert call.is_over(10, 10)
    call.has_ended = True
    assert not call.is_over(10, 11)


def test_what_has_an_ordering_key_waits_for_its_handler_and_all_else_is_handed_on() -> None:
    group, assigned = group_with("a", "", "b")
    call = begin(group)
    handed_on = call.release_unfinished()
    assert [message.queue_offset for _, message in handed_on] == [1]
    assert [call.queue_of(message) for message in call.messages] == [assigned, None, assigned]
    assert call.released_count == 1
    assert call.release_unfinished() == [], "once is enough"


def test_without_order_keys_do_not_count() -> None:
    group, _ = group_with("a", "a", ordered=False)
    assert len(begin(group).release_unfinished()) == 2


def test_a_call_has_no_say_of_a_queue_that_was_given_back_and_came_again() -> None:
    group, assigned = group_with("")
    call = begin(group)
    group.forget(group.leave(assigned.queue))
    assert call.queue_of(call.messages[0]) is None
    put(read(group), [""])
    assert call.queue_of(call.messages[0]) is None


class CallMachine(RuleBasedStateMachine):
    """Any order of calls, ends and overruns settles each start once and keeps keys apart."""

    def __init__(self) -> None:
        super().__init__()
        self.group, self.queue = group_with()
        self.calls: list[HandlerCall] = []
        self.finished: list[int] = []

    @rule(keys=st.lists(st.sampled_from(["", "", "a", "b"]), max_size=4))
    def pull(self, keys: list[str]) -> None:
        put(self.queue, keys)

    @rule()
    def start(self) -> None:
        self.group.wake(1.0)
        messages = self.group.take_ready(0.0)
        if messages:
            self.calls.append(HandlerCall(self.group, messages, 0.0))

    def settle(self, assigned: AssignedQueue, offset: int, is_done: bool) -> None:
        if is_done:
            assigned.finish(offset)  # raises when it does not run: settled twice
            self.finished.append(offset)
        else:
            assigned.postpone(offset, 0.0, counts=True)

    @precondition(lambda self: self.calls)
    @rule(data=st.data())
    def end(self, data: st.DataObject) -> None:
        call = self.calls.pop(data.draw(st.integers(0, len(self.calls) - 1)))
        for message in call.messages:
            assigned = call.queue_of(message)
            if assigned is not None:
                self.settle(assigned, message.queue_offset, data.draw(st.booleans()))

    @precondition(lambda self: self.calls)
    @rule(data=st.data())
    def overrun(self, data: st.DataObject) -> None:
        call = data.draw(st.sampled_from(self.calls))
        for assigned, message in call.release_unfinished():
            assert not message.ordering_key
            self.settle(assigned, message.queue_offset, data.draw(st.booleans()))

    @invariant()
    def promises_hold(self) -> None:
        self.queue.invariants()
        assert len(self.finished) == len(set(self.finished)), "nothing is finished twice"
        said = [
            (message.ordering_key, message.queue_offset)
            for call in self.calls
            for message in call.messages
            if call.queue_of(message) is not None
        ]
        assert len(said) == len({offset for _, offset in said}), "one call has the say of each"
        assert len(said) == self.queue.running
        keys = [
            message.ordering_key
            for call in self.calls
            for message in call.messages
            if message.ordering_key
        ]
        assert len(keys) == len(set(keys)), "of one key one handler runs, however long it takes"


TestCallMachine = CallMachine.TestCase
TestCallMachine.settings = hypothesis_settings(max_examples=60, stateful_step_count=40)
