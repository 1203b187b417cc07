"""Makes and runs the upkeep of an application: resending, alerts, retention, periodic messages."""

import getpass
import logging
import os
import socket
import threading
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from typing import Any

from msgspec.structs import asdict

from reliable_mq.app.thread_connections import Connections
from reliable_mq.app.thread_resending import NoticeReading, Resending, resend_all
from reliable_mq.client.configured import configured
from reliable_mq.client.connecting.file_tls import ssl_context
from reliable_mq.consume.consumer import Consumer
from reliable_mq.database.sql_database import Database
from reliable_mq.errors import UsageError
from reliable_mq.escalate.alerts import Alerts, Notifier, check_notifiers
from reliable_mq.escalate.notifiers import notifiers_of
from reliable_mq.escalate.sql_alerts import SqlAlerts
from reliable_mq.escalate.sql_stuck import stuck_of
from reliable_mq.limits import RETRY_ATTEMPTS_MAX, TOPIC_LENGTH_MAX
from reliable_mq.names import check_name
from reliable_mq.outbox.resend_policy import ResendPolicy
from reliable_mq.periodic.thread_periodic import PeriodicSender, fire_forever
from reliable_mq.resend.scheduler import Scheduler
from reliable_mq.resend.sql_resending import books_of, topics_of
from reliable_mq.resend.topic_gate import TopicRow, probe_lease
from reliable_mq.retention.retention import Retention
from reliable_mq.retention.sql_keeping import partitions_of, retention_ledgers
from reliable_mq.retention.thread_retention import run_forever
from reliable_mq.retention.windows import (
    RetentionWindows,
    check_windows,
    horizon,
    lease_doubt,
    send_seconds,
)
from reliable_mq.runtime.stopped import StopSignal
from reliable_mq.settings import Settings
from reliable_mq.telemetry import application_events
from reliable_mq.topic import Topic, name_of

log = logging.getLogger(__name__)

ALERT_LEASE_SECONDS = 300.0
"""Longer than one mail or webhook call: each step ends within `escalation_timeout_seconds`."""

BATCHES_ONCE = 100
"""The most batches that retention removes in a single run, as from a cron job."""


class Upkeep:
    """Makes schedulers, alerts and retention for the databases of an application.

    Args:
        name: the application's name.
        connections: sends, reads the progress of groups, and gives owner names.
        databases: the databases by name.
        settings: intervals, leases, retention windows.
        policy: when the next send is due.
        notifiers: the notifiers beside the log and those of the settings.
        where: the options with which commands find the application, see `LogNotifier`.
        periodic: returns what fires periodic messages, by the names of databases that have some.

    Raises:
        ConfigurationError: a setting of a notifier is wrong, an object is not a notifier, or two
            have the same name.
    """

    def __init__(
        self,
        name: str,
        connections: Connections,
        databases: Mapping[str, Database],
        settings: Settings,
        policy: ResendPolicy,
        notifiers: Sequence[Notifier],
        where: Callable[[], str],
        periodic: Callable[[], Mapping[str, PeriodicSender]] = dict,
    ) -> None:
        self._name = name
        self._periodic = periodic
        built_in = notifiers_of(settings, where)
        self._notifiers = check_notifiers((*built_in, *check_notifiers(notifiers)))
        self._connections = connections
        self._databases = databases
        self._settings = settings
        self._policy = policy
        client = configured(settings)
        self._tls = client.tls
        self._send_seconds = send_seconds(client.request_timeout_seconds, client.retries)

    def scheduler(self, name: str) -> Scheduler:
        """Return a resend scheduler of a database, under its own owner name."""
        return Scheduler(
            books_of(self._databases[name], lease=probe_lease(self._send_seconds)),
            self._connections,
            self._policy,
            owner=self._connections.scheduler_owner(),
            lease=self._settings.resend_lease_seconds,
            batch=self._settings.resend_batch_count,
        )

    def alerts(self, name: str) -> Alerts:
        """Return the alerts of a database, under their own owner name."""
        database = self._databases[name]
        book = SqlAlerts(
            database.engine, database.escalations, database.alerts, database.notifiers, self._name
        )
        return Alerts(
            book,
            stuck_of(database),
            self._notifiers,
            owner=self._connections.scheduler_owner(),
            lease=ALERT_LEASE_SECONDS,
            stuck_after=self._settings.resend_notify_after_seconds,
            new_id=lambda: os.urandom(16).hex(),
        )

    def retention(self, name: str) -> Retention:
        """Return the retention of a database, under its own owner name."""
        database = self._databases[name]
        ledgers = retention_ledgers(database)
        return Retention(
            ledgers,
            owner=self._connections.scheduler_owner(),
            stub_retention=self._settings.stub_retention_seconds,
            log_retention=self._settings.log_retention_seconds,
            waits=self._settings.retention_waits_for_reconciliation,
            days=partitions_of(database, ledgers) if database.by_day else None,
            look=database.clock.reading,
        )

    def run(self, stopped: StopSignal) -> None:
        """Run schedulers and retention until `stopped`, the first scheduler in this thread.

        Raises:
            ConfigurationError: a file of TLS cannot be used, so nothing could ever be sent.
        """
        self._check_files()
        if doubt := lease_doubt(self._settings.resend_lease_seconds, self._send_seconds):
            application_events.RESEND_LEASE_DOUBTFUL.log(log, problem=doubt)
        ended = threading.Event()
        threads = [
            threading.Thread(
                target=run_forever,
                args=(self.retention(name), ended, each.clock.measured_now),
                name=f"reliable-mq-retention-{name}",
                daemon=True,
            )
            for name, each in self._databases.items()
            if self._settings.retention != "off"
        ]
        threads += [
            threading.Thread(
                target=fire_forever,
                args=(sender, ended),
                kwargs={
                    "interval": self._settings.resend_interval_seconds,
                    "clock": self._databases[name].clock.measured_now,
                },
                name=f"reliable-mq-periodic-{name}",
                daemon=True,
            )
            for name, sender in self._periodic().items()
        ]
        for thread in threads:
            thread.start()
        try:
            resend_all(
                [
                    Resending(
                        name, self.scheduler(name), self.alerts(name), each.clock.measured_now
                    )
                    for name, each in self._databases.items()
                ],
                self._reading(),
                stopped,
                self._settings.resend_interval_seconds,
            )
        finally:
            ended.set()
        for thread in threads:
            thread.join(self._settings.shutdown_timeout_seconds)

    def run_once(self) -> dict[str, dict[str, int]]:
        """Read all waiting notices, run each database's upkeep once; return counts.

        Raises:
            ConfigurationError: a file of TLS cannot be used.
        """
        self._check_files()
        self._reading().catch_up(self._settings.shutdown_timeout_seconds)
        counts: dict[str, dict[str, int]] = {}
        periodic = self._periodic()
        for name, each in self._databases.items():
            ticks = {}
            if name in periodic:
                fired = periodic[name].run_once(each.clock.measured_now())
                ticks = {"ticks": fired.ticks, "ticks_failed": fired.failed}
            done = self.scheduler(name).run_once(each.clock.now())
            alerts = self.alerts(name).run_once(each.clock.now())
            digests = {"digests": alerts.sent, "digests_failed": alerts.failed}
            counts[name] = asdict(done) | {"stuck": alerts.stuck} | digests | ticks
            counts[name] |= self._remove_once(name, each.clock.now)
        return counts

    def _check_files(self) -> None:
        if self._tls is not None:
            ssl_context(self._tls)

    def _remove_once(self, name: str, clock: Callable[[], float]) -> dict[str, int]:
        """Remove old rows, a limited number of batches: a single run must end.

        Each batch reads the `clock` again, because all batches together may take minutes. Returns
        how many rows were `removed`, and how many seconds longer stubs are kept because the clock
        jumped (`held`).
        """
        removed, held, retention = 0, 0.0, self.retention(name)
        for _ in range(BATCHES_ONCE if self._settings.retention != "off" else 0):
            counts = retention.run_once(clock())
            removed += sum(counts.rows.values())
            held = counts.held
            if not counts.is_full:
                break
        return {"removed": removed, "held": round(held)}

    def _reading(self) -> NoticeReading:
        return NoticeReading(self._connections, self._databases, self._settings.claim_lease_seconds)


class ResendControl:
    """Pauses and resumes the resending of topics, in all databases of an application."""

    def __init__(self, databases: Mapping[str, Database]) -> None:
        self._databases = databases

    def pause(
        self,
        topic: str | Topic[Any],
        *,
        until: datetime | None = None,
        note: str = "",
        by: str = "",
        run_id: str | None = None,
    ) -> None:
        """Stop schedulers from sending stubs of a topic, until a time or until `resume`.

        Relays still send new messages right after their commit. Committed stubs wait safely.

        Args:
            topic: the topic.
            until: when the pause ends automatically, with a time zone; default: never.
            note: the reason; kept with the topic and the person's name.
            by: the person; default: the user of this process.
            run_id: identifies the entry in the audit, at most 32 characters.

        Raises:
            ConfigurationError: the topic's name is not legal.
            UsageError: the time has no zone, or is in the past.
        """
        name = name_of(topic)
        check_name("topic", name, TOPIC_LENGTH_MAX)
        for database in self._databases.values():
            now = database.clock.measured_now()
            if until is not None and (until.tzinfo is None or until.timestamp() <= now):
                raise UsageError(f"until={until}: a future time is needed, with its time zone")
            seconds = None if until is None else until.timestamp()
            topics_of(database).pause(name, seconds, by or actor(), note, now, run_id)

    def resume(
        self,
        topic: str | Topic[Any],
        *,
        note: str = "",
        by: str = "",
        run_id: str | None = None,
    ) -> bool:
        """End the pause of a topic, and open it if it is closed; False: it was neither.

        The stubs that wait for a closed topic are due at once. If sends still fail, it closes
        again.
        """
        resumed = [
            topics_of(each).resume(
                name_of(topic), by or actor(), note, each.clock.measured_now(), run_id
            )
            for each in self._databases.values()
        ]
        return any(resumed)

    def topics(self) -> dict[str, dict[str, TopicRow]]:
        """Return, by database, the topics that are paused, or closed because sends fail."""
        return {
            name: {
                topic: row
                for topic, row in topics_of(each).rows().items()
                if row.is_paused or row.is_closed
            }
            for name, each in self._databases.items()
        }


def check_upkeep(
    settings: Settings, policy: ResendPolicy, consumers: Sequence[Consumer] = ()
) -> None:
    """Refuse retention windows that contradict each other: no row may be removed too early (P7).

    Raises:
        ConfigurationError: names the windows.
    """
    usual = settings.retry_waits_seconds
    retries = [horizon(each.retry_waits or usual, each.max_attempts) for each in consumers]
    check_windows(
        RetentionWindows(
            stub_retention_seconds=settings.stub_retention_seconds,
            log_retention_seconds=settings.log_retention_seconds,
            replay_window_seconds=settings.replay_window_seconds,
            resend_horizon=policy.horizon(),
            retry_horizon=max(retries, default=horizon(usual, RETRY_ATTEMPTS_MAX)),
        ),
        is_kept=settings.retention == "off",
    )


def actor() -> str:
    """Return who acts, for the record: the system's user and machine."""
    try:
        user = getpass.getuser()
    except (KeyError, OSError):  # a container's number without a name
        user = str(os.getuid())
    return f"{user}@{socket.gethostname()}"[:127]
