"""The statement that asks, of all that waits, which topics it belongs to and how early it is due.

It steps from topic to topic along the index of each kind, so it costs a few steps for each topic
that has something waiting, and none for the stubs themselves. It is one round trip, and all that
an idle scheduler asks. MySQL would read all that waits for it: see `sql_mysql_agenda`.
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
        kinds: for each kind what its stubs have in common; the condition of a partial index on
            (topic, moment).
        moment: the column of whose values the first one is asked for.
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
