"""What a handler may say: `Retry` to be called again, `Reject` for the dead letters.

It returns or raises them. Either way its attempt is rolled back: what it wrote is gone, as if it
had never run.
"""

from threading import Event

from pydantic import BaseModel
from sqlalchemy import select
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column

from reliable_mq import Reject, ReliableMQ, Retry

mq = ReliableMQ("mail", broker="embedded:broker", database="sqlite:///mail.db")
attempts = {"slow": 0, "fine": 0, "bad": 0}
finished = {name: Event() for name in attempts}


class Table(DeclarativeBase):
    """What the application's tables have in common."""


class Letter(Table):
    """A letter that was delivered."""

    __tablename__ = "letter"
    to: Mapped[str] = mapped_column(primary_key=True)


class LetterWritten(BaseModel):
    """A letter to be delivered."""

    to: str


@mq.consumer("letters", group="postman")
def deliver(letter: LetterWritten, session: Session) -> Reject | None:
    """Deliver a letter; the slow one succeeds the third time, the bad one never."""
    session.add(Letter(to=letter.to))
    attempts[letter.to] += 1
    if letter.to == "slow" and attempts["slow"] < 3:
        raise Retry(after=0.1)
    finished[letter.to].set()
    if letter.to == "bad":
        return Reject("there is no such street")
    return None


mq.create_tables()
Table.metadata.create_all(mq.database.engine)
with mq:
    with mq.transaction() as tx:
        for name in attempts:
            tx.send("letters", LetterWritten(to=name), ordering_key=name)
    for event in finished.values():
        event.wait(timeout=60)

with Session(mq.database.engine) as session:
    print("delivered:", sorted(session.scalars(select(Letter.to))))
print("attempts:", attempts)
