"""The index of a running broker: it follows the log when nobody sends, or was put off too long."""

from collections.abc import Callable

from reliable_mq.broker_core.state import BrokerState, Request
from reliable_mq.errors import StoreError
from reliable_mq.line_limit import limited_log
from reliable_mq.telemetry import broker_events

log = limited_log(__name__)

_PUT_OFF_MAX_MS = 2_000


class Indexing:
    """Adds messages to the index, and lets queries that wait for it be handled."""

    def __init__(self, state: BrokerState, handle: Callable[[Request], None]) -> None:
        self._state, self._handle = state, handle
        self.complete_ms = 0  # when the index had all messages
        self._is_late = False

    @property
    def is_wanted(self) -> bool:
        """Whether indexing must run now: a query waits for it, or it was put off long enough.

        A slave that copies a whole log puts it off until it has the log.
        """
        state = self._state
        return bool(state.waiting_queries) or (self._is_late and not state.store.is_copying)

    def run_some(self, now_ms: int, *, is_short: bool = False) -> bool:
        """Add some more records to the index; return whether more is to be done.

        Fewer records if `is_short`: somebody sends single requests.

        When the index has reached the end of the log, one waiting query is answered each time: its
        answer may be large.
        """
        state = self._state
        was_stuck, state.is_index_stuck = state.is_index_stuck, False
        try:
            state.store.index_some(now_ms, is_short=is_short)
        except (OSError, StoreError) as error:
            state.is_index_stuck = True
            if not was_stuck:
                broker_events.INDEX_STUCK.log(log, error=error)
        self.note(now_ms)
        is_behind = not (state.store.is_indexed or state.is_index_stuck)
        if state.waiting_queries and not is_behind:
            self._handle(state.waiting_queries.popleft())
        return is_behind or bool(state.waiting_queries)

    def note(self, now_ms: int) -> None:
        """Note whether the index has all messages, or was put off for too long."""
        if self._state.store.is_indexed or now_ms < self.complete_ms:  # the clock went back
            self.complete_ms = now_ms
        self._is_late = now_ms - self.complete_ms >= _PUT_OFF_MAX_MS
