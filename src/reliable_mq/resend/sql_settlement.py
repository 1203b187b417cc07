"""How a stub comes to its end other than by confirmation: given up, told, retried, voided."""

from sqlalchemy import Connection, Table, bindparam, false, func, null, true, update

from reliable_mq.outbox.stub import StubEvent, StubStatus, statuses_before
from reliable_mq.sql_types import utc_datetime

NOTE_LENGTH_MAX = 1000


class SqlSettlement:
    """The statements of a stub's end, in the caller's transaction."""

    def __init__(self, stubs: Table, logs: Table) -> None:
        stub = stubs.c
        this = stub.message_id == bindparam("id")
        self._logs = logs
        self._exhaust = (
            update(stubs)
            .where(this, stub.status.in_([s.value for s in statuses_before(StubEvent.EXHAUSTED)]))
            .values(
                given_up=true(),
                resend_time=bindparam("at"),
                note=bindparam("text"),
                update_date=bindparam("at"),
            )
        )
        self._void = (
            update(stubs)
            .where(this, stub.status.in_([s.value for s in statuses_before(StubEvent.VOID)]))
            .values(
                status=StubStatus.VOIDED.value,
                resend_time=null(),
                note=bindparam("text"),
                update_date=bindparam("at"),
            )
        )
        self._retry = (
            update(stubs)
            .where(
                this,
                stub.status.in_([s.value for s in statuses_before(StubEvent.RETRY)]),
                func.length(stub.content) > 0,  # a tombstone of a half has nothing to send
            )
            .values(
                status=StubStatus.UNCONFIRMED.value,
                count=0,
                given_up=false(),
                broker_name=null(),
                queue_id=null(),
                offset=null(),
                owner=null(),
                lease_until=null(),
                resend_time=bindparam("at"),
                note=bindparam("text"),
                update_date=bindparam("at"),
            )
        )
        # Attempts that were used up start again too, or the message would be given up unread.
        self._forget_attempts = (
            update(logs)
            .where(logs.c.message_id == bindparam("id"), logs.c.state == 0, logs.c.owner.is_(None))
            .values(attempt=0, lease_until=null())
        )

    def exhaust(self, connection: Connection, message_id: str, note: str, now: float) -> None:
        """Let a stub be given up: a person is told, and nothing sent any more.

        That it is given up is a fact of its own: a send that is recorded late does not make it due
        again, and `count` goes on to tell how often it was sent.
        """
        connection.execute(self._exhaust, _values(message_id, note, now))

    def void(self, connection: Connection, message_id: str, note: str, now: float) -> bool:
        """Void a stub; False: there is none, or it was settled already."""
        return connection.execute(self._void, _values(message_id, note, now)).rowcount == 1

    def retry(self, connection: Connection, message_id: str, note: str, now: float) -> bool:
        """Let a stub be sent again from the start; False: there is none, or it is confirmed."""
        if connection.execute(self._retry, _values(message_id, note, now)).rowcount != 1:
            return False
        connection.execute(self._forget_attempts, {"id": message_id})
        return True


def _values(message_id: str, note: str, now: float) -> dict[str, object]:
    return {"id": message_id, "text": note[:NOTE_LENGTH_MAX], "at": utc_datetime(now)}
