"""Figures that an event loop notes every second, for scrapes in other threads.

A scrape must not wait for the loop, and must not read what the loop changes. So the loop notes its
figures, and a scrape returns the last ones.
"""

import asyncio
import time
from collections.abc import Callable, Iterable, Iterator

from reliable_mq.broker_core.consumer_ages import ConsumerAges
from reliable_mq.broker_core.figures import broker_samples
from reliable_mq.broker_core.state import BrokerState
from reliable_mq.line_limit import limited_log
from reliable_mq.runtime.listener import Listener
from reliable_mq.runtime.server_tls import OUTCOMES, ServerTls
from reliable_mq.telemetry import broker_events
from reliable_mq.telemetry.families import Sample
from reliable_mq.telemetry.metrics import Source
from reliable_mq.telemetry.outages import FaultRate

log = limited_log(__name__)

NOTED_SECONDS = 1.0


class LoopFigures:
    """The last figures of a loop, on which it is made.

    Invariant: only the loop calls `take`; other threads only read the last figures.

    Args:
        take: returns the figures; called on the loop.
        source: whose metrics they are.
    """

    def __init__(self, take: Callable[[], Iterable[Sample]], source: Source) -> None:
        self._take = take
        self.source = source
        self._age_name = f"reliable_mq_{source.replace(' ', '_')}_reading_age_seconds"
        self._noted: tuple[tuple[Sample, ...], float] = ((), time.monotonic())
        self._rate = FaultRate()
        self._note()

    def _note(self) -> None:
        asyncio.get_running_loop().call_later(NOTED_SECONDS, self._note)
        now = time.monotonic()
        try:
            self._noted = (tuple(self._take()), now)
        except Exception as error:  # noqa: BLE001 - it is logged; the broker serves on
            if self._rate.count_fault(type(error), now) is not None:
                broker_events.FIGURES_FAILED.log(log, traceback_of=error, source=self.source)

    def samples(self) -> list[Sample]:
        """Return the last figures and their age. Any thread may call this; it never waits."""
        noted, at = self._noted
        return [*noted, Sample(self._age_name, time.monotonic() - at)]


def connection_samples(prefix: str, listener: Listener, tls: ServerTls | None) -> Iterator[Sample]:
    """Yield the samples of a server's connections; the names begin with `prefix`."""
    yield Sample(f"{prefix}connections", len(listener.connections))
    for limit, count in listener.refused.items():
        yield Sample(f"{prefix}refused_connections_total", count, (limit,))
    for outcome in OUTCOMES:
        count = tls.outcomes[outcome] if tls is not None else 0
        yield Sample(f"{prefix}tls_handshakes_total", count, (outcome,))
    expires_at = tls.expires_at if tls is not None else 0.0
    yield Sample(f"{prefix}tls_certificate_expiry_seconds", expires_at)


def measure_broker(state: BrokerState, listener: Listener, tls: ServerTls) -> LoopFigures:
    """Note the figures of a broker from now on, on the running loop; return them."""
    ages = ConsumerAges(state, time.perf_counter)

    def take() -> Iterator[Sample]:
        now_ms = time.time_ns() // 1_000_000
        yield from broker_samples(state, now_ms)
        yield from ages.samples(now_ms)
        yield from connection_samples("reliable_mq_broker_", listener, tls)

    return LoopFigures(take, "broker")
