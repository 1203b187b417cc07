"""The SQL statements on the message stub table, one sentence each.

Table `<prefix>message_stub`, see `sql_stub_table`. A row is *ours* while its `owner` is our name.
Only the owner records the result of a send, so that an expired lease cannot write. Every time in
the rows comes from the caller's clock.

Many stubs get their row numbers in the caller's order, because row numbers are the order of an
ordering key. MySQL (not MariaDB) returns only the first number. Whether the next numbers follow
without a gap depends on its settings, so the numbers are read back. The results of many sends are
recorded in one statement. Rows are read by `sql_stub_rows`.
"""

import json
import logging
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from functools import partial
from operator import methodcaller
from typing import Any

import msgspec
from sqlalchemy import (
    ColumnElement,
    Connection,
    Engine,
    Table,
    and_,
    bindparam,
    case,
    exists,
    insert,
    literal_column,
    not_,
    null,
    or_,
    select,
    true,
    update,
)

from reliable_mq.database.row_values import StubStatus as Status
from reliable_mq.database.sql_arrays import rows_of_arrays
from reliable_mq.database.sql_faults import FaultLog, fault_line, is_row_refused
from reliable_mq.database.sql_prepared import PreparedStatement, WithCommit
from reliable_mq.database.sql_stub_table import UNCONFIRMED
from reliable_mq.database.sql_types import (
    MYSQL,
    for_one_statement,
    is_among,
    utc_datetime,
)
from reliable_mq.outbox.correlation import column_of
from reliable_mq.outbox.relay import SendOutcome
from reliable_mq.outbox.stub import Stub, StubEvent, groups_text, next_status

Given = Callable[[str], ColumnElement[Any]]
"""The name of a value -> the expression that reads it in a statement."""
Step = Callable[[Connection], Any]
"""Executes one statement."""
_OF_EACH_SEND = {"id": "message_id", "new_count": "count", "next_time": "resend_time"}
_OF_SENT = {"new_broker": "broker_name", "new_queue": "queue_id", "new_offset": "offset"}
_OF_FAILED = {"new_note": "note"}
"""The values of each recorded send, and the column that has the same type."""


class SendRecords:
    """The statements that record sends in one message stub table. Built and compiled once."""

    def __init__(self, table: Table, dialect: str) -> None:
        self._sent = _Record(table, dialect, _OF_EACH_SEND | _OF_SENT, _sent)
        self._failed = _Record(table, dialect, _OF_EACH_SEND | _OF_FAILED, _failed)
        self._free = _recorded_if_free(table) if dialect == "postgresql" else None
        # The broker makes the message visible at another time than the stub says.
        self._arrival = (
            update(table)
            .where(table.c.message_id == bindparam("id"), table.c.owner == bindparam("me"))
            .values(deliver_time=bindparam("arrives"), note=bindparam("why"))
        )

    def record_outcomes(
        self, connection: Connection, outcomes: Sequence[SendOutcome], owner: str, now: float
    ) -> None:
        """Write down the results of the sends, for stubs that `owner` still owns."""
        for step in self.steps(outcomes, owner, now):
            step(connection)

    def steps(self, outcomes: Sequence[SendOutcome], owner: str, now: float) -> list[Step]:
        """Return what writes down the results of the sends, for stubs that `owner` still owns."""
        sent, failed, others = [], [], []
        for outcome in sorted(outcomes, key=_message_id):  # consumers lock in this order, too
            row = {
                "id": outcome.message_id,
                "new_count": outcome.count,
                "next_time": outcome.next_time,
            }
            if (position := outcome.position) is not None:
                sent.append(
                    row
                    | {
                        "new_broker": position.broker_name,
                        "new_queue": position.queue_id,
                        "new_offset": position.offset,
                    }
                )
                if outcome.arrives is not None:
                    arrives = {"arrives": utc_datetime(outcome.arrives), "why": outcome.note}
                    others.append({"id": outcome.message_id, "me": owner} | arrives)
            else:
                failed.append(row | {"new_note": outcome.error or ""})
        steps: list[Step] = []
        if others:  # before the next statement clears the owner
            steps.append(methodcaller("execute", self._arrival, others))
        for statement, rows in ((self._sent, sent), (self._failed, failed)):
            if rows:
                steps.append(statement.step(rows, owner, now))
        return steps

    def record_free(
        self, connection: Connection, outcomes: Sequence[SendOutcome], owner: str, now: float
    ) -> set[str]:
        """Write down successful sends if nobody locks their rows; return the ids of the others."""
        if self._free is None:
            self.record_outcomes(connection, outcomes, owner, now)
            return set()
        sent = [(each, each.position) for each in outcomes if each.position is not None]
        given: dict[str, Any] = {
            "id": [each.message_id for each, _ in sent],
            "new_count": [each.count for each, _ in sent],
            "next_time": [utc_datetime(each.next_time) for each, _ in sent],
            "new_broker": [position.broker_name for _, position in sent],
            "new_queue": [position.queue_id for _, position in sent],
            "new_offset": [position.offset for _, position in sent],
        }
        given |= {"me": owner, "at": utc_datetime(now)}
        return set(self._free.execute(connection, given).scalars())


def _recorded_if_free(table: Table) -> PreparedStatement:
    """Return PostgreSQL's statement that records sends, and returns ids of rows others lock."""
    names = _OF_EACH_SEND | _OF_SENT
    row = rows_of_arrays({name: table.c[column].type for name, column in names.items()})
    stub = table.c
    these = (is_among(stub.message_id, "id", "postgresql"), stub.owner == bindparam("me"))
    ours = (
        select(stub.message_id)
        .where(*these)
        .order_by(stub.message_id)
        .with_for_update(skip_locked=True)
        .cte("ours")
    )
    changed = _update(table, _sent(table, row.c.__getitem__), row.c.id).where(
        row.c.id == ours.c.message_id
    )
    locked = select(stub.message_id).where(
        *these, not_(exists().where(ours.c.message_id == stub.message_id))
    )
    return PreparedStatement(locked.add_cte(changed.cte("changed")))


class _Record:
    """One statement, for one row and for several.

    On PostgreSQL, several rows are passed as one array for each column. That costs both sides a
    fraction of one statement for each row. The rows that are still ours are locked first, in the
    order in which consumers lock them: a join has no order. Most others are settled by now.
    """

    def __init__(
        self,
        table: Table,
        dialect: str,
        of_each: dict[str, str],
        changes: Callable[[Table, Given], Any],
    ) -> None:
        self._names = tuple(of_each)
        types = {name: table.c[column].type for name, column in of_each.items()}
        one = _update(
            table,
            changes(table, lambda name: bindparam(name, type_=types[name])),
            bindparam("id"),
        )
        self._one = PreparedStatement(one)
        self._many = one
        self._arrays: PreparedStatement | None = None
        if dialect == "postgresql":
            row, stub = rows_of_arrays(types), table.c
            ours = (
                select(stub.message_id)
                .where(
                    is_among(stub.message_id, "id", dialect),
                    stub.owner == bindparam("me"),
                )
                .order_by(stub.message_id)
                .with_for_update()
                .cte("ours")
            )
            many = _update(table, changes(table, row.c.__getitem__), row.c.id)
            self._arrays = PreparedStatement(many.where(row.c.id == ours.c.message_id))

    def step(self, rows: Sequence[dict[str, Any]], owner: str, now: float) -> Step:
        """Return what executes the statement for these rows."""
        of_all: dict[str, Any] = {"me": owner, "at": utc_datetime(now)}
        for row in rows:
            row["next_time"] = utc_datetime(row["next_time"])
        if len(rows) == 1:
            return partial(self._one.execute, values=rows[0] | of_all)
        if self._arrays is None:
            return methodcaller("execute", self._many, [row | of_all for row in rows])
        arrays = {name: [row[name] for row in rows] for name in self._names}
        return partial(self._arrays.execute, values=arrays | of_all)


def _update(table: Table, changes: dict[str, Any], message_id: ColumnElement[str]) -> Any:
    return (
        update(table)
        .where(table.c.message_id == message_id, table.c.owner == bindparam("me"))
        .values(owner=null(), lease_until=null(), update_date=bindparam("at"), **changes)
    )


def _sent(table: Table, given: Given) -> dict[str, Any]:
    """Return the changes of a row after the broker acknowledged its message."""
    stub = table.c
    # Without a required group the broker's acknowledgement confirms.
    is_confirmed = and_(stub.status == UNCONFIRMED, stub.required_groups == "")
    confirmed = next_status(Status.UNCONFIRMED, StubEvent.CONFIRM).value
    is_settled = or_(_is_settled(table), stub.required_groups == "")
    return {
        "count": given("new_count"),
        "broker_name": given("new_broker"),
        "queue_id": given("new_queue"),
        "offset": given("new_offset"),
        "status": case((is_confirmed, confirmed), else_=stub.status),
        "resend_time": case((is_settled, null()), else_=given("next_time")),
    }


def _failed(table: Table, given: Given) -> dict[str, Any]:
    """Return the changes of a row after a failed send: the message may not be stored."""
    stub = table.c
    return {
        "count": given("new_count"),
        "note": case((stub.given_up, stub.note), else_=given("new_note")),
        "resend_time": case((_is_settled(table), null()), else_=given("next_time")),
    }


def _is_settled(table: Table) -> ColumnElement[bool]:
    """Return: the stub is due no more.

    A consumer may have given the message up before its send was recorded: its reason stays.
    """
    return or_(table.c.status != UNCONFIRMED, table.c.given_up)


def _message_id(outcome: SendOutcome) -> str:
    return outcome.message_id


NewRow = dict[str, Any]
_OF_ALL = ("status", "count", "resend_time", "create_date", "update_date", "owner", "lease_until")
"""Columns with the same value for all stubs of one call."""
_OF_EACH = (
    *("message_id", "topic", "tag", "message_key", "ordering_key", "content", "content_type"),
    *("properties", "required_groups", "deliver_time", "correlation_id"),
)
_USUAL: Mapping[str, tuple[Any, str]] = {
    "tag": ("", "''"),
    "ordering_key": ("", "''"),
    "properties": ("{}", "'{}'"),
    "correlation_id": (None, "NULL"),
    "deliver_time": (None, "NULL"),
    "status": (Status.UNCONFIRMED.value, str(Status.UNCONFIRMED.value)),
    "count": (0, "0"),
}
"""What most new stubs have in these columns, and its literal: each parameter takes time."""
_NEW: NewRow = {"status": Status.UNCONFIRMED.value, "count": 0}
_OF_USUAL = {name: value for name, (value, _) in _USUAL.items()}.items()
_USUALLY_SAME = {"lease_until": "resend_time", "update_date": "create_date"}
"""Columns of a new stub with an owner, and the column that has the same time."""
ROWS_MAX = 1_000
CONTENT_SIZE_MAX = 8 * 1024 * 1024
"""The most rows, and bytes of their content, in one statement. A larger stub goes alone."""
_MYSQL_CONTENT_SIZE_MAX = 2 * 1024 * 1024
"""MySQL refuses a statement that is larger than its `max_allowed_packet` (16 MiB in MariaDB).
Escaping may turn one byte of content into two."""


def columns_of_all(owner: str | None, now: float, lease: float) -> NewRow:
    """Return the columns of new rows that are the same for all stubs of one call."""
    at, until = utc_datetime(now), utc_datetime(now + lease)
    return {
        "resend_time": until,
        "create_date": at,
        "update_date": at,
        "owner": owner,
        "lease_until": None if owner is None else until,
    }


def own_columns(stub: Stub) -> dict[str, Any]:
    """Return the columns of a new row that come from its stub."""
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
        "correlation_id": column_of(stub.properties) if stub.properties else None,
    }


class StubInserts:
    """Inserts into one message stub table. Statements are built once."""

    def __init__(self, table: Table, dialect: str) -> None:
        stub = table.c
        every: dict[str, Any] = {
            name: bindparam(name, type_=stub[name].type) for name in (*_OF_EACH, *_OF_ALL)
        }
        self._one = PreparedStatement(insert(table).values(every).returning(stub.seq))
        usual: dict[str, Any] = {name: literal_column(text) for name, (_, text) in _USUAL.items()}
        same = {name: every[other] for name, other in _USUALLY_SAME.items()}
        filled = insert(table).values(every | usual | same)
        self._usual = PreparedStatement(filled.returning(stub.seq))
        self._many = insert(table).returning(stub.message_id, stub.seq)
        self._plain = insert(table)
        self._numbers = select(stub.message_id, stub.seq).where(
            is_among(stub.message_id, "ids", dialect)
        )
        is_mysql = dialect in MYSQL
        self._size_max = _MYSQL_CONTENT_SIZE_MAX if is_mysql else CONTENT_SIZE_MAX
        self._as_arrays = dialect == "postgresql"
        if self._as_arrays:
            self._many = _from_arrays(table)

    def insert(self, connection: Connection, rows: Sequence[NewRow], of_all: NewRow) -> list[int]:
        """Insert stubs in the caller's transaction; return their `seq`, in the order of `rows`.

        Args:
            connection: in the transaction.
            rows: the values that differ between the stubs.
            of_all: the values that are the same for all.
        """
        of_all = _NEW | of_all
        if not connection.dialect.insert_returning:
            return self._ask_for_numbers(connection, rows, of_all)
        if len(rows) == 1:
            row = rows[0] | of_all
            return [self._of_one(row).value(connection, row)]
        numbers: dict[str, int] = {}
        for part in parts_of(rows, self._size_max):
            given: Any = [row | of_all for row in part]
            if self._as_arrays:
                given = {name: [row[name] for row in part] for name in _OF_EACH} | of_all
            inserted = connection.execute(self._many, given)
            numbers |= {row.message_id: row.seq for row in inserted}
        return [numbers[row["message_id"]] for row in rows]

    def _of_one(self, row: NewRow) -> PreparedStatement:
        is_usual = row.items() >= _OF_USUAL and row["owner"] is not None
        return self._usual if is_usual else self._one

    def with_commit(self, connection: Connection, row: NewRow) -> WithCommit | None:
        """Return what inserts a row and commits; None: it has to be inserted before."""
        row = _NEW | row
        return self._of_one(row).with_commit(connection, row)

    def _ask_for_numbers(
        self, connection: Connection, rows: Sequence[NewRow], of_all: NewRow
    ) -> list[int]:
        if len(rows) == 1:
            key = connection.execute(self._plain, rows[0] | of_all).inserted_primary_key
            return [] if key is None else [key[0]]
        numbers: dict[str, int] = {}
        for part in parts_of(rows, self._size_max):
            connection.execute(self._plain, [row | of_all for row in part])
            found = connection.execute(self._numbers, {"ids": [row["message_id"] for row in part]})
            numbers |= {row.message_id: row.seq for row in found}
        return [numbers[row["message_id"]] for row in rows]


def _from_arrays(table: Table) -> Any:
    """Return PostgreSQL's insert of many rows. It numbers the rows in the order of the arrays."""
    row = rows_of_arrays({name: table.c[name].type for name in _OF_EACH})
    of_all = [bindparam(name, type_=table.c[name].type) for name in _OF_ALL]
    chosen = select(*(row.c[name] for name in _OF_EACH), *of_all).order_by(row.c.place)
    filled = insert(table).from_select([*_OF_EACH, *_OF_ALL], chosen)
    return filled.returning(table.c.message_id, table.c.seq)


def parts_of(rows: Sequence[NewRow], size_max: int = CONTENT_SIZE_MAX) -> Iterator[list[NewRow]]:
    """Split rows into parts; each part fits one statement."""
    part: list[NewRow] = []
    size = 0
    for row in rows:
        if part and (len(part) == ROWS_MAX or size + len(row["content"]) > size_max):
            yield part
            part, size = [], 0
        part.append(row)
        size += len(row["content"])
    if part:
        yield part


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
