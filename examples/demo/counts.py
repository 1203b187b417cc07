"""How far it is: counted in the database, where the truth is, not in anybody's memory."""

from typing import NamedTuple

import psycopg

_PROGRESS = """
SELECT
    (SELECT count(*) FROM shop_order),
    (SELECT count(*) FROM rmq_message_stub WHERE broker_name IS NOT NULL OR status = 1),
    (SELECT count(*) FROM rmq_message_stub WHERE status = 1),
    (SELECT count(*) FROM rmq_consume_log WHERE consumer_group = 'payments' AND state = 1),
    (SELECT count(*) FROM rmq_consume_log WHERE consumer_group = 'loyalty' AND state = 1),
    (SELECT coalesce(sum(greatest(count - 1, 0)), 0) FROM rmq_message_stub)
"""


class OrderProgress(NamedTuple):
    """Counts of orders committed, messages sent and confirmed, and effects committed.

    A message counts as sent when the broker acknowledged it, or when it was consumed although its
    sender died before it could write the acknowledgement down.
    """

    orders: int
    sent: int
    confirmed: int
    payments: int
    loyalty: int
    resends: int

    def has_effects(self, orders: int) -> bool:
        """Say whether at least so many orders have had both effects."""
        return min(self.payments, self.loyalty) >= orders

    def is_drained(self, orders: int) -> bool:
        """Say whether every one of `orders` has had both effects and is confirmed."""
        return min(self[:5]) >= orders


class Counter:
    """Asks for the progress over a connection of its own."""

    def __init__(self, database: str) -> None:
        self._connection = psycopg.connect(database.replace("+psycopg", ""), autocommit=True)

    def progress(self) -> OrderProgress:
        row = self._connection.execute(_PROGRESS).fetchone()
        assert row is not None
        return OrderProgress(*map(int, row))

    def repeated_attempts(self) -> int:
        """Return how many attempts beyond each first it took to consume what was consumed."""
        row = self._connection.execute(
            "SELECT coalesce(sum(attempt - 1), 0) FROM rmq_consume_log WHERE state = 1"
        ).fetchone()
        assert row is not None
        return int(row[0])

    def close(self) -> None:
        self._connection.close()
