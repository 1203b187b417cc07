"""What a broker does by time: delays, timers, halves, waits that are over, files, expired clients.

Receives the time, some fifty times a second. Each kind of work has an interval of its own.
"""

from reliable_mq.broker_core.delivery import schedule, topic_counts
from reliable_mq.broker_core.delivery.coming_back import bring_back
from reliable_mq.broker_core.delivery.half_check import HalfCheck
from reliable_mq.broker_core.housekeeping import Housekeeping
from reliable_mq.broker_core.indexing import Indexing
from reliable_mq.broker_core.offset_saving import OffsetSaving
from reliable_mq.broker_core.replicated_answers import ReplicatedAnswers
from reliable_mq.broker_core.requests.pop_ack import record_acks
from reliable_mq.broker_core.requests.pop_wakes import PopWakes
from reliable_mq.broker_core.requests.pull import answer_waiting
from reliable_mq.broker_core.state import BrokerState
from reliable_mq.broker_core.store.disk import is_out_of_room
from reliable_mq.errors import StoreError
from reliable_mq.line_limit import limited_log
from reliable_mq.telemetry import broker_events

log = limited_log(__name__)

_EXPIRY_INTERVAL_MS = 10_000
_ORDERS_INTERVAL_MS = 3600 * 1_000
_SAMPLE_INTERVAL_MS = 1_000
# Microseconds of work in one tick for replies to pulls whose wait is over: many may end at a time.
_DUE_COST_MAX = 5_000


class DueWork:
    """Does the work of a broker that is due."""

    def __init__(
        self,
        state: BrokerState,
        housekeeping: Housekeeping,
        pop_wakes: PopWakes,
        indexing: Indexing,
    ) -> None:
        self._state, self._housekeeping = state, housekeeping
        self._pop_wakes, self._indexing, self._half_check = pop_wakes, indexing, HalfCheck()
        self.offsets = OffsetSaving(state)
        self._due_ms = dict.fromkeys(
            ("statistics", "delays", "offsets", "delay offsets", "clients", "halves", "orders"), 0
        )

    def begin(self, now_ms: int) -> None:
        """Begin when the store is open."""
        self._indexing.complete_ms = now_ms
        # Producers need time to reconnect before the first check-back.
        self._due_ms["halves"] = now_ms + self._state.config.transaction_check_interval_ms

    def tick(self, now_ms: int) -> None:
        """Do the work that is due: delays, long polls, expired clients, files."""
        state, config = self._state, self._state.config
        state.note_pressure(now_ms)
        if isinstance(state.answers, ReplicatedAnswers):
            state.answers.expire(now_ms)
        statistics = state.statistics
        if not statistics.is_under_way and self._is_due("statistics", now_ms, _SAMPLE_INTERVAL_MS):
            statistics.begin_sampling(state.take_grown(), now_ms)
        statistics.run_some()
        self._housekeeping.run_some()
        self._answer_due(now_ms)
        self._pop_wakes.tick(now_ms)
        state.member_notices.tell_some()
        state.calls.expire(now_ms)
        if not config.is_slave:
            self._store_what_is_due(now_ms)
        self._indexing.note(now_ms)
        is_due = self._is_due("offsets", now_ms, config.offset_interval_ms)
        self.offsets.run_some(is_due=is_due)
        is_due = self._is_due("delay offsets", now_ms, config.delay_offset_interval_ms)
        if is_due and state.schedule.is_dirty:
            state.files.change(schedule.PATH, state.schedule.dump)
        if is_due:
            self.save_counts()
        if self._is_due("orders", now_ms, _ORDERS_INTERVAL_MS):
            state.orders.expire(state.topics.by_name, state.groups.by_name, now_ms)
        if self._is_due("clients", now_ms, _EXPIRY_INTERVAL_MS):
            state.locks.expire(now_ms)
            for group in state.clients.expire(now_ms):
                state.notify_group(group)

    def _store_what_is_due(self, now_ms: int) -> None:
        """Store the messages that the broker itself stores; skipped while the disk is full."""
        state = self._state
        is_due = self._is_due("delays", now_ms, schedule.CHECK_INTERVAL_MS)
        if self._is_due("halves", now_ms, state.config.transaction_check_interval_ms):
            self._half_check.begin(state)
        if state.pressure.is_disk_full:
            return
        try:
            if is_due:
                state.schedule.deliver_due(state.store, now_ms)
            if state.popped.acks:
                record_acks(state)  # the timers must know that they are there
            state.timers.run(now_ms)
            if len(state.timers.revival):
                bring_back(state, now_ms)
            if self._half_check.is_running:
                self._half_check.run_once(state, now_ms)
        except StoreError as error:
            if not is_out_of_room(error):
                raise
            broker_events.LOG_FILE_MISSING_ROOM.log(log, error=error)
            state.pressure.note_no_file(now_ms)

    def save_counts(self) -> None:
        """Save the counts of timers and halves, if they have changed."""
        state = self._state
        for path, counts in (
            (topic_counts.TIMERS_PATH, state.timers.counts),
            (topic_counts.HALVES_PATH, state.half_counts),
        ):
            if counts.is_dirty:
                state.files.change(path, counts.dump)

    def _is_due(self, what: str, now_ms: int, interval_ms: int) -> bool:
        if now_ms < self._due_ms[what] <= now_ms + interval_ms:  # a later time: the clock went back
            return False
        self._due_ms[what] = now_ms + interval_ms
        return True

    def _answer_due(self, now_ms: int) -> None:
        """Answer pulls whose timeout is over; beyond the budget the next tick continues."""
        state, room = self._state, _DUE_COST_MAX
        while room > 0:
            pull = state.pulls.take_due(now_ms)
            if pull is None:
                return
            room -= answer_waiting(state, pull)
