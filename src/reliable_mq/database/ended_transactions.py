"""Why nothing more is executed in a transaction: it has ended below SQLAlchemy, or may end."""

from reliable_mq.errors import UsageError


class TransactionEnded(UsageError):
    """A statement of a handler ended its transaction; what it committed cannot be taken back."""

    def __init__(self) -> None:
        super().__init__(
            "the handler's transaction was ended by one of its statements (a procedure that "
            "commits, SET autocommit, …): what it wrote before may be committed, what it wrote "
            "later is rolled back, and it is not called again automatically. Remove the COMMIT "
            "from that statement, and complete this effect by hand"
        )


class RunsAgain(Exception):
    """A batch shares the transaction, and a statement may end it. The statement was not executed.

    The transaction already has the rows of messages whose handlers have not begun. A COMMIT would
    make these rows true. Nothing has failed: the messages run again, each behind its own row.
    """

    def __init__(self) -> None:
        super().__init__(
            "this statement may end the transaction, which several messages share. It is not "
            "executed now: the messages run again one after another, and then it is executed"
        )


class RolledBackBelow(UsageError):
    """The driver's connection has rolled back a transaction in which rows waited.

    They would be committed without the business that they tell of. Between them and their COMMIT
    there was no statement of SQLAlchemy, which could have made psycopg forget what it prepared.
    """

    def __init__(self) -> None:
        super().__init__(
            "the driver's connection has rolled this transaction back: its messages are not sent. "
            "Roll back by `raise`, or get the connection by tx.session.connection()"
        )
