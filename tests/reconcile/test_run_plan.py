"""What an increment reads behind the one before it, of stores and of running clusters."""

import json
from datetime import timedelta
from typing import Any

import pytest
from tests.reconcile.ledgers import NOW

from reliable_mq.errors import ConfigurationError
from reliable_mq.reconcile.brokers.queue_ranges import by_queue, by_topic
from reliable_mq.reconcile.runs.run_plan import (
    LedgerEnds,
    LogBounds,
    PreviousIncrement,
    RunPlan,
    plan_of,
    previous_of,
    row_of,
)

QUEUE, OTHER = ("orders", 0), ("orders", 1)
MANAGED = frozenset({"orders"})


def planned(
    previous: PreviousIncrement, queues: dict[Any, Any], minutes: int = 0, **logs: int
) -> RunPlan:
    """Return the plan of an increment over stores that begin at 0, and the broker b-1."""
    ends = LedgerEnds(
        {"sqlite:///shop.db": NOW + timedelta(minutes=minutes)},
        logs,
        {"b-1": {queue: end for queue, (_, end) in queues.items()}},
    )
    return plan_of(
        previous, ends, LogBounds(dict.fromkeys(logs, 0), {"b-1": queues}), None, MANAGED
    )


def after(plan: RunPlan) -> PreviousIncrement:
    """Return what the next increment reads of the row of this one."""
    row = {name: value for name, value in row_of(plan, 0).items() if name != "watermark"}
    found = previous_of({**json.loads(json.dumps(row)), "run_id": "r", "state": "s"}, anew=False)
    assert found is not None
    return found


def test_an_increment_reads_what_lies_behind_the_last_one_in_every_queue_and_store() -> None:
    first = planned(PreviousIncrement(), {QUEUE: (0, 7), OTHER: (3, 3)}, stored=100)

    second = planned(
        after(first), {QUEUE: (2, 9), OTHER: (3, 5), ("mails", 4): (1, 2)}, 1, stored=150
    )

    assert first.queue_ranges == {"b-1": {QUEUE: (0, 7), OTHER: (3, 3)}}
    assert first.log_ranges == {"stored": (0, 100)}
    assert second.queue_ranges == {"b-1": {QUEUE: (7, 9), OTHER: (3, 5), ("mails", 4): (1, 2)}}
    assert second.log_ranges == {"stored": (100, 150)}
    assert second.lost == {}


def test_what_went_before_it_was_read_is_told() -> None:
    first = planned(PreviousIncrement(), {QUEUE: (0, 7)})

    second = planned(after(first), {QUEUE: (9, 12)})

    assert second.queue_ranges == {"b-1": {QUEUE: (9, 12)}}
    assert second.lost == {
        "log of broker b-1": "messages were removed before they were read: 2 of queue 0 of orders"
    }


def test_another_broker_another_way_of_reading_it_and_another_topic_are_refused() -> None:
    first = after(planned(PreviousIncrement(), {QUEUE: (0, 7)}))
    of_store = LedgerEnds({"sqlite:///shop.db": NOW}, {"b-1": 100})

    with pytest.raises(
        ConfigurationError, match="queue 0 of orders in the broker b-1 ends at 3, but"
    ):
        planned(first, {QUEUE: (0, 3)})
    with pytest.raises(
        ConfigurationError, match=r"the brokers b-1 of the cluster; now it is b-1\. --increment"
    ):
        plan_of(first, of_store, LogBounds({"b-1": 0}), None, MANAGED)


def test_a_topic_that_was_removed_is_no_matter() -> None:
    first = planned(PreviousIncrement(), {QUEUE: (0, 7), ("mails", 0): (0, 9)})

    assert planned(after(first), {QUEUE: (0, 8)}).queue_ranges == {"b-1": {QUEUE: (7, 8)}}


def test_queues_in_json_are_the_same_queues() -> None:
    queues = {QUEUE: 5, OTHER: 6, ("mails", 0): 7}

    assert by_topic(queues) == {"mails": {"0": 7}, "orders": {"0": 5, "1": 6}}
    assert by_queue(json.loads(json.dumps(by_topic(queues)))) == queues
