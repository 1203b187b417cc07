"""The query of `sql_agenda` for MySQL and MariaDB, in steps along an index.

These databases step from group to group of an index and read the first row of each ("Using index
for group-by"). They do so under two conditions. The groups begin with the index's first column. An
equality condition does not fix that column, because that would remove it from the groups. A `min()`
in a recursive query or its subqueries makes them read all waiting rows.

Receives the table of stubs. Its indexes are whole (not partial). They know which topics have
waiting stubs, and by broker which were sent. By owner and count they know which sends were begun.
The query reads all begun sends: there are no more than schedulers handle at once.
"""

from typing import Any

from sqlalchemy import (
    Column,
    ColumnElement,
    Select,
    Table,
    func,
    literal,
    literal_column,
    select,
    union_all,
)

from reliable_mq.database.sql_stub_table import waiting_kinds


def mysql_agenda_of(table: Table) -> Any:
    """Return the statement; its rows are (`kind`, `topic`, `first_time`); `first_time` may be null.

    Args:
        table: the message stubs.
    """
    stub, kinds = table.c, waiting_kinds(table)
    by_topic = (stub.status, stub.given_up, stub.broker_name, stub.topic)
    first = func.min(stub.resend_time).label("first_time")
    places = _steps(table, "unsent", by_topic, stub.broker_name, stub.topic, first).cte("places")
    sent = (
        select(literal("sent"), places.c.topic, func.min(places.c.first_time))
        .where(places.c.broker_name.is_not(None))
        .group_by(places.c.topic)
    )
    # A begun send may be the first of its topic, so the first unsent stub is searched behind it.
    earliest = (
        _hinted(select(stub.resend_time), table, "unsent")
        .where(kinds["unsent"], stub.topic == places.c.topic)
        .order_by(stub.topic, stub.resend_time, stub.seq)
        .limit(literal_column("1"))
        .correlate(places)
        .scalar_subquery()
    )
    unsent = select(
        literal("unsent").label("kind"), places.c.topic, earliest.label("first_time")
    ).where(places.c.broker_name.is_(None))
    sender = (stub.missed, stub.owner, stub.count)
    by_sender = (stub.status, stub.given_up, stub.broker_name, *sender)
    begun = _steps(table, "unowned", by_sender, *sender).subquery("senders")
    suspect = (
        _hinted(
            select(literal("suspect"), stub.topic, func.min(stub.resend_time)), table, "unowned"
        )
        .select_from(begun)
        .join(
            table,
            (stub.missed == begun.c.missed)
            & (stub.owner == begun.c.owner)
            & (stub.count == begun.c.count),
        )
        .prefix_with("STRAIGHT_JOIN")
        .where(kinds["suspect"], begun.c.owner.is_not(None), begun.c.count > literal_column("0"))
        .group_by(stub.topic)
    )
    return union_all(unsent, sent, suspect)


def mysql_topics_of(table: Table) -> Any:
    """Return the statement of all topics with unsettled stubs, and the first date of each.

    Its rows are (`topic`, `first_time`); stubs that wait for a person are included.
    """
    stub = table.c
    first = func.min(stub.create_date).label("first_time")
    by_topic = (stub.status, stub.topic)
    return (
        _hinted(select(stub.topic, first), table, "waiting")
        .where(stub.status < literal_column("1"))
        .group_by(*by_topic)
    )


def _steps(
    table: Table, index: str, groups: tuple[Column[Any], ...], *wanted: ColumnElement[Any]
) -> Select[Any]:
    """Return a query of one row for each group of an index, of unsettled stubs."""
    unsettled = (
        table.c.status < literal_column("1"),
        table.c.given_up < literal_column("1"),
    )
    return _hinted(select(*wanted), table, index).where(*unsettled).group_by(*groups)


def _hinted(query: Select[Any], table: Table, index: str) -> Select[Any]:
    return query.with_hint(table, f"FORCE INDEX ({table.name}_{index})", "*")
