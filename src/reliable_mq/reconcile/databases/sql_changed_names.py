"""Names in what changed in a database: asked by the indexes that increments read by.

A question of the whole table would cost an increment what the history costs.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from sqlalchemy import select

from reliable_mq.reconcile.databases.ledger_columns import CONSUME_LOG, STUB, table_of
from reliable_mq.reconcile.databases.sql_conditions import (
    CONSUMED,
    PARKED,
    RECEIVED,
    SETTLED,
    WAITING,
    KeyRange,
    in_range,
)
from reliable_mq.reconcile.databases.sql_connection import connected


@dataclass(frozen=True)
class ChangedNames:
    """Topics of stubs, and brokers that stubs and consume logs name."""

    topics: frozenset[str]
    brokers: frozenset[str]


def changed_names(urls: Sequence[str], prefix: str, since: datetime) -> ChangedNames:
    """Return the names in what was settled or consumed since a moment, or is open.

    Raises:
        sqlalchemy.exc.SQLAlchemyError: a database failed.
    """
    topics: set[str] = set()
    brokers: set[str | None] = set()
    stubs, logs = table_of(STUB, prefix), table_of(CONSUME_LOG, prefix)
    for url in urls:
        with connected(url) as connection:
            for part in (
                KeyRange("update_date", since, None, SETTLED),
                KeyRange(kind=WAITING),
                KeyRange(kind=PARKED),
            ):
                names = select(stubs.c.topic, stubs.c.broker_name).where(in_range(stubs, part))
                for topic, broker in connection.execute(names.distinct()):
                    topics.add(topic)
                    brokers.add(broker)
            for part in (
                KeyRange("consume_date", since, None, CONSUMED),
                KeyRange(kind=RECEIVED),
            ):
                of_logs = select(logs.c.broker_name).where(in_range(logs, part))
                brokers.update(connection.scalars(of_logs.distinct()))
    return ChangedNames(frozenset(topics), frozenset(name for name in brokers if name))
