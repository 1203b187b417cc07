"""What looks after the stubs and logs of databases: resend schedulers, retention beside them."""

import getpass
import logging
import os
import socket
import threading
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime

from msgspec.structs import asdict

from reliable_mq.app.thread_connections import Connections
from reliable_mq.app.thread_resending import NoticeReading, Resending, resend_all
from reliable_mq.client.configured import configured
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
from reliable_mq.resend.scheduler import Scheduler
from reliable_mq.resend.sql_resending import book_of, topics_of
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

log = logging.getLogger(__name__)

ALERT_LEASE_SECONDS = 300.0
"""Longer than a mail or a post: each of their steps ends within `escalation_timeout_seconds`."""

BATCHES_ONCE = 100
"""Most batches that retention removes when all is to be done once, as from a cron job."""


class Upkeep:
    """Makes schedulers, alerts and retention for the databases of an application.

    Args:
        name: the application's.
        connections: sends, knows how far groups have come, and gives names.
        databases: by name.
        settings: intervals, leases, windows.
        policy: when the next send is due.
        notifiers: who tells people, beside the log and what the settings name.
        where: what commands need to find the application, see `LogNotifier`.

    Raises:
        ConfigurationError: when a setting of a notifier is wrong, a notifier is none, or two share
            a name.
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
    ) -> None:
        self._name = name
        built_in = notifiers_of(settings, where)
        self._notifiers = check_notifiers((*built_in, *check_notifiers(notifiers)))
        self._connections = connections
        self._databases = databases
        self._settings = settings
        self._policy = policy
        client = configured(settings)
        self._send_seconds = send_seconds(client.request_timeout_seconds, client.retries)

    def scheduler(self, name: str) -> Scheduler:
        """Return a resend scheduler of a database, under a name of its own."""
        return Scheduler(
            book_of(self._databases[name], lease=probe_lease(self._send_seconds)),
            self._connections,
            self._policy,
            owner=self._connections.scheduler_owner(),
            lease=self._settings.resend_lease_seconds,
            batch=self._settings.resend_batch_count,
        )

    def alerts(self, name: str) -> Alerts:
        """Return what tells people of what is in a database, under a name of its own."""
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
        """Return retention of a database, under a name of its own."""
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
        """Run schedulers and retention until `stopped`, the first scheduler in this thread."""
        if doubt := lease_doubt(self._settings.resend_lease_seconds, self._send_seconds):
            log.warning("%s", doubt)
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
        """Read the notices that are there, look once into each database; return what was done."""
        self._reading().catch_up(self._settings.shutdown_timeout_seconds)
        counts: dict[str, dict[str, int]] = {}
        for name, each in self._databases.items():
            done = self.scheduler(name).run_once(each.clock.now())
            told = self.alerts(name).run_once(each.clock.now())
            digests = {"digests": told.told, "digests_failed": told.failed}
            counts[name] = asdict(done) | {"stuck": told.stuck} | digests
            counts[name] |= self._remove_once(name, each.clock.now)
        return counts

    def _remove_once(self, name: str, clock: Callable[[], float]) -> dict[str, int]:
        """Remove what is old enough, within bounds: who runs us once has something else to do.

        Each batch asks the `clock` anew: all of them together may take minutes.
        Returns how many rows were `removed`, and for how many seconds longer stubs are kept because
        the clock jumped (`held`).
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
    """What a person says of the resending of topics, in all databases of an application."""

    def __init__(self, databases: Mapping[str, Database]) -> None:
        self._databases = databases

    def pause(self, topic: str, *, until: datetime | None = None, note: str = "") -> None:
        """Let no scheduler send stubs of a topic, until a time or until `resume`.

        New messages still leave right after their commit; what was committed waits, unharmed.

        Args:
            topic: the topic.
            until: when the pause ends by itself, with its time zone; default: never.
            note: why; kept with the topic, beside who did it.

        Raises:
            ConfigurationError: when the topic's name is not legal.
            UsageError: when the time has no zone or is over.
        """
        check_name("topic", topic, TOPIC_LENGTH_MAX)
        for database in self._databases.values():
            now = database.clock.measured_now()
            if until is not None and (until.tzinfo is None or until.timestamp() <= now):
                raise UsageError(f"until={until}: a time to come is needed, with its time zone")
            seconds = None if until is None else until.timestamp()
            topics_of(database).pause(topic, seconds, actor(), note, now)

    def resume(self, topic: str, *, note: str = "") -> bool:
        """End the pause of a topic, and open it where it is closed; False: it was neither.

        What waits for a closed topic is due at once then. It closes again when nothing arrives.
        """
        resumed = [
            topics_of(each).resume(topic, actor(), note, each.clock.measured_now())
            for each in self._databases.values()
        ]
        return any(resumed)

    def topics(self) -> dict[str, dict[str, TopicRow]]:
        """Return, by database, the topics that are paused, or closed because nothing arrives."""
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
    """Refuse windows that contradict each other, before anything is forgotten too early (P7).

    Raises:
        ConfigurationError: names them.
    """
    attempts = max((each.max_attempts for each in consumers), default=RETRY_ATTEMPTS_MAX)
    check_windows(
        RetentionWindows(
            stub_retention_seconds=settings.stub_retention_seconds,
            log_retention_seconds=settings.log_retention_seconds,
            replay_window_seconds=settings.replay_window_seconds,
            resend_horizon=policy.horizon(),
            retry_horizon=horizon(settings.retry_waits_seconds, attempts),
        ),
        is_kept=settings.retention == "off",
    )


def actor() -> str:
    """Return who does this, for the record: the system's user and machine."""
    try:
        user = getpass.getuser()
    except (KeyError, OSError):  # a container's number without a name
        user = str(os.getuid())
    return f"{user}@{socket.gethostname()}"[:127]
