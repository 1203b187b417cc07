"""The facts of the decision table at their edges: moments, offsets, and later attempts."""

from datetime import timedelta
from typing import Any

import pytest
from tests.reconcile.ledgers import GRACE, LONG_AGO, NOW
from tests.reconcile.one_message import OTHER, M, after, judged, log, record, stub

from reliable_mq.reconcile.brokers.log_roles import DEAD, DELAYED, RETRY, RETRY_DELAYED
from reliable_mq.reconcile.judgement.events import RECEIVED, TELLS

TICK = timedelta(microseconds=1)
SLACK = timedelta(seconds=30)
GROUP = {"consumer_group": "payments", "queue_topic": "%RETRY%payments"}


def fact(name: str, *events: dict[str, Any], **world: Any) -> str:
    """Return the fact of the only row."""
    (row,) = judged(*events, **world)
    return str(row[f"fact_{name}"])


@pytest.mark.parametrize("slack", [timedelta(0), SLACK])
@pytest.mark.parametrize("column", ["seen", "until"])
def test_a_message_is_fresh_until_the_grace_time_has_passed(column: str, slack: timedelta) -> None:
    """It counts from the creation of the stub, or from its deliver time if that is later."""
    edge = NOW - GRACE - slack
    world = {"slack": slack, "moving_since": NOW}
    assert fact("age", stub(**{column: edge}), **world) == "old"
    assert fact("age", stub(**{column: edge + TICK}), **world) == "fresh"


def test_without_a_stub_the_time_of_the_message_counts() -> None:
    edge = NOW - GRACE
    for born, age in ((edge, "old"), (edge + TICK, "fresh")):
        orphan = record(identity="a name", changed=born)
        assert fact("age", orphan, moving_since=NOW) == age


@pytest.mark.parametrize(
    ("of", "column", "counts"),
    [
        (stub, "changed", True),
        (log, "seen", True),
        (log, "changed", True),
        (record, "seen", True),
        (record, "changed", False),
        (record, "until", False),
        (log, "until", False),
    ],
)
def test_what_changed_while_the_ledgers_were_read_is_fresh(
    of: Any, column: str, counts: bool
) -> None:
    edge = NOW - timedelta(seconds=5)
    for moment, is_fresh in ((edge - TICK, False), (edge, counts), (edge + TICK, counts)):
        told = {"seen": LONG_AGO} | {column: moment}
        others = [make() for make in (stub, log, record) if make is not of]
        assert (fact("age", of(**told), *others) == "fresh") == is_fresh


def test_a_confirmation_from_another_database_has_the_grace_time() -> None:
    edge = NOW - GRACE
    for moment, marks, age in (
        (edge, TELLS, "old"),
        (edge + TICK, TELLS, "fresh"),
        (edge + TICK, 0, "old"),
    ):
        consumed = log(changed=moment, marks=marks)
        assert fact("age", stub(), record(), consumed, moving_since=NOW) == age


@pytest.mark.parametrize("slack", [timedelta(0), SLACK])
def test_a_delayed_record_is_overdue_when_its_time_and_the_grace_time_have_passed(
    slack: timedelta,
) -> None:
    edge = NOW - GRACE - slack
    for due, said in ((edge - TICK, "overdue"), (edge, "delayed"), (edge + TICK, "delayed")):
        assert fact("record", stub(), record(DELAYED, until=due), slack=slack) == said
    two = [record(DELAYED, until=due, log_offset=at) for at, due in enumerate((LONG_AGO, NOW))]
    assert fact("record", stub(), *two) == "delayed"
    assert fact("record", stub(), *two, record()) == "present"


@pytest.mark.parametrize("slack", [timedelta(0), SLACK])
def test_a_lease_is_live_until_its_end_by_every_clock(slack: timedelta) -> None:
    edge = NOW - slack
    for until, said in ((edge, "dead"), (edge + TICK, "live"), (None, "dead")):
        running = log(state=RECEIVED, changed=None, until=until)
        assert fact("log", stub(), record(), running, slack=slack) == said


def test_a_message_has_expired_when_its_queue_begins_behind_it() -> None:
    for begin, said in ((4, "absent"), (5, "absent"), (6, "expired")):
        begins = {("a", "orders"): {3: begin, 0: 99}, ("b", "orders"): {3: 99}}
        assert fact("record", stub(), begins=begins) == said
    assert fact("record", stub(), begins={("a", "orders"): {0: 99}}) == "absent"
    assert fact("record", stub(), begins={("a", "elsewhere"): {3: 99}}) == "absent"
    assert fact("record", stub(queue_id=-1), begins={("a", "orders"): {-1: 99}}) == "absent"
    never = stub(queue_offset=None, queue_id=None, broker=None)
    assert fact("record", never, begins={("", ""): {0: 99}}) == "absent"
    assert fact("record", stub(), record(), begins={("a", "orders"): {3: 99}}) == "present"


@pytest.mark.parametrize("slack", [timedelta(0), SLACK])
def test_a_delayed_message_has_expired_when_its_time_is_before_the_first_record(
    slack: timedelta,
) -> None:
    oldest = {"a": LONG_AGO, "b": NOW}
    edge = LONG_AGO + slack
    for due, said in ((edge - TICK, "expired"), (edge, "absent")):
        assert fact("record", stub(until=due), oldest=oldest, slack=slack) == said
    unsent = {"queue_offset": None}
    assert fact("record", stub(until=edge - TICK, **unsent), oldest=oldest) == "absent"
    assert fact("record", stub(until=edge - TICK), oldest={"b": NOW}) == "absent"


def test_a_group_has_passed_what_lies_before_its_offset() -> None:
    def progress(**offsets: Any) -> dict[str, Any]:
        return {"progress": {("a", "payments", "orders"): {3: 9, **offsets.get("more", {})}}}

    for done, said in ((4, "behind"), (5, "behind"), (6, "passed")):
        world = {"progress": {("a", "payments", "orders"): {3: done}}}
        assert fact("progress", stub(), record(), **world) == said
    assert fact("progress", stub(), **progress()) == "behind", "it is in no log"
    elsewhere = record(log_offset=2_000, queue_id=4)
    assert fact("progress", stub(), record(), elsewhere, **progress()) == "behind"
    assert fact("progress", stub(), record(), elsewhere, **progress(more={4: 6})) == "passed"
    first = record(queue_offset=0)
    assert fact("progress", stub(queue_offset=0), first) == "behind", "no offset is known"


def test_an_unknown_broker_is_the_one_without_a_name() -> None:
    for brokers, said in ((frozenset({""}), "passed"), (frozenset({"a", ""}), "behind")):
        progress = {("", "payments", "orders"): {3: 9}}
        assert fact("progress", stub(), record(), brokers=brokers, progress=progress) == said


@pytest.mark.parametrize(("done", "said"), [(4, "waiting"), (5, "waiting"), (6, "none")])
def test_a_retry_waits_until_its_group_has_passed_it(done: int, said: str) -> None:
    progress = {
        ("a", "payments", "%RETRY%payments"): {3: done},
        ("a", "payments", "orders"): {3: 99},
    }
    retry = record(RETRY, log_offset=2_000, **GROUP)
    assert fact("retry", stub(), record(), retry, progress=progress) == said


def test_a_delayed_retry_waits_until_its_time_and_the_grace_time_have_passed() -> None:
    edge = NOW - GRACE
    for due, said in ((edge - TICK, "none"), (edge, "waiting"), (edge + TICK, "waiting")):
        later = record(RETRY_DELAYED, log_offset=2_000, until=due, tries=1, **GROUP)
        assert fact("retry", stub(), record(), later) == said


@pytest.mark.parametrize(
    ("retry", "said"),
    [
        ({"log_offset": 2_001, "tries": 1}, "none"),
        ({"log_offset": 1_999, "tries": 1}, "waiting"),
        ({"log_offset": 2_001, "tries": 2}, "waiting"),
        ({"log_offset": 2_001, "tries": 1, "broker": "b"}, "waiting"),
    ],
)
def test_a_delayed_retry_has_become_one_when_the_same_attempt_follows_in_its_log(
    retry: dict[str, Any], said: str
) -> None:
    later = record(RETRY_DELAYED, log_offset=2_000, until=NOW, tries=1, **GROUP)
    progress = {(broker, "payments", "%RETRY%payments"): {3: 99} for broker in ("a", "b")}
    became = record(RETRY, **GROUP | retry)
    assert fact("retry", stub(), record(), later, became, progress=progress) == said


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ([], "dead"),
        ([record(log_offset=3_001)], "none"),
        ([record(log_offset=2_999)], "dead"),
        ([record(log_offset=1, broker="b", seen=after(10))], "none"),
        ([record(log_offset=9_999, broker="b", seen=after(8))], "dead"),
        ([record(RETRY, log_offset=3_001, **GROUP)], "none"),
        ([record(RETRY, log_offset=2_999, **GROUP)], "dead"),
        ([record(RETRY, log_offset=3_001, broker="b", **GROUP)], "dead"),
        ([record(log_offset=3_001, identity=OTHER)], "dead"),
    ],
)
def test_a_dead_letter_is_the_end_unless_a_later_attempt_follows(
    more: list[dict[str, Any]], said: str
) -> None:
    """In one log the offsets tell what is later. In the logs of two brokers store times do."""
    dead = record(DEAD, log_offset=3_000, seen=after(9), consumer_group="payments")
    progress = {(broker, "payments", "%RETRY%payments"): {3: 99} for broker in ("a", "b")}
    rows = judged(stub(), stub(OTHER), record(), dead, *more, progress=progress)
    assert [row["fact_retry"] for row in rows if row["message_id"] == M] == [said]


def test_the_groups_that_gave_a_message_up_are_read_from_the_stub() -> None:
    """It says so also when the dead letter has left the log, and when a retry still waits."""
    gave_up = stub(required="payments,audit,loyalty", reason="audit,payments")
    waits = record(RETRY, log_offset=2_000, **GROUP | {"consumer_group": "loyalty"})
    rows = judged(gave_up, stub(OTHER, reason="audit"), record(), waits)
    found = {(row["message_id"], row["consumer_group"]): row["fact_retry"] for row in rows}
    assert found == {
        (M, "audit"): "dead",
        (M, "loyalty"): "waiting",
        (M, "payments"): "dead",
        (OTHER, "payments"): "none",
    }
    own = record(RETRY, log_offset=2_000, **GROUP)
    assert fact("retry", stub(reason="payments"), record(), own) == "dead"


@pytest.mark.parametrize(
    ("events", "said"),
    [
        ([stub(broker="b")], "unknown"),
        ([stub(broker="c")], "absent"),
        ([stub(queue_offset=None, broker=None)], "unknown"),
        ([stub(queue_offset=None, broker=None), log(broker="b")], "unknown"),
        ([stub(queue_offset=None, broker=None), log(broker="a")], "absent"),
        ([stub(broker="b"), record()], "present"),
    ],
)
def test_a_record_is_unknown_when_the_log_that_may_have_it_was_not_read(
    events: list[dict[str, Any]], said: str
) -> None:
    assert fact("record", *events, missing=frozenset({"b"})) == said
    if said == "unknown":
        assert fact("record", *events) == "absent"


def test_managed_are_the_topics_of_the_world() -> None:
    for topic, said in (("orders", "managed"), ("weather", "unmanaged"), (None, "unmanaged")):
        assert fact("topic", record(topic=topic)) == said


def test_other_columns_of_a_stub_do_not_make_two_of_one() -> None:
    """Two stubs with one id are two messages when they were created at different times."""
    for seen, other in ((LONG_AGO, None), (after(1), after(1))):
        (row,) = judged(stub(), stub(seen=seen, changed=after(7), tries=8))
        assert row["other_stub_create_date"] == other
    (row,) = judged(stub(seen=after(3)), stub(seen=after(2)), stub(), stub(OTHER))[:1]
    assert row["other_stub_create_date"] == after(2)
