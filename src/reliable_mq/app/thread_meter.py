"""Registers the metrics of one application with a registry of prometheus_client.

Receives an application's parts and a registry. A scrape reads the parts; nothing is measured
between scrapes, except in a process among several (`measure_for_parent`).
"""

import logging
import threading
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from reliable_mq.app.thread_connections import Connections
from reliable_mq.client.observing.prometheus import PrometheusMiddleware
from reliable_mq.database.sql_database import Database
from reliable_mq.database.sql_faults import FaultLog
from reliable_mq.extras import extra_of
from reliable_mq.measuring.sql_figures import SqlFigures
from reliable_mq.measuring.thread_kept_readings import KeptReading, KeptReadings
from reliable_mq.settings import Settings
from reliable_mq.telemetry.families import Sample, SampleCollector, SampleGauges

log = logging.getLogger(__name__)

SET_SECONDS = 2.0
"""How often a process among several sets its gauges."""


class Meter:
    """The metrics of one application in one process.

    Args:
        connections: the application's connections.
        databases: its databases, by name.
        settings: its settings.
        registry: of prometheus_client; None: its own.
        shown_name: returns the name by which people know a database. Default: its own.

    Raises:
        ExtraMissing: prometheus_client is not installed.
    """

    def __init__(
        self,
        connections: Connections,
        databases: Mapping[str, Database],
        settings: Settings,
        registry: Any = None,
        shown_name: Callable[[str], str] = str,
    ) -> None:
        with extra_of("prometheus_client"):
            import prometheus_client  # noqa: PLC0415 - an extra
        self._connections = connections
        self._databases = databases
        self._settings = settings
        self._shown_name = shown_name
        self._registry = prometheus_client.REGISTRY if registry is None else registry

    def register(self) -> None:
        """Register all metrics of the application in this process.

        Raises:
            UsageError: the application has connected already.
            ValueError: the registry has such metrics already.
        """
        self._observe_messages()
        self.register_databases()
        self._registry.register(SampleCollector(self.worker_samples, "worker"))
        if self._connections.is_embedded:
            read = self._connections.broker_samples
            self._registry.register(SampleCollector(read, "broker", "name server"))

    def register_databases(self) -> None:
        """Register what is read from the databases: backlog, escalations, dead letters.

        The first scrape connects to them.

        Raises:
            ValueError: the registry has such metrics already.
        """
        wait_max = max(self._settings.resend_waits_seconds)
        readings = KeptReadings(
            [
                KeptReading(shown, SqlFigures(shown, database, wait_max).read)
                for name, database in self._databases.items()
                for shown in (self._shown_name(name),)
            ]
        )
        self._registry.register(SampleCollector(readings.samples, "application"))

    def measure_for_parent(self) -> None:
        """Write metrics into the files of prometheus_client's multiprocess mode.

        For a process among several, whose parent serves them, as in `run --processes 4`.

        Raises:
            UsageError: the application has connected already.
        """
        self._observe_messages()
        gauges = SampleGauges(self._registry, "worker")

        faults = FaultLog(log, "metrics of this worker")

        def set_forever() -> None:
            never = threading.Event()
            while not never.wait(SET_SECONDS):
                try:
                    gauges.set_all(self.worker_samples())
                except Exception as error:  # noqa: BLE001 - logged; old figures would stay for ever
                    faults.log_fault(error)

        threading.Thread(target=set_forever, name="reliable-mq-meter", daemon=True).start()

    def _observe_messages(self) -> None:
        if not self._connections.has_middleware(PrometheusMiddleware):
            self._connections.add_middleware(PrometheusMiddleware(self._registry))

    def worker_samples(self) -> Iterator[Sample]:
        """Yield the samples of the source "worker". It only looks at counts, and never waits."""
        breakers = 0
        for worker in self._connections.workers:
            for group, calls, calls_max in worker.handler_calls():
                yield Sample("reliable_mq_handler_calls", calls, (group,))
                yield Sample("reliable_mq_handler_calls_max", calls_max, (group,))
            breakers += worker.is_breaker_open
        yield Sample("reliable_mq_redis_breaker_open", breakers)
        for database, waiting in self._connections.relay_waiting().items():
            shown = self._shown_name(database)
            yield Sample("reliable_mq_relay_waiting_stubs", waiting, (shown,))
