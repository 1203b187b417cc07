"""The relay's thread. Receives committed stubs from any thread; runs the relay meanwhile."""

import contextlib
import logging
import queue
import threading
import time
from collections.abc import Callable, Sequence
from typing import Protocol

from reliable_mq.database.sql_faults import FaultLog
from reliable_mq.errors import UsageError
from reliable_mq.outbox.relay import Relay
from reliable_mq.outbox.stub import Stub

log = logging.getLogger(__name__)

BLOCKED_SECONDS = (0.001, 0.05)
"""Waits before asking again whether an earlier stub of another process has gone."""
UNOWNED_SECONDS = (0.01, 1.0)
"""Waits between looks at what nobody owns; the long one where commits are told."""
UNOWNED_MAX = 256
"""Most unowned stubs that are claimed at once; no more while so many are in hand."""
FAULT_SECONDS = 0.5
GATHER_SECONDS_EACH = 0.002
GATHER_SECONDS_MAX = 0.03
"""Where transactions commit at the same time the relay lets more of them gather, the longer the
more went together the last time: a batch costs little more than a message, here and at whoever
consumes it. A single one never waits, and the longest wait comes at some 400 a second."""


class IdleBackoff:
    """Waits that grow while nothing is found: a moment at first, twice as long each time.

    Invariant: a wait is never shorter than `shortest` nor longer than `longest`.

    Args:
        shortest: seconds, the first wait after something was found.
        longest: seconds, the wait of somebody who has not found anything for long.
    """

    def __init__(self, shortest: float, longest: float) -> None:
        if not 0 < shortest <= longest:
            raise UsageError(f"a pace of {shortest}..{longest} s: positive and in order, please")
        self._shortest = shortest
        self._longest = longest
        self._next = shortest

    def found(self) -> None:
        """Note that there was something: more of it may be on its way."""
        self._next = self._shortest

    def pause(self) -> float:
        """Return how long to wait now, in seconds; the next wait is longer."""
        pause, self._next = self._next, min(self._next * 2, self._longest)
        return pause


class UnownedStubs(Protocol):
    """Stubs of processes that run no relay; see `sql_unowned`."""

    def claim(self, now: float, limit: int) -> list[Stub]:
        """Make at most `limit` of them ours."""
        ...


class RelayThread:
    """Runs a relay in a daemon thread.

    Invariant: only this thread touches the relay; `hand` and `wake` never wait.

    Args:
        relay: what it runs.
        clock: tells the time by which the rows are judged, seconds since the epoch; may wait.
        unowned: where the relay is shared: what no process owns is claimed, and what is handed
            over is only told of, because it is written without an owner.
        is_told: whether commits of unowned stubs wake this thread at this moment; else it looks
            by itself, often after it found some and ever less while it finds none.
    """

    def __init__(
        self,
        relay: Relay,
        clock: Callable[[], float] = time.time,
        *,
        unowned: UnownedStubs | None = None,
        is_told: Callable[[], bool] = lambda: False,
    ) -> None:
        self._relay = relay
        self._clock = clock
        self._unowned = unowned
        self._is_told = is_told
        self._inbox: queue.SimpleQueue[tuple[float, Sequence[Stub]] | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, name="reliable-mq-relay", daemon=True)
        self._closing_by: float | None = None
        self._gather = 0.0
        self._blocked = IdleBackoff(*BLOCKED_SECONDS)
        self._idle = IdleBackoff(*UNOWNED_SECONDS)
        self._faults = FaultLog(log, "relay")

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def hand(self, stubs: Sequence[Stub], written: float) -> None:
        """Hand over stubs that were written at `written`, in the order of their rows.

        After `close` the resend scheduler sends them.
        """
        if self._closing_by is not None and not self._thread.is_alive():
            return
        self._inbox.put((written, stubs) if self._unowned is None else None)

    def wake(self) -> None:
        """Let it look at once."""
        self._inbox.put(None)

    def close(self, timeout: float = 5.0) -> None:
        """Send what is still in hand for at most `timeout` seconds, then stop.

        What remains is left to the resend scheduler.
        """
        self._closing_by = time.monotonic() + timeout
        self._inbox.put(None)
        if self._thread.is_alive():
            self._thread.join(timeout + 1.0)

    def _run(self) -> None:
        pause = None if self._unowned is None else 0.0
        while True:
            self._take(pause)
            pause = self._work()
            # What was handed over during the work is still in the inbox: it goes out first.
            is_idle = self._relay.waiting == 0 and self._inbox.empty()
            if self._closing_by is not None and (is_idle or time.monotonic() >= self._closing_by):
                return

    def _take(self, pause: float | None) -> None:
        """Take everything that was handed over; wait `pause` seconds, or for the first one."""
        with contextlib.suppress(queue.Empty):
            if self._closing_by is not None:
                pause = min(pause or 0.0, BLOCKED_SECONDS[1])
            item = self._inbox.get(timeout=pause) if pause != 0.0 else self._inbox.get_nowait()
            self._idle.found()  # told or handed over: there is something
            if self._gather and item is not None:
                time.sleep(self._gather)
            while True:
                if item is not None:
                    self._relay.accept(item[1], item[0])
                item = self._inbox.get_nowait()

    def _work(self) -> float | None:
        """Run the relay once; return how long to wait, None: until there is something to do."""
        try:
            now = self._clock()
            claimed = self._claim_unowned(now)
            counts = self._relay.run_once(now)
        except Exception as error:  # noqa: BLE001 - told by the teller
            self._faults.tell(error)
            return FAULT_SECONDS
        self._gather = gather_seconds(counts.sent)
        if counts.failed:
            said = f"{counts.failed} stub(s) could not be sent, the scheduler resends them"
            self._faults.tell_line("unsent", f"{said}: {self._relay.last_error}")
        if counts.sent or counts.failed or counts.dropped:
            self._blocked.found()
            return 0.0 if counts.waiting or claimed else self._idle_pause()
        return self._blocked.pause() if counts.waiting else self._idle_pause()

    def _claim_unowned(self, now: float) -> int:
        """Make unowned stubs ours, as long as there is room for them; return how many."""
        room = UNOWNED_MAX - self._relay.waiting
        if self._unowned is None or room <= 0 or self._closing_by is not None:
            return 0
        stubs = self._unowned.claim(now, room)
        self._relay.accept(stubs, now)
        if stubs:
            self._idle.found()
        return len(stubs)

    def _idle_pause(self) -> float | None:
        """Return how long to wait when nothing is in hand."""
        if self._unowned is None:
            return None
        return UNOWNED_SECONDS[1] if self._is_told() else self._idle.pause()


def gather_seconds(sent: int) -> float:
    """Return how long to let stubs gather after a run that sent so many."""
    return min(GATHER_SECONDS_EACH * sent, GATHER_SECONDS_MAX) if sent > 1 else 0.0
