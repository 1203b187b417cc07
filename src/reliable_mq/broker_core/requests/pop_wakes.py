"""Wakes the pops that wait: when a message arrives, when a queue is free, when their time is over.

A woken pop is tried again. Requests that only wait for a message are answered without one.
Source: Apache RocketMQ `PopLongPollingService`, `ConsumerOrderInfoLockManager`.
"""

from collections.abc import Iterable

from reliable_mq.broker_core.delivery.popped_before import count_some
from reliable_mq.broker_core.requests.notification import answer_notification
from reliable_mq.broker_core.requests.pop import answer_waiting_pop
from reliable_mq.broker_core.state import BrokerState

# Budgets of one turn, and of one tick, in microseconds; the next one goes on.
_READY_COST_MAX = 4_000
_DUE_COST_MAX = 5_000
_FREED_MAX = 200


class PopWakes:
    """Wakes the waiting pops of one broker."""

    def __init__(self, state: BrokerState) -> None:
        self._state = state

    def arrived(self, queues: Iterable[tuple[str, int]]) -> None:
        """Wake pops because messages have arrived in these queues."""
        state = self._state
        for topic, queue_id in queues:
            state.pops.arrived(topic, queue_id)
            state.notifications.arrived(topic, queue_id)

    def answer_ready(self, now_ms: int) -> None:
        """Answer the pops that were woken; what is beyond the budget follows in the next turn."""
        state, room = self._state, _READY_COST_MAX
        now_ms = now_ms or state.popped.now_ms
        while room > 0 and (pop := state.pops.take_ready()) is not None:
            room -= answer_waiting_pop(state, pop, now_ms)
        while room > 0 and (waiting := state.notifications.take_ready()) is not None:
            room -= answer_notification(state, waiting, now_ms)

    def tick(self, now_ms: int) -> None:
        """Answer pops whose time is over, and wake those whose queue is free again."""
        state, room = self._state, _DUE_COST_MAX
        state.popped.now_ms = now_ms
        if state.popped.uncounted:
            count_some(state)
        if len(state.orders):
            for _ in range(_FREED_MAX):
                free = state.orders.take_free(now_ms)
                if free is None:
                    break
                if state.pops.waiting:
                    state.pops.wake(*free)
                if state.notifications.waiting:
                    state.notifications.wake(*free)
        while room > 0 and state.pops.waiting:
            pop = state.pops.take_due(now_ms)
            if pop is None:
                break
            room -= answer_waiting_pop(state, pop, now_ms)
        while room > 0 and state.notifications.waiting:
            waiting = state.notifications.take_due(now_ms)
            if waiting is None:
                break
            room -= answer_notification(state, waiting, now_ms)
