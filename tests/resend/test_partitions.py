"""Days of stubs and logs in partitions of PostgreSQL: they go whole, when all of them may go."""

from collections.abc import Iterator
from datetime import UTC, datetime

import pytest
from sqlalchemy import insert, inspect, select, text, update
from tests.resend.watching import watched_retention

from reliable_mq import ReliableMQ
from reliable_mq.database.days import DAY_SECONDS, Day, day_in, day_of, days_over, wanted_days
from reliable_mq.database.sql_database import Database
from reliable_mq.database.sql_types import utc_datetime
from reliable_mq.errors import ConfigurationError
from reliable_mq.message import new_message_id
from reliable_mq.outbox.sql_stubs import SqlStubs
from reliable_mq.outbox.stub import Stub
from reliable_mq.retention.retention import Retention, RetentionCounts
from reliable_mq.retention.sql_keeping import partitions_of, retention_ledgers

DAY = float(DAY_SECONDS)
MONDAY = datetime(2026, 11, 16, tzinfo=UTC).timestamp()
KEPT, LOGGED = 7 * DAY, 30 * DAY


class Days:
    """A database with partitions, whose days begin on a Monday."""

    def __init__(self, url: str) -> None:
        self.database = Database(url, prefix="rmq_", connections=4, by_day=True)
        self.database.metadata.create_all(self.database.engine)
        self.partitions = partitions_of(self.database)
        self.partitions.ensure(MONDAY)
        self.stubs = SqlStubs(self.database.engine, self.database.stubs)

    def id_at(self, time: float) -> str:
        return new_message_id(int(time * 1000), b"0123456789")

    def message(
        self, time: float, *, status: int = 1, settled: float | None = None, identity: str = ""
    ) -> str:
        """Write a stub of a time, and the log of a group that consumed it at once."""
        at = time if settled is None else settled
        stub = Stub(seq=0, message_id=identity or self.id_at(time), topic="orders", content=b"x")
        table = self.database.stubs
        with self.database.engine.begin() as connection:
            self.stubs.insert(connection, [stub], "relay", time, 5.0)
            this = update(table).where(table.c.message_id == stub.message_id)
            connection.execute(this.values(status=status, update_date=utc_datetime(at)))
            connection.execute(
                insert(self.database.logs).values(
                    consumer_group="g",
                    message_id=stub.message_id,
                    topic="orders",
                    broker_name="b",
                    queue_id=0,
                    offset=1,
                    state=1,
                    attempt=1,
                    create_date=utc_datetime(time),
                    consume_date=utc_datetime(at),
                )
            )
        return stub.message_id

    def retention(self) -> Retention:
        return watched_retention(
            self.database,
            owner="one",
            stub_retention=KEPT,
            log_retention=LOGGED,
            days=self.partitions,
        )

    def tables(self) -> set[str]:
        names = inspect(self.database.engine).get_table_names()
        return {name.removeprefix("rmq_") for name in names if "_d20" in name}

    def count(self, of: str = "stubs") -> int:
        table = self.database.stubs if of == "stubs" else self.database.logs
        with self.database.engine.begin() as connection:
            return len(connection.execute(select(table.c.message_id)).all())


@pytest.fixture
def days(postgres_url: str) -> Iterator[Days]:
    made = Days(postgres_url)
    yield made
    made.database.close()


def test_a_day_goes_whole_when_its_window_is_over_and_its_logs_when_theirs_is(days: Days) -> None:
    for hour in range(3):
        days.message(MONDAY + 3600.0 * hour)
    days.message(MONDAY + DAY)
    assert "message_stub_d20261116" in days.tables()

    over = MONDAY + DAY + KEPT
    assert days.retention().run_once(over - 1.0).days == 0
    assert days.retention().run_once(over) == RetentionCounts(days=1)
    assert (days.count(), days.count("logs")) == (1, 4)
    assert "message_stub_d20261116" not in days.tables()
    assert "message_stub_d20261127" in days.tables()  # days ahead are made meanwhile
    assert retention_ledgers(days.database).removed_until() == (MONDAY + DAY, None)

    assert days.retention().run_once(MONDAY + DAY + LOGGED).days > 1
    assert retention_ledgers(days.database).removed_until()[1] == MONDAY + DAY
    assert days.count("logs") == 1  # of Tuesday
    assert "consume_log_d20261116" not in days.tables()


@pytest.mark.parametrize("status", [0, 3])
def test_a_day_with_a_stub_that_is_not_settled_stays_and_gives_up_the_others_row_by_row(
    days: Days,
    status: int,
) -> None:
    days.message(MONDAY)
    days.message(MONDAY + 1.0, status=status)
    late = days.message(MONDAY + 2.0, settled=MONDAY + 3 * DAY)

    assert days.retention().run_once(MONDAY + DAY + KEPT) == RetentionCounts()
    assert days.retention().run_once(MONDAY + 3 * DAY + KEPT).stubs == 1
    assert days.count() == 2
    with days.database.engine.begin() as connection:
        table = days.database.stubs
        waiting = update(table).where(table.c.message_id != late)
        connection.execute(waiting.values(status=1, update_date=utc_datetime(MONDAY + DAY)))
    assert days.retention().run_once(MONDAY + 3 * DAY + KEPT + 601.0).days == 1
    assert days.count() == 0


def test_a_day_stays_with_a_stub_whose_message_is_still_to_arrive(days: Days) -> None:
    late = days.message(MONDAY)
    table = days.database.stubs
    with days.database.engine.begin() as connection:
        this = update(table).where(table.c.message_id == late)
        connection.execute(this.values(deliver_time=utc_datetime(MONDAY + 3 * DAY)))

    assert days.retention().run_once(MONDAY + DAY + KEPT) == RetentionCounts()
    assert days.count() == 1
    assert days.retention().run_once(MONDAY + 3 * DAY + KEPT + 1.0).days >= 1
    assert days.count() == 0


def test_a_log_whose_stub_is_there_keeps_its_day(days: Days) -> None:
    days.message(MONDAY, status=0)

    days.retention().run_once(MONDAY + DAY + LOGGED)

    assert (days.count(), days.count("logs")) == (1, 1)


def test_ids_of_no_day_are_kept_apart_and_their_rows_removed(days: Days) -> None:
    days.message(MONDAY, identity="order-000000000000000000000000-7")
    days.message(MONDAY - 40 * DAY)

    counts = days.retention().run_once(MONDAY + 3 * DAY + KEPT)

    assert counts.stubs == 2
    assert days.count() == 0


def test_the_key_of_a_message_stays_one_over_all_days(days: Days) -> None:
    days.message(MONDAY)

    with pytest.raises(Exception, match="duplicate key"):
        days.message(MONDAY)


def test_a_day_that_somebody_writes_to_at_this_moment_waits_for_the_next_sweep(days: Days) -> None:
    stub = days.message(MONDAY)
    with days.database.engine.begin() as other:
        table = days.database.stubs
        other.execute(update(table).where(table.c.message_id == stub).values(status=0))
        assert days.retention().run_once(MONDAY + DAY + KEPT) == RetentionCounts()
    assert days.retention().run_once(MONDAY + DAY + KEPT).days == 0
    assert days.count() == 1


def test_a_partition_for_which_it_is_too_late_is_left_to_everything_else(days: Days) -> None:
    days.message(MONDAY + 10 * DAY)

    made = days.partitions.ensure(MONDAY + 10 * DAY)

    assert "rmq_message_stub_d20261126" not in made
    assert "rmq_message_stub_d20261127" in made
    assert days.partitions.ensure(MONDAY + 10 * DAY) == []


def test_an_application_runs_on_partitions(postgres_url: str) -> None:
    mq = ReliableMQ("shop", database=postgres_url, retention="partitions", broker="127.0.0.1:9")
    mq.create_tables()
    mq.databases.check_tables()
    with mq.transaction() as tx:
        ids = [tx.send("orders", {"id": number}) for number in range(3)]
    with mq.database.engine.begin() as connection:
        rows = connection.execute(text("SELECT tableoid::regclass::text FROM rmq_message_stub"))
        assert set(rows.scalars()) == {day_of(mq.database.clock.now()).table("rmq_message_stub")}
        kept = connection.execute(select(mq.database.stubs.c.message_id)).scalars()
        assert sorted(kept) == sorted(ids)
    mq.close()


def test_tables_without_partitions_are_told_from_those_that_have_some(postgres_url: str) -> None:
    plain = Database(postgres_url, prefix="rmq_", connections=1)
    plain.create_tables()
    mq = ReliableMQ("shop", database=postgres_url, retention="partitions")

    with pytest.raises(ConfigurationError, match="needs a partitioned table rmq_message_stub"):
        mq.create_tables()
    with pytest.raises(ConfigurationError, match="needs a partitioned table rmq_message_stub"):
        mq.databases.check_tables()
    with pytest.raises(ConfigurationError, match="is for PostgreSQL"):
        _ = ReliableMQ("shop", database="sqlite:///x.db", retention="partitions").database
    mq.close()
    plain.close()


def test_days_are_known_by_name_and_by_the_ids_in_them() -> None:
    monday = day_of(MONDAY)
    low, high = monday.bounds

    assert monday.table("rmq_message_stub") == "rmq_message_stub_d20261116"
    assert day_in("rmq_message_stub_d20261116", "rmq_message_stub") == monday
    for name in ("rmq_message_stub_default", "rmq_message_stub_d20261399", "other_d20261116"):
        assert day_in(name, "rmq_message_stub") is None
    assert low <= new_message_id(int(MONDAY * 1000), bytes(10)) < high
    assert new_message_id(int((MONDAY + DAY) * 1000), bytes(10)) >= high
    assert [day.number - monday.number for day in wanted_days(MONDAY)] == [0, 1, 2, 3]
    assert days_over([Day(2), Day(1), Day(3)], Day(2).ends) == [Day(1), Day(2)]
