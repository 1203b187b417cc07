"""Decides which lines about repeated faults are written. Pure: callers pass the time.

One line when something is lost, one when it is back. What is lost and back again and again gets at
most one pair of lines a minute.
"""

import logging
from typing import NamedTuple

from reliable_mq.errors import ConnectionLost

SAID_AGAIN_SECONDS = 60.0
SUBJECTS_MAX = 1000
"""Peers come and go: more subjects than this are not remembered."""


class FaultRate:
    """Limits the lines of repeated faults: the first at once, then one at intervals.

    Invariant: no two lines of one fault within `SAID_AGAIN_SECONDS`.
    """

    def __init__(self) -> None:
        self._said: dict[object, float] = {}
        self._silent: dict[object, int] = {}

    def count_fault(self, fault: object, now: float) -> int | None:
        """Count a fault at the time `now`, in seconds.

        Returns:
            None: do not log it. Otherwise the number of repetitions since its last line.
        """
        said = self._said.get(fault)
        if said is not None and now - said < SAID_AGAIN_SECONDS:
            self._silent[fault] = self._silent.get(fault, 0) + 1
            return None
        if len(self._said) >= SUBJECTS_MAX:
            self._said.clear()
            self._silent.clear()
        self._said[fault] = now
        return self._silent.pop(fault, 0)


class _Loss(NamedTuple):
    since: float
    is_told: bool


class Outages:
    """What cannot be reached now.

    Invariant: a return is told only if the loss was told.
    """

    def __init__(self) -> None:
        self._lost: dict[str, _Loss] = {}
        self._told_at: dict[str, float] = {}

    def __contains__(self, subject: str) -> bool:
        return subject in self._lost

    def lose(self, subject: str, now: float) -> bool:
        """Note that something cannot be reached; return whether to write a line."""
        loss = self._lost.get(subject)
        if loss is not None and loss.is_told:
            return False
        told_at = self._told_at.get(subject)
        is_told = told_at is None or now - told_at >= SAID_AGAIN_SECONDS
        if is_told:
            if len(self._told_at) >= SUBJECTS_MAX:
                self._told_at.clear()
            self._told_at[subject] = now
        if len(self._lost) < SUBJECTS_MAX or loss is not None:
            self._lost[subject] = _Loss(now if loss is None else loss.since, is_told)
        return is_told

    def find(self, subject: str, now: float) -> float | None:
        """Note that something can be reached; return how long it was lost, to write a line."""
        loss = self._lost.pop(subject, None)
        return now - loss.since if loss is not None and loss.is_told else None


def level_of(error: BaseException) -> int | None:
    """Return the level of a line about an error: DEBUG for a peer that cannot be reached.

    The connection to that peer has already written its line. None: the level that the event has.
    """
    return logging.DEBUG if isinstance(error, ConnectionLost) else None
