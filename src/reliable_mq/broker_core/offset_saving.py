"""The saving of consumer offsets, and of what a start must know of popped messages with them."""

from reliable_mq.broker_core.commits_at_slave import PATH as COMMITS_PATH
from reliable_mq.broker_core.delivery import pop_orders, popped
from reliable_mq.broker_core.names import TIMER_TOPIC
from reliable_mq.broker_core.offsets import PATH as OFFSETS_PATH
from reliable_mq.broker_core.state import BrokerState


class OffsetSaving:
    """Saves the offsets of a broker."""

    def __init__(self, state: BrokerState) -> None:
        self._state = state
        self._is_encoding = False
        self._offsets_of = 0  # the checkpoints whose offsets are being encoded end here
        self._resets_of: dict[tuple[str, str, int], popped.ResetNote] = {}  # they have these

    def run_some(self, *, is_due: bool) -> None:
        """Begin to save when it is due, or go on: a large table is encoded over several ticks."""
        offsets, commits = self._state.offsets, self._state.commits_at_slave
        if is_due and commits.is_dirty:
            self._state.files.change(COMMITS_PATH, commits.dump)
        if is_due and self._state.orders.is_dirty:
            self._state.files.change(pop_orders.PATH, self._state.orders.dump)
        if is_due and offsets.is_dirty and not self._is_encoding:
            offsets.begin_dump()
            self._is_encoding = True
            self._offsets_of = self._popped_up_to()
            self._resets_of = dict(self._state.popped.resets)
        if self._is_encoding and not offsets.encode_some():
            self._is_encoding = False
            self._state.files.change(OFFSETS_PATH, offsets.dump_encoded)
            if self._state.popped.is_changed:
                self._note_popped(self._offsets_of)

    def _popped_up_to(self) -> int:
        """Return the checkpoint from which a start must read, if the offsets are saved now."""
        queue = self._state.store.queue(TIMER_TOPIC, 0)
        return self._state.popped.begin_note(queue.end if queue else 0)

    def _note_popped(self, up_to: int) -> None:
        """Note where a start must read checkpoints, when the offsets are on the medium."""
        state = self._state
        state.popped.is_changed = False
        resets = self._resets_of

        def note() -> None:
            state.popped.saved(up_to, resets)
            state.files.change(popped.PATH, state.popped.dump)

        state.files.when_saved(note)

    def save_all(self) -> None:
        """Let the last files of a broker that stops have all offsets."""
        state = self._state
        if state.orders.is_dirty:
            state.files.change(pop_orders.PATH, state.orders.dump)
        state.files.change(OFFSETS_PATH, state.offsets.dump)
        if state.popped.is_changed or state.popped.noted:  # behind the file of the offsets
            state.popped.saved(self._popped_up_to(), dict(state.popped.resets))
            state.files.change(popped.PATH, state.popped.dump)
