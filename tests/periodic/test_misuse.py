"""What a periodic function must not do is refused; a rolling change of a schedule loses nothing."""

from datetime import timedelta

from sqlalchemy import text
from sqlalchemy.orm import Session
from tests.periodic.schedulers import HOUR, NOON, Begin, declared, hourly, payloads

from reliable_mq import ReliableMQ
from reliable_mq.periodic.thread_periodic import PeriodicCounts


def test_a_second_transaction_inside_the_function_is_refused(begin: Begin) -> None:
    life = begin(declared(hourly))
    mq = ReliableMQ("shop", database=life.database.url.render_as_string(hide_password=False))

    def sends_by_itself() -> None:
        with mq.transaction() as tx:
            tx.send("reports", "twice")

    other = begin(declared(sends_by_itself))
    other.run(NOON - 1)
    assert other.run(NOON) == PeriodicCounts(failed=1)

    (state,) = other.sender.states(NOON)
    assert "add a parameter `session: Session`" in (state.note or "")
    assert payloads(other.database) == []
    mq.close()


def test_a_statement_that_fails_fails_the_tick_and_nothing_else(begin: Begin) -> None:
    def reads_nothing(session: Session) -> str:
        session.execute(text("SELECT * FROM no_such_table"))
        return "never"

    life = begin(declared(reads_nothing), declared(hourly))
    life.run(NOON - 1)

    assert life.run(NOON) == PeriodicCounts(ticks=1, messages=1, failed=1)
    assert payloads(life.database) == ["28 12:00"]


def test_a_payload_of_a_generator_that_is_refused_takes_all_of_its_tick_back(begin: Begin) -> None:
    def many() -> object:
        yield from ({"number": number} for number in range(700))
        yield object()

    life = begin(declared(many))
    life.run(NOON - 1)

    assert life.run(NOON) == PeriodicCounts(failed=1)
    assert payloads(life.database) == []


def test_two_releases_with_different_schedules_fire_common_ticks_once(begin: Begin) -> None:
    earlier = begin(declared(hourly, "0 * * * *"))
    earlier.run(NOON - 60)
    later = begin(declared(hourly, "0,30 * * * *"))
    later.run(NOON - 30)

    for half in range(5):
        for life in (earlier, later):
            life.run(NOON + half * HOUR / 2)

    found = payloads(later.database)
    assert found == ["28 12:00", "28 12:30", "28 13:00", "28 13:30", "28 14:00"]


def test_a_restart_between_two_ticks_of_a_catch_up_goes_on_where_it_was(begin: Begin) -> None:
    message = declared(hourly, "* * * * *", catch_up=timedelta(hours=5))
    begin(message).run(NOON)

    for _ in range(3):  # each life makes at most a hundred up, and is followed by another
        begin(message).run(NOON + 4 * HOUR)

    found = payloads(begin(message).database)
    assert len(found) == len(set(found)) == 240
