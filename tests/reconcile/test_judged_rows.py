"""The rows of a judgement: which messages and groups have one, and which of their traces count."""

from datetime import datetime, timedelta
from typing import Any

import pyarrow as pa
import pytest
from tests.reconcile.judging import event, rows_of
from tests.reconcile.ledgers import LONG_AGO, message_id
from tests.reconcile.one_message import AROUND, OTHER, M, after, judged, log, record, stub

from reliable_mq.reconcile.judgement.events import (
    CONSUMED,
    DUPLICATE,
    EVENTS,
    LOG,
    TOLD,
    packed_ids,
)
from reliable_mq.reconcile.judgement.judge import judge_traces
from reliable_mq.reconcile.judgement.traces import traces_of


@pytest.mark.parametrize(
    ("weak", "strong"),
    [
        ({"state": 0, "changed": None}, {"state": CONSUMED}),
        ({"state": 0, "changed": None, "marks": DUPLICATE}, {"state": CONSUMED}),
        ({"state": CONSUMED, "marks": DUPLICATE}, {"state": CONSUMED}),
        ({"state": 0, "changed": None}, {"state": CONSUMED, "marks": DUPLICATE}),
    ],
)
def test_of_several_logs_of_a_group_the_strongest_counts_whichever_is_older(
    weak: dict[str, Any], strong: dict[str, Any]
) -> None:
    """An effect goes before a duplicate, and a duplicate before an attempt."""
    logs = [log(seen=after(1), tries=1, **weak), log(seen=after(2), tries=2, **strong)]
    for both in (logs, logs[::-1]):
        (row,) = judged(stub(), record(), *both)
        assert row["log_attempt"] == 2


def test_of_equal_logs_the_oldest_counts() -> None:
    logs = [log(seen=after(at), tries=at, state=0, changed=None) for at in (3, 1, 2)]
    (row,) = judged(stub(), record(), *logs)
    assert (row["log_attempt"], row["log_create_date"]) == (1, after(1))


def test_a_row_is_made_for_each_group_that_a_ledger_names() -> None:
    """Given a stub that requires two groups, a third one that consumed, and a silent message."""
    rows = judged(
        stub(required="payments,audit,,audit"),
        record(),
        log(consumer_group="loyalty"),
        log(consumer_group="audit"),
        record(identity=OTHER, log_offset=8),
    )
    groups = {(row["message_id"], row["consumer_group"]): row["fact_group"] for row in rows}
    assert groups == {
        (M, "audit"): "required",
        (M, "loyalty"): "extra",
        (M, "payments"): "required",
        (OTHER, ""): "ack",
    }
    assert [row["is_lead"] for row in rows] == [True, False, False, True]
    assert {row["fact_everyone"] for row in rows} == {"no"}


def test_everyone_has_consumed_when_all_required_groups_have() -> None:
    both = [log(consumer_group="audit"), log()]
    for logs, everyone in ((both, "yes"), (both[:1], "no"), ([], "no")):
        rows = judged(stub(required="payments,audit"), record(), *logs)
        assert {row["fact_everyone"] for row in rows if row["fact_group"] != "extra"} == {everyone}
    (row,) = judged(stub(required=""), record())
    assert row["fact_everyone"] == "no"


def test_the_topic_is_that_of_the_stub_then_of_a_record_then_of_a_log() -> None:
    spoken = [stub(topic="of-stub"), record(topic="of-record"), log(topic="of-log")]
    for events, topic in ((spoken, "of-stub"), (spoken[1:], "of-record"), (spoken[2:], "of-log")):
        assert {row["topic"] for row in judged(*events)} == {topic}
    (row,) = judged(event(TOLD, M, consumer_group="payments", topic=None))
    assert row["topic"] is None


@pytest.mark.parametrize(
    ("since", "until", "is_asked"),
    [
        (None, None, True),
        (0, 1, True),
        (0, None, True),
        (1, None, False),
        (None, 1, True),
        (None, 0, False),
        (-1, 0, False),
    ],
)
def test_only_messages_of_the_asked_time_are_judged(
    since: int | None, until: int | None, is_asked: bool
) -> None:
    """A range has its beginning, and not its end. A message without any time is in none with an
    end."""
    (born,) = (row["message_time"] for row in judged(stub()))

    def at(step: int | None) -> datetime | None:
        return None if step is None else born + timedelta(microseconds=step)

    rows = judged(stub(), since=at(since), until=at(until))
    assert [row["message_id"] for row in rows] == [M] * is_asked
    timeless = event(LOG, "a name", consumer_group="payments", seen=None, changed=None)
    (row,) = judged(timeless, since=None)
    assert row["message_time"] is None
    assert len(judged(timeless, since=None, until=at(until))) == (until is None)


def test_the_time_of_a_foreign_id_is_that_of_its_first_event() -> None:
    """Of a stub and of a log it is the creation, of a record its birth."""
    name = "no time in it"
    created = stub(name, seen=after(8), changed=after(1))
    born = record(identity=name, seen=after(2), changed=after(7))
    logged = log(name, seen=after(6), changed=after(3))
    for events, seconds in (
        ([created], 8),
        ([created, born], 7),
        ([created, born, logged], 6),
        ([record(identity=name, changed=None), log(name, seen=after(9))], 9),
    ):
        assert {row["message_time"] for row in judged(*events)} == {after(seconds)}
        both = {row["message_id"]: row["message_time"] for row in judged(*events, stub())}
        assert both[name] == after(seconds)
        assert abs(both[M] - LONG_AGO) < timedelta(seconds=1)


def test_deliveries_that_were_folded_away_are_counted() -> None:
    table = pa.Table.from_pylist([stub(), record(), stub(OTHER)], EVENTS)
    first, absent = packed_ids(pa.array([M, message_id(3)])).to_pylist()
    rows = rows_of(judge_traces(traces_of(table), AROUND, {first: 7, absent: 5}))
    assert {row["message_id"]: row["record_copies"] for row in rows} == {M: 8, OTHER: 0}
