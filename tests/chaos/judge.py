"""What must hold when the chaos is over and everything is drained, in plain SQL."""

from typing import Any, NamedTuple

import psycopg
from tests.chaos.application import AFTER, GROUPS

_TOMBSTONE = "length(content) = 0"  # of a half whose transaction never committed
_ALL = ", ".join(f"('{group}')" for group in (*GROUPS, AFTER))

#: each question counts what breaks a promise
PROMISES = {
    "P1: orders without a stub": """
        SELECT count(*) FROM orders o WHERE NOT EXISTS (SELECT 1 FROM rmq_message_stub s
            WHERE s.topic = 'orders' AND s.message_key = o.id::text)""",
    "P1: stubs without an order, or more than one of it": f"""
        SELECT count(*) FROM (SELECT message_key FROM rmq_message_stub WHERE topic = 'orders'
            AND NOT {_TOMBSTONE} GROUP BY message_key HAVING count(*) > 1) twice
        UNION ALL SELECT count(*) FROM rmq_message_stub s WHERE s.topic = 'orders'
            AND NOT {_TOMBSTONE}
            AND NOT EXISTS (SELECT 1 FROM orders o WHERE o.id::text = s.message_key)""",
    "P1: payments without their message, or the other way round": """
        SELECT count(*) FROM (
            SELECT order_id::text FROM effects WHERE consumer_group = 'payments'
            EXCEPT ALL SELECT message_key FROM rmq_message_stub WHERE topic = 'paid') missing
        UNION ALL SELECT count(*) FROM (
            SELECT message_key FROM rmq_message_stub WHERE topic = 'paid'
            EXCEPT ALL
            SELECT order_id::text FROM effects WHERE consumer_group = 'payments') more""",
    "P2: stubs that are not confirmed": f"""
        SELECT count(*) FROM rmq_message_stub WHERE status <> 1 AND NOT {_TOMBSTONE}""",
    "P4: effects that are missing": f"""
        SELECT count(*) FROM orders o CROSS JOIN (VALUES {_ALL}) g(name)
        WHERE NOT EXISTS (SELECT 1 FROM effects e
            WHERE e.consumer_group = g.name AND e.order_id = o.id)""",
    "P4: effects that happened more than once": """
        SELECT count(*) FROM (SELECT 1 FROM effects GROUP BY consumer_group, order_id
            HAVING count(*) > 1) twice""",
    "P4: consume logs that do not say CONSUMED": """
        SELECT count(*) FROM rmq_consume_log WHERE state <> 1""",
    "P6: effects that overtook an earlier one of their key": """
        SELECT count(*) FROM (
            SELECT s.seq < lag(s.seq) OVER (PARTITION BY e.consumer_group, e.customer
                ORDER BY e.id) AS overtaken
            FROM effects e JOIN rmq_message_stub s ON s.message_key = e.order_id::text
                AND s.topic = CASE e.consumer_group WHEN 'receipts' THEN 'paid' ELSE 'orders' END
            WHERE e.customer <> '') pairs WHERE overtaken""",
}

COUNTS = {
    "orders": "SELECT count(*) FROM orders",
    "messages": "SELECT count(*) FROM rmq_message_stub",
    "halves that were rolled back for want of a stub": f"""
        SELECT count(*) FROM rmq_message_stub WHERE {_TOMBSTONE}""",
    "effects": "SELECT count(*) FROM effects",
    "resends": 'SELECT sum("count" - 1) FROM rmq_message_stub WHERE "count" > 1',
    "attempts that were not the first": "SELECT sum(attempt - 1) FROM rmq_consume_log",
}


class Verdict(NamedTuple):
    """What was counted: by promise what breaks it, and how much there was of everything."""

    broken: dict[str, int]
    counts: dict[str, int]

    @property
    def holds(self) -> bool:
        return not any(self.broken.values())


def judge(url: str) -> Verdict:
    """Ask every question."""
    with psycopg.connect(url, autocommit=True) as connection:
        return Verdict(
            {claim: _total(connection, question) for claim, question in PROMISES.items()},
            {name: _total(connection, question) for name, question in COUNTS.items()},
        )


def left_over(url: str) -> int:
    """Return how many stubs are not settled and how many effects of orders are missing."""
    with psycopg.connect(url, autocommit=True) as connection:
        unsettled = "SELECT count(*) FROM rmq_message_stub WHERE status = 0"
        missing = PROMISES["P4: effects that are missing"]
        return _total(connection, unsettled) + _total(connection, missing)


def orders(url: str) -> int:
    """Return how many orders were placed."""
    with psycopg.connect(url, autocommit=True) as connection:
        return _total(connection, COUNTS["orders"])


def _total(connection: "psycopg.Connection[Any]", question: str) -> int:
    rows = connection.execute(question.encode()).fetchall()
    return sum(int(row[0] or 0) for row in rows)
