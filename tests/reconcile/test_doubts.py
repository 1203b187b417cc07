"""Effects in doubt: all are counted, the newest are told."""

from datetime import timedelta
from typing import Any

import pyarrow as pa
import pytest
from tests.reconcile.judging import event
from tests.reconcile.ledgers import GRACE, LONG_AGO, NOW, message_id
from tests.reconcile.test_report import printed, summary

from reliable_mq.reconcile.judgement.doubts import SHOWN_MAX, Doubts
from reliable_mq.reconcile.judgement.events import (
    CONSUMED,
    DUPLICATE,
    EVENTS,
    IN_DOUBT,
    LOG,
    SKIPPED,
    STUB,
    VOIDED,
)
from reliable_mq.reconcile.judgement.judge import judge
from reliable_mq.reconcile.judgement.tally import Tally
from reliable_mq.reconcile.judgement.world import World
from reliable_mq.reconcile.report.report_html import html_report


def test_effects_in_doubt_are_counted_and_the_newest_of_all_parts_are_told() -> None:
    """Given consume logs of which some had an attempt that was never heard of again, in two parts,
    then those are counted, whatever their verdict is, and the newest come first."""
    world = World(NOW, GRACE, NOW, frozenset({"orders"}))
    tally = Tally()
    for part in range(2):
        events = []
        for number in range(700):
            identity = message_id(1_000 * part + number)
            seen = LONG_AGO + timedelta(seconds=2 * number + part)
            marks = IN_DOUBT if number % 7 else 0
            log = {"consumer_group": "payments", "state": CONSUMED, "tries": 2, "marks": marks}
            events += [event(STUB, identity), event(LOG, identity, **log | {"seen": seen})]
        one = Tally()
        one.add_verdicts(judge(pa.Table.from_pylist(events, EVENTS), world))
        tally.add_json(one.to_json())

    told = tally.doubts.summary()

    assert tally.doubts.invariants()
    assert told["count"] == 2 * 600
    assert len(told["newest"]) == SHOWN_MAX
    received = (LONG_AGO + timedelta(seconds=2 * 699 + 1)).isoformat(timespec="milliseconds")
    assert told["newest"][0] == {
        "received": received.replace("+00:00", "Z"),
        "message_id": message_id(1_699),
        "consumer_group": "payments",
        "topic": "orders",
        "verdict": "settled",
        "attempts": 2,
    }


def test_nothing_in_doubt_is_told_as_nothing() -> None:
    assert Doubts().summary() == {"count": 0, "newest": []}


def test_what_a_person_let_be_skipped_is_told_and_is_no_finding() -> None:
    """Given a message that a group skipped, and one that it consumed."""
    world = World(NOW, GRACE, NOW, frozenset({"orders"}))
    tally, events = Tally(), []
    for number, marks in enumerate((SKIPPED | DUPLICATE, 0)):
        identity = message_id(number)
        row = {"consumer_group": "payments", "state": CONSUMED, "tries": 2, "seen": LONG_AGO}
        events += [event(STUB, identity), event(LOG, identity, **row | {"marks": marks})]
    tally.add_verdicts(judge(pa.Table.from_pylist(events, EVENTS), world))
    told = Tally()
    told.add_json(tally.to_json())

    assert not any(row.is_finding for row in told.groups() if row.consumer_group == "payments")
    (skipped,) = told.skips.summary()["newest"]
    assert told.skips.summary()["count"] == 1
    assert (skipped["message_id"], skipped["verdict"]) == (message_id(0), "settled")
    assert told.doubts.summary()["count"] == 0


def test_a_skip_does_not_contradict_a_voided_stub_and_is_no_latency_of_the_group() -> None:
    """Given a voided stub, whose message a person let be skipped, and one whose group consumed it.

    Then the first one is no finding, as nothing had its effect.
    """
    world, events = World(NOW, GRACE, NOW, frozenset({"orders"})), []
    for number, marks in enumerate((SKIPPED | DUPLICATE, 0)):
        identity = message_id(number)
        row = {"consumer_group": "payments", "state": CONSUMED, "tries": 2, "seen": LONG_AGO}
        row |= {"changed": LONG_AGO + timedelta(hours=9), "marks": marks}
        events += [event(STUB, identity, state=VOIDED), event(LOG, identity, **row)]
    verdicts = judge(pa.Table.from_pylist(events, EVENTS), world)
    rows = [each for each in verdicts.to_pylist() if each["consumer_group"] == "payments"]
    told = {each["message_id"]: (each["verdict"], each["consumed_ms"]) for each in rows}

    hours = 9 * 3_600_000
    assert told[message_id(0)] == ("voided", None)
    assert told[message_id(1)][0] == "voided but consumed"
    assert told[message_id(1)][1] >= hours


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({}, ""),
        ({"skipped": {"count": 0, "newest": []}}, ""),
        ({"skipped": {"count": 1, "newest": []}}, "1 message was skipped for a group"),
        ({"skipped": {"count": 1_200, "newest": []}}, "1,200 messages were skipped for a group"),
    ],
)
def test_what_people_let_be_skipped_is_counted(change: dict[str, Any], says: str) -> None:
    told = summary() | change
    for shown in (printed(told), html_report(told)):
        assert ("skipped for a group" in shown) == bool(says)
        assert says in shown
