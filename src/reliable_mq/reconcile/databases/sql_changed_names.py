"""Find the topics and brokers in the changed rows of a database, for increments.

The queries use the indexes of increments. A query of the whole table would read all history.
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
    """The topics of stubs, and the brokers that stubs and consume logs name."""

    topics: frozenset[str]
    brokers: frozenset[str]


def changed_names(urls: Sequence[str], prefix: str, since: datetime) -> ChangedNames:
    """Return the names in rows that were settled or consumed since a moment, or are open.

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
