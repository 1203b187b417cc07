"""A message that comes twice has its effect once.

Networks repeat themselves, so the same message is sent again and again here. The consumer's effect
is committed together with the note that this message is done; the second copy finds the note.
"""

from threading import Event

from sqlalchemy import select
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column

from reliable_mq import ReliableMQ

mq = ReliableMQ(
    "bank",
    broker="embedded:broker",
    database="sqlite:///bank.db",
    send_outside_transaction="allow",  # these copies are made by hand
)
last_came = Event()


class Table(DeclarativeBase):
    """What the bank's tables have in common."""


class Account(Table):
    """An account and what is in it."""

    __tablename__ = "account"
    owner: Mapped[str] = mapped_column(primary_key=True)
    balance: Mapped[int]


@mq.consumer("deposits", group="ledger")
def deposit(amount: str, session: Session) -> None:
    """Add to the balance: done twice, it would show."""
    if amount == "end":
        last_came.set()
    else:
        session.get_one(Account, "Ada").balance += int(amount)


mq.create_tables()
Table.metadata.create_all(mq.database.engine)
with mq:
    with mq.transaction() as tx:
        tx.session.add(Account(owner="Ada", balance=0))
    for _ in range(5):
        # The same message id: to the consumer these are copies of one message.
        mq.producer.send("deposits", "100", ordering_key="Ada", message_id="A" * 32)
    mq.producer.send("deposits", "end", ordering_key="Ada")
    last_came.wait(timeout=60)

with Session(mq.database.engine) as session:
    print("Ada has", session.scalars(select(Account.balance)).one())
