"""What `sql_agenda` asks, as MySQL and MariaDB answer it in steps along an index.

They step from group to group of an index and read the first row of each ("Using index for
group-by"), but only when the groups begin with the index's first column, and when that column is
not fixed by an equation, which would take it out of the groups. They resolve no `min()` in a
recursive query or one of its subqueries, where they read all that waits.

Receives the table of stubs. Its whole indexes know which topics have something waiting, and by
broker what was sent; by owner and count they know of whom something was begun. Of what was begun
all is read: no more than schedulers had in hand at once.
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
    """Return the statement; its rows are (`kind`, `topic`, `first_time`), the latter may be null.

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
    # What was begun may come first, so that the first is looked for behind it.
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
    """Return the statement of the topics that have something unsettled, and of its first date.

    Its rows are (`topic`, `first_time`); what waits for a person is among them.
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
    """Return a query of one row for each group of an index, of stubs that are not settled."""
    unsettled = (
        table.c.status < literal_column("1"),
        table.c.given_up < literal_column("1"),
    )
    return _hinted(select(*wanted), table, index).where(*unsettled).group_by(*groups)


def _hinted(query: Select[Any], table: Table, index: str) -> Select[Any]:
    return query.with_hint(table, f"FORCE INDEX ({table.name}_{index})", "*")
