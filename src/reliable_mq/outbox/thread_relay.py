"""The relay's thread. Accepts committed stubs from any thread, and runs the relay."""

import contextlib
import logging
import math
import queue
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any, Protocol

from reliable_mq.client.asyncio_client import AsyncClient
from reliable_mq.database.sql_faults import FaultLog
from reliable_mq.errors import UsageError
from reliable_mq.message import Message, SendResult
from reliable_mq.outbox.relay import Relay
from reliable_mq.outbox.stub import Stub
from reliable_mq.runtime.loop_thread import LoopThread

log = logging.getLogger(__name__)

BLOCKED_SECONDS = (0.001, 0.05)
"""Shortest and longest wait in seconds before it asks again whether an earlier stub was sent."""
UNOWNED_SECONDS = (0.01, 1.0)
"""Shortest and longest wait between searches for unowned stubs, in seconds. The longest is used
where the database announces commits."""
UNOWNED_MAX = 256
"""The most unowned stubs to claim at once, and to have waiting in the relay."""
FAULT_SECONDS = 0.5
GATHER_SECONDS_EACH = 0.002
GATHER_SECONDS_MAX = 0.03
"""Concurrent transactions: the relay waits a little, so that more stubs gather for its next batch.
The wait grows with the size of the last batch. A batch costs little more than one message, here
and in consumers. A single stub never waits. The wait is longest at about 400 stubs a second."""
RECORD_SECONDS = 0.1
RECORD_PARTS = 10
"""How long the results of sends may wait for their statement, in seconds, and how many such waits
must fit into a lease. If the process dies before it, the scheduler sends these messages again after
their lease: consumers suppress the duplicates."""


class IdleBackoff:
    """Waits that double while nothing is found.

    Invariant: a wait is never shorter than `shortest` nor longer than `longest`.

    Args:
        shortest: the first wait after something was found, in seconds.
        longest: the longest wait, in seconds.
    """

    def __init__(self, shortest: float, longest: float) -> None:
        if not 0 < shortest <= longest:
            raise UsageError(f"a pace of {shortest}..{longest} s: it must be positive and in order")
        self._shortest = shortest
        self._longest = longest
        self._next = shortest

    def reset(self) -> None:
        """Note that something was found: the next wait is the shortest."""
        self._next = self._shortest

    def pause(self) -> float:
        """Return how long to wait now, in seconds. The next wait is twice as long."""
        pause, self._next = self._next, min(self._next * 2, self._longest)
        return pause


class ClientLink(Protocol):
    """A client, and the thread of its event loop. Each is made when first needed."""

    @property
    def loop_thread(self) -> LoopThread:
        """The thread with the client's event loop."""
        ...

    @property
    def client(self) -> AsyncClient:
        """The client, started."""
        ...


class ClientSender:
    """A `StubSender`: the client's own `send_many`, which the first send connects.

    Args:
        link: has the client, as long as relays send.
    """

    def __init__(self, link: ClientLink) -> None:
        self._link = link
        self._verbs: tuple[Callable[..., Any], Callable[..., Any]] | None = None

    def send_many(self, messages: Sequence[Message]) -> list[SendResult | Exception]:
        """Send all messages. Return in their order where each was stored, or its error."""
        if self._verbs is None:
            self._verbs = self._link.loop_thread.run, self._link.client.send_many
        run, send_many = self._verbs
        results: list[SendResult | Exception] = run(send_many(messages))
        return results


class UnownedStubs(Protocol):
    """Stubs of processes that run no relay; see `sql_unowned`."""

    def claim(self, now: float, limit: int) -> list[Stub]:
        """Claim at most `limit` of them for this relay."""
        ...


def _leave_to_scheduler(_stubs: Sequence[Stub]) -> None:
    """Keep no stub: no thread would send it."""


class RelayThread:
    """Runs a relay in a daemon thread.

    Invariant: only this thread touches the relay; `accept_committed` and `wake` never wait.

    Args:
        relay: the relay to run.
        clock: returns the time for the rows, in seconds since the epoch; may wait.
        unowned: the source of unowned stubs, for a shared relay. The relay then claims them, and
            nothing is handed to it, because the stubs are written without an owner.
        is_told: whether the database announces commits of unowned stubs now. If not, the thread
            searches by itself, with a backoff while it finds nothing.
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
        self._inbox: queue.SimpleQueue[Sequence[Stub] | None] = queue.SimpleQueue()
        #: accepts stubs that were just written, in the order of their rows. After `close` it
        #: keeps none: the resend scheduler sends them.
        self.accept_committed: Callable[[Sequence[Stub]], None] = self._inbox.put
        self._thread = threading.Thread(target=self._run, name="reliable-mq-relay", daemon=True)
        self._closing_by: float | None = None
        self._gather = 0.0
        self._waiting = 0
        self._record_by = math.inf  # when the relay's results must be recorded, monotonic
        self._record_pause = min(RECORD_SECONDS, relay.lease / RECORD_PARTS)
        self._has_unwritten = False  # the last try to record failed
        self._blocked = IdleBackoff(*BLOCKED_SECONDS)
        self._idle = IdleBackoff(*UNOWNED_SECONDS)
        self._faults = FaultLog(log, "relay")

    @property
    def waiting(self) -> int:
        """How many stubs wait after the last run, and how many handovers since. Any thread."""
        return self._waiting + self._inbox.qsize()

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def wake(self) -> None:
        """Search for stubs at once."""
        self._inbox.put(None)

    def close(self, timeout: float = 5.0) -> None:
        """Send the remaining stubs for at most `timeout` seconds, then stop.

        The resend scheduler sends the rest.
        """
        self._closing_by = time.monotonic() + timeout
        self._inbox.put(None)
        if self._thread.is_alive():
            self._thread.join(timeout + 1.0)
        if not self._thread.is_alive():
            self.accept_committed = _leave_to_scheduler
            self._inbox = queue.SimpleQueue()

    def _run(self) -> None:
        pause = None if self._unowned is None else 0.0
        while True:
            self._take(pause)
            pause = self._work()
            # Stubs that were handed over during the work are still in the inbox: they go first.
            is_idle = self._relay.waiting == 0 and self._inbox.empty()
            is_idle = is_idle and not self._relay.unrecorded
            if self._closing_by is not None and (is_idle or time.monotonic() >= self._closing_by):
                return

    def _take(self, pause: float | None) -> None:
        """Accept everything from the inbox. Wait `pause` seconds, or without one for an item."""
        with contextlib.suppress(queue.Empty):
            if self._closing_by is not None:
                pause = min(pause or 0.0, BLOCKED_SECONDS[1])
            item = self._inbox.get(timeout=pause) if pause != 0.0 else self._inbox.get_nowait()
            if self._unowned is not None:
                self._idle.reset()  # an announcement or a handover: there is something
            if self._gather and item is not None:
                time.sleep(self._gather)
            while True:
                if item is not None:
                    self._relay.accept(item, item[0].create_time)
                item = self._inbox.get_nowait()

    def _work(self) -> float | None:
        """Run the relay once; return how long to wait. None: until the inbox has something."""
        try:
            now = self._clock()
            claimed = 0 if self._unowned is None else self._claim_unowned(self._unowned, now)
            counts = self._relay.run_once(now)
            self._record_in_time(now)
        except Exception as error:  # noqa: BLE001 - the fault log reports it
            self._faults.log_fault(error)
            return FAULT_SECONDS
        self._gather, self._waiting = gather_seconds(counts.sent), counts.waiting
        if counts.failed and (failed := self._relay.last_failed) is not None:
            said = f"{counts.failed} stub(s) could not be sent, the scheduler resends them"
            self._faults.log_line("unsent", f"{said}: message {failed.message_id}: {failed.error}")
        elif counts.sent and self._faults.is_failing:
            self._faults.note_success()
        if counts.sent or counts.failed or counts.dropped:
            self._blocked.reset()
            return 0.0 if counts.waiting or claimed else self._idle_pause()
        return self._blocked.pause() if counts.waiting else self._idle_pause()

    def _record_in_time(self, now: float) -> None:
        """Let the relay record its results if the oldest of them has waited long enough."""
        ticks, relay = time.monotonic(), self._relay
        is_due = relay.is_record_due or ticks >= self._record_by or self._closing_by is not None
        if relay.unrecorded and is_due:
            failed_before, self._has_unwritten = self._has_unwritten, True
            relay.record(now)
            self._record_by, self._has_unwritten = math.inf, False
            if failed_before:
                self._faults.note_success()
        if not relay.unrecorded:
            self._record_by = math.inf
        elif self._record_by == math.inf:
            self._record_by = ticks + self._record_pause

    def _claim_unowned(self, unowned: UnownedStubs, now: float) -> int:
        """Claim unowned stubs while there is room; return how many were claimed."""
        room = UNOWNED_MAX - self._relay.waiting
        if room <= 0 or self._closing_by is not None:
            return 0
        stubs = unowned.claim(now, room)
        self._relay.accept(stubs, now)
        if stubs:
            self._idle.reset()
        return len(stubs)

    def _idle_pause(self) -> float | None:
        """Return how long to wait when the relay has no stubs."""
        pause: float | None = None
        if self._unowned is not None:
            pause = UNOWNED_SECONDS[1] if self._is_told() else self._idle.pause()
        if self._record_by == math.inf:
            return pause
        left = max(self._record_by - time.monotonic(), BLOCKED_SECONDS[0])
        return left if pause is None else min(pause, left)


def gather_seconds(sent: int) -> float:
    """Return how long to let stubs gather, in seconds, after a run that sent `sent` stubs."""
    return min(GATHER_SECONDS_EACH * sent, GATHER_SECONDS_MAX) if sent > 1 else 0.0
