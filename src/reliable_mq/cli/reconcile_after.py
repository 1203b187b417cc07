"""What `reliable-mq reconcile` does after a run, with the application's own parts.

They are loaded only when they are asked for: a run without them needs neither client nor notifiers.
"""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from reliable_mq.app.application import ReliableMQ

_LOG = "log"


def send_what_is_due(db: str, broker: str, prefix: str) -> int:
    """Do what a running resend scheduler would do next, until nothing is due.

    Args:
        db: URL of the database with the stubs.
        broker: name servers HOST:PORT;….
        prefix: of the tables.

    Returns:
        How many messages were sent.
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


def tell_what_is_due(db: str, prefix: str) -> tuple[int, int]:
    """Let the notifiers of this process's settings tell what waits; return digests told, failed.

    What is not told now is told by whichever process has the notifier next. The log is not ours:
    its lines belong where the application's are.
    """
    mq = _application(db, prefix)
    try:
        now = mq.database.clock.measured_now()
        return mq.alerts().tell_what_is_due(now, but={_LOG})
    finally:
        mq.close()


def check_notifiers(db: str, prefix: str) -> None:
    """Make sure, before hours have gone by, that people can be told.

    Raises:
        ConfigurationError: when a setting of a notifier is wrong, or a table is missing.
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
