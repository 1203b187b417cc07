"""All interleavings: two consumers, a producer and a scheduler over one message, up to a depth.

What is explored is the code's own decisions; that the steps around them are the real ones is held
by the comparisons with the scripts in a real Redis and with the statements in a real database.
"""

import itertools
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from redis import Redis
from sqlalchemy import Connection, insert, select
from tests.model import redis_model
from tests.model.explore import FAILED, LOST, SENT, START, Explored, Explorer
from tests.model.flaws import CONSUMING, SENDING, BelievesRedis, RenewsWhatBeganWithAReceipt
from tests.model.protocol import Consuming, put
from tests.model.sending import Sending
from tests.model.state import GONE, NOBODY, Consumer, Key, Log, Pc, State, Stub
from tests.model.world import World

from reliable_mq.database.row_values import LogState
from reliable_mq.database.sql_database import Database
from reliable_mq.database.sql_types import utc_datetime
from reliable_mq.idempotency.claim import ClaimStep, LeaseAnswer, RowState
from reliable_mq.idempotency.redis_leases import claim_of
from reliable_mq.idempotency.sql_consume_log import LogEntry, SqlConsumeLog

DEPTH = 16
NOW, AHEAD, PAST = 1000.0, 1010.0, 990.0
SCRIPTS = Path(redis_model.__file__).parents[2] / "src/reliable_mq/idempotency"


def explore(consuming: Consuming, sending: Sending, first: State = START) -> Explored:
    depth = DEPTH if first is START else DEPTH - 3  # what has been done before
    return Explorer(World(consuming, sending), depth).explore(first)


@pytest.mark.parametrize("first", [START, SENT], ids=["from the start", "from the send on"])
@pytest.mark.parametrize("log_receipt", [False, True], ids=["one commit", "receipt first"])
def test_no_interleaving_breaks_a_promise(first: State, log_receipt: bool) -> None:
    explored = explore(Consuming(log_receipt=log_receipt), Sending(), first)

    assert (explored.violation, explored.story) == (None, ())
    assert explored.states > 5_000


@pytest.mark.parametrize("first", [SENT, FAILED], ids=["the first attempt", "a retry"])
def test_where_leases_are_renewed_in_time_no_handler_runs_beside_another(first: State) -> None:
    """Whatever becomes of Redis: that costs round trips, and no more."""
    world = World(Consuming(attempts_max=3), Sending(), renews_in_time=True)

    explored = Explorer(world, DEPTH - 3).explore(first)

    assert (explored.violation, explored.story) == (None, ())
    assert explored.states > 5_000


def test_a_retry_whose_lease_nobody_renews_is_found() -> None:
    flawed = RenewsWhatBeganWithAReceipt(attempts_max=3)
    world = World(flawed, Sending(), renews_in_time=True)

    explored = Explorer(world, DEPTH - 3).explore(FAILED)

    assert explored.violation == "handled twice at once"


@pytest.mark.parametrize("log_receipt", [False, True], ids=["one commit", "receipt first"])
def test_what_the_database_has_lost_has_its_effect_again_whatever_redis_says(
    log_receipt: bool,
) -> None:
    world = World(Consuming(log_receipt=log_receipt), Sending(), has_lost_commits=True)

    explored = Explorer(world, DEPTH - 3).explore(LOST)

    assert (explored.violation, explored.story) == (None, ())
    assert explored.states > 5_000


def test_who_believes_redis_over_a_database_that_lost_commits_is_found() -> None:
    world = World(BelievesRedis(), Sending(), has_lost_commits=True)

    explored = Explorer(world, DEPTH - 3).explore(LOST)

    assert explored.violation == "P4: acknowledged, and the database knows of no effect"


@pytest.mark.parametrize("flaw", CONSUMING)
def test_a_flaw_of_the_consumer_is_found(flaw: str) -> None:
    explored = explore(CONSUMING[flaw](), Sending())

    assert explored.violation is not None
    assert len(explored.story) <= DEPTH


@pytest.mark.parametrize("flaw", SENDING)
def test_a_flaw_of_the_sender_is_found(flaw: str) -> None:
    explored = explore(Consuming(), SENDING[flaw]())

    assert explored.violation is not None


def keys() -> Iterator[Key]:
    """Yield every key there can be."""
    yield redis_model.DONE
    yield redis_model.ABSENT
    for attempt, owner, is_alive in itertools.product((1, 2), (NOBODY, 0, 1, GONE), (False, True)):
        if owner != NOBODY or not is_alive:
            yield Key(attempt=attempt, owner=owner, is_alive=is_alive)


class RealKey:
    """A key in a real Redis, written and read as the scripts do."""

    def __init__(self, url: str) -> None:
        self._bytes = Redis.from_url(url)
        self._redis = Redis.from_url(url, decode_responses=True)
        now, _ = self._redis.time()
        self._now_ms = now * 1000

    def write(self, key: Key) -> None:
        self._redis.delete("k")
        if key.is_done:
            self._redis.set("k", "done")
        elif key.attempt:
            ends = self._now_ms + 60_000 if key.is_alive else (0 if key.owner < 0 else 1)
            owner = "" if key.owner == NOBODY else key.owner
            self._redis.set("k", f"{key.attempt}:{ends}:{owner}", px=60_000)

    def read(self) -> Key:
        value = self._redis.get("k")
        if not isinstance(value, str):
            return redis_model.ABSENT
        if value == "done":
            return redis_model.DONE
        attempt, ends, owner = value.split(":")
        who = int(owner.removeprefix("?")) if owner else NOBODY
        return Key(attempt=int(attempt), owner=who, is_alive=int(ends) > self._now_ms)

    def run(self, script: str, *arguments: object) -> Any:
        text = (SCRIPTS / f"{script}.lua").read_text()
        return self._bytes.eval(text, 1, "k", *map(str, arguments))


@pytest.mark.parametrize("key", tuple(keys()), ids=str)
def test_a_claim_in_the_model_is_a_claim_in_redis(redis_url: str, key: Key) -> None:
    real = RealKey(redis_url)
    real.write(key)

    answer = claim_of(real.run("claim", 60_000, 0, 60_000))

    claim, after = redis_model.claimed(key, 0)
    assert (answer.lease, real.read()) == (claim.lease, after)
    if claim.lease in {LeaseAnswer.FIRST, LeaseAnswer.AGAIN}:
        assert (answer.attempt, answer.in_doubt) == (claim.attempt, claim.in_doubt)


@pytest.mark.parametrize("fate", ["done", "fail", "back"])
@pytest.mark.parametrize("key", tuple(keys()), ids=str)
def test_the_end_of_a_claim_in_the_model_is_one_in_redis(
    redis_url: str, key: Key, fate: str
) -> None:
    real = RealKey(redis_url)
    real.write(key)

    real.run("settle", 60_000, 60_000, 0, fate, 0)

    assert real.read() == redis_model.settled(key, 0, fate)


def logs() -> Iterator[Log]:
    """Yield every row there can be."""
    yield Log()
    yield Log(RowState.CONSUMED, 1)
    for attempt in (1, 2):
        yield Log(RowState.FAILED, attempt)
        for row, owner in itertools.product((RowState.RUNNING, RowState.IN_DOUBT), (0, 1, GONE)):
            yield Log(row, attempt, owner)


class RealLog:
    """The consume log of a real database, with one row at most."""

    def __init__(self, url: str) -> None:
        self.database = Database(url, prefix="rmq_", connections=1)
        self.database.create_tables()
        self.log = SqlConsumeLog(self.database.logs, self.database.dialect)

    def write(self, connection: Connection, log: Log) -> None:
        if log.row is RowState.ABSENT:
            return
        ends = {RowState.RUNNING: AHEAD, RowState.IN_DOUBT: PAST}.get(log.row)
        connection.execute(
            insert(self.database.logs),
            {
                **dict.fromkeys(("consumer_group", "message_id", "topic", "broker_name"), "m"),
                **dict.fromkeys(("queue_id", "offset"), 0),
                "state": LogState.CONSUMED if log.row is RowState.CONSUMED else LogState.RECEIVED,
                "attempt": log.attempt,
                "owner": None if log.owner == NOBODY else str(log.owner),
                "lease_until": ends and utc_datetime(ends),
                "create_date": utc_datetime(NOW),
            },
        )

    def read(self, connection: Connection) -> Log:
        row = connection.execute(select(self.database.logs)).one_or_none()
        if row is None:
            return Log()
        if row.state == LogState.CONSUMED:
            return Log(RowState.CONSUMED, row.attempt)
        if row.owner is None:
            return Log(RowState.FAILED, row.attempt)
        ahead = row.lease_until.timestamp() > NOW
        return Log(RowState.RUNNING if ahead else RowState.IN_DOUBT, row.attempt, int(row.owner))


@pytest.fixture
def real_log(database_url: str) -> Iterator[RealLog]:
    made = RealLog(database_url)
    yield made
    made.database.close()


def entry(attempt: int) -> LogEntry:
    return LogEntry(
        group="m",
        message_id="m",
        topic="m",
        broker_name="m",
        queue_id=0,
        offset=0,
        token="0",
        attempt=attempt,
    )


def test_the_moves_of_the_row_in_the_model_are_those_of_the_database(real_log: RealLog) -> None:
    model = Consuming()
    compared = 0
    for log, attempt in itertools.product(logs(), (1, 2)):
        me = Consumer(Pc.RECEIVE, 0, attempt)
        state = put(State(0, stub=Stub(), log=log), 0, me)
        for move, compare in MOVES.items():
            with real_log.database.engine.connect() as connection, connection.begin() as undone:
                real_log.write(connection, log)
                expected, found = compare(model, state, real_log, connection, entry(attempt))
                assert found == expected, (move, log, attempt)
                compared += 1
                undone.rollback()
    assert compared >= 100


def _receive(
    model: Consuming, state: State, real: RealLog, connection: Connection, mine: LogEntry
) -> tuple[object, object]:
    if state.log.row is RowState.RUNNING and state.log.owner == 0:
        return None, None  # our own commit, whose answer was lost: the model loses no answers
    after = model.received(state, 0)
    found = real.log.receive(connection, [mine], NOW, AHEAD - NOW)["m"]
    step = {Pc.END: ClaimStep.ACKNOWLEDGE, Pc.AGAIN: ClaimStep.LATER}
    expected = step.get(after.consumers[0].pc, ClaimStep.RECEIVE_FIRST)
    return (expected, _known(after.log)), (found.step, _known(real.read(connection)))


def _insert(
    model: Consuming, state: State, real: RealLog, connection: Connection, mine: LogEntry
) -> tuple[object, object]:
    is_inserted = model.inserted(state, 0).consumers[0].pc is Pc.IN_TX
    return is_inserted, real.log.insert_consumed(connection, mine, NOW)


def _consume(
    model: Consuming, state: State, real: RealLog, connection: Connection, mine: LogEntry
) -> tuple[object, object]:
    return model.is_ours(state.log, 0), real.log.consume(connection, mine, NOW)


def _fail(
    model: Consuming, state: State, real: RealLog, connection: Connection, mine: LogEntry
) -> tuple[object, object]:
    after = model.failed(state, 0)
    real.log.fail(connection, mine, NOW, AHEAD)
    return _known(after.log), _known(real.read(connection))


def _renew(
    model: Consuming, state: State, real: RealLog, connection: Connection, mine: LogEntry
) -> tuple[object, object]:
    me = state.consumers[0]._replace(pc=Pc.RUN, has_receipt=True)
    after = model.renewed(put(state, 0, me), 0)
    real.log.renew(connection, [mine], AHEAD)
    return _known(after.log), _known(real.read(connection))


MOVES = {
    "receive": _receive,
    "insert": _insert,
    "consume": _consume,
    "fail": _fail,
    "renew": _renew,
}


def _known(log: Log) -> Log:
    """Return the row without the owner of a consumed one, which nobody asks for."""
    return log._replace(owner=NOBODY) if log.row is RowState.CONSUMED else log
