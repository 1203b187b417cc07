"""Confirmation: a stub is settled when every required group has consumed its message.

Receives the message ids that a consumer's transaction has just consumed; writes in that
transaction. Two groups that commit at the same moment must not each miss the other's row. So the
stub's row is locked first, and the statement that counts consume logs begins after that. The table
of confirmations has what groups of other databases have consumed (`sql_notices`).

A relay records its sends a little later than it sends. On PostgreSQL, a confirmation that comes
first records the first send, too: it knows where the message was stored. Then the relay finds
nothing to write, and the row and its indexes are written two times, not three.
"""

from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, NamedTuple

from sqlalchemy import (
    ColumnElement,
    Connection,
    Table,
    and_,
    bindparam,
    case,
    exists,
    func,
    literal,
    literal_column,
    not_,
    null,
    or_,
    select,
    union,
    update,
)

from reliable_mq.database.row_values import LogState, StubStatus
from reliable_mq.database.sql_arrays import rows_of_arrays
from reliable_mq.database.sql_database import Database
from reliable_mq.database.sql_libpq import COMMIT, COMMIT_AND_CHAIN
from reliable_mq.database.sql_prepared import PreparedStatement, WithCommit
from reliable_mq.database.sql_types import is_among, utc_datetime
from reliable_mq.outbox.stub import StubEvent, next_status

_PLACE = {"new_broker": "broker_name", "new_queue": "queue_id", "new_offset": "offset"}
"""The values of a stored message's position, and the column of each."""
_STORED_IN = {"its_topic": "topic"} | _PLACE
_LEASE = ("owner", "lease_until")
_CONFIRMED = next_status(StubStatus.UNCONFIRMED, StubEvent.CONFIRM).value


class StoredCopy(NamedTuple):
    """Where a consumed copy of a message is stored. Another topic may have one of the same id."""

    topic: str
    broker_name: str
    queue_id: int
    offset: int


_NOWHERE: Mapping[str, StoredCopy] = MappingProxyType({})


class SqlConfirmation:
    """Confirms stubs in the database of the consume logs. Works in the caller's transaction.

    Args:
        stubs: the message stub table.
        logs: the consume log of the same database.
        notices: the table of confirmations of the same database.
        dialect: the database's dialect.
    """

    def __init__(self, stubs: Table, logs: Table, notices: Table, dialect: str) -> None:
        self.table = notices
        place_of = func.strpos if dialect == "postgresql" else func.instr
        stub, log = stubs.c, logs.c
        comma = literal(",")
        required = comma + stub.required_groups + comma

        def consumed_in(table: Table) -> list[ColumnElement[bool]]:
            return [
                table.c.message_id == stub.message_id,
                table.c.state == LogState.CONSUMED.value,
                place_of(required, comma + table.c.consumer_group + comma) > 0,
            ]

        here = select(func.count()).where(*consumed_in(logs)).scalar_subquery()
        # A group that moved from one database to another has rows in both.
        here_too = exists().where(
            log.message_id == notices.c.message_id,
            log.consumer_group == notices.c.consumer_group,
            log.state == LogState.CONSUMED.value,
        )
        elsewhere = (
            select(func.count()).where(*consumed_in(notices), not_(here_too)).scalar_subquery()
        )
        consumed = here + elsewhere
        wanted = func.length(required) - func.length(func.replace(required, ",", "")) - 1
        #: Every required group has consumed the message of the stub.
        self.is_complete: ColumnElement[bool] = consumed == wanted
        self._one = _Statements(stubs, stub.message_id == bindparam("id"), self.is_complete)
        self._many = _Statements(stubs, is_among(stub.message_id, "id", dialect), self.is_complete)
        self._takes_places = dialect == "postgresql"
        if self._takes_places:
            self._one.confirm_alone, self._many.confirm_alone = _confirmed_sends(stubs)
        self._is_alone = True
        #: the last stub was confirmed by the statement for one group alone, with its place
        self.is_usual = False
        self._usual = _usual_confirmation(stubs)
        self._consumed = union(
            *(
                select(table.c.message_id, table.c.consumer_group).where(
                    is_among(table.c.message_id, "ids", dialect),
                    table.c.state == LogState.CONSUMED.value,
                )
                for table in (logs, notices)
            )
        )
        self._told = select(
            notices.c.message_id, notices.c.consumer_group, notices.c.state, notices.c.lease_until
        ).where(is_among(notices.c.message_id, "ids", dialect))

    def confirm(
        self,
        connection: Connection,
        group: str,
        message_ids: Sequence[str],
        now: float,
        positions: Mapping[str, StoredCopy] = _NOWHERE,
    ) -> None:
        """Confirm the stubs whose last required group is `group`, in this transaction.

        Ids without a stub here (of another database, of another producer) change nothing.
        `positions` says where messages were stored, by id, as far as that is known.
        """
        self.is_usual = False
        these: dict[str, object]
        if len(message_ids) == 1:  # the hot path: a plain comparison is compiled only once
            statements, these = self._one, {"id": message_ids[0]}
            places = self._places_of_one(positions.get(message_ids[0]))
            if self._is_alone:
                values = these | places | {"at": utc_datetime(now), "alone": group}
                # Usually the next message is like the last one: it is not read first.
                if self._confirm_alone(connection, values):
                    self.is_usual = self._takes_places
                    return
        else:
            statements, these = self._many, {"id": list(message_ids)}
            places = self._places_of_many([positions.get(each) for each in message_ids])
        alone = shared = 0
        found = statements.lock.execute(connection, these).scalars().all()
        for groups in found:
            alone += groups == group
            shared += groups != group and group in groups.split(",")
        values = these | {"at": utc_datetime(now), "alone": group}
        self._is_alone = not shared
        if shared:
            statements.confirm_complete.execute(connection, values)
        if alone:
            statements.confirm_alone.execute(connection, values | places)

    def with_commit(
        self,
        connection: Connection,
        group: str,
        message_id: str,
        now: float,
        position: StoredCopy | None,
    ) -> WithCommit | None:
        """Return what confirms the stub of a message, like the last one, and commits.

        None: it has to be confirmed before the COMMIT. If the COMMIT then says that no stub was
        changed, `confirm` must follow in another transaction. Should that not happen, a scheduler
        confirms the stub: it reads the consume log.
        """
        if position is None or not self._takes_places:
            return None
        places = self._places_of_one(position)
        values = {"id": message_id, "at": utc_datetime(now), "alone": group} | places
        return self._usual.with_commit(connection, values)

    def _confirm_alone(self, connection: Connection, values: dict[str, object]) -> bool:
        """Confirm a stub that waits for one group alone; return whether that was done."""
        if values.get("new_broker") is None:
            return self._one.confirm_alone.change(connection, values) == 1
        return self._usual.change(connection, values) == 1

    def _places_of_one(self, position: StoredCopy | None) -> dict[str, object]:
        """Return the parameters about the place of one message, if the statement has them."""
        if not self._takes_places:
            return {}
        return {name: getattr(position, column, None) for name, column in _STORED_IN.items()}

    def _places_of_many(self, positions: Sequence[StoredCopy | None]) -> dict[str, object]:
        if not self._takes_places:
            return {}
        return {
            name: [getattr(each, column, None) for each in positions]
            for name, column in _STORED_IN.items()
        }

    def catch_up(self, connection: Connection, message_ids: Sequence[str], now: float) -> None:
        """Confirm the stubs that every required group has consumed, in any order."""
        ids: dict[str, object] = {"id": list(message_ids)}
        self._many.lock.execute(connection, ids)
        values = ids | {"at": utc_datetime(now)}
        self._many.confirm_complete.execute(connection, values)

    def consumed(self, connection: Connection, message_ids: Sequence[str]) -> set[tuple[str, str]]:
        """Return the (message id, consumer group) pairs that were consumed here or elsewhere."""
        rows = connection.execute(self._consumed, {"ids": list(message_ids)})
        return {(row.message_id, row.consumer_group) for row in rows}

    def notices_of(self, connection: Connection, message_ids: Sequence[str]) -> Sequence[Any]:
        """Return other databases' notices: message id, consumer group, state, lease until."""
        return connection.execute(self._told, {"ids": list(message_ids)}).all()


def _confirmed_sends(stubs: Table) -> tuple[PreparedStatement, PreparedStatement]:
    """Return PostgreSQL's statements that confirm, and record a first send: of one, of several."""
    types = {name: stubs.c[column].type for name, column in _STORED_IN.items()}
    row = rows_of_arrays({"id": stubs.c.message_id.type} | types)

    def confirmed(message_id: Any, given: Callable[[str], Any]) -> PreparedStatement:
        stub = stubs.c
        is_first = and_(
            *(stub.count == 0, stub.broker_name.is_(None), not_(stub.missed)),
            given("new_broker").is_not(None),
            stub.topic == given("its_topic"),
        )
        recorded = {column: given(name) for name, column in _PLACE.items()}
        recorded |= {"count": literal(1), "owner": null(), "lease_until": null()}
        changes = {
            column: case((is_first, value), else_=stub[column])
            for column, value in recorded.items()
        }
        these = (stub.message_id == message_id, stub.required_groups == bindparam("alone"))
        return PreparedStatement(_confirming(stubs).where(*these).values(changes))

    one = confirmed(bindparam("id"), lambda name: bindparam(name, type_=types[name]))
    return one, confirmed(row.c.id, row.c.__getitem__)


def _usual_confirmation(stubs: Table) -> PreparedStatement:
    """Return the statement for a stub of one group whose first send is recorded, or not yet.

    It is not for an unrecorded stub that a scheduler has, or that was sent again: the general
    statement confirms it. It has literals, as each parameter takes time.
    """
    stub = stubs.c
    is_new = stub.broker_name.is_(None)
    is_first = and_(
        is_new,
        stub.count == literal_column("0"),
        not_(stub.missed),
        stub.topic == bindparam("its_topic"),
    )
    place = {
        column: func.coalesce(stub[column], bindparam(name, type_=stub[column].type))
        for name, column in _PLACE.items()
    }
    return PreparedStatement(
        update(stubs)
        .where(stub.status == literal_column(str(StubStatus.UNCONFIRMED.value)))
        .where(stub.message_id == bindparam("id"), stub.required_groups == bindparam("alone"))
        .where(or_(stub.broker_name.is_not(None), is_first))
        .values(status=literal_column(str(_CONFIRMED)), resend_time=null())
        .values(update_date=bindparam("at"), count=func.greatest(stub.count, literal_column("1")))
        .values({each: case((is_new, null()), else_=stub[each]) for each in _LEASE} | place)
    )


def _confirming(stubs: Table) -> Any:
    """Return the statement that confirms stubs."""
    return (
        update(stubs)
        .where(stubs.c.status == StubStatus.UNCONFIRMED.value)
        .values(
            status=_CONFIRMED,
            resend_time=null(),
            update_date=bindparam("at"),
        )
    )


class HeldConfirmation:
    """The confirmation of one stub, which waits for its COMMIT.

    Args:
        execution: the statement, see `SqlConfirmation.with_commit`.
        begins_next: the COMMIT begins the next transaction, too.
    """

    pending = None

    def __init__(self, execution: WithCommit, begins_next: bool) -> None:
        self._execution = execution
        self._end = COMMIT_AND_CHAIN if begins_next else COMMIT
        #: how many stubs were confirmed
        self.changed = 0

    def insert(self) -> None:
        """Confirm the stub before the COMMIT, because another statement comes between."""
        self.changed = self._execution.change()

    def commit(self, _commit: Callable[[], None]) -> None:
        """Confirm the stub, and commit."""
        self.changed = self._execution.commit(self._end)


class _Statements:
    """Lock and confirm, for one stub or for several."""

    def __init__(
        self, stubs: Table, these: ColumnElement[bool], complete: ColumnElement[bool]
    ) -> None:
        stub = stubs.c
        unconfirmed = stub.status == StubStatus.UNCONFIRMED.value
        confirm = _confirming(stubs).where(these)
        self.lock = PreparedStatement(
            select(stub.required_groups)
            .where(these, unconfirmed)
            .order_by(stub.message_id)  # so that two batches lock in the same order
            .with_for_update()
        )
        self.confirm_complete = PreparedStatement(confirm.where(complete))
        alone = stub.required_groups == bindparam("alone")
        self.confirm_alone = PreparedStatement(confirm.where(alone))


def confirmation_of(database: Database) -> SqlConfirmation:
    """Return the confirmation of a database's stubs."""
    return SqlConfirmation(database.stubs, database.logs, database.confirmations, database.dialect)
