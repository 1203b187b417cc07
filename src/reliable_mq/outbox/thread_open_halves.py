"""The halves that this process has sent and that did not end yet. Used by many threads."""

import threading
from collections.abc import Collection

from reliable_mq.client.transaction import Half
from reliable_mq.errors import InvariantBroken
from reliable_mq.outbox.half import HalfEvent, HalfState, next_half_state

COUNT_MAX = 10_000

_OPEN = frozenset({HalfState.PREPARED, HalfState.COMMITTING})


class OpenHalves:
    """Halves by message id.

    Invariant: none has ended, and `count_max` at most are prepared; the oldest are left to
    a check-back.
    """

    def __init__(self, count_max: int = COUNT_MAX) -> None:
        self._count_max = count_max
        self._lock = threading.Lock()
        self._halves: dict[str, tuple[Half, HalfState]] = {}

    def __len__(self) -> int:
        return len(self._halves)

    def add(self, half: Half) -> None:
        """Note a half that a broker has just stored."""
        with self._lock:
            self._halves[half.message_id] = (half, HalfState.PREPARED)
            if len(self._halves) > self._count_max:
                self._forget_oldest()

    def send(self, message_ids: Collection[str]) -> dict[str, Half]:
        """Return those of the messages that are halves; what came of each is to be told."""
        with self._lock:
            return {
                message_id: self._take(message_id, HalfEvent.SEND)
                for message_id in message_ids
                if message_id in self._halves
            }

    def ended(self, message_id: str, *, acknowledged: bool) -> None:
        """Note what became of a commit that was sent."""
        with self._lock:
            event = HalfEvent.ACKNOWLEDGED if acknowledged else HalfEvent.FAILED
            self._take(message_id, event)

    def roll_back(self, message_ids: Collection[str]) -> list[Half]:
        """Return those that are known, to be rolled back; they are forgotten."""
        with self._lock:
            return [
                self._take(message_id, HalfEvent.ROLL_BACK)
                for message_id in message_ids
                if message_id in self._halves
            ]

    def _forget_oldest(self) -> None:
        for message_id, (_, state) in self._halves.items():
            if state is HalfState.PREPARED:
                self._take(message_id, HalfEvent.FORGET)
                return

    def _take(self, message_id: str, event: HalfEvent) -> Half:
        half, state = self._halves[message_id]
        after = next_half_state(state, event)
        if after in _OPEN:
            self._halves[message_id] = (half, after)
        else:
            del self._halves[message_id]
        return half

    def invariants(self) -> None:
        """Check what the class promises of itself."""
        with self._lock:
            prepared = [s for _, s in self._halves.values() if s is HalfState.PREPARED]
            if len(prepared) > self._count_max:
                raise InvariantBroken(f"more than {self._count_max} halves are kept")
            if any(state not in _OPEN for _, state in self._halves.values()):
                raise InvariantBroken("a half that has ended is kept")
