"""What a person is told, in which words, and when: the decisions by themselves."""

from datetime import UTC, datetime
from itertools import product

import pytest

from reliable_mq.errors import ConfigurationError, UsageError
from reliable_mq.escalate.escalation import (
    TRANSITIONS,
    AlertEvent,
    AlertState,
    Digest,
    EscalationCount,
    EscalationKind,
    check_notifier,
    next_digest_time,
    next_state,
    retry_wait,
)

NOON = datetime(2026, 11, 21, 12, tzinfo=UTC)


@pytest.mark.parametrize(("state", "event"), sorted(product(AlertState, AlertEvent), key=str))
def test_an_illegal_event_raises(state: AlertState, event: AlertEvent) -> None:
    if (state, event) in TRANSITIONS:
        assert next_state(state, event) is TRANSITIONS[state, event]
    else:
        with pytest.raises(UsageError, match=f"that is {state.name} cannot take"):
            next_state(state, event)


def test_a_notifier_that_fails_is_tried_less_and_less_often_but_never_given_up() -> None:
    waits = [retry_wait(failures) for failures in range(1, 100)]

    assert waits[:4] == [5.0, 10.0, 20.0, 40.0]
    assert waits == sorted(waits)
    assert waits[-1] == 600.0
    with pytest.raises(UsageError):
        retry_wait(0)


def test_the_cooldown_counts_from_when_a_digest_was_gathered() -> None:
    assert next_digest_time(now=101.0, digest_time=100.0, cooldown=900.0) == 1000.0
    # a mail server was down for an hour: what came meanwhile need not wait longer
    assert next_digest_time(now=3700.0, digest_time=100.0, cooldown=900.0) == 3700.0


def test_the_headline_sums_up_in_one_line() -> None:
    shares = (
        EscalationCount(EscalationKind.DEAD_LETTER, "orders", "payments", 3, NOON),
        EscalationCount(EscalationKind.USED_UP, "orders", "", 1, NOON),
        EscalationCount(EscalationKind.DEAD_LETTER, "orders", "points", 2, NOON),
    )
    digest = Digest("d", "shop", NOON, 6, shares, ())
    alone = Digest(
        "d", "shop", NOON, 1, (EscalationCount(EscalationKind.STUCK, "orders", "", 1, NOON),), ()
    )

    said = "[shop] 6 messages wait for a person: 1 sends used up, 5 dead letter"
    assert digest.headline == said
    assert alone.headline == "[shop] 1 message waits for a person: 1 stuck"


@pytest.mark.parametrize(
    ("name", "cooldown", "says"),
    [
        ("", 0.0, "printable"),
        ("x" * 65, 0.0, "printable"),
        ("two\nlines", 0.0, "printable"),
        ("mail", -1.0, "0 or more"),
        ("mail", float("nan"), "0 or more"),
    ],
)
def test_a_notifier_that_says_something_impossible_is_refused(
    name: str, cooldown: float, says: str
) -> None:
    with pytest.raises(ConfigurationError, match=says):
        check_notifier(name, cooldown)
