"""What all queues of a client may hold together: bounded, fair, and nobody waits for ever."""

from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from reliable_mq.client.consuming.flow_budget import FlowBudget

SIZE = 1000
PULL = 100
QUEUES = 4
LARGEST = 300  # a message that is larger than a pull


def budget_of(queues: int) -> FlowBudget:
    budget = FlowBudget(SIZE)
    for _ in range(queues):
        budget.add_queue()
    return budget


def never() -> None:
    raise AssertionError("nobody waits")


def test_a_queue_whose_messages_nobody_finishes_starves_no_other() -> None:
    budget = budget_of(2)
    held = 0
    while budget.has_room(held, PULL, lambda: None):
        granted = budget.ask(held, PULL)
        budget.held += granted
        budget.answered(granted)
        held += granted
    assert held <= SIZE // 2 + PULL
    assert budget.has_room(0, PULL, never), "the other one has its share"
    assert budget.ask(0, PULL) == PULL


def test_what_is_asked_for_counts_until_it_is_answered() -> None:
    budget = budget_of(1)
    for _ in range(SIZE // 2 // PULL):
        assert budget.ask(0, PULL) == PULL
    assert not budget.has_room(SIZE // 2, PULL, lambda: None)
    budget.answered(PULL)
    assert budget.has_room(SIZE // 2, PULL, never) or budget.ask(SIZE // 2, PULL)


def test_who_waits_longest_is_woken_first_and_only_as_many_as_there_is_room_for() -> None:
    budget = budget_of(100)  # a share is 5 bytes, the common half decides
    budget.held += SIZE // 2
    woken: list[int] = []
    for number in range(3):
        assert not budget.has_room(5, PULL, lambda number=number: woken.append(number))  # type: ignore[misc]
    budget.remove_bytes(2)
    assert woken == [0]
    budget.remove_bytes(3)
    assert woken == [0, 1, 2]


def test_who_found_his_share_taken_by_others_is_woken_when_there_is_room_for_it() -> None:
    """Two queues that hang took their shares when there were no others."""
    budget = budget_of(2)
    budget.held += SIZE // 2 + SIZE // 4
    for _ in range(10):
        budget.add_queue()
    of_others = 6 * (SIZE // 2 // 12)
    budget.held += of_others
    woken: list[bool] = []
    assert not budget.has_room(0, PULL, lambda: woken.append(True))
    budget.remove_bytes(of_others)
    assert woken


def test_who_withdraws_takes_nobody_elses_turn() -> None:
    budget = budget_of(100)  # a share is 5 bytes, the common half decides
    budget.held += SIZE // 2
    woken: list[bool] = []
    assert not budget.has_room(5, PULL, never)
    assert not budget.has_room(5, PULL, lambda: woken.append(True))
    budget.cancel_wait(never)
    budget.remove_bytes(2)
    assert woken


def test_up_to_the_ample_sum_any_queue_may_pull_all_that_it_wants() -> None:
    for queues in (1, 7, 100):
        budget = budget_of(queues)
        budget.held = budget.ample(PULL)
        assert budget.has_room(budget.held, PULL, never)
        assert budget.ask(budget.held, PULL) == PULL


def test_even_a_full_account_lets_a_pull_ask_for_one_message() -> None:
    budget = budget_of(1)
    budget.held += 2 * SIZE
    assert budget.ask(2 * SIZE, PULL) == 1


class Queue:
    def __init__(self) -> None:
        self.messages: list[int] = []
        self.granted = 0
        self.waits = False

    @property
    def held(self) -> int:
        return sum(self.messages)

    def wake(self) -> None:
        self.waits = False


class BudgetMachine(RuleBasedStateMachine):
    """Any order of pulls, answers and finished messages keeps the bound, and the sums."""

    def __init__(self) -> None:
        super().__init__()
        self.budget = budget_of(QUEUES)
        self.queues = [Queue() for _ in range(QUEUES)]

    @rule(number=st.integers(0, QUEUES - 1))
    def pull(self, number: int) -> None:
        queue = self.queues[number]
        if queue.granted or queue.waits:
            return
        if self.budget.has_room(queue.held, PULL, queue.wake):
            queue.granted = self.budget.ask(queue.held, PULL)
        else:
            queue.waits = True

    @rule(number=st.integers(0, QUEUES - 1), size=st.integers(0, LARGEST))
    def answer(self, number: int, size: int) -> None:
        queue = self.queues[number]
        if queue.granted:
            brought = size if size > PULL else min(size, queue.granted)
            if brought:
                queue.messages.append(brought)
                self.budget.held += brought
            self.budget.answered(queue.granted)
            queue.granted = 0

    @rule(number=st.integers(0, QUEUES - 1))
    def finish(self, number: int) -> None:
        queue = self.queues[number]
        if queue.messages:
            self.budget.remove_bytes(queue.messages.pop())
            queue.waits = False  # its own room is looked at again

    @invariant()
    def bounded(self) -> None:
        self.budget.invariants()
        assert self.budget.held == sum(queue.held for queue in self.queues)
        assert self.budget.held <= SIZE + QUEUES * LARGEST

    @invariant()
    def nobody_waits_when_nothing_is_held(self) -> None:
        if not self.budget.held and not any(queue.granted for queue in self.queues):
            assert not any(queue.waits for queue in self.queues)


TestBudgetMachine = BudgetMachine.TestCase
TestBudgetMachine.settings = hypothesis_settings(max_examples=60, stateful_step_count=40)
