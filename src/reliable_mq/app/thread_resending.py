"""Runs beside the workers: a resend scheduler for each database, alerts, and the notice consumer.

Each scheduler has its own thread, so that a database that is away does not delay the others.
"""

import logging
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from sqlalchemy.orm import Session

from reliable_mq.app.thread_connections import Connections
from reliable_mq.confirm.notice import Notice
from reliable_mq.confirm.progress import Progress
from reliable_mq.confirm.sql_confirmation import confirmation_of
from reliable_mq.confirm.sql_notices import SqlNoticeBook
from reliable_mq.consume.consumer import Consumer, plan_of
from reliable_mq.database.sql_database import Database
from reliable_mq.database.sql_faults import FaultLog
from reliable_mq.escalate.alerts import Alerts
from reliable_mq.escalate.sql_settlement import settlement_of
from reliable_mq.resend.scheduler import Scheduler
from reliable_mq.resend.thread_scheduler import run_forever
from reliable_mq.runtime.stopped import StopSignal
from reliable_mq.telemetry import application_events

log = logging.getLogger(__name__)

TOPIC_SECONDS = 0.5
TOPIC_SECONDS_MAX = 10.0
"""Shortest and longest wait between searches for a topic of notices, in seconds."""
_LOOK_AGAIN_SECONDS = 0.05


class Resending(NamedTuple):
    """The scheduler of one database, its alerts, and the clock for its rows."""

    database: str
    scheduler: Scheduler
    alerts: Alerts
    clock: Callable[[], float]


def notice_consumer(name: str, database: Database, lease: float) -> Consumer:
    """Return what reads the notices for one database: a consumer as any other.

    Its effect is the table of confirmations. So a notice has its effect exactly once, one that does
    not read becomes a dead letter, and one that meets a database that is away comes again.

    Args:
        name: the database's name in the application.
        database: the database.
        lease: the lease of the consumer's claims, in seconds.
    """
    book = SqlNoticeBook(
        database.stubs, confirmation_of(database), settlement_of(database).exhaust, database.dialect
    )

    def take_notice(notice: Notice, session: Session) -> None:
        book.apply(session.connection(), notice, database.clock.now())

    topic = database.identity.notice_topic()
    return Consumer(
        plan=plan_of(take_notice),
        topic=topic,
        group=topic,  # one for all applications of the database
        ordered=False,
        lease=lease,
        concurrency=1,
        database=name,
    )


class NoticeReading:
    """Reads the notices of other databases' groups about the stubs in these databases.

    The first notice creates the topic of notices, and most databases never get one. So reading
    begins when the topic exists.

    Args:
        connections: the application's connections.
        databases: the databases by name.
        lease: the lease of claims on notices, in seconds.
    """

    def __init__(
        self, connections: Connections, databases: Mapping[str, Database], lease: float
    ) -> None:
        self._connections = connections
        self._databases = databases
        self._lease = lease
        self._awaited = set(databases)
        self._faults = FaultLog(log, "reading notices")

    def begin(self) -> bool:
        """Begin to read existing topics of notices; return whether all are being read now."""
        for name in sorted(self._awaited):
            database = self._databases[name]
            try:
                topic = database.identity.notice_topic()
                if self._connections.topic_exists(topic):
                    consumer = notice_consumer(name, database, self._lease)
                    duty = f"notices of {name}"
                    self._connections.start_worker(duty, [consumer], self._databases)
                    self._awaited.discard(name)
            except Exception as error:  # noqa: BLE001 - logged, and tried again
                self._faults.log_fault(error)
        return not self._awaited

    def run(self, stopped: StopSignal) -> None:
        """Begin to read each topic when it exists, until all are read or it is `stopped`.

        Meanwhile the notices that these databases owe are sent, even if no worker runs.
        """
        self._connections.start_notices(self._databases)
        pause = TOPIC_SECONDS
        while not self.begin() and not stopped.wait(pause):
            pause = min(2 * pause, TOPIC_SECONDS_MAX)

    def catch_up(self, timeout: float) -> None:
        """Read all notices that exist now, for at most `timeout` seconds."""
        self._connections.start_notices(self._databases)
        self.begin()
        until = time.monotonic() + timeout
        for name in self._databases.keys() - self._awaited:
            topic = self._databases[name].identity.notice_topic()
            ends = {queue: end for queue, (_, end) in self._progress(topic).items()}
            while time.monotonic() < until:
                done = self._progress(topic)
                if all(done[queue][0] >= end for queue, end in ends.items() if end):
                    break
                time.sleep(_LOOK_AGAIN_SECONDS)

    def _progress(self, topic: str) -> Progress:
        return self._connections.consumer_progress(topic, topic)


def send_alerts_forever(
    alerts: Alerts,
    stopped: StopSignal,
    *,
    interval: float,
    clock: Callable[[], float] = time.time,
) -> None:
    """Tell people every `interval` seconds until `stopped`.

    It has a thread of its own: a slow mail server must not delay the resend scheduler.
    """
    faults = FaultLog(log, "alerts")
    while not stopped.is_set():
        try:
            counts = alerts.run_once(clock())
        except Exception as error:  # noqa: BLE001 - told by the teller
            faults.log_fault(error)
        else:
            if faults.is_failing:
                faults.note_success()
            if counts.sent or counts.stuck:
                application_events.ALERTS_SENT.log(
                    log,
                    stuck=counts.stuck,
                    sent=counts.sent,
                    failed=counts.failed,
                )
        stopped.wait(interval)


def resend_all(
    schedulers: Sequence[Resending], reading: NoticeReading, stopped: StopSignal, interval: float
) -> None:
    """Run until `stopped`, the first scheduler in this thread; return when all have ended."""
    first, *others = schedulers
    threads = [threading.Thread(target=reading.run, args=(stopped,), name="reliable-mq-notices")]
    threads += [
        threading.Thread(
            target=run_forever,
            args=(each.scheduler, stopped),
            kwargs={"interval": interval, "clock": each.clock},
            name=f"reliable-mq-resend-{each.database}",
        )
        for each in others
    ]
    threads += [
        threading.Thread(
            target=send_alerts_forever,
            args=(each.alerts, stopped),
            kwargs={"interval": interval, "clock": each.clock},
            name=f"reliable-mq-alerts-{each.database}",
        )
        for each in schedulers
    ]
    for thread in threads:
        thread.daemon = True
        thread.start()
    run_forever(first.scheduler, stopped, interval=interval, clock=first.clock)
    for thread in threads:
        thread.join()
