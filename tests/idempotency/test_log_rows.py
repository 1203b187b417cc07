"""The columns of a consume log's row, after each step of an attempt."""

from collections.abc import Iterator, Sequence
from typing import Any

import msgspec
import pytest
from tests.idempotency.test_sql_consume_log import LEASE, Log, entry

from reliable_mq.database.attempt_list import AttemptEnd, line_of
from reliable_mq.database.sql_types import utc_datetime
from reliable_mq.idempotency.claim import ClaimStep
from reliable_mq.idempotency.sql_consume_log import NOTICE_LEASE_SECONDS, LogEntry, LogLookup

TOPIC = "rmq_notices_0123456789abcdef"
AT = utc_datetime(100.0)
NOTHING: dict[str, Any] = dict.fromkeys(
    (
        *("lease_until", "consume_date", "confirm_to", "confirm_time", "note", "duplicate_of"),
        *("failure", "failures"),
    )
)
NEW = NOTHING | {
    "consumer_group": "g",
    "message_id": "m",
    "topic": "t",
    "broker_name": "b",
    "queue_id": 3,
    "offset": 7,
    "attempt": 1,
    "owner": "one",
    "create_date": AT,
    "in_doubt": False,
}


@pytest.fixture
def log(database_url: str) -> Iterator[Log]:
    made = Log(database_url)
    yield made
    made.database.close()


def told(of: LogEntry) -> LogEntry:
    return msgspec.structs.replace(of, confirm_to=TOPIC)


def doubtful(of: LogEntry) -> LogEntry:
    return msgspec.structs.replace(of, in_doubt=True)


def the_row(log: Log) -> dict[str, Any]:
    (row,) = log.rows()
    return dict(row._mapping)


def consumed_all(log: Log, *entries: LogEntry) -> bool:
    with log.engine.begin() as connection:
        return log.log.insert_all_consumed(connection, entries, 100.0)


def test_a_row_of_the_hot_path(log: Log) -> None:
    log.insert(entry())
    assert the_row(log) == NEW | {"state": 1, "consume_date": AT}


def test_a_row_of_an_attempt_that_has_begun(log: Log) -> None:
    assert log.receive(entry()) == [LogLookup(ClaimStep.RECEIVE_FIRST, 1, False)]
    assert the_row(log) == NEW | {"state": 0, "lease_until": utc_datetime(100.0 + LEASE)}


def test_a_doubt_that_redis_knows_is_written_down(log: Log) -> None:
    assert log.receive(doubtful(entry(attempt=3)))[0] == LogLookup(ClaimStep.RECEIVE_FIRST, 3, True)
    row = the_row(log)
    assert (row["in_doubt"], row["attempt"]) == (True, 3)


def test_a_row_of_an_attempt_that_consumed(log: Log) -> None:
    log.receive(entry())
    assert log.consume(entry())
    assert the_row(log) == NEW | {"state": 1, "consume_date": utc_datetime(101.0)}
    assert not log.consume(entry()), "it is consumed once"


def test_a_row_of_an_attempt_that_failed(log: Log) -> None:
    log.receive(entry())
    with log.engine.begin() as connection:
        assert log.log.fail(connection, entry(), 101.0, 160.0, "no card")
    changed = {"owner": None, "lease_until": utc_datetime(160.0), "note": "no card"}
    changed["failures"] = line_of(1, 101.0, AttemptEnd.FAILED, "no card")
    assert the_row(log) == NEW | {"state": 0} | changed


def test_a_failure_without_a_row_before_writes_one(log: Log) -> None:
    with log.engine.begin() as connection:
        assert log.log.fail(connection, doubtful(entry(attempt=4)), 100.0, 160.0)
    changed = {"owner": None, "lease_until": utc_datetime(160.0), "attempt": 4, "in_doubt": True}
    listed = {"failures": line_of(4, 100.0, AttemptEnd.FAILED, "")}
    assert the_row(log) == NEW | {"state": 0} | changed | listed


def test_a_doubt_survives_failures_that_know_of_none(log: Log) -> None:
    log.receive(doubtful(entry()))
    assert log.fail(entry())
    assert the_row(log)["in_doubt"] is True
    assert log.receive(entry(token="two"))[0].in_doubt


@pytest.mark.parametrize("at_once", [False, True])
def test_a_notice_is_its_consumers_for_a_while_and_anybodys_then(log: Log, at_once: bool) -> None:
    until = utc_datetime(100.0 + NOTICE_LEASE_SECONDS)
    owed, own = told(entry()), entry("own")
    if at_once:
        assert consumed_all(log, owed, own)
    else:
        assert log.insert(owed, own) == {"m", "own"}
    first, second = (row._mapping for row in log.rows())
    assert (first["confirm_to"], first["confirm_time"]) == (TOPIC, until)
    assert (second["confirm_to"], second["confirm_time"]) == (None, None)


def test_the_two_step_form_owes_a_notice_when_it_consumes(log: Log) -> None:
    log.receive(told(entry()))
    assert the_row(log)["confirm_time"] is None
    assert log.consume(told(entry()))
    row = the_row(log)
    until = utc_datetime(101.0 + NOTICE_LEASE_SECONDS)
    assert (row["confirm_to"], row["confirm_time"]) == (TOPIC, until)


def test_a_failure_owes_a_notice_at_once(log: Log) -> None:
    assert log.fail(told(entry()))
    row = the_row(log)
    assert (row["confirm_to"], row["confirm_time"]) == (TOPIC, utc_datetime(101.0))


def test_an_attempt_that_does_not_count_is_taken_back(log: Log) -> None:
    log.receive(entry(attempt=2))
    for who in ("two", "one"):
        with log.engine.begin() as connection:
            log.log.release(connection, entry(token=who), 130.0)
        assert the_row(log)["attempt"] == (2 if who == "two" else 1)
    row = the_row(log)
    assert (row["owner"], row["lease_until"], row["state"]) == (None, utc_datetime(130.0), 0)


def test_a_row_that_a_handler_committed_too_early_is_taken_back_by_its_attempt_alone(
    log: Log,
) -> None:
    log.insert(entry(), entry("other"))
    with log.engine.begin() as connection:
        assert log.log.has_consumed(connection, entry())
        assert not log.log.has_consumed(connection, entry(token="two"))
        log.log.take_back(connection, entry(token="two"))
        assert len(log.rows_in(connection)) == 2
        log.log.take_back(connection, entry())
        assert log.rows_in(connection) == ["other"]
        log.log.receive(connection, [entry()], 100.0, LEASE)
        log.log.take_back(connection, entry())
        assert log.rows_in(connection) == ["m", "other"], "an attempt that runs is left"
        assert not log.log.has_consumed(connection, entry())


def look(log: Log, *entries: LogEntry, now: float = 100.0) -> list[LogLookup | None]:
    with log.engine.begin() as connection:
        return [log.log.found(connection, each, now) for each in entries]


def test_a_look_changes_nothing_and_tells_the_next_step(log: Log) -> None:
    assert look(log, entry()) == [None]
    log.receive(entry())
    log.insert(entry("done"))
    before = log.rows()
    later = LogLookup(ClaimStep.LATER, 2, False, wait=6.0)
    assert look(log, entry(token="two"), now=104.0) == [later]
    assert look(log, entry(), now=104.0) == [LogLookup(ClaimStep.RECEIVE_FIRST, 1)]
    dead = LogLookup(ClaimStep.RECEIVE_FIRST, 2, True)
    assert look(log, entry(token="two"), now=110.0) == [dead]
    (done,) = look(log, entry("done", token="two"))
    assert done is not None
    assert done.step is ClaimStep.ACKNOWLEDGE
    assert log.rows() == before


def test_which_of_many_messages_are_consumed(log: Log) -> None:
    log.insert(entry("a"), entry("b", group="other"))
    log.receive(entry("c"))
    with log.engine.begin() as connection:
        asked = [entry(name) for name in "abcd"]
        assert log.log.consumed(connection, asked) == {"a"}
        assert log.log.consumed(connection, []) == set()


def receive(log: Log, *names: str, last: int = 0, now: float = 200.0) -> dict[str, ClaimStep]:
    entries: Sequence[LogEntry] = [entry(name, token="two") for name in names]
    with log.engine.begin() as connection:
        found = log.log.receive(connection, entries, now, LEASE, last)
    return {name: lookup.step for name, lookup in found.items()}


def test_a_message_that_may_have_killed_its_owner_is_received_without_others(log: Log) -> None:
    """In a batch it is not taken over. On its last attempt it must be alone in its process."""
    log.receive(entry("dead"))
    first = ClaimStep.RECEIVE_FIRST
    assert receive(log, "dead", "new") == {"dead": ClaimStep.SINGLY, "new": first}
    assert log.rows()[0].owner == "one", "it was not taken over"
    assert receive(log, "dead", last=2) == {"dead": ClaimStep.ALONE}
    assert receive(log, "dead", "other", last=2) == {"dead": ClaimStep.ALONE, "other": first}
    assert log.rows()[0].owner == "one"
    assert receive(log, "dead", last=3) == {"dead": first}
    row = log.rows()[0]
    assert (row.owner, row.attempt, row.in_doubt) == ("two", 2, True)
    assert row.lease_until == utc_datetime(200.0 + LEASE)


def test_a_message_that_failed_is_received_with_others_also_on_its_last_attempt(log: Log) -> None:
    log.fail(entry("failed"))
    first = ClaimStep.RECEIVE_FIRST
    assert receive(log, "failed", "new", last=2) == {"failed": first, "new": first}
    assert log.rows()[0].owner == "two"


def test_a_batch_with_a_row_that_exists_is_not_whole(log: Log) -> None:
    log.insert(entry("b"))
    assert not consumed_all(log, entry("a"), entry("b"))
    assert consumed_all(log, entry("c"), entry("d"))
    assert not consumed_all(log, entry("d"))
    assert consumed_all(log, entry("e"))
