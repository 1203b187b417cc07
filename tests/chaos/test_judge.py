"""The judge of chaos finds whatever breaks a promise: rows with one flaw each."""

from collections.abc import Callable
from typing import Any

import pytest
from tests.chaos.application import AFTER, CARRIED, GROUPS, ONCE
from tests.chaos.judge import Effect, Rows, Stub, judge

KEY = "0-1"


def flawless() -> Rows:
    """Return what three orders of one customer leave; the first of them is announced."""
    orders = [5, 6, 7]
    stubs = [
        Stub(topic, str(order), 1, False, 1) for topic in ("orders", "paid") for order in orders
    ]
    stubs += [Stub("announced", "5", 1, False, 1)] * 2
    stubs.append(Stub("orders", "8", 2, True, 1))  # a half that was rolled back
    effects = [
        Effect(10 * number + order, group, order, KEY, None)
        for number, group in enumerate((*GROUPS, AFTER))
        for order in orders
    ]
    previous = {5: None, 6: 5, 7: 6}
    effects = [
        each._replace(previous=previous[each.order_id]) if each.group == CARRIED else each
        for each in effects
    ]
    effects.append(Effect(100, ONCE, 5, KEY, None))
    return Rows(orders, stubs, effects, [(1, 1), (1, 2)])


def effects_with(rows: Rows, **changes: Any) -> Rows:
    """Change the last effect of the group that carries forward."""
    *others, last = sorted(rows.effects, key=lambda each: (each.group == CARRIED, each))
    return rows._replace(effects=[*others, last._replace(**changes)])


FLAWS: dict[str, tuple[str, Callable[[Rows], Rows]]] = {
    "an order without its message": (
        "P1: orders without",
        lambda rows: rows._replace(orders=[*rows.orders, 9]),
    ),
    "a message without its order": (
        "P1: orders without",
        lambda rows: rows._replace(stubs=[*rows.stubs, Stub("orders", "9", 1, False, 1)]),
    ),
    "an order that was announced once": (
        "P1: announced orders",
        lambda rows: rows._replace(
            stubs=[each for each in rows.stubs if each.topic != "announced"]
            + [Stub("announced", "5", 1, False, 1)]
        ),
    ),
    "a payment without its message": (
        "P1: payments",
        lambda rows: rows._replace(
            stubs=[each for each in rows.stubs if (each.topic, each.key) != ("paid", "7")]
        ),
    ),
    "a message that nobody confirmed": (
        "P2: stubs that are not confirmed",
        lambda rows: rows._replace(stubs=[rows.stubs[0]._replace(status=0), *rows.stubs[1:]]),
    ),
    "an effect that is missing": (
        "P4: effects that are missing",
        lambda rows: rows._replace(effects=[e for e in rows.effects if e.group != ONCE]),
    ),
    "an effect that happened twice": (
        "P4: effects that happened more than once",
        lambda rows: rows._replace(effects=[*rows.effects, rows.effects[-1]]),
    ),
    "a consume log that does not say CONSUMED": (
        "P4: consume logs",
        lambda rows: rows._replace(log_states=[(0, 1)]),
    ),
    "an effect that overtook another one": (
        "P6: effects that are not in the order",
        lambda rows: effects_with(rows, number=-1),
    ),
    "an effect that did not see the one before it": (
        "P6: effects that did not see",
        lambda rows: effects_with(rows, previous=5),
    ),
}


def test_nothing_is_wrong_with_what_keeps_every_promise() -> None:
    assert judge(flawless()).holds


@pytest.mark.parametrize("flaw", FLAWS)
def test_a_flaw_is_found(flaw: str) -> None:
    promise, spoil = FLAWS[flaw]

    verdict = judge(spoil(flawless()))

    assert any(name.startswith(promise) and count for name, count in verdict.broken.items())
