"""Two processes that retry one dead letter at once: the second sees what the first did."""

import json
import threading
from collections.abc import Mapping
from datetime import datetime

from tests.resend.test_dead_letters import RETRY, A, done, give_up
from tests.resend.worlds import World

from reliable_mq.database.sql_types import utc_datetime
from reliable_mq.escalate.sql_dead_letters import CLAIM_SECONDS, MEANWHILE, SqlDeadLetters, intent
from reliable_mq.escalate.sql_one_at_a_time import one_at_a_time

B = "b".ljust(32, "0")
DETAIL = intent("g", "fixed", "")


def begun(
    world: World,
    letters: SqlDeadLetters,
    seen: Mapping[str, datetime | None],
    *,
    retry: str = RETRY,
    now: float = 200.0,
) -> dict[str, str]:
    """Claim what is free; return why the rest is left to somebody else."""
    with one_at_a_time(world.database, "dlq retry g") as connection:
        taken = letters.taken(connection, "g", seen, now)
        mine = [each for each in seen if each not in taken]
        letters.begin(connection, "g", mine, retry_id=retry, actor="ann", why="fixed", now=now)
    return taken


def test_a_letter_that_somebody_retries_is_left_to_them_until_the_claim_ends(
    world: World, letters: SqlDeadLetters
) -> None:
    give_up(world)
    assert begun(world, letters, {A: None}) == {}

    taken = begun(world, letters, {A: None, B: None}, retry="s" * 32, now=201.0)
    assert list(taken) == [A]
    assert taken[A].startswith(f"{MEANWHILE} ann retries it, since 1970-01-01T00:03:20Z")

    late = 200.0 + CLAIM_SECONDS
    assert begun(world, letters, {A: None}, retry="t" * 32, now=late) == {}


def test_a_letter_that_was_retried_since_the_caller_looked_is_not_sent_twice(
    world: World, letters: SqlDeadLetters
) -> None:
    give_up(world)
    begun(world, letters, {A: None})
    done(world, letters)

    late = 200.0 + 2 * CLAIM_SECONDS
    taken = begun(world, letters, {A: None}, retry="s" * 32, now=late)
    assert taken == {A: f"{MEANWHILE} ann has retried it, at 1970-01-01T00:03:20Z"}
    seen = {A: utc_datetime(200.0)}  # it came again, and the caller knows of that retry
    assert begun(world, letters, seen, retry="t" * 32, now=late) == {}


def test_a_letter_can_be_retried_after_the_clock_of_its_database_went_back(
    world: World, letters: SqlDeadLetters
) -> None:
    give_up(world)
    begun(world, letters, {A: None}, now=5000.0)
    done(world, letters, now=5001.0)
    begun(world, letters, {A: utc_datetime(5000.0)}, retry="s" * 32, now=300.0)
    with world.database.engine.begin() as connection:
        letters.done(connection, "g", [A], retry_id="s" * 32, now=301.0)
        seen = letters.states(connection, "g", [A])[A].retried

    assert seen == utc_datetime(5000.0)
    assert begun(world, letters, {A: seen}, retry="t" * 32, now=600.0) == {}


def test_what_the_broker_refused_can_be_retried_at_once(
    world: World, letters: SqlDeadLetters
) -> None:
    give_up(world)
    begun(world, letters, {A: None})
    with world.database.engine.begin() as connection:
        letters.release(connection, {A: "it is away"}, retry_id=RETRY, detail=DETAIL)

    assert begun(world, letters, {A: None}, retry="s" * 32, now=201.0) == {}
    details = [json.loads(act["detail"]) for act in world.rows(world.database.audit)]
    assert details == [DETAIL | {"outcome": "it is away"}, DETAIL]


def test_a_claim_of_another_group_takes_nothing(world: World, letters: SqlDeadLetters) -> None:
    give_up(world)
    begun(world, letters, {A: None})

    with one_at_a_time(world.database, "dlq retry h") as connection:
        assert letters.taken(connection, "h", {A: None}, 201.0) == {}


def test_of_many_at_once_exactly_one_claims_each_letter(
    world: World, letters: SqlDeadLetters
) -> None:
    give_up(world)
    together, left = threading.Barrier(4), []

    def claim(number: int) -> None:
        together.wait()
        left.append(len(begun(world, letters, {A: None, B: None}, retry=f"{number:032}")))

    threads = [threading.Thread(target=claim, args=(number,)) for number in range(4)]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    assert sorted(left) == [0, 2, 2, 2]
    assert len(world.rows(world.database.audit)) == 2
