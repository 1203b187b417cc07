"""The halves that this process has sent and that have not ended yet. Thread-safe."""

import threading
import time
from collections.abc import Callable, Collection

from reliable_mq.errors import InvariantBroken
from reliable_mq.message import Half
from reliable_mq.outbox.half import HalfEvent, HalfState, next_half_state

COUNT_MAX = 10_000
AGE_SECONDS_MAX = 3600.0
"""This process does not end an older half. Retention keeps a tombstone for two hours or more. After
its removal, this process could not know that the half was rolled back: no broker says so."""

_OPEN = frozenset({HalfState.PREPARED, HalfState.COMMITTING})


class OpenHalves:
    """Halves by message id.

    Invariant: no half in it has ended, and at most `count_max` are prepared. The oldest halves are
    left to a check-back.

    Args:
        count_max: the most halves that are kept. Default 10,000.
        clock: the time of day; it must also count while the machine sleeps.
    """

    def __init__(self, count_max: int = COUNT_MAX, clock: Callable[[], float] = time.time) -> None:
        self._count_max = count_max
        self._clock = clock
        self._lock = threading.Lock()
        self._halves: dict[str, tuple[Half, HalfState]] = {}
        #: the message ids of all halves, now and later
        self.known: Collection[str] = self._halves.keys()
        self._sent: dict[str, float] = {}

    def __len__(self) -> int:
        return len(self._halves)

    def add(self, half: Half, sent: float | None = None) -> None:
        """Add a half that a broker has just stored; `sent` is a time before that."""
        with self._lock:
            self._halves[half.message_id] = (half, HalfState.PREPARED)
            self._sent[half.message_id] = self._clock() if sent is None else sent
            if len(self._halves) > self._count_max:
                self._forget_oldest()

    def send(self, message_ids: Collection[str]) -> dict[str, Half]:
        """Return the halves among the messages. Report each result by `note_ended`."""
        oldest = self._clock() - AGE_SECONDS_MAX
        with self._lock:
            known = [each for each in message_ids if each in self._halves]
            for message_id in known:
                if self._sent[message_id] < oldest:
                    self._take(message_id, HalfEvent.FORGET)
            return {
                message_id: self._take(message_id, HalfEvent.SEND)
                for message_id in known
                if message_id in self._halves
            }

    def note_ended(self, message_id: str, *, acknowledged: bool) -> None:
        """Note the result of a commit that was sent."""
        with self._lock:
            event = HalfEvent.ACKNOWLEDGED if acknowledged else HalfEvent.FAILED
            self._take(message_id, event)

    def roll_back(self, message_ids: Collection[str]) -> list[Half]:
        """Return the halves among the messages for a rollback, and forget them."""
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
            del self._halves[message_id], self._sent[message_id]
        return half

    def invariants(self) -> None:
        """Check the invariant of the class."""
        with self._lock:
            prepared = [s for _, s in self._halves.values() if s is HalfState.PREPARED]
            if len(prepared) > self._count_max:
                raise InvariantBroken(f"more than {self._count_max} halves are kept")
            if self._sent.keys() != self._halves.keys():
                raise InvariantBroken("the age of a half is unknown")
            if any(state not in _OPEN for _, state in self._halves.values()):
                raise InvariantBroken("a half that has ended is kept")
