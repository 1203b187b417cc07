"""The consume log decides between owners; on every database."""

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from sqlalchemy import Connection, Row, event, select
from tests.waiting_database import until_somebody_waits

from reliable_mq.database.sql_database import Database
from reliable_mq.errors import ConfigurationError
from reliable_mq.idempotency.claim import ClaimStep
from reliable_mq.idempotency.sql_consume_log import LogEntry, LogLookup, SqlConsumeLog

LEASE = 10.0


class Log:
    def __init__(self, url: str) -> None:
        self.database = Database(url, prefix="rmq_", connections=4)
        self.database.create_tables()
        self.log = SqlConsumeLog(self.database.logs, self.database.dialect)
        self.engine = self.database.engine

    def receive(self, *entries: LogEntry, now: float = 100.0) -> list[LogLookup]:
        with self.engine.begin() as connection:
            answers = self.log.receive(connection, entries, now, LEASE)
        return [answers[entry.message_id] for entry in entries]

    def consume(self, entry: LogEntry, now: float = 101.0) -> bool:
        with self.engine.begin() as connection:
            return self.log.consume(connection, entry, now)

    def insert(self, *entries: LogEntry) -> set[str]:
        with self.engine.begin() as connection:
            return {
                entry.message_id
                for entry in entries
                if self.log.insert_consumed(connection, entry, 100.0)
            }

    def fail(self, entry: LogEntry, retry_at: float = 105.0) -> bool:
        with self.engine.begin() as connection:
            return self.log.fail(connection, entry, 101.0, retry_at)

    def rows(self) -> list[Row[tuple[object, ...]]]:
        with self.engine.begin() as connection:
            table = self.database.logs
            return list(connection.execute(select(table).order_by(table.c.message_id)).all())

    def rows_in(self, connection: Connection) -> list[str]:
        table = self.database.logs
        found = connection.execute(select(table.c.message_id).order_by(table.c.message_id))
        return list(found.scalars())

    def states(self) -> list[tuple[object, ...]]:
        return [(row.message_id, row.state, row.attempt, row.owner) for row in self.rows()]


def entry(name: str = "m", token: str = "one", group: str = "g", attempt: int = 1) -> LogEntry:
    return LogEntry(
        group=group,
        message_id=name,
        topic="t",
        broker_name="b",
        queue_id=3,
        offset=7,
        token=token,
        attempt=attempt,
    )


@pytest.fixture
def log(database_url: str) -> Iterator[Log]:
    made = Log(database_url)
    yield made
    made.database.close()


def test_a_row_is_inserted_once_per_group_and_message(log: Log) -> None:
    assert log.insert(entry("a"), entry("b")) == {"a", "b"}
    assert log.insert(entry("b", "two"), entry("c", "two")) == {"c"}
    assert log.insert(entry("a", "two")) == set()
    assert log.insert(entry("a", group="other")) == {"a"}


def test_the_second_owner_waits_for_the_first_commit_and_then_finds_the_row(
    database_url: str, log: Log
) -> None:
    if database_url.startswith("sqlite"):
        pytest.skip("SQLite has one writer at a time")
    inserted = threading.Event()

    def second() -> set[str]:
        inserted.wait(60)
        return log.insert(entry(token="two"))

    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(second)
        with log.engine.begin() as connection:
            log.log.insert_consumed(connection, entry(), 100.0)
            inserted.set()
            until_somebody_waits(log.database)
            assert not waiting.done()
        assert waiting.result(60) == set()


def test_a_row_that_is_removed_between_two_statements_is_made_anew(postgres_url: str) -> None:
    """As retention removes free business keys, which live by the same statements."""
    log = Log(postgres_url)
    log.receive(entry())
    log.fail(entry())
    looked: list[str] = []

    def remove(_connection: Connection, _cursor: Any, statement: str, *_: Any) -> None:
        if "FOR UPDATE" in statement and not looked:
            looked.append(statement)
            with log.engine.begin() as other:
                other.execute(log.database.logs.delete())

    event.listen(log.engine, "before_cursor_execute", remove)

    assert log.receive(entry(token="two")) == [LogLookup(ClaimStep.RECEIVE_FIRST)]
    assert looked
    assert log.states() == [("m", 0, 1, "two")]
    log.database.close()


def test_the_two_step_form_ends_in_one_consumed_row(log: Log) -> None:
    assert log.receive(entry()) == [LogLookup(ClaimStep.RECEIVE_FIRST, 1)]
    assert log.consume(entry())

    assert log.states() == [("m", 1, 1, "one")]


def test_a_live_attempt_keeps_others_away_for_the_rest_of_its_lease(log: Log) -> None:
    log.receive(entry(), now=100.0)

    (found,) = log.receive(entry(token="two"), now=104.0)

    assert (found.step, found.wait) == (ClaimStep.LATER, 6.0)
    assert log.states() == [("m", 0, 1, "one")]


def test_a_dead_attempt_is_taken_over_in_doubt_and_its_owner_can_write_no_more(log: Log) -> None:
    log.receive(entry(), now=100.0)

    assert log.receive(entry(token="two"), now=110.0) == [
        LogLookup(ClaimStep.RECEIVE_FIRST, 2, in_doubt=True)
    ]
    assert not log.consume(entry(token="one"))
    assert log.consume(entry(token="two"))
    assert log.states() == [("m", 1, 2, "two")]


def test_an_attempt_whose_lease_passed_may_still_finish_when_nobody_took_over(log: Log) -> None:
    log.receive(entry(), now=100.0)

    assert log.consume(entry(), now=500.0)


def test_a_failed_attempt_is_counted_and_free_for_the_next_without_doubt(log: Log) -> None:
    log.receive(entry())
    log.fail(entry())

    assert log.states() == [("m", 0, 1, None)]
    assert log.receive(entry(token="two")) == [LogLookup(ClaimStep.RECEIVE_FIRST, 2)]


def test_a_failure_that_never_had_a_row_gets_one(log: Log) -> None:
    assert log.fail(entry(attempt=1))

    assert log.states() == [("m", 0, 1, None)]


def test_what_was_said_of_the_last_attempt_is_found_again(log: Log) -> None:
    with log.engine.begin() as connection:
        assert log.log.last_reason(connection, entry("never")) == ""
        assert log.log.fail(connection, entry("plain"), 101.0, 105.0)
        assert log.log.last_reason(connection, entry("plain")) == ""
        assert log.log.fail(connection, entry("last"), 101.0, 105.0, "the key is another's")
        assert log.log.last_reason(connection, entry("last")) == "the key is another's"
        assert log.log.last_reason(connection, entry("last", group="other")) == ""


def test_a_failure_never_overwrites_a_consumed_row_or_anothers_attempt(log: Log) -> None:
    log.insert(entry("done"))
    log.receive(entry("taken", "two"))

    assert not log.fail(entry("done", "stale", attempt=9))
    assert not log.fail(entry("taken", "stale", attempt=9))

    assert log.states() == [("done", 1, 1, "one"), ("taken", 0, 1, "two")]


def test_the_number_redis_counted_is_kept_when_it_is_higher(log: Log) -> None:
    assert log.receive(entry(attempt=4)) == [LogLookup(ClaimStep.RECEIVE_FIRST, 4)]
    log.fail(entry(attempt=4))
    assert log.receive(entry(token="two", attempt=1))[0].attempt == 5


def test_a_commit_whose_answer_was_lost_may_be_asked_again(log: Log) -> None:
    log.receive(entry())

    assert log.receive(entry()) == [LogLookup(ClaimStep.RECEIVE_FIRST, 1)]


def test_a_batch_gets_an_answer_for_each(log: Log) -> None:
    log.insert(entry("a"))
    log.receive(entry("b", "two"))
    log.fail(entry("c"))

    steps = [found.step for found in log.receive(*(entry(name) for name in "abcd"))]

    assert steps == [
        ClaimStep.ACKNOWLEDGE,
        ClaimStep.LATER,
        ClaimStep.RECEIVE_FIRST,
        ClaimStep.RECEIVE_FIRST,
    ]


def test_a_renewed_lease_keeps_others_away_longer(log: Log) -> None:
    log.receive(entry(), now=100.0)
    with log.engine.begin() as connection:
        log.log.renew(connection, [entry(), entry(token="stale")], 200.0)

    assert log.receive(entry(token="two"), now=150.0)[0].wait == 50.0


def test_a_database_nobody_has_tried_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="oracle"):
        Database("oracle://u@h/d", prefix="rmq_", connections=1)
