"""The SQL statements on the message stub table, one sentence each.

Table `<prefix>message_stub`, see `sql_stub_table`. A row is *ours* while its `owner` is our name.
Only the owner records the result of a send, so that an expired lease cannot write. Every time in
the rows comes from the caller's clock.

New stubs are inserted by `sql_stub_inserts`, results of sends are recorded by `sql_send_records`,
and rows are read by `sql_stub_rows`.
"""

import logging
from collections.abc import Collection, Mapping, Sequence
from typing import Any

import msgspec
from sqlalchemy import (
    ColumnElement,
    Connection,
    Engine,
    Table,
    and_,
    bindparam,
    exists,
    literal_column,
    not_,
    null,
    select,
    true,
    update,
)

from reliable_mq.database.sql_faults import FaultLog, fault_line, is_row_refused
from reliable_mq.database.sql_prepared import PreparedStatement, WithCommit
from reliable_mq.database.sql_stub_table import UNCONFIRMED
from reliable_mq.database.sql_types import (
    for_one_statement,
    is_among,
    utc_datetime,
)
from reliable_mq.outbox.sql_send_records import SendRecords
from reliable_mq.outbox.sql_stub_inserts import StubInserts, columns_of_all, own_columns
from reliable_mq.outbox.stub import Stub
from reliable_mq.outbox.stub_sends import SendOutcome

log = logging.getLogger(__name__)

_RENEWED_MAX = 1000


class SqlStubs:
    """The message stub table of one database. Statements are built once and compiled once."""

    def __init__(self, engine: Engine, table: Table) -> None:
        self.engine = engine
        self._short = for_one_statement(engine)
        self._faults = FaultLog(log, "relay")
        self.table = table
        stub = table.c
        self._inserts = StubInserts(table, engine.dialect.name)
        earlier = table.alias("earlier").c
        #: An earlier stub of the same key has not reached the broker. Stubs in the same batch of
        #: the same owner do not count (parameters `ids` and `me`).
        self.blocked = self._has(earlier, earlier.broker_name.is_(None))
        #: An earlier stub of the same key is unsettled and may be sent again. Stubs in the same
        #: batch of the same owner do not count. A stub that waits for a person holds up no resend.
        self.overtaking = self._has(earlier, earlier.resend_time.is_not(None))
        ours_to_send = (
            is_among(stub.message_id, "ids", engine.dialect.name),
            stub.owner == bindparam("me"),
            stub.status == UNCONFIRMED,
            stub.broker_name.is_(None),
            # a consumer may have received it from a send that could not be recorded
            not_(stub.given_up),
        )
        self._sendable = PreparedStatement(
            select(stub.message_id, self.blocked).where(*ours_to_send)
        )
        self._renew = (
            update(table)
            .where(*ours_to_send)
            .values(resend_time=bindparam("until"), lease_until=bindparam("until"))
        )
        self._records = SendRecords(table, engine.dialect.name)
        # `missed`: otherwise any relay would take the stub, because it has no owner.
        self._leave = (
            update(table)
            .where(stub.seq == bindparam("this"))
            .values(owner=null(), lease_until=null(), missed=true(), resend_time=bindparam("due"))
        )

    def _has(self, earlier: Any, condition: ColumnElement[bool]) -> ColumnElement[bool]:
        """Return: an earlier unconfirmed stub of the key exists, outside of this owner's batch."""
        stub = self.table.c
        return and_(
            stub.ordering_key != "",
            exists().where(
                earlier.topic == stub.topic,
                earlier.ordering_key == stub.ordering_key,
                earlier.ordering_key != literal_column("''"),  # the index has this condition
                earlier.seq < stub.seq,
                earlier.status == UNCONFIRMED,
                condition,
                not_(earlier.given_up),
                not_(
                    and_(
                        earlier.owner.is_not(None),  # NULL would make the comparison unknown
                        earlier.owner == bindparam("me"),
                        is_among(earlier.message_id, "ids", self.engine.dialect.name),
                    )
                ),
            ),
        )

    def insert(
        self,
        connection: Connection,
        stubs: Sequence[Stub],
        owner: str | None,
        now: float,
        lease: float,
    ) -> list[Stub]:
        """Insert stubs in the caller's transaction, under a lease of their relay.

        Without an owner, every relay may claim them. After the lease the scheduler may, too.

        Returns the stubs as they are in the table: with their `seq` and the time `now`.
        """
        of_all = columns_of_all(owner, now, lease)
        numbers = self._inserts.insert(connection, list(map(own_columns, stubs)), of_all)
        written = []
        for stub, seq in zip(stubs, numbers, strict=True):
            written.append(msgspec.structs.replace(stub, seq=seq, create_time=now))
        return written

    def insert_with_commit(
        self, connection: Connection, stub: Stub, owner: str | None, now: float, lease: float
    ) -> WithCommit | None:
        """Return what inserts a stub and commits, see `insert`; None: it is inserted before."""
        row = own_columns(stub) | columns_of_all(owner, now, lease)
        return self._inserts.with_commit(connection, row)

    def leave_until(self, connection: Connection, dues: Mapping[int, float]) -> None:
        """Leave newly inserted stubs to the scheduler: no relay owns or sends them.

        Args:
            connection: in the transaction that inserted them.
            dues: row number -> when the scheduler sends the stub, in seconds since the epoch.
        """
        rows = [{"this": seq, "due": utc_datetime(due)} for seq, due in dues.items()]
        connection.execute(self._leave, rows)

    def sendable(self, message_ids: Collection[str], owner: str) -> dict[str, bool]:
        """Return the committed, unsent ids of `owner`; True: an earlier stub must go first.

        This read upholds P1 in the relay: it sends only what is committed in the table.
        """
        with self._short.connect() as connection:
            rows: Any = self._sendable.execute(connection, {"ids": list(message_ids), "me": owner})
            return dict(map(tuple, rows))

    def renew(self, message_ids: Collection[str], owner: str, until: float) -> None:
        """Extend the lease to `until` for unsent stubs that `owner` still owns; see `sendable`."""
        ids = list(message_ids)
        with self._short.begin() as connection:
            for start in range(0, len(ids), _RENEWED_MAX):
                some = ids[start : start + _RENEWED_MAX]
                values = {"ids": some, "me": owner, "until": utc_datetime(until)}
                connection.execute(self._renew, values)

    def record(self, outcomes: Sequence[SendOutcome], owner: str, now: float) -> None:
        """Write down the results of the sends, for stubs that `owner` still owns."""
        steps = self._records.steps(outcomes, owner, now)
        with self._short.begin() as connection:
            for step in steps:
                step(connection)

    def record_late(
        self, outcomes: Sequence[SendOutcome], owner: str, now: float
    ) -> Collection[str]:
        """Do the same for successful sends; return the ids of rows that others lock.

        A consumer that rejects one message of a batch holds its stub until the end of the batch,
        and may want other stubs next. A relay that waited for it could wait for handlers, or meet
        it in a deadlock. A result that the table refuses is told in the log, and is left out.
        """
        try:
            return self._record_free(outcomes, owner, now)
        except Exception as error:
            if not is_row_refused(error):
                raise
        left: set[str] = set()
        for outcome in outcomes:
            try:
                left |= self._record_free([outcome], owner, now)
            except Exception as error:
                if not is_row_refused(error):
                    raise
                said = f"the table refuses where message {outcome.message_id} is stored"
                self._faults.log_line("refused", f"{said}: {fault_line(error)}")
        return left

    def _record_free(self, outcomes: Sequence[SendOutcome], owner: str, now: float) -> set[str]:
        with self._short.begin() as connection:
            return self._records.record_free(connection, outcomes, owner, now)
