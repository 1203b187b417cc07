"""A confirmation, its COMMIT and the next message's row go to PostgreSQL in one round trip."""

import asyncio
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import pytest
from sqlalchemy import Engine, event, text
from sqlalchemy.orm import Session
from tests.app.kill_switch import KillSwitch
from tests.app.lives import LONG, A, B, C, Handler, Ledger, Life, delivery, write_effect

from reliable_mq.database.sql_prepared import CommitTrip
from reliable_mq.message import CONFIRM_TO, ReceivedMessage
from reliable_mq.outcomes import CONSUMED, Outcome, Retry

D, E = "D" * 32, "E" * 32
ALL = (A, B, C, D, E)
INSERT = text("INSERT INTO effects VALUES (:id)")


class Unwatched(KillSwitch):
    """Listens to nothing: statements with a listener take no trip."""

    def watch(self, engine: Engine) -> None:
        event.listen(engine, "connect", _prepare_at_once)


def _prepare_at_once(driver: Any, _record: object) -> None:
    driver.prepare_threshold = 0


@pytest.fixture
def trips(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Return what commits with a trip, in order: the words of its COMMIT."""
    made: list[str] = []
    commit = CommitTrip.commit

    def noted(trip: CommitTrip, connection: Any, word: str, **more: Any) -> None:
        made.append(word)
        commit(trip, connection, word, **more)

    monkeypatch.setattr(CommitTrip, "commit", noted)
    return made


@pytest.fixture
def ledger(postgres_url: str) -> Iterator[Ledger]:
    made = Ledger(postgres_url)
    made.create(*ALL)
    yield made
    made.database.close()


class Series(NamedTuple):
    """Handles the five messages in one series."""

    url: str
    redis: str
    ledger: Ledger

    def outcomes(self, handler: Handler, groups: str = "payments") -> list[Outcome]:
        """Return the outcomes. The messages say that these groups are waited for."""
        told = f"{self.ledger.database.identity.notice_topic()}:{groups}"
        messages = [delivery(each, properties={CONFIRM_TO: told}) for each in ALL]

        async def scenario() -> list[Outcome]:
            switch = Unwatched()
            async with Life(self.url, self.redis, switch, handler=handler, lease=LONG) as life:
                return await life.handle(*messages)

        return asyncio.run(scenario())

    def statuses(self) -> list[int]:
        stubs = self.ledger.stubs()
        return [stubs[each].status for each in ALL]


@pytest.fixture
def series(postgres_url: str, redis_url: str, ledger: Ledger) -> Series:
    return Series(postgres_url, redis_url, ledger)


def refuse(ledger: Ledger, table: str, when: str, *names: str) -> None:
    """Let a trigger refuse the rows of messages in a table."""
    listed = ", ".join(f"'{each}'" for each in names)
    with ledger.database.engine.begin() as connection:
        connection.exec_driver_sql(
            "CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN"
            " RAISE EXCEPTION 'refused' USING ERRCODE = 'check_violation'; END $$"
        )
        connection.exec_driver_sql(
            f"CREATE TRIGGER refusing BEFORE {when} ON {table} FOR EACH ROW"
            f" WHEN (NEW.message_id IN ({listed})) EXECUTE FUNCTION refuse()"
        )


def test_what_can_be_sent_with_the_commit_is_sent_with_it(
    series: Series, ledger: Ledger, trips: list[str]
) -> None:
    seen = []

    def handler(message: ReceivedMessage, session: Session) -> None:
        seen.append(ledger.effects())  # by another connection: what is committed
        write_effect(session, message)

    assert series.outcomes(handler) == [CONSUMED] * 5

    # The driver prepares a statement when it is first executed: the first confirmation goes alone.
    assert trips == ["COMMIT AND CHAIN"] * 3 + ["COMMIT"]
    assert seen == [list(ALL[:count]) for count in range(5)]
    assert ledger.effects() == list(ALL)
    assert ledger.logs() == {("payments", each): (1, 1) for each in ALL}
    for stub in ledger.stubs().values():
        assert (stub.status, stub.broker_name, stub.queue_id, stub.offset) == (1, "broker-a", 1, 7)


def test_a_stub_that_waits_for_another_group_is_counted_before_the_commit(
    postgres_url: str, redis_url: str, trips: list[str]
) -> None:
    ledger = Ledger(postgres_url)
    ledger.create(*ALL, groups=("mails", "payments"))
    series = Series(postgres_url, redis_url, ledger)
    ledger.insert_log(
        consumer_group="mails",
        message_id=B,
        topic="orders",
        broker_name="b",
        queue_id=0,
        offset=0,
        state=1,
        attempt=1,
        create_date=ledger.stubs()[B].create_date,
    )

    assert series.outcomes(write_effect, "mails,payments") == [CONSUMED] * 5

    assert trips == []
    assert series.statuses() == [0, 1, 0, 0, 0]
    ledger.database.close()


def test_a_message_that_was_consumed_elsewhere_is_suppressed_in_the_middle_of_a_series(
    series: Series, ledger: Ledger
) -> None:
    ledger.insert_log(
        consumer_group="payments",
        message_id=D,
        topic="orders",
        broker_name="b",
        queue_id=0,
        offset=0,
        state=1,
        attempt=1,
        create_date=ledger.stubs()[D].create_date,
    )

    assert series.outcomes(write_effect) == [CONSUMED] * 5

    assert ledger.effects() == [A, B, C, E]


def test_a_confirmation_that_is_refused_takes_back_the_effect_of_its_message_only(
    series: Series, ledger: Ledger, trips: list[str]
) -> None:
    refuse(ledger, "rmq_message_stub", "UPDATE", C)

    outcomes = series.outcomes(write_effect)

    assert len(trips) > 1
    assert isinstance(outcomes[2], Retry)
    assert [each for each in outcomes if each is not outcomes[2]] == [CONSUMED] * 4
    assert ledger.effects() == [A, B, D, E]
    assert series.statuses() == [1, 1, 0, 1, 1]


def test_a_row_that_is_refused_behind_a_commit_does_not_touch_what_was_committed(
    series: Series, ledger: Ledger, trips: list[str]
) -> None:
    refuse(ledger, "rmq_consume_log", "INSERT", D)

    outcomes = series.outcomes(write_effect)

    assert len(trips) > 1
    assert [each for each in outcomes if each is not outcomes[3]] == [CONSUMED] * 4
    assert outcomes[3] != CONSUMED
    assert ledger.effects() == [A, B, C, E]
    assert series.statuses() == [1, 1, 1, 0, 1]


def test_a_commit_that_fails_in_a_trip_takes_back_its_own_message_only(
    series: Series, ledger: Ledger, trips: list[str]
) -> None:
    with ledger.database.engine.begin() as connection:
        connection.execute(text("DROP TABLE effects"))
        connection.execute(
            text("CREATE TABLE effects (id TEXT, kind TEXT UNIQUE DEFERRABLE INITIALLY DEFERRED)")
        )
    insert = text("INSERT INTO effects VALUES (:id, :kind)")

    def handler(message: ReceivedMessage, session: Session) -> None:
        kind = "same" if message.message_id in (A, C) else message.message_id
        session.execute(insert, {"id": message.message_id, "kind": kind})

    outcomes = series.outcomes(handler)

    assert len(trips) > 1
    assert isinstance(outcomes[2], Retry)
    assert ledger.effects() == [A, B, D, E]
    assert series.statuses() == [1, 1, 0, 1, 1]


def after_commit(do: Callable[[Any], Any]) -> Handler:
    """Return a handler that calls `do` with its connection after its own commit."""

    def handler(message: ReceivedMessage, session: Session) -> None:
        connection = session.connection()
        event.listen(session, "after_commit", lambda _: do(connection))
        if message.message_id == E:
            raise Retry(1.0)
        write_effect(session, message)

    return handler


def write_and_commit(connection: Any) -> None:
    connection.execute(INSERT, {"id": "hook"})
    connection.commit()


def commit_only(connection: Any) -> None:
    with connection.begin():
        pass


@pytest.mark.parametrize("do", [write_and_commit, commit_only])
def test_a_hook_that_commits_on_the_connection_does_not_commit_the_next_messages_row(
    series: Series, ledger: Ledger, do: Callable[[Any], Any]
) -> None:
    outcomes = series.outcomes(after_commit(do))

    assert outcomes[:4] == [CONSUMED] * 4
    assert isinstance(outcomes[4], Retry)
    hooks = ["hook"] * 4 if do is write_and_commit else []
    assert ledger.effects() == [A, B, C, D, *hooks]
    assert ledger.logs()["payments", E][0] == 0


def commit_below(connection: Any) -> None:
    connection.connection.driver_connection.commit()


def test_a_row_that_was_committed_below_sqlalchemy_is_taken_back_before_its_handler_runs(
    series: Series, ledger: Ledger, trips: list[str]
) -> None:
    outcomes = series.outcomes(after_commit(commit_below))

    assert len(trips) > 1
    assert outcomes[:4] == [CONSUMED] * 4
    assert isinstance(outcomes[4], Retry)
    assert ledger.effects() == [A, B, C, D]
    assert ledger.logs()["payments", E][0] == 0


def test_a_connection_that_is_lost_before_a_trip_costs_its_message_nothing_but_time(
    series: Series, ledger: Ledger, trips: list[str]
) -> None:
    def handler(message: ReceivedMessage, session: Session) -> None:
        write_effect(session, message)
        if message.message_id == C:
            pid = session.execute(text("SELECT pg_backend_pid()")).scalar_one()
            with ledger.database.engine.begin() as other:
                other.execute(text("SELECT pg_terminate_backend(:pid, 60000)"), {"pid": pid})

    outcomes = series.outcomes(handler)

    assert len(trips) > 1
    assert isinstance(outcomes[2], Retry)
    assert ledger.effects() == [A, B, D, E]
    assert series.statuses() == [1, 1, 0, 1, 1]
