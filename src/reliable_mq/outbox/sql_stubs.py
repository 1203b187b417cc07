"""The statements on the message stub table, one sentence each.

Table `<prefix>message_stub`, see `sql_tables`. A row is *ours* while `owner` is our name; only its
owner writes what a send came to, so that a lost lease cannot write. Every time in the rows comes
from the caller's clock.
"""

import json
from collections.abc import Collection, Sequence
from typing import Any

import msgspec
from sqlalchemy import (
    ColumnElement,
    Connection,
    Engine,
    Row,
    Table,
    and_,
    bindparam,
    exists,
    literal_column,
    not_,
    select,
    update,
)

from reliable_mq.outbox.relay import SendOutcome
from reliable_mq.outbox.sql_inserts import StubInserts
from reliable_mq.outbox.sql_send_records import SendRecords
from reliable_mq.outbox.stub import Position, Stub, groups_of, groups_text
from reliable_mq.outbox.stub import StubStatus as Status
from reliable_mq.sql_types import is_among, utc_datetime

# Written as literals: a partial index is used only when its condition is in the statement's text.
UNCONFIRMED: ColumnElement[int] = literal_column(str(Status.UNCONFIRMED.value))
_properties = msgspec.json.Decoder(dict[str, str])
_RENEWED_MAX = 1000


class SqlStubs:
    """The message stub table of one database. Statements are built once and compiled once."""

    def __init__(self, engine: Engine, table: Table) -> None:
        self.engine = engine
        # What needs no transaction is one round trip instead of three; SQLite has no such trips.
        self._short = (
            engine.execution_options(isolation_level="AUTOCOMMIT")
            if engine.dialect.name == "postgresql"
            else engine
        )
        self.table = table
        stub = table.c
        self._inserts = StubInserts(table, engine.dialect.name)
        earlier = table.alias("earlier").c
        #: An earlier stub of the same key has not reached the broker, and is not in the same batch
        #: of the same owner (parameters `ids` and `me`).
        self.blocked = self._has(earlier, earlier.broker_name.is_(None))
        #: An earlier stub of the same key is not settled and may be sent again, and is not in the
        #: same batch of the same owner. One that waits for a person holds up no resend.
        self.overtaking = self._has(earlier, earlier.resend_time.is_not(None))
        ours_to_send = (
            is_among(stub.message_id, "ids", engine.dialect.name),
            stub.owner == bindparam("me"),
            stub.status == UNCONFIRMED,
            stub.broker_name.is_(None),
            # by a consumer that got it from a send which could not be recorded
            not_(stub.given_up),
        )
        self._sendable = select(stub.message_id, self.blocked).where(*ours_to_send)
        self._renew = (
            update(table)
            .where(*ours_to_send)
            .values(resend_time=bindparam("until"), lease_until=bindparam("until"))
        )
        self._records = SendRecords(table, engine.dialect.name)

    def _has(self, earlier: Any, condition: ColumnElement[bool]) -> ColumnElement[bool]:
        """Say that an earlier unconfirmed stub of the key exists that is elsewhere in hand."""
        stub = self.table.c
        return and_(
            stub.ordering_key != "",
            exists().where(
                earlier.topic == stub.topic,
                earlier.ordering_key == stub.ordering_key,
                earlier.ordering_key != literal_column("''"),  # of the index, too
                earlier.seq < stub.seq,
                earlier.status == UNCONFIRMED,
                condition,
                not_(earlier.given_up),
                not_(
                    and_(
                        earlier.owner == bindparam("me"),
                        is_among(earlier.message_id, "ids", self.engine.dialect.name),
                    )
                ),
            ),
        )

    def write(
        self,
        connection: Connection,
        stubs: Sequence[Stub],
        owner: str | None,
        now: float,
        lease: float,
    ) -> list[Stub]:
        """Insert stubs in the caller's transaction, under a lease of their relay.

        Without an owner every relay may claim them; the scheduler may, too, when the lease passed.

        Returns them as they are in the table: with their `seq` and the time `now`.
        """
        at, until = utc_datetime(now), utc_datetime(now + lease)
        of_all = {
            "resend_time": until,
            "create_date": at,
            "update_date": at,
            "owner": owner,
            "lease_until": None if owner is None else until,
        }
        numbers = self._inserts.insert(connection, [_own_columns(stub) for stub in stubs], of_all)
        return [
            msgspec.structs.replace(stub, seq=seq, create_time=now)
            for stub, seq in zip(stubs, numbers, strict=True)
        ]

    def sendable(self, message_ids: Collection[str], owner: str) -> dict[str, bool]:
        """Return the ids that are committed, unsent and ours; True: an earlier one must go first.

        Reading them back is what makes P1 hold on this side: nothing is sent that is not there.
        """
        with self._short.connect() as connection:
            rows = connection.execute(self._sendable, {"ids": list(message_ids), "me": owner})
            return {message_id: bool(blocked) for message_id, blocked in rows}

    def renew(self, message_ids: Collection[str], owner: str, until: float) -> None:
        """Let the lease of stubs end later that are unsent and still ours; see `sendable` which."""
        ids = list(message_ids)
        with self._short.begin() as connection:
            for start in range(0, len(ids), _RENEWED_MAX):
                some = ids[start : start + _RENEWED_MAX]
                values = {"ids": some, "me": owner, "until": utc_datetime(until)}
                connection.execute(self._renew, values)

    def record(self, outcomes: Sequence[SendOutcome], owner: str, now: float) -> None:
        """Write down what sends came to, where the stub is still ours."""
        with self._short.begin() as connection:
            self._records.write(connection, outcomes, owner, now)


def _own_columns(stub: Stub) -> dict[str, Any]:
    """Return what a new row has of its stub."""
    return {
        "message_id": stub.message_id,
        "topic": stub.topic,
        "tag": stub.tag,
        "message_key": stub.message_key,
        "ordering_key": stub.ordering_key,
        "content": stub.content,
        "content_type": stub.content_type,
        "properties": json.dumps(dict(stub.properties)) if stub.properties else "{}",
        "required_groups": groups_text(stub.required_groups),
        "deliver_time": stub.deliver_time and utc_datetime(stub.deliver_time),
    }


def stub_of(row: Row[Any]) -> Stub:
    """Return the stub in a row of the whole table; one that does not read has a `flaw`."""
    position, properties, flaw = None, {}, ""
    try:
        properties = _properties.decode(row.properties)
    except msgspec.MsgspecError as error:
        flaw = f"the column properties of the stub's row does not read: {error}"
    if row.broker_name is not None:
        position = Position(row.broker_name, row.queue_id, row.offset)
    return Stub(
        seq=row.seq,
        message_id=row.message_id,
        topic=row.topic,
        content=bytes(row.content),
        tag=row.tag,
        message_key=row.message_key,
        ordering_key=row.ordering_key,
        content_type=row.content_type,
        properties=properties,
        count=row._mapping["count"],  # `row.count` is a method of every tuple
        required_groups=groups_of(row.required_groups),
        create_time=row.create_date.timestamp(),
        deliver_time=row.deliver_time and row.deliver_time.timestamp(),
        position=position,
        flaw=flaw,
    )
