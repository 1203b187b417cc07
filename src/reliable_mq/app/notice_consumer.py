"""The consumer of a database's notices: as any other, with the table of confirmations its effect.

So a notice has its effect exactly once, one that does not read becomes a dead letter, and one that
meets a database that is away comes again.
"""

from sqlalchemy.orm import Session

from reliable_mq.confirm.notice import Notice
from reliable_mq.confirm.sql_confirmation import confirmation_of
from reliable_mq.confirm.sql_notices import SqlNoticeBook
from reliable_mq.consume.consumer import Consumer, plan_of
from reliable_mq.database.sql_database import Database
from reliable_mq.escalate.sql_settlement import settlement_of


def notice_consumer(name: str, database: Database, lease: float) -> Consumer:
    """Return what reads the notices for one database.

    Args:
        name: the database's, in the application.
        database: whose notices.
        lease: as of any consumer, seconds.
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
