"""Was it right? Plain SQL over the shop's tables and the parquet file, nothing of the framework.

Receives a database URL and how many orders there should be; hands on what it counted and what was
wrong. It does its own reading of the file, its own choice of the orders and its own sums, so that
no mistake of the replay can excuse itself here.
"""

import io
from typing import NamedTuple

import psycopg
import pyarrow.csv
import pyarrow.parquet as pq

from examples.demo.baskets import parquet_file

SAMPLE = 5

# What should be there: the first orders of the year with their amounts to the cent.
_EXPECTED = """
CREATE TEMPORARY TABLE line_of_file (
    basket_id bigint, household_id bigint, sales_value numeric, at timestamp
);
CREATE TEMPORARY TABLE expected_order (
    order_id bigint PRIMARY KEY, household_id bigint, amount numeric, lines bigint
);
"""
_CHOOSE = """
INSERT INTO expected_order
SELECT basket_id, min(household_id), sum(round(sales_value, 2)), count(*)
FROM line_of_file GROUP BY basket_id ORDER BY min(at), basket_id LIMIT %s
"""


class Question(NamedTuple):
    """One thing that must hold: how many things it speaks of, and which of them break it."""

    claim: str
    counted: str
    broken: str


_QUESTIONS = (
    Question(
        "every order was committed with all its lines, and no other",
        "SELECT count(*) FROM shop_order",
        """
        SELECT order_id FROM expected_order e FULL JOIN
            (SELECT o.id AS order_id, o.amount, count(l.number) AS lines
             FROM shop_order o LEFT JOIN shop_order_line l ON l.order_id = o.id GROUP BY o.id) o
            USING (order_id)
        WHERE e.amount IS DISTINCT FROM o.amount OR e.lines IS DISTINCT FROM o.lines
        """,
    ),
    Question(
        "every order was paid exactly once, to the cent",
        "SELECT count(*) FROM shop_payment",
        """
        SELECT order_id FROM expected_order e FULL JOIN
            (SELECT order_id, count(*) AS payments, sum(amount) AS paid
             FROM shop_payment GROUP BY order_id) p
            USING (order_id)
        WHERE p.payments IS DISTINCT FROM 1 OR p.paid IS DISTINCT FROM e.amount
        """,
    ),
    Question(
        "every household has exactly its points",
        "SELECT count(*) FROM shop_loyalty_account",
        """
        SELECT household_id FROM
            (SELECT household_id, sum(floor(amount)) AS points
             FROM expected_order GROUP BY household_id) e
            FULL JOIN shop_loyalty_account a USING (household_id)
        WHERE e.points IS DISTINCT FROM a.points
        """,
    ),
)

# Orders carry their household as ordering key, and one producer placed them by their time.
_IN_ORDER = Question(
    "the orders of every household were paid in the order in which they were placed",
    "SELECT count(*) FROM shop_payment",
    """
    SELECT order_id FROM
        (SELECT order_id, p.id, max(p.id) OVER (
            PARTITION BY household_id ORDER BY placed_at, o.id
            ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING) AS earlier
         FROM shop_payment p JOIN shop_order o ON o.id = p.order_id) payment
    WHERE id < earlier
    """,
)


class CheckResult(NamedTuple):
    """What a question found: `counted` things looked at, `broken` of them wrong."""

    claim: str
    counted: int
    broken: int
    sample: tuple[int, ...]

    @property
    def holds(self) -> bool:
        return self.broken == 0 and self.counted > 0


def check_outcome(database: str, orders: int) -> list[CheckResult]:
    """Compare the shop's tables with the first `orders` baskets of the parquet file.

    Args:
        database: SQLAlchemy URL of the shop's PostgreSQL database.
        orders: how many orders were placed.
    """
    with psycopg.connect(database.replace("+psycopg", "")) as connection:
        connection.execute(_EXPECTED)
        _copy_file(connection)
        connection.execute(_CHOOSE, (orders,))
        return [_ask(connection, question) for question in _QUESTIONS]


def check_sequence(database: str) -> CheckResult:
    """Look whether a payment was written before one of an earlier order of its household."""
    with psycopg.connect(database.replace("+psycopg", "")) as connection:
        return _ask(connection, _IN_ORDER)


def _copy_file(connection: psycopg.Connection) -> None:
    columns = ["basket_id", "household_id", "sales_value", "transaction_timestamp"]
    table = pq.read_table(parquet_file(), columns=columns)
    options = pyarrow.csv.WriteOptions(include_header=False)
    with connection.cursor().copy("COPY line_of_file FROM STDIN (FORMAT csv)") as copy:
        for batch in table.to_batches():
            text = io.BytesIO()
            pyarrow.csv.write_csv(batch, text, options)
            copy.write(text.getvalue())


def _ask(connection: psycopg.Connection, question: Question) -> CheckResult:
    counted = connection.execute(question.counted.encode()).fetchone()
    broken = [row[0] for row in connection.execute(question.broken.encode())]
    assert counted is not None
    return CheckResult(question.claim, counted[0], len(broken), tuple(broken[:SAMPLE]))
