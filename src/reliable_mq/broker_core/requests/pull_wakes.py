"""Pulls that wait for messages: what has arrived wakes them, and they are answered.

Many pulls may wait for one message or one time, and other requests must not wait for all of them.
So a turn, and a tick, have budgets of work for replies.
"""

from reliable_mq.broker_core.filter.sql92 import Filter
from reliable_mq.broker_core.requests.filtered_pull import judge_new
from reliable_mq.broker_core.requests.pop_wakes import PopWakes
from reliable_mq.broker_core.requests.pull import answer_waiting
from reliable_mq.broker_core.state import BrokerState
from reliable_mq.broker_core.store.lanes import Arrivals

# Microseconds of work: in one turn for pulls that messages wake, in one tick for pulls whose wait
# is over.
_WAITING_COST_MAX = 2_000
_DUE_COST_MAX = 5_000


class PullWakes:
    """Wakes the pulls of a broker, and tells `PopWakes` of arrivals.

    Attributes:
        arrived: the tags of new messages of this dispatch, by topic and queue.
        spent: of the budget of this turn.
    """

    def __init__(self, state: BrokerState, pop_wakes: PopWakes) -> None:
        self._state, self._pop_wakes = state, pop_wakes
        self.arrived: dict[tuple[str, int], set[int]] = {}
        self.spent = 0

    def note_arrival(self, arrivals: Arrivals) -> None:
        """Note that a queue has new messages."""
        key = (arrivals.topic, arrivals.queue_id)
        tags_codes = self.arrived.get(key)
        if tags_codes is None:
            self.arrived[key] = arrivals.tags_codes
        else:
            tags_codes |= arrivals.tags_codes

    def wake(self, now_ms: int) -> None:
        """Wake those who wait for what has arrived, and answer them."""
        state = self._state
        for (topic, queue_id), tags in self.arrived.items():
            state.pulls.arrived(topic, queue_id, tags)
        if state.pops.waiting or state.notifications.waiting:
            self._pop_wakes.arrived(self.arrived)
            self._pop_wakes.answer_ready(now_ms)
        self.arrived.clear()
        self.answer_woken()

    def answer_woken(self) -> None:
        """Answer pulls whose messages arrived; beyond the budget the next turn continues."""
        state = self._state
        while self.spent < _WAITING_COST_MAX and state.pulls.ready:
            pull = state.pulls.take_ready()
            if pull is None:
                return
            is_wanted = True
            if isinstance(pull.wanted, Filter):
                is_wanted, cost = judge_new(state, pull)
                self.spent += cost
            if is_wanted:
                self.spent += answer_waiting(state, pull)
            else:
                self.spent += pull.cost
                state.pulls.hold(pull)

    def answer_due(self, now_ms: int) -> None:
        """Answer pulls whose timeout is over; beyond the budget the next tick continues."""
        state, room = self._state, _DUE_COST_MAX
        while room > 0:
            pull = state.pulls.take_due(now_ms)
            if pull is None:
                return
            room -= answer_waiting(state, pull)
