"""The relay's thread. Receives committed stubs from any thread; runs the relay meanwhile."""

import contextlib
import logging
import queue
import threading
import time
from collections.abc import Callable, Sequence

from reliable_mq.outbox.relay import Relay
from reliable_mq.outbox.stub import Stub
from reliable_mq.sql_faults import FaultTeller

log = logging.getLogger(__name__)

BLOCKED_SECONDS = 0.02
"""Wait before asking again whether an earlier stub of another process has gone."""
FAULT_SECONDS = 0.5
GATHER_SECONDS = 0.003
"""Where transactions commit at the same time, the relay lets so much of them gather. A single
one never waits."""


class RelayThread:
    """Runs a relay in a daemon thread.

    Invariant: only this thread touches the relay; `hand` never waits.

    Args:
        relay: what it runs.
        clock: tells the time by which the rows are judged, seconds since the epoch; may wait.
    """

    def __init__(self, relay: Relay, clock: Callable[[], float] = time.time) -> None:
        self._relay = relay
        self._clock = clock
        self._inbox: queue.SimpleQueue[tuple[float, Sequence[Stub]] | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, name="reliable-mq-relay", daemon=True)
        self._closing_by: float | None = None
        self._is_busy = False
        self._faults = FaultTeller(log, "relay")

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def hand(self, stubs: Sequence[Stub], written: float) -> None:
        """Hand over stubs that were written at `written`, in the order of their rows."""
        self._inbox.put((written, stubs))

    def close(self, timeout: float = 5.0) -> None:
        """Send what is still in hand for at most `timeout` seconds, then stop.

        What remains is left to the resend scheduler.
        """
        self._closing_by = time.monotonic() + timeout
        self._inbox.put(None)
        if self._thread.is_alive():
            self._thread.join(timeout + 1.0)

    def _run(self) -> None:
        pause: float | None = None
        while True:
            self._take(pause)
            pause = self._work()
            # What was handed over during the work is still in the inbox: it goes out first.
            is_idle = pause is None and self._inbox.empty()
            if self._closing_by is not None and (is_idle or time.monotonic() >= self._closing_by):
                return

    def _take(self, pause: float | None) -> None:
        """Take everything that was handed over; wait `pause` seconds, or for the first one."""
        with contextlib.suppress(queue.Empty):
            if self._closing_by is not None:
                pause = pause or 0.0
            item = self._inbox.get(timeout=pause) if pause != 0.0 else self._inbox.get_nowait()
            if self._is_busy and item is not None:
                time.sleep(GATHER_SECONDS)
            while True:
                if item is not None:
                    self._relay.accept(item[1], item[0])
                item = self._inbox.get_nowait()

    def _work(self) -> float | None:
        """Run the relay once; return how long to wait, None: until there is something to do."""
        try:
            counts = self._relay.run_once(self._clock())
        except Exception as error:  # noqa: BLE001 - told by the teller
            self._faults.tell(error)
            return FAULT_SECONDS
        self._is_busy = counts.sent > 1
        if counts.failed:
            said = f"{counts.failed} stub(s) could not be sent, the scheduler resends them"
            self._faults.tell_line("unsent", f"{said}: {self._relay.last_error}")
        if not counts.waiting:
            return None
        return 0.0 if counts.sent or counts.failed or counts.dropped else BLOCKED_SECONDS
