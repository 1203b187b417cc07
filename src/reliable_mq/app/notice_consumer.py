"""The consumer of a database's notices. It is a normal consumer; its effect are confirmation rows.

So a notice has its effect exactly once, and an unreadable notice becomes a dead letter. If the
database is away, the notice is delivered again.
"""

from sqlalchemy.orm import Session

from reliable_mq.confirm.notice import Notice
from reliable_mq.confirm.sql_confirmation import confirmation_of
from reliable_mq.confirm.sql_notices import SqlNoticeBook
from reliable_mq.consume.consumer import Consumer, plan_of
from reliable_mq.database.sql_database import Database
from reliable_mq.escalate.sql_settlement import settlement_of


def notice_consumer(name: str, database: Database, lease: float) -> Consumer:
    """Return the consumer that reads the notices for one database.

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
