"""What is judged by where it is: effects in two databases, logs of several brokers, none at all."""

import json
from datetime import datetime, timedelta
from typing import Any

import duckdb
import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.reconcile.judging import event, rows_of, verdicts_of, verdicts_on
from tests.reconcile.ledgers import GRACE, LONG_AGO, NOW, message_id

from reliable_mq.reconcile.brokers.log_roles import DEAD, FIRST, RETRY, RETRY_DELAYED
from reliable_mq.reconcile.judgement.events import (
    CONFIRMED,
    CONSUMED,
    DUPLICATE,
    EVENTS,
    LOG,
    RECORD,
    ROLES,
    STUB,
    TOLD,
    UNCONFIRMED,
    unpacked_ids,
)
from reliable_mq.reconcile.judgement.judge import judge
from reliable_mq.reconcile.judgement.tally import Tally
from reliable_mq.reconcile.judgement.twin_ids import TwinIds
from reliable_mq.reconcile.judgement.world import World

M = message_id(1)
AROUND = World(NOW, GRACE, NOW - timedelta(seconds=5), frozenset({"orders"}))
LATER = LONG_AGO + timedelta(minutes=1)


def stub(**columns: Any) -> dict[str, Any]:
    return event(STUB, M, required="payments", **columns)


def log(**columns: Any) -> dict[str, Any]:
    return event(LOG, M, consumer_group="payments", **columns)


def record(broker: str, role: str = FIRST, **columns: Any) -> dict[str, Any]:
    place = {"queue_id": 0, "queue_offset": 5, "log_offset": 1_000, "size": 200}
    return event(RECORD, M, broker=broker, state=ROLES.index(role), **place | columns)


def sent(broker: str, **columns: Any) -> dict[str, Any]:
    return stub(broker=broker, queue_id=0, queue_offset=5, **columns)


@pytest.mark.parametrize(
    ("second", "verdict"),
    [
        ({"seen": LATER, "changed": LATER}, "duplicate effect"),
        ({}, "settled"),  # the same row: a table that was copied
        ({"seen": LATER, "changed": LATER, "marks": DUPLICATE}, "settled"),
        ({"seen": LATER, "changed": None, "state": 0}, "settled"),
        ({"kind": TOLD, "changed": LATER}, "settled"),  # told twice, consumed once
    ],
)
def test_an_effect_in_each_of_two_databases_is_a_duplicate(
    second: dict[str, Any], verdict: str
) -> None:
    logs = [log(state=CONSUMED), {**log(state=CONSUMED), **second}]
    for both in (logs, logs[::-1]):
        events = [stub(state=CONFIRMED), record(""), *both]
        assert verdicts_on(events) == {(M, "payments"): verdict}


def test_the_log_of_the_broker_that_the_stub_names_says_whether_a_message_is_lost() -> None:
    """Given two brokers whose queues of one name begin at different offsets, then expired is told
    from lost by those of the broker that acknowledged it, and a record at any broker counts."""
    begins = {("a", "orders"): {0: 0}, ("b", "orders"): {0: 9}}
    world = {"brokers": frozenset({"a", "b"}), "begins": begins}

    assert verdicts_on([sent("a")], **world) == {(M, "payments"): "lost by the broker"}
    assert verdicts_on([sent("b")], **world) == {(M, "payments"): "expired"}
    assert verdicts_on([sent("a"), record("b")], **world) == {(M, "payments"): "waiting"}


def test_a_group_has_passed_a_message_when_it_has_passed_every_copy_at_its_own_broker() -> None:
    progress = {("a", "payments", "orders"): {0: 6}, ("b", "payments", "orders"): {0: 5}}
    world = {"brokers": frozenset({"a", "b"}), "progress": progress}

    only_a = verdicts_on([sent("a"), record("a")], **world)
    both = verdicts_on([sent("a"), record("a"), record("b", log_offset=1)], **world)

    assert only_a == {(M, "payments"): "not consumed"}
    assert both == {(M, "payments"): "waiting"}


def test_a_message_that_failed_was_sent_again_and_fails_again_waits_for_its_retry() -> None:
    """Given a message that failed often, was sent again, and failed once, then the copy of that
    one attempt waits in the delay queue, until it has become a retry, too."""
    progress = {("", "payments", name): {0: 99} for name in ("orders", "%RETRY%payments")}
    soon = {"consumer_group": "payments", "until": NOW + timedelta(minutes=5)}
    tried = {"consumer_group": "payments", "queue_topic": "%RETRY%payments"}
    events = [
        *(sent(""), record("", log_offset=1), log(state=0)),
        *(record("", RETRY, log_offset=at, tries=at, **tried) for at in (2, 3, 4)),
        record("", log_offset=5),
        record("", RETRY_DELAYED, log_offset=6, tries=1, **soon),
    ]
    again = record("", RETRY, log_offset=7, tries=1, **tried)

    assert verdicts_on(events, progress=progress) == {(M, "payments"): "waiting"}
    assert verdicts_on([*events, again], progress=progress) == {(M, "payments"): "stuck"}


@pytest.mark.parametrize(
    ("place", "due", "verdict"),
    [
        # The broker's delay queue has seen more messages than the topic's queue, or fewer.
        (50_000, LONG_AGO - timedelta(hours=2), "settled"),
        (3, LONG_AGO - timedelta(hours=2), "settled"),
        (50_000, LONG_AGO, "lost by the broker"),
        (3, LONG_AGO, "lost by the broker"),
    ],
)
def test_a_delayed_message_has_expired_when_the_log_begins_behind_its_delivery(
    place: int, due: datetime, verdict: str
) -> None:
    """Given the stub of a delayed message, which was acknowledged by its place in a delay queue,
    then no place in its topic's queue tells whether it expired, but the time does."""
    world: dict[str, Any] = {"begins": {("", "orders"): {0: 1_000}}}
    world["oldest"] = {"": LONG_AGO - timedelta(hours=1)}
    acknowledged = {"broker": "", "queue_id": 0, "queue_offset": place, "until": due}
    delayed = event(STUB, M, required="", state=CONFIRMED, **acknowledged)

    assert verdicts_on([delayed], **world) == {(M, ""): verdict}


def test_a_delayed_message_that_a_group_began_with_lies_where_the_group_had_it() -> None:
    world = {"begins": {("", "orders"): {0: 1_000}}}
    acknowledged = stub(broker="", queue_id=0, queue_offset=50_000, until=LONG_AGO)
    begun = log(state=0, broker="", queue_id=0, queue_offset=7)

    assert verdicts_on([acknowledged, begun], **world) == {(M, "payments"): "expired"}


def test_a_lease_ends_by_the_clock_of_its_database() -> None:
    """Given a database whose clock may be half a minute behind, then a lease that ended less long
    ago may hold, and what looks a little older than the grace time may be younger."""
    slow = timedelta(seconds=30)
    lease = {"state": 0, "until": NOW - timedelta(seconds=20)}
    progress = {("", "payments", "orders"): {0: 99}}
    begun = [sent(""), record(""), log(**lease)]
    young = stub(seen=NOW - GRACE - timedelta(seconds=20), changed=LONG_AGO)

    assert verdicts_on(begun, progress=progress) == {(M, "payments"): "stuck"}
    assert verdicts_on(begun, progress=progress, slack=slow) == {(M, "payments"): "in flight"}
    assert verdicts_on([young]) == {(M, "payments"): "not sent"}
    assert verdicts_on([young], slack=slow) == {(M, "payments"): "in flight"}


def test_a_dead_letter_of_another_broker_is_compared_by_time() -> None:
    """Given a dead letter that lies at a smaller log offset of another broker, then it is the end
    when it was stored later than the message, and the message was sent again when it was not."""
    world = {"brokers": frozenset({"a", "b"})}
    first = record("a", seen=LONG_AGO)
    dead = record("b", DEAD, log_offset=1, consumer_group="payments")
    before = LONG_AGO - timedelta(minutes=1)

    later = verdicts_on([sent("a"), first, {**dead, "seen": LATER}], **world)
    earlier = verdicts_on([sent("a"), first, {**dead, "seen": before}], **world)

    assert later == {(M, "payments"): "dead-lettered"}
    assert earlier == {(M, "payments"): "waiting"}


def test_what_the_log_of_a_broker_that_was_not_reached_may_hold_is_never_called_lost() -> None:
    """Given one broker of two that was not reached, then only its messages, and those that nobody
    knows a broker of, are left open; what is settled without a log is settled."""
    world = {"brokers": frozenset({"a"}), "missing": frozenset({"b"})}

    assert verdicts_on([sent("b")], **world) == {(M, "payments"): "in flight"}
    assert verdicts_on([stub()], **world) == {(M, "payments"): "in flight"}
    assert verdicts_on([sent("a")], **world) == {(M, "payments"): "lost by the broker"}
    assert verdicts_on([sent("b"), record("a")], **world) == {(M, "payments"): "waiting"}
    settled = [sent("b", state=CONFIRMED), log(state=CONSUMED, broker="b")]
    assert verdicts_on(settled, **world) == {(M, "payments"): "settled"}
    unconfirmed = [sent("b", state=UNCONFIRMED), log(state=CONSUMED, broker="b")]
    assert verdicts_on(unconfirmed, **world) == {(M, "payments"): "in flight"}


_GROUPS = st.sampled_from(["payments", "loyalty", "audit"])
_IDS = st.integers(0, 12).map(message_id) | st.sampled_from(["A", "b", "0" * 32])
_STUBS = st.builds(
    lambda identity, required: event(STUB, identity, required=",".join(required)),
    *(_IDS, st.lists(_GROUPS, max_size=3)),
)
_LOGS = st.builds(
    lambda kind, identity, group, state: event(kind, identity, consumer_group=group, state=state),
    *(st.sampled_from([LOG, TOLD]), _IDS, _GROUPS, st.integers(0, 1)),
)
_RECORDS = st.builds(
    lambda identity, group, place: event(
        RECORD,
        identity,
        state=ROLES.index(DEAD if group else FIRST),
        consumer_group=group,
        log_offset=place,
        queue_id=0,
        queue_offset=place,
    ),
    *(_IDS, st.none() | _GROUPS, st.integers(0, 9)),
)


@settings(deadline=None, max_examples=15)
@given(st.lists(_STUBS | _LOGS | _RECORDS, max_size=40))
def test_the_verdicts_add_up_to_the_union_of_the_ledgers(events: list[dict[str, Any]]) -> None:
    """Given any events, then there is one verdict for each message and consumer group that any of
    them speaks of, one of the group "" for each message that none speaks of a group of, no other
    one; and each message is counted once. SQL says what the union is."""
    table = pa.Table.from_pylist(events, EVENTS)
    world = World(NOW, GRACE, NOW, frozenset({"orders"}))

    judged = judge(table, world)

    told = table.append_column("message", unpacked_ids(table["id"].combine_chunks()))
    connection = duckdb.connect()
    connection.register("told", told)
    union = connection.execute("""
        WITH spoken AS (
            SELECT DISTINCT message, unnest(string_split(required, ',')) AS name FROM told
            WHERE kind = 0 UNION SELECT message, consumer_group FROM told
            WHERE consumer_group IS NOT NULL)
        SELECT message, name FROM spoken
        UNION SELECT message, '' FROM told WHERE message NOT IN (SELECT message FROM spoken)
    """).fetchall()
    # SQL knows of no second stub: the oldest of several says which groups are required.
    stubs = [each["id"] for each in events if each["kind"] == STUB]
    if len(set(stubs)) == len(stubs):
        assert sorted(verdicts_of(judged)) == sorted(union)
    leads = [row["message_id"] for row in rows_of(judged) if row["is_lead"]]
    assert sorted(leads) == sorted({row["message_id"] for row in rows_of(judged)})
    assert set(leads) == set(told["message"].to_pylist())
    assert np.all(judged["record_copies"].to_numpy() >= 0)


@pytest.mark.parametrize(
    ("of_record", "count"), [(None, 1), (77, 0)], ids=["not unpacked", "unpacked"]
)
def test_what_was_not_held_against_its_stub_is_counted_once(
    of_record: int | None, count: int
) -> None:
    groups = event(STUB, M, required="payments,loyalty", crc=77)
    bodies = [record("", crc=of_record), record("", log_offset=2_000, crc=77)]
    other = event(RECORD, message_id(2), state=ROLES.index(FIRST), log_offset=9, queue_id=0)
    table = pa.Table.from_pylist([groups, *bodies, other], EVENTS)

    tally, sum_of_all = Tally(), Tally()
    tally.add_verdicts(judge(table, AROUND))
    sum_of_all.add_json(tally.to_json())

    assert sum_of_all.unchecked == count


def test_of_two_stubs_with_one_id_the_older_one_is_judged_and_the_other_one_told() -> None:
    """Given stubs of one id in two databases, then the message is judged by the older one, in
    whatever order they come, and the run knows that there is another one."""
    older = sent("", state=CONFIRMED)
    newer = stub(state=UNCONFIRMED, seen=LATER)
    consumed = log(state=CONSUMED)
    for events in ([older, newer], [newer, older]):
        judged = judge(pa.Table.from_pylist([*events, record(""), consumed], EVENTS), AROUND)
        (row,) = rows_of(judged)
        assert (row["verdict"], row["other_stub_create_date"]) == ("settled", LATER)
        twins = TwinIds()
        twins.add_data(json.loads(json.dumps(twins_in(judged).to_data())))
        assert twins.summary() == {"count": 1, "first": [M]}
        assert twins.invariants()
        assert (twins.flaw() or "").startswith("1 id belongs to two stubs")


def twins_in(judged: pa.Table) -> TwinIds:
    twins = TwinIds()
    twins.add(judged)
    return twins


def test_a_stub_that_was_copied_is_no_second_one_and_the_newer_copy_counts() -> None:
    """Given one row in two databases, one of which is behind, then what was changed last counts."""
    behind, now = stub(), sent("", state=CONFIRMED, changed=LATER)
    for stubs in ([behind, now], [now, behind]):
        events = [*stubs, record(""), log(state=CONSUMED)]
        judged = judge(pa.Table.from_pylist(events, EVENTS), AROUND)
        (row,) = rows_of(judged)
        assert (row["verdict"], row["other_stub_create_date"]) == ("settled", None)
        assert twins_in(judged).flaw() is None
