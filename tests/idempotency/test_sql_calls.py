"""The table of idempotent calls: whose a key is, until when, and what is stored with it."""

from collections.abc import Iterator
from typing import Any

import pytest
from sqlalchemy import Connection, Row, event, insert, select, update

from reliable_mq.database.sql_database import Database
from reliable_mq.database.sql_types import utc_datetime
from reliable_mq.database.sql_watched_time import SqlWatchedTime
from reliable_mq.idempotency.sql_calls import CallDecision, CallFound, KeyedCall, SqlCalls
from reliable_mq.watched_time import ClockReading, SteadyPeriod, WatchedTime

NOW, LEASE, WINDOW = 1_000_000.0, 10.0, 3_600.0
RUN, REPLAY, RUNNING, REUSED = CallDecision


def call(token: str = "one", key: str = "k", *, print_: str | None = "p", **more: Any) -> KeyedCall:
    return KeyedCall(
        scope=more.get("scope", "pay"),
        key_digest=key.ljust(64, "0"),
        shown=f"shown {key}",
        fingerprint=print_,
        token=token,
        window=more.get("window", WINDOW),
    )


def watched_since(begin: float, now: float) -> WatchedTime:
    """Return what a process knows that has watched a steady clock since `begin`."""
    return WatchedTime(ClockReading(now), (SteadyPeriod(0.0, begin),))


class Calls:
    def __init__(self, url: str) -> None:
        self.database = Database(url, prefix="rmq_", connections=2)
        self.database.create_tables()
        self.calls = SqlCalls(self.database.calls, self.database.watched_time)

    def begin(self, asked: KeyedCall, now: float = NOW, since: float = 0.0) -> CallFound:
        with self.database.engine.begin() as connection:
            return self.calls.begin(
                connection, asked, now, LEASE, lambda: watched_since(since, now)
            )

    def finish(self, asked: KeyedCall, result: bytes | None = b"7", now: float = NOW) -> bool:
        with self.database.engine.begin() as connection:
            return self.calls.finish(connection, asked, result, now)

    def release(self, asked: KeyedCall) -> None:
        with self.database.engine.begin() as connection:
            self.calls.release(connection, asked)

    def renew(self, *asked: KeyedCall, until: float) -> None:
        with self.database.engine.begin() as connection:
            self.calls.renew(connection, asked, until)

    def remove(self, now: float, limit: int = 100) -> int:
        with self.database.engine.begin() as connection:
            return self.calls.remove_expired(connection, now, limit)

    def note(self, known: WatchedTime) -> None:
        with self.database.engine.begin() as connection:
            SqlWatchedTime(self.database.watched_time).save(connection, known)

    def set(self, **values: object) -> None:
        with self.database.engine.begin() as connection:
            connection.execute(update(self.database.calls).values(**values))

    def rows(self) -> list[Row[tuple[object, ...]]]:
        table = self.database.calls
        with self.database.engine.begin() as connection:
            return list(connection.execute(select(table).order_by(table.c.key_digest)).all())

    @property
    def row(self) -> Row[tuple[object, ...]]:
        (found,) = self.rows()
        return found


@pytest.fixture
def calls(database_url: str) -> Iterator[Calls]:
    made = Calls(database_url)
    yield made
    made.database.close()


def test_the_first_caller_gets_the_key_for_a_lease(calls: Calls) -> None:
    assert calls.begin(call()) == CallFound(RUN, attempt=1, in_doubt=False)
    assert calls.row._mapping == {
        "scope": "pay",
        "key_digest": "k".ljust(64, "0"),
        "call_key": "shown k",
        "fingerprint": "p",
        "state": 0,
        "attempt": 1,
        "owner": "one",
        "in_doubt": False,
        "lease_until": utc_datetime(NOW + LEASE),
        "create_date": utc_datetime(NOW),
        "expire_date": utc_datetime(NOW + WINDOW),
        "finish_date": None,
        "result": None,
    }


def test_a_key_of_another_scope_is_another_key(calls: Calls) -> None:
    assert calls.begin(call()).answer is RUN
    assert calls.begin(call("two", scope="refund")).answer is RUN


def test_while_one_runs_another_one_is_told_how_long_its_lease_lasts(calls: Calls) -> None:
    calls.begin(call())
    assert calls.begin(call("two"), NOW + 4) == CallFound(RUNNING, wait=6.0)
    assert calls.row.owner == "one"


def test_the_same_token_may_begin_again(calls: Calls) -> None:
    """Its commit may have come through although the answer was lost."""
    calls.begin(call())
    assert calls.begin(call(), NOW + 1) == CallFound(RUN, attempt=2)


def test_a_call_whose_lease_has_ended_is_taken_over_in_doubt(calls: Calls) -> None:
    calls.begin(call())
    assert calls.begin(call("two"), NOW + LEASE) == CallFound(RUN, attempt=2, in_doubt=True)
    row = calls.row
    assert (row.owner, row.attempt, row.in_doubt, row.state) == ("two", 2, True, 0)
    assert row.lease_until == utc_datetime(NOW + 2 * LEASE)
    assert row.create_date == utc_datetime(NOW + LEASE)
    assert row.expire_date == utc_datetime(NOW + LEASE + WINDOW)
    assert not calls.finish(call()), "the first owner has lost it"
    assert calls.finish(call("two"))
    calls.set(state=0, owner=None)
    assert calls.begin(call("three"), NOW + 11).in_doubt, "a doubt is never forgotten"


def test_a_result_is_stored_by_its_owner_and_replayed_to_all(calls: Calls) -> None:
    calls.begin(call())
    assert not calls.finish(call("two"))
    assert calls.finish(call(), b"42", NOW + 2)
    row = calls.row
    assert (row.state, row.result, row.lease_until) == (1, b"42", None)
    assert row.finish_date == utc_datetime(NOW + 2)
    assert row.expire_date == utc_datetime(NOW + 2 + WINDOW)
    for token in ("one", "two"):
        assert calls.begin(call(token), NOW + 3) == CallFound(REPLAY, result=b"42")
    assert not calls.finish(call(), b"43"), "a result is stored once"
    assert calls.row.result == b"42"


def test_a_result_that_could_not_be_stored_is_replayed_as_none(calls: Calls) -> None:
    calls.begin(call())
    assert calls.finish(call(), None)
    assert calls.begin(call("two"), NOW + 1) == CallFound(REPLAY, result=None)


def test_a_call_that_failed_is_free_at_once_and_counted(calls: Calls) -> None:
    calls.begin(call())
    calls.release(call("two"))
    assert calls.row.owner == "one", "only its owner lets a key go"
    calls.release(call())
    assert (calls.row.owner, calls.row.lease_until) == (None, None)
    assert calls.begin(call("two"), NOW + 1) == CallFound(RUN, attempt=2)


@pytest.mark.parametrize("state", ["running", "in doubt", "done"])
def test_a_key_belongs_to_its_arguments_once_it_may_have_had_an_effect(
    calls: Calls, state: str
) -> None:
    calls.begin(call())
    if state == "done":
        calls.finish(call())
    now = NOW + LEASE if state == "in doubt" else NOW + 1
    for print_ in ("q", None):
        assert calls.begin(call("two", print_=print_), now) == CallFound(REUSED)


def test_a_key_without_an_effect_may_be_used_with_other_arguments(calls: Calls) -> None:
    calls.begin(call())
    calls.release(call())
    assert calls.begin(call("two", print_="q"), NOW + 1) == CallFound(RUN, attempt=2)
    assert calls.row.fingerprint == "q"
    calls.set(in_doubt=True, owner=None)
    assert calls.begin(call("three"), NOW + 2) == CallFound(REUSED), "its end is unknown"


def test_a_lease_is_renewed_for_its_owner(calls: Calls) -> None:
    calls.begin(call())
    calls.begin(call(key="l"))
    calls.renew(call(), call("two", key="l"), until=NOW + 30)
    assert [row.lease_until for row in calls.rows()] == [
        utc_datetime(NOW + 30),
        utc_datetime(NOW + LEASE),
    ]
    calls.finish(call())
    calls.renew(call(), until=NOW + 60)
    assert calls.rows()[0].lease_until is None, "a call that has ended has no lease"


@pytest.mark.parametrize(("later", "answer"), [(-0.001, REPLAY), (0.0, RUN), (1.0, RUN)])
def test_a_call_is_forgotten_at_the_end_of_its_window(
    calls: Calls, later: float, answer: CallDecision
) -> None:
    calls.begin(call())
    calls.finish(call())
    found = calls.begin(call("two", print_="q" if answer is RUN else "p"), NOW + WINDOW + later)
    assert found.answer is answer
    if answer is RUN:
        assert found == CallFound(RUN, attempt=1), "it is a new call"
        row = calls.row
        assert (row.state, row.result, row.finish_date, row.attempt) == (0, None, None, 1)


def test_a_call_that_runs_or_is_in_doubt_is_not_forgotten(calls: Calls) -> None:
    calls.begin(call())
    found = calls.begin(call("two"), NOW + 2 * WINDOW)
    assert found == CallFound(RUN, attempt=2, in_doubt=True)


def test_a_key_is_not_forgotten_because_of_a_clock_alone(calls: Calls) -> None:
    """Given a clock that is a window ahead, then the time must have been watched: by this process,
    and by the one that removes old rows."""
    calls.begin(call())
    calls.finish(call())
    end = NOW + WINDOW
    jumped = WatchedTime(ClockReading(end), (SteadyPeriod(0.0, 0.0), SteadyPeriod(9.0, end - 5.0)))
    with calls.database.engine.begin() as connection:
        found = calls.calls.begin(connection, call("two"), end, LEASE, lambda: jumped)
    assert found.answer is REPLAY
    calls.note(watched_since(0.0, NOW + 5.0))  # retention has looked last when it was just done
    assert calls.begin(call("two"), end, since=end - 1.0).answer is REPLAY
    assert calls.begin(call("two"), end).answer is RUN, "this process has watched all the time"


def test_a_row_from_before_a_finish_date_is_forgotten_by_the_clock(calls: Calls) -> None:
    calls.begin(call())
    calls.finish(call())
    calls.set(finish_date=None)
    assert calls.begin(call("two"), NOW + WINDOW, since=NOW + WINDOW).answer is RUN


def test_calls_are_removed_when_their_window_has_passed_and_their_end_is_known(
    calls: Calls,
) -> None:
    for number, window in enumerate((30.0, 10.0, 20.0, 40.0)):
        calls.begin(call(key=f"{number}", window=window))
        calls.finish(call(key=f"{number}", window=window))
    calls.begin(call(key="doubt", window=1.0))
    calls.begin(call(key="failed", window=1.0))
    calls.release(call(key="failed", window=1.0))
    assert calls.remove(NOW + 0.999) == 0
    assert calls.remove(NOW + 20, limit=2) == 2
    assert [row.call_key for row in calls.rows()] == [
        "shown 0",
        "shown 2",
        "shown 3",
        "shown doubt",
    ]
    assert calls.remove(NOW + 20) == 1
    assert calls.remove(NOW + 1_000) == 2
    assert [row.call_key for row in calls.rows()] == ["shown doubt"]


@pytest.mark.parametrize("stays", [True, False])
def test_a_rival_that_was_quicker_by_a_moment_has_the_key(calls: Calls, stays: bool) -> None:
    """Given a rival whose row appears between the look and the insert, then the rival has it. If
    the row is gone again by then, nobody knows, and the caller asks again."""
    rival = {
        "scope": "pay",
        "key_digest": "k".ljust(64, "0"),
        "call_key": "k",
        "fingerprint": "p",
        "state": 0,
        "attempt": 1,
        "owner": "rival",
        "lease_until": utc_datetime(NOW + 7),
        "in_doubt": False,
        "create_date": utc_datetime(NOW),
        "expire_date": utc_datetime(NOW + WINDOW),
    }
    come: list[bool] = []

    def comes(connection: Connection, *_: object) -> None:
        if not come:
            come.append(True)
            connection.execute(insert(calls.database.calls), rival)

    def comes_and_goes(connection: Connection, clause: Any, *_: object) -> None:
        if getattr(clause, "is_insert", False):
            comes(connection)  # within the savepoint, which takes it back

    engine = calls.database.engine
    event.listen(engine, *("savepoint", comes) if stays else ("before_execute", comes_and_goes))
    found = calls.begin(call())
    assert come
    assert found == CallFound(RUNNING, wait=7.0 if stays else 0.0)
    assert [row.owner for row in calls.rows()] == ["rival"] * stays
