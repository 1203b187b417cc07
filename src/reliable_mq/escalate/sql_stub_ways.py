"""The ways by which an index leads to the stubs of a filter. Shapes statements; runs only counts.

Receives a filter. A way is a list of conditions that exclude each other: each is served by an
index, and together they have all stubs that match. If a way has few rows, they are sorted.
"""

from collections.abc import Iterator
from typing import NamedTuple

from sqlalchemy import (
    ColumnElement,
    Connection,
    Select,
    Subquery,
    Table,
    and_,
    func,
    select,
    union_all,
)

from reliable_mq.database.row_values import StubStatus
from reliable_mq.database.sql_stub_table import (
    correlated_rows,
    keyed_rows,
    parked_rows,
    settled_rows,
    voided_rows,
    waiting_rows,
)
from reliable_mq.escalate.stub_filter import StubFilter
from reliable_mq.outbox.correlation import kept_correlation

FEW = 20_000
"""So many rows are read and sorted for one page at most, if each may lie on a page of its own."""
FEW_TOGETHER = 120_000
"""So many are if they were written, or failed, in a short time: they lie together."""


class StubWay(NamedTuple):
    """A way to the stubs that match a filter; see the module."""

    parts: tuple[ColumnElement[bool], ...]
    lie_together: bool = False

    def is_short(self, connection: Connection, table: Table) -> bool:
        """Return whether the way has few stubs."""
        left = FEW_TOGETHER if self.lie_together else FEW
        for part in self.parts:
            some = select(table.c.seq).where(part).limit(left + 1).subquery()
            left -= connection.execute(select(func.count()).select_from(some)).scalar_one()
            if left < 0:
                return False
        return True

    def of(
        self, wanted: Select[tuple[object, ...]], limit: int, *, newest: bool
    ) -> "Select[tuple[object, ...]]":
        """Return a statement for the first `limit` rows by `seq`; `wanted` selects `seq`, too.

        The order is that of an expression: else the planner could prefer to walk the table by its
        key, until it has found enough rows. It does not know that all of them are old.
        """
        rows = union_all(*(wanted.where(part) for part in self.parts)).subquery()
        place = rows.c.seq + 0
        return select(rows).order_by(place.desc() if newest else place).limit(limit)

    def newest(self, wanted: Select[tuple[object, ...]], limit: int) -> Subquery:
        """Return a table of the newest `limit` rows, and of `place`, by which they are sorted.

        Who asks more of each row can do so in this order, and end early.
        """
        rows = union_all(*(wanted.where(part) for part in self.parts)).subquery()
        place = (rows.c.seq + 0).label("place")
        return select(rows, place).order_by(place.desc()).limit(limit).subquery()


def ways_of(table: Table, wanted: StubFilter) -> Iterator[StubWay]:
    """Yield the ways that a filter has, those with the fewest stubs first, as a rule."""
    stub = table.c
    if wanted.key:
        of_key = stub.message_key == wanted.key
        kinds = (keyed_rows(table), waiting_rows(table), parked_rows(table))
        yield StubWay(tuple(and_(kind, of_key) for kind in kinds))
    if wanted.correlation_id:
        kept = kept_correlation(wanted.correlation_id)
        yield StubWay((and_(correlated_rows(table), stub.correlation_id == kept),))
    if wanted.escalated:
        yield StubWay((parked_rows(table),), lie_together=True)
    if wanted.status is StubStatus.VOIDED:
        yield StubWay((voided_rows(table),))
    if wanted.status is StubStatus.UNCONFIRMED:
        yield StubWay((waiting_rows(table), parked_rows(table)), lie_together=True)
    if wanted.topic:
        of_topic = stub.topic == wanted.topic
        kinds = (settled_rows(table), waiting_rows(table), parked_rows(table))
        yield StubWay(tuple(and_(kind, of_topic) for kind in kinds))
