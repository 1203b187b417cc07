"""The statement that returns each topic with waiting stubs, and the earliest due time.

It steps from topic to topic along the index of each kind. The cost is a few steps for each topic
with waiting stubs, however many stubs wait. It is one round trip, and the only query of an idle
scheduler. MySQL would read all waiting stubs: see `sql_mysql_agenda`.
"""

from collections.abc import Mapping
from typing import Any

from sqlalchemy import ColumnElement, Table, func, literal, select, union_all


def agenda_of(
    table: Table, kinds: Mapping[str, ColumnElement[bool]], moment: ColumnElement[Any]
) -> Any:
    """Return the statement; its rows are (`kind`, `topic`, `first_time`).

    Args:
        table: the message stubs.
        kinds: the condition of each kind of stubs; it must be the condition of a partial index on
            (topic, moment).
        moment: the column whose smallest value is returned.
    """
    return union_all(*(_of_kind(table, name, kind, moment) for name, kind in kinds.items()))


def _of_kind(table: Table, name: str, kind: ColumnElement[bool], moment: ColumnElement[Any]) -> Any:
    stub = table.c
    known = (
        select(func.min(stub.topic).label("topic"))
        .where(kind)
        .cte(f"{name}_topics", recursive=True)
    )
    after = select(func.min(stub.topic)).where(kind, stub.topic > known.c.topic)
    known = known.union_all(
        select(after.correlate(known).scalar_subquery()).where(known.c.topic.is_not(None))
    )
    first = (
        select(func.min(moment))
        .where(kind, stub.topic == known.c.topic)
        .correlate(known)
        .scalar_subquery()
    )
    return select(literal(name).label("kind"), known.c.topic, first.label("first_time")).where(
        known.c.topic.is_not(None)
    )
