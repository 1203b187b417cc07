"""Make the `SchedulerBooks` of a database for the resend scheduler, and its states of topics."""

from reliable_mq.confirm.sql_confirmation import confirmation_of
from reliable_mq.database.sql_database import Database
from reliable_mq.escalate.sql_audit import SqlAudit
from reliable_mq.escalate.sql_escalations import escalations_of
from reliable_mq.outbox.sql_stubs import SqlStubs
from reliable_mq.resend.scheduler_books import SchedulerBooks
from reliable_mq.resend.sql_due import SqlDue
from reliable_mq.resend.sql_opening import SqlOpening
from reliable_mq.resend.sql_topics import SqlTopics
from reliable_mq.resend.topic_gate import PROBE_LEASE


def books_of(database: Database, *, lease: float = PROBE_LEASE) -> SchedulerBooks:
    """Return the operations of a database that a resend scheduler needs.

    Args:
        database: the database.
        lease: seconds that the right to probe lasts, see `probe_lease`. Default `PROBE_LEASE`.
    """
    stubs = SqlStubs(database.engine, database.stubs)
    return SchedulerBooks(
        due=SqlDue(stubs, database.logs, confirmation_of(database)),
        sends=stubs,
        topics=topics_of(database, lease=lease),
        opening=SqlOpening(stubs),
        escalations=escalations_of(database),
        notice_topic=database.identity.notice_topic,
        clock=database.clock.now,
    )


def topics_of(database: Database, *, lease: float = PROBE_LEASE) -> SqlTopics:
    """Return the states of topics in a database. `lease`: as in `books_of`."""
    audit = SqlAudit(database.audit)
    return SqlTopics(database.engine, database.resend_topics, audit, lease=lease)
