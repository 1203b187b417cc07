"""What a consume log owes other databases: its rows are the outbox of the notices."""

from collections.abc import Iterator

import pytest
from sqlalchemy import select

from reliable_mq.confirm.sql_owed_notices import OwedNotice, SqlNotices, owed_of
from reliable_mq.database.sql_database import Database
from reliable_mq.idempotency.sql_consume_log import LogEntry, SqlConsumeLog

TOPIC = "rmq_notices_0123456789abcdef"
A, B, C = "A" * 32, "B" * 32, "C" * 32


class Books:
    def __init__(self, url: str) -> None:
        self.database = Database(url, prefix="rmq_", connections=2)
        self.database.create_tables()
        self.log = SqlConsumeLog(self.database.logs, self.database.dialect)
        self.notices = SqlNotices(self.database.engine, self.database.logs)

    def consume(self, *names: str, now: float = 100.0, topic: str = TOPIC) -> list[LogEntry]:
        entries = [entry(name, topic) for name in names]
        with self.database.engine.begin() as connection:
            assert self.log.insert_all_consumed(connection, entries, now)
        return entries

    def fail(self, name: str, *, attempt: int = 1, now: float = 100.0, note: str = "") -> None:
        failing = entry(name, TOPIC, attempt)
        with self.database.engine.begin() as connection:
            assert self.log.fail(connection, failing, now, now + 60.0, note)

    def row(self, name: str) -> tuple[int, bool, str | None]:
        """Return attempt, whether a notice is owed, and the note."""
        log = self.database.logs.c
        wanted = select(log.attempt, log.confirm_time, log.note).where(log.message_id == name)
        with self.database.engine.begin() as connection:
            attempt, at, note = connection.execute(wanted).one()
        return attempt, at is not None, note


def entry(name: str, topic: str = TOPIC, attempt: int = 1) -> LogEntry:
    return LogEntry(
        group="payments",
        message_id=name,
        topic="orders",
        broker_name="broker-a",
        queue_id=1,
        offset=7,
        token="token",
        attempt=attempt,
        confirm_to=topic,
    )


@pytest.fixture
def books(database_url: str) -> Iterator[Books]:
    made = Books(database_url)
    yield made
    made.database.close()


def test_what_was_consumed_is_owed_to_its_consumer_first_and_to_anybody_later(books: Books) -> None:
    books.consume(A, B)

    assert books.notices.claim(104.9, 10) == []
    assert books.notices.claim(105.1, 10) == [
        OwedNotice(TOPIC, "payments", A, attempt=1),
        OwedNotice(TOPIC, "payments", B, attempt=1),
    ]


def test_what_was_claimed_is_nobody_elses_until_it_is_due_again(books: Books) -> None:
    books.consume(A)

    assert len(books.notices.claim(106.0, 10)) == 1
    assert books.notices.claim(106.0, 10) == []
    assert len(books.notices.claim(111.1, 10)) == 1


def test_what_was_told_is_owed_no_more(books: Books) -> None:
    entries = books.consume(A, B)

    books.notices.record_acknowledged([owed_of(entries[0])])

    assert [owed.message_id for owed in books.notices.claim(200.0, 10)] == [B]
    assert books.row(A) == (1, False, None)


def test_a_batch_with_messages_of_this_database_owes_only_for_the_others(books: Books) -> None:
    entries = [entry(A, TOPIC), entry(B, "")]
    with books.database.engine.begin() as connection:
        assert books.log.insert_all_consumed(connection, entries, 100.0)

    assert [owed.message_id for owed in books.notices.claim(200.0, 10)] == [A]


def test_the_two_step_form_owes_the_same(books: Books) -> None:
    with books.database.engine.begin() as connection:
        books.log.receive(connection, [entry(A)], 100.0, 30.0)
    assert books.notices.claim(200.0, 10) == []
    with books.database.engine.begin() as connection:
        assert books.log.consume(connection, entry(A), 101.0)

    assert books.notices.claim(106.1, 10) == [OwedNotice(TOPIC, "payments", A, attempt=1)]


def test_a_failure_is_owed_at_once_with_the_time_of_the_next_attempt(books: Books) -> None:
    books.fail(A)
    books.fail(B, note="no such customer")

    first, second = books.notices.claim(100.0, 10)

    assert first == OwedNotice(TOPIC, "payments", A, is_consumed=False, attempt=1, retry_at=160.0)
    assert (second.message_id, second.note) == (B, "no such customer")


def test_telling_of_an_attempt_settles_no_later_ones_notice(books: Books) -> None:
    """Between claim and acknowledgement the next attempt may fail, or succeed."""
    books.fail(A, attempt=1)
    books.fail(B, attempt=1)
    old = books.notices.claim(100.0, 10)
    books.fail(A, attempt=2, now=100.5)
    with books.database.engine.begin() as connection:
        books.log.receive(connection, [entry(B)], 100.5, 30.0)
        assert books.log.consume(connection, entry(B, attempt=2), 101.0)

    books.notices.record_acknowledged(old)

    assert {owed.message_id for owed in books.notices.claim(200.0, 10)} == {A, B}


def test_attempts_begin_anew_only_where_the_end_of_the_old_ones_was_told(books: Books) -> None:
    for name, note in ((A, "given up"), (B, ""), (C, "given up")):
        books.fail(name, attempt=16, note=note)
    books.notices.record_acknowledged(
        [each for each in books.notices.claim(100.0, 10) if each.message_id in (A, B)]
    )

    with books.database.engine.begin() as connection:
        books.notices.reset_attempts(connection, "payments", [A, B, C])

    assert books.row(A) == (0, False, None)
    assert books.row(B) == (16, False, None)  # it has attempts left, by its own count
    assert books.row(C) == (16, True, "given up")
