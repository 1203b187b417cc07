"""A dead letter that comes again: whoever dies in between, it is not forgotten."""

import json

from tests.resend.worlds import World

from reliable_mq.database.sql_types import utc_datetime
from reliable_mq.escalate.sql_dead_letters import DeadLetterState, SqlDeadLetters
from reliable_mq.escalate.sql_settlement import settlement_of

A = "a".ljust(32, "0")
RETRY = "r" * 32


def give_up(world: World, *, group: str = "g", now: float = 110.0) -> None:
    """Do what a consumer does with its last attempt."""
    settlement = settlement_of(world.database)
    with world.database.engine.begin() as connection:
        settlement.exhaust(connection, A, group=group, reason="no", now=now)


def begin(world: World, letters: SqlDeadLetters, *, now: float = 200.0) -> None:
    with world.database.engine.begin() as connection:
        letters.begin(connection, "g", [A], retry_id=RETRY, actor="ann", why="fixed", now=now)


def done(world: World, letters: SqlDeadLetters, *, now: float = 201.0) -> None:
    with world.database.engine.begin() as connection:
        letters.done(connection, "g", [A], retry_id=RETRY, now=now)


def test_a_letter_that_comes_again_has_new_attempts_and_its_stub_is_looked_after(
    world: World, letters: SqlDeadLetters
) -> None:
    world.sent("a")
    world.change(A, count=7)
    world.log(A, state=0)
    give_up(world)
    assert world.open_escalations() == [("dead letter", "a")]

    begin(world, letters)
    done(world, letters)

    (log,) = world.rows(world.database.logs)
    row = world.row(A)
    assert (log["attempt"], log["state"]) == (0, 0)
    assert (row["given_up"], row["count"], row["status"]) == (False, 0, 0)
    assert row["resend_time"] == utc_datetime(261.0)
    assert world.open_escalations() == []
    (act,) = world.rows(world.database.audit)
    assert (act["actor"], act["action"], act["changed"]) == ("ann", "dlq retry", 1)
    assert json.loads(act["detail"]) == {"group": "g", "why": "fixed"}
    with world.database.engine.begin() as connection:
        states = letters.states(connection, "g", [A, "x"])
        others = letters.states(connection, "h", [A])
    ours = DeadLetterState(None, utc_datetime(200.0), has_stub=True)
    assert states == {A: ours, "x": DeadLetterState()}
    assert others == {A: DeadLetterState(has_stub=True)}


def test_what_was_voided_or_is_of_a_group_of_a_similar_name_is_told_apart(
    world: World, letters: SqlDeadLetters
) -> None:
    world.sent("a")
    give_up(world, group="g_1")
    with world.database.engine.begin() as connection:
        letters.begin(
            connection, "g_1", [A], retry_id=RETRY, actor="ann", why='"group": "gx1"', now=200.0
        )
        letters.done(connection, "g_1", [A], retry_id=RETRY, now=201.0)
        world.hands.void(connection, [A], "ann", "", 202.0)
        connection.execute(
            world.database.audit.insert().values(
                create_date=utc_datetime(203.0),
                actor="x",
                action="dlq retry",
                message_id=A,
                changed=1,
                detail="{no json",
            )
        )

    with world.database.engine.begin() as connection:
        own = letters.states(connection, "g_1", [A])
        similar = letters.states(connection, "gx1", [A])

    assert own == {A: DeadLetterState(None, utc_datetime(200.0), True, True)}
    assert similar == {A: DeadLetterState(None, None, True, True)}


def test_a_retry_that_died_before_the_broker_was_asked_leaves_the_letter_open(
    world: World, letters: SqlDeadLetters
) -> None:
    world.sent("a")
    give_up(world)

    begin(world, letters)

    assert world.open_escalations() == [("dead letter", "a")]
    assert (world.row(A)["given_up"], world.row(A)["resend_time"]) == (True, None)
    (act,) = world.rows(world.database.audit)
    assert act["changed"] == 0
    with world.database.engine.begin() as connection:
        assert letters.states(connection, "g", [A]) == {A: DeadLetterState(has_stub=True)}
    # and the next retry is as good as the first
    begin(world, letters)
    done(world, letters)
    assert world.open_escalations() == []


def test_a_letter_that_fails_again_while_it_is_retried_is_told_again(
    world: World, letters: SqlDeadLetters
) -> None:
    # Given a retry whose letter comes and fails before the retry is written down
    world.sent("a")
    give_up(world)
    world.alerts().run_once(111.0)
    begin(world, letters)
    give_up(world, now=200.5)

    done(world, letters)

    # Then a person is told of the second failure, and the stub goes on waiting
    assert world.open_escalations() == [("dead letter", "a")]
    assert (world.row(A)["given_up"], world.row(A)["resend_time"]) == (True, None)
    world.alerts().run_once(202.0)
    assert world.notifier.told == [["a"], ["a"]]


def test_two_groups_that_gave_a_message_up_are_two_matters(
    world: World, letters: SqlDeadLetters
) -> None:
    world.sent("a", groups=("g", "h"))
    give_up(world)
    give_up(world, group="h")
    world.alerts().run_once(120.0)

    begin(world, letters)
    done(world, letters)

    assert world.notifier.told == [["a", "a"]]
    assert world.open_escalations() == [("dead letter", "a")]
    assert world.row(A)["given_up"]  # by the other group


def test_a_letter_is_closed_by_being_consumed_after_all_and_a_stub_by_another_group_is_not(
    world: World,
) -> None:
    world.sent("a", groups=("h",))
    give_up(world)
    world.change(A, status=1)
    world.stuck.close_settled(120.0)
    assert world.open_escalations() == [("dead letter", "a")]  # of a group that is not waited for

    world.log(A, group="g")
    world.stuck.close_settled(121.0)
    assert world.open_escalations() == []
    (row,) = world.rows(world.database.escalations)
    assert (row["close_reason"], row["close_date"]) == ("settled", utc_datetime(121.0))
