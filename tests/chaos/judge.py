"""What must hold when the chaos is over and everything is drained.

Receives the rows of the application and of our tables, of one database or of several; hands on how
many rows break each promise.
"""

from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Sequence
from itertools import pairwise
from typing import Any, NamedTuple

import psycopg
from tests.chaos.application import (
    AFTER,
    ANNOUNCED_EVERY,
    BY_MESSAGE,
    CARRIED,
    GROUPS,
    ONCE,
)


class Stub(NamedTuple):
    """A message. `is_void`: a half whose transaction never committed."""

    topic: str
    key: str
    status: int
    is_void: bool
    sends: int


class Effect(NamedTuple):
    """An effect. `previous`: the order that it found before itself; see `carry_forward`."""

    number: int
    group: str
    order_id: int
    customer: str
    previous: int | None


class Rows(NamedTuple):
    """Everything that was written: by all databases together. `orders`: their numbers."""

    orders: Sequence[int]
    stubs: Sequence[Stub]
    effects: Sequence[Effect]
    log_states: Sequence[tuple[int, int]]
    """Of each row of the consume logs the state and the attempts."""


class Verdict(NamedTuple):
    """What was counted: by promise what breaks it, and how much there was of everything."""

    broken: dict[str, int]
    counts: dict[str, int]

    @property
    def holds(self) -> bool:
        return not any(self.broken.values())


CONSUMED = CONFIRMED = 1


def judge(rows: Rows) -> Verdict:
    """Ask every question. The order of effects is that of their numbers, by their database."""
    stubs = [stub for stub in rows.stubs if not stub.is_void]
    keys = {
        topic: Counter(stub.key for stub in stubs if stub.topic == topic)
        for topic in ("orders", "announced", "paid")
    }
    happened = Counter((effect.group, effect.order_id) for effect in rows.effects)
    paid = Counter(str(each.order_id) for each in rows.effects if each.group == "payments")
    return Verdict(
        {
            "P1: orders without exactly one stub": _differences(
                keys["orders"], Counter(str(order) for order in rows.orders)
            ),
            "P1: announced orders without exactly two stubs": _differences(
                keys["announced"],
                Counter({str(order): 2 for order in announced(rows.orders)}),
            ),
            "P1: payments without message, messages without payment": _differences(
                keys["paid"], paid
            ),
            "P2: stubs that are not confirmed": sum(s.status != CONFIRMED for s in stubs),
            "P4: effects that are missing": sum(
                (group, order) not in happened for group, order in expected(rows.orders)
            ),
            "P4: effects that happened more than once": sum(n > 1 for n in happened.values()),
            "P4: consume logs that do not say CONSUMED": sum(
                state != CONSUMED for state, _ in rows.log_states
            ),
            "P6: effects that are not in the order of their key": sum(
                later.order_id < earlier.order_id for earlier, later in _pairs(rows.effects)
            ),
            "P6: effects that did not see the effect before them": sum(
                later.previous != earlier.order_id
                for earlier, later in _pairs(each for each in rows.effects if each.group == CARRIED)
            ),
        },
        {
            "orders": len(rows.orders),
            "messages": len(stubs),
            "half messages rolled back, because they had no stub": len(rows.stubs) - len(stubs),
            "effects": len(rows.effects),
            "resends": sum(stub.sends - 1 for stub in rows.stubs if stub.sends > 1),
            "attempts after the first one of a message": sum(n - 1 for _, n in rows.log_states),
        },
    )


def announced(orders: Iterable[int]) -> list[int]:
    """Return the orders that were announced, each of them twice."""
    return [order for order in orders if order % ANNOUNCED_EVERY == 0]


def expected(orders: Collection[int]) -> list[tuple[str, int]]:
    """Return what must have happened, each once: consumer group and order."""
    return [
        *((group, order) for group in (*GROUPS, AFTER) for order in orders),
        *((ONCE, order) for order in announced(orders)),
    ]


def _differences(counted: Counter[str], wanted: Counter[str]) -> int:
    return ((counted - wanted) + (wanted - counted)).total()


def _pairs(effects: Iterable[Effect]) -> Iterable[tuple[Effect, Effect]]:
    """Yield each effect of an ordering key with the one that follows it in its group."""
    of_key: dict[tuple[str, str], list[Effect]] = defaultdict(list)
    for effect in sorted(effects):
        # Announcements have no ordering key, and by the message there is no order.
        if effect.customer and effect.group not in (ONCE, BY_MESSAGE):
            of_key[effect.group, effect.customer].append(effect)
    for in_order in of_key.values():
        yield from pairwise(in_order)


_STUBS = 'SELECT topic, message_key, status, length(content) = 0, "count" FROM rmq_message_stub'
_EFFECTS = "SELECT id, consumer_group, order_id, customer, previous FROM effects"


def rows_of(urls: Sequence[str]) -> Rows:
    """Return everything that the databases hold; orders are in the first one."""
    orders = [int(number) for (number,) in _read(urls[:1], "SELECT id FROM orders")]
    return Rows(
        orders=orders,
        stubs=[Stub(*row) for row in _read(urls, _STUBS)],
        effects=[Effect(*row) for row in _read(urls, _EFFECTS)],
        log_states=[
            (state, n) for state, n in _read(urls, "SELECT state, attempt FROM rmq_consume_log")
        ],
    )


def left_over(urls: Sequence[str]) -> int:
    """Return how many stubs are not settled and how many effects are missing."""
    unsettled = "SELECT count(*) FROM rmq_message_stub WHERE status = 0"
    happened = """
        SELECT consumer_group, count(DISTINCT order_id) FROM effects GROUP BY consumer_group"""
    there = Counter(dict(_read(urls, happened)))
    orders = [int(number) for (number,) in _read(urls[:1], "SELECT id FROM orders")]
    wanted = Counter(group for group, _ in expected(orders))
    return (wanted - there).total() + _total(urls, unsettled)


def unsent(urls: Sequence[str]) -> int:
    """Return how many stubs no broker has acknowledged."""
    question = """
        SELECT count(*) FROM rmq_message_stub WHERE status = 0 AND broker_name IS NULL
            AND length(content) > 0"""
    return _total(urls, question)


def order_count(urls: Sequence[str]) -> int:
    """Return how many orders were placed."""
    return _total(urls[:1], "SELECT count(*) FROM orders")


def _total(urls: Sequence[str], question: str) -> int:
    return sum(int(count) for (count,) in _read(urls, question))


def _read(urls: Sequence[str], question: str) -> list[tuple[Any, ...]]:
    found: list[tuple[Any, ...]] = []
    for url in urls:
        with psycopg.connect(url, autocommit=True) as connection:
            found += connection.execute(question.encode()).fetchall()
    return found
