"""The steps of `reliable-mq reconcile` after a run that use the application's own parts.

They are imported only on request: a run without them needs neither client nor notifiers.
"""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from reliable_mq.app.application import ReliableMQ

_LOG = "log"


def send_what_is_due(db: str, broker: str, prefix: str) -> int:
    """Do what a running resend scheduler would do next, until no stub is due.

    Args:
        db: URL of the database with the stubs.
        broker: name servers HOST:PORT;….
        prefix: the beginning of the tables' names.

    Returns:
        The number of sent messages.
    """
    mq = _application(db, prefix, broker=broker)
    sent = 0
    try:
        scheduler = mq.scheduler()
        while now_sent := scheduler.run_once(mq.database.clock.measured_now()).sent:
            sent += now_sent
    finally:
        mq.close()
    return sent


def send_due_digests(db: str, prefix: str) -> tuple[int, int]:
    """Let this process's notifiers send waiting escalations; return digests sent, digests failed.

    If a digest fails now, the next process that runs the notifier sends it. The log notifier is
    left out: its lines belong in the application's log.
    """
    mq = _application(db, prefix)
    try:
        now = mq.database.clock.measured_now()
        return mq.alerts().send_due_digests(now, but={_LOG})
    finally:
        mq.close()


def check_notifiers(db: str, prefix: str) -> None:
    """Check before a long run that people can be notified.

    Raises:
        ConfigurationError: a setting of a notifier is wrong, or a table is missing.
    """
    mq = _application(db, prefix)
    try:
        mq.databases.check_tables()
        mq.alerts()
    finally:
        mq.close()


def _application(db: str, prefix: str, broker: str = "") -> "ReliableMQ":
    from reliable_mq.app.application import ReliableMQ  # noqa: PLC0415 - only when asked for

    return ReliableMQ("reconcile", broker=broker or None, database=db, table_prefix=prefix)
