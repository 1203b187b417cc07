"""What is settled and past every window is removed and nothing else, whoever dies (P7)."""

import traceback
from collections.abc import Iterator
from typing import Any

import pytest
from sqlalchemy import event, insert, select, text, update
from tests.app.kill_switch import Killed, KillSwitch
from tests.resend.retained_ledgers import CONFIRMED, LOGGED, UNCONFIRMED, VOIDED, Ledgers
from tests.resend.watching import watched_reading

from reliable_mq.database.sql_types import utc_datetime
from reliable_mq.errors import ConfigurationError
from reliable_mq.escalate.sql_settlement import operator_actions_of
from reliable_mq.retention.retention import Retention, RetentionCounts
from reliable_mq.retention.thread_retention import IDLE_SECONDS, pause_after

OLD = "to_timestamp(5000 + i) FROM generate_series(1, 20000) i"
STUB_COLUMNS = "message_id, topic, content, status, create_date, update_date"
LOG_COLUMNS = (
    'consumer_group, message_id, topic, broker_name, queue_id, "offset", state, attempt,'
    " create_date, consume_date"
)
OLD_STUB = f"SELECT lpad(i::text, 32, '0'), 't', '', 1, now(), {OLD}"
OLD_LOG = f"SELECT 'g', lpad(i::text, 32, 'f'), 't', 'b', 0, i, 1, 1, now(), {OLD}"
FILLED = (
    f"INSERT INTO rmq_message_stub ({STUB_COLUMNS}) {OLD_STUB}",
    f"INSERT INTO rmq_consume_log ({LOG_COLUMNS}) {OLD_LOG}",
)


@pytest.fixture
def ledgers(database_url: str) -> Iterator[Ledgers]:
    made = Ledgers(database_url)
    made.database.create_tables()
    yield made
    made.database.close()


def test_what_is_settled_and_old_goes_and_all_else_stays(ledgers: Ledgers) -> None:
    ledgers.stub("confirmed", CONFIRMED)
    ledgers.stub("voided", VOIDED)
    ledgers.stub("waiting", UNCONFIRMED)
    ledgers.stub("young", CONFIRMED, settled=1000.5)
    retention = ledgers.retention()

    assert retention.run_once(1100.0) == RetentionCounts()
    assert retention.run_once(1100.2) == RetentionCounts(stubs=2)
    assert ledgers.names("stubs") == ["waiting", "young"]
    assert retention.run_once(9999.0).stubs == 1
    assert ledgers.names("stubs") == ["waiting"]


def test_each_batch_of_stubs_goes_on_where_the_last_one_ended(ledgers: Ledgers) -> None:
    # Given the oldest stub, whose message is to arrive much later, and some that may go
    stub = ledgers.database.stubs
    of_late = update(stub).where(stub.c.message_id == ledgers.stub("late", CONFIRMED, settled=1.0))
    with ledgers.database.engine.begin() as connection:
        connection.execute(of_late.values(deliver_time=utc_datetime(9e8)))
    for number, name in enumerate("abcd"):
        ledgers.stub(name, CONFIRMED, settled=2.0 + number)
    retention = ledgers.retention(batch=2)

    # When it may go after the first batch, Then this sweep has passed it, and the next takes it
    assert retention.run_once(2000.0).stubs == 2
    with ledgers.database.engine.begin() as connection:
        connection.execute(of_late.values(deliver_time=None))
    assert retention.run_once(2000.0).stubs == 2
    assert ledgers.names("stubs") == ["late"]
    assert retention.run_once(2000.0) == RetentionCounts()
    assert retention.run_once(2000.0).stubs == 1


def test_a_stub_whose_message_is_still_to_arrive_stays_for_its_window_from_then(
    ledgers: Ledgers,
) -> None:
    # Given stubs that a broker's acknowledgement confirmed, and one that a person gave up
    stub = ledgers.database.stubs
    for name, status, due in (("late", CONFIRMED, 2000.0), ("voided", VOIDED, 9e8)):
        written = ledgers.stub(name, status)
        with ledgers.database.engine.begin() as connection:
            this = update(stub).where(stub.c.message_id == written)
            connection.execute(this.values(deliver_time=utc_datetime(due)))
    retention = ledgers.retention()

    retention.run_once(1100.0)
    assert retention.run_once(1100.2).stubs == 1
    assert ledgers.names("stubs") == ["late"]
    assert retention.run_once(2099.0).stubs == 0
    assert retention.run_once(2100.2).stubs == 1


@pytest.mark.parametrize("status", [-1, 3, 300])
def test_a_status_that_nobody_of_us_wrote_takes_no_stub_away(ledgers: Ledgers, status: int) -> None:
    for name in ("a", "odd", "z"):
        ledgers.stub(name, CONFIRMED)
    stub = ledgers.database.stubs
    with ledgers.database.engine.begin() as connection:
        odd = update(stub).where(stub.c.message_id.startswith("odd"))
        connection.execute(odd.values(status=status))

    assert ledgers.retention(batch=1).run_once(9999.0).stubs >= 1
    ledgers.retention().run_once(99999.0)
    assert ledgers.names("stubs") == ["odd"]


@pytest.mark.parametrize("column", ["stubs", "logs"])
def test_a_moment_that_does_not_read_holds_nothing_up(ledgers: Ledgers, column: str) -> None:
    if ledgers.database.dialect == "mysql":
        pytest.skip("it takes no moments that do not read")
    for name in ("a", "b", "odd"):
        ledgers.stub(name, CONFIRMED)
        ledgers.log(name)
    value = "0" if ledgers.database.dialect == "sqlite" else "-infinity"
    table, moment = {
        "stubs": ("rmq_message_stub", "update_date"),
        "logs": ("rmq_consume_log", "consume_date"),
    }[column]
    odd = f"UPDATE {table} SET {moment} = '{value}' WHERE message_id LIKE 'odd%'"
    with ledgers.database.engine.begin() as connection:
        connection.execute(text(odd))
    retention = ledgers.retention()

    for now in (1300.0, 1301.0):
        retention.run_once(now)

    assert not {"a", "b"} & {*ledgers.names("stubs"), *ledgers.names("logs")}
    assert ledgers.ledgers().removed_until() == (1000.0, 1000.0)


def test_a_log_outlives_its_stub_and_its_window(ledgers: Ledgers) -> None:
    ledgers.stub("waiting", UNCONFIRMED)
    ledgers.log("waiting")  # consumed by one group, and another one has not
    ledgers.log("foreign")  # of a message without a stub here
    ledgers.log("received", consumed=None)  # an attempt that has not ended
    ledgers.log("young", consumed=1000.5)
    retention = ledgers.retention()

    assert retention.run_once(1200.0) == RetentionCounts()
    assert retention.run_once(1200.2) == RetentionCounts(logs=1)
    assert ledgers.names("logs") == ["received", "waiting", "young"]
    ledgers_stubs = ledgers.database.stubs
    with ledgers.database.engine.begin() as connection:
        connection.execute(
            update(ledgers_stubs).values(
                status=CONFIRMED.value, update_date=utc_datetime(1300.0), resend_time=None
            )
        )
    assert retention.run_once(1401.0) == RetentionCounts(stubs=1, logs=2)
    assert ledgers.names("logs") == ["received"]


def test_what_belongs_to_a_stub_or_a_log_goes_with_it(ledgers: Ledgers) -> None:
    # Given what another database told of a stub, a business key, and a log that has to be told of
    stub = ledgers.stub("a", CONFIRMED)
    ledgers.log("b")
    ledgers.log("c")
    database = ledgers.database
    at = utc_datetime(1000.0)
    told = {"message_id": stub, "consumer_group": "g", "state": 1, "notices": 1}
    key = {"consumer_group": "g", "key_digest": "d", "business_key": "7", "state": 1, "attempt": 1}
    owed = update(database.logs).where(database.logs.c.message_id == "c".ljust(32, "0"))
    with database.engine.begin() as connection:
        connection.execute(
            insert(database.confirmations), told | {"create_date": at, "update_date": at}
        )
        connection.execute(
            insert(database.keys), key | {"message_id": "b".ljust(32, "0"), "create_date": at}
        )
        connection.execute(owed.values(confirm_to="t", confirm_time=at))

    assert ledgers.retention().run_once(1300.0) == RetentionCounts(stubs=1, logs=1)

    with database.engine.begin() as connection:
        assert connection.execute(select(database.confirmations)).all() == []
        assert connection.execute(select(database.keys)).all() == []
    assert ledgers.names("logs") == ["c"]


def test_results_of_calls_go_when_their_own_window_is_over(ledgers: Ledgers) -> None:
    row = {"scope": "s", "call_key": "k", "state": 1, "attempt": 1, "in_doubt": False}
    with ledgers.database.engine.begin() as connection:
        for digest, expires in (("old", 1000.0), ("new", 2000.0)):
            dates = {"create_date": utc_datetime(900.0), "expire_date": utc_datetime(expires)}
            connection.execute(insert(ledgers.database.calls), row | {"key_digest": digest} | dates)

    assert ledgers.retention().run_once(1500.0) == RetentionCounts(calls=1)


def test_logs_that_stay_behind_keep_no_others_from_going(ledgers: Ledgers) -> None:
    # Given more logs at one moment than fit in a batch, whose stubs are not settled
    for number in range(5):
        ledgers.stub(f"a{number}x", UNCONFIRMED)
        ledgers.log(f"a{number}x")
    for number in range(3):
        ledgers.log(f"b{number}x")
        ledgers.log(f"b{number}x", group="h")
    retention = ledgers.retention(batch=2)

    runs = [retention.run_once(1300.0) for _ in range(7)]

    assert sum(run.logs for run in runs) == 6
    assert [run.is_full for run in runs] == [True, True, True, True, True, False, True]
    assert ledgers.names("logs") == [f"a{number}x" for number in range(5)]


def test_one_instance_at_a_time_has_the_duty_and_another_takes_it_over(ledgers: Ledgers) -> None:
    ledgers.stub("a", CONFIRMED)
    one, two = ledgers.retention("one"), ledgers.retention("two")

    assert one.run_once(1000.0).has_duty
    assert two.run_once(1059.9) == RetentionCounts(has_duty=False)
    assert two.run_once(1101.0) == RetentionCounts(stubs=1)
    assert one.run_once(1101.0) == RetentionCounts(has_duty=False)


def test_who_has_lost_the_duty_removes_nothing(ledgers: Ledgers) -> None:
    ledgers.stub("a", CONFIRMED)
    ledgers.log("b")
    slow = ledgers.ledgers()
    assert slow.take_duty(1000.0, "slow", 60.0)
    assert ledgers.ledgers().take_duty(1061.0, "other", 60.0)

    assert slow.remove_stubs(5000.0, "slow", 9999.0, 10) is None
    assert slow.remove_logs(5000.0, "slow", 9999.0, 10) is None
    assert (ledgers.names("stubs"), ledgers.names("logs")) == (["a"], ["b"])


def test_a_stub_that_a_person_sends_again_at_this_moment_stays(postgres_url: str) -> None:
    ledgers = Ledgers(postgres_url)
    ledgers.database.create_tables()
    stub = ledgers.stub("a", VOIDED)
    database = ledgers.database
    with database.engine.begin() as connection:
        retried = operator_actions_of(database).retry(connection, [stub], "ann", "", 1100.0)
        assert retried == {stub: True}
        # Not yet committed: the row still says VOIDED to everybody else, and it is locked.
        assert ledgers.retention().run_once(9999.0).stubs == 0
    assert ledgers.retention().run_once(9999.0).stubs == 0
    assert ledgers.names("stubs") == ["a"]
    database.close()


def test_the_mark_is_committed_with_what_is_removed_and_never_goes_back(ledgers: Ledgers) -> None:
    book = ledgers.ledgers()
    assert book.removed_until() == (None, None)
    ledgers.stub("a", CONFIRMED)
    retention = ledgers.retention()

    retention.run_once(1050.0)
    assert book.removed_until() == (None, None)  # nothing was old enough
    retention.run_once(1150.0)
    assert book.removed_until() == (1000.0, None)  # when the last one that is gone was settled
    ledgers.log("b", consumed=950.0)
    retention.run_once(1160.0)
    assert (ledgers.names("logs"), book.removed_until()) == ([], (1000.0, 950.0))
    ledgers.log("c", consumed=940.0)
    retention.run_once(1170.0)
    assert (ledgers.names("logs"), book.removed_until()) == ([], (1000.0, 950.0))


def test_it_may_die_at_any_instruction(ledgers: Ledgers) -> None:
    dying, switch = Ledgers(ledgers.url), KillSwitch()
    switch.watch(dying.database.engine)
    retention = dying.retention("dies", batch=2)
    other = ledgers.retention("other", batch=2)
    for step in range(60):
        # Given stubs and logs to remove and to keep, and a life that ends at one of its steps
        ledgers.fill(("a", "b"), waiting="w")
        switch.at, switch.names, switch.dead = step, [], False
        try:
            retention.run_once(1300.0)
        except Killed as death:
            traceback.clear_frames(death.__traceback__)
        dying.database.close()  # its connections are gone, as the kernel would have it

        # Then no stub is without its log, and what is gone is not younger than the mark
        stubs, logs = ledgers.names("stubs"), ledgers.names("logs")
        assert set(stubs) <= set(logs)
        assert "w" in stubs
        gone = (len(stubs) < 3, len(logs) < 3)
        assert ledgers.ledgers().removed_until() == tuple(1000.0 if each else None for each in gone)
        # And another instance goes on when the duty is free
        for _ in range(3):
            other.run_once(1361.0)
        assert (ledgers.names("stubs"), ledgers.names("logs")) == (["w"], ["w"])
        if not switch.dead:
            break
    assert step >= 20


def test_rows_are_found_by_their_index_however_many_there_are(postgres_url: str) -> None:
    ledgers = Ledgers(postgres_url)
    ledgers.database.create_tables()
    database = ledgers.database
    with database.engine.begin() as connection:
        for statement in FILLED:
            connection.execute(text(statement))
        connection.execute(text("ANALYZE"))
    plans: list[str] = []

    def note(_connection: Any, cursor: Any, statement: str, values: Any, *_: Any) -> None:
        if statement.startswith("SELECT") and "FROM rmq_" in statement.replace("\n", ""):
            with cursor.connection.cursor() as other:
                other.execute(f"EXPLAIN {statement}", values)
                plans.append("\n".join(line for (line,) in other))

    event.listen(database.engine, "before_cursor_execute", note)
    assert ledgers.retention(batch=50).run_once(9000.0) == RetentionCounts(50, 50, is_full=True)

    stubs, logs, left, keys, calls, told = [each for each in plans if "rmq_retention" not in each]
    plans.clear()
    assert ledgers.ledgers().newest(9000.0) == 9000.0
    newest_stub, newest_log = plans
    assert "rmq_message_stub_settled" in stubs
    assert "rmq_consume_log_consumed" in logs
    assert "message_id_key" in left
    assert "rmq_business_key_free" in keys or "rows=1 " in keys  # an empty table
    assert "rmq_idempotent_call_expired" in calls or "rows=1 " in calls
    assert "rmq_escalation" in told
    assert "rmq_message_stub_settled" in newest_stub
    assert "rmq_consume_log_consumed" in newest_log
    assert not any("Seq Scan" in plan for plan in (stubs, logs, left, newest_stub, newest_log))
    database.close()


def test_a_key_that_no_message_had_an_effect_under_goes_when_a_log_would(ledgers: Ledgers) -> None:
    at, keys = utc_datetime(1000.0), ledgers.database.keys
    row = {"consumer_group": "g", "business_key": "7", "message_id": "m", "attempt": 1}
    row |= {"create_date": at, "state": 0, "owner": None, "lease_until": at}
    rows = {
        "free": row,
        "free later": row | {"lease_until": utc_datetime(1100.0)},
        "running, or in doubt": row | {"owner": "o"},
        "had an effect": row | {"state": 1, "lease_until": None},
    }
    with ledgers.database.engine.begin() as connection:
        for name, values in rows.items():
            connection.execute(insert(keys), values | {"key_digest": name})

    assert ledgers.retention().run_once(1000.0 + LOGGED) == RetentionCounts()
    assert ledgers.retention().run_once(1000.1 + LOGGED) == RetentionCounts(keys=1)

    with ledgers.database.engine.begin() as connection:
        assert set(connection.execute(select(keys.c.key_digest)).scalars()) == {*rows} - {"free"}


def test_a_wait_follows_the_work_so_that_senders_do_not_notice() -> None:
    assert pause_after(RetentionCounts(stubs=1000, is_full=True), 0.03) == pytest.approx(0.97)
    assert pause_after(RetentionCounts(), 0.01) == IDLE_SECONDS


@pytest.mark.parametrize("wrong", ["stub_retention", "log_retention", "lease", "batch"])
def test_numbers_that_cannot_work_are_refused(wrong: str) -> None:
    given: dict[str, Any] = {"stub_retention": 1.0, "log_retention": 1.0, wrong: 0}

    with pytest.raises(ConfigurationError):
        Retention(None, owner="x", look=watched_reading, **given)  # type: ignore[arg-type]
