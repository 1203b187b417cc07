"""Looking and claiming read no more rows than they are asked for, however many wait."""

from typing import Any

import pytest
from sqlalchemy import Connection, event, text
from tests.resend.worlds import World

from reliable_mq.resend.due import ClaimRequest, DueKind
from reliable_mq.resend.sql_opening import SqlOpening

MANY = 20_000
WORKER = "SELECT lpad(i::text, 32, '0'), 't' || i % 3, '', 0, now(), now(), to_timestamp(50)"
COLUMNS = "message_id, topic, content, status, create_date, update_date, resend_time"


def fill(connection: Connection, *, sent: bool, key: str = "''") -> None:
    """Write very many stubs that are due, of three topics."""
    columns = f'{COLUMNS}, ordering_key, broker_name, queue_id, "offset"'
    place = "'b', 0, i" if sent else "NULL, NULL, NULL"
    connection.execute(
        text(
            f"INSERT INTO rmq_message_stub ({columns}) {WORKER}, {key}, {place}"
            f" FROM generate_series(1, {MANY}) i"
        )
    )
    connection.execute(text("ANALYZE rmq_message_stub"))


class Plans:
    """The plans of what is asked of a database meanwhile, and how many rows each step read."""

    def __init__(self, world: World) -> None:
        self._world = world
        self.statements = 0

    def __enter__(self) -> "Plans":
        event.listen(self._world.database.engine, "before_cursor_execute", self._note)
        return self

    def __exit__(self, *_: object) -> None:
        event.remove(self._world.database.engine, "before_cursor_execute", self._note)

    def _note(self, _connection: Any, cursor: Any, statement: str, values: Any, *_: Any) -> None:
        # Analyzed by a cursor of its own in the same transaction, before it is really run.
        if statement.lstrip().startswith(("SELECT", "WITH")):
            with cursor.connection.cursor() as other:
                other.execute(f"EXPLAIN (ANALYZE, FORMAT JSON) {statement}", values)
                (found,) = other.fetchone()
            self.check(found[0]["Plan"])
            self.statements += 1

    @staticmethod
    def check(plan: dict[str, Any]) -> None:
        waiting = [plan]
        while waiting:
            step = waiting.pop()
            waiting += step.get("Plans", [])
            removed = step.get("Rows Removed by Filter", 0)
            rows = (step["Actual Rows"] + removed) * step["Actual Loops"]
            assert "Seq Scan" not in step["Node Type"], step
            assert rows < 700, step


@pytest.mark.parametrize("sent", [False, True])
def test_an_idle_look_reads_a_few_rows_of_each_topic(postgres_url: str, sent: bool) -> None:
    world = World(postgres_url)
    with world.database.engine.begin() as connection:
        fill(connection, sent=sent)

    with Plans(world) as plans:
        agenda = world.new_due().agenda()

    assert {each.topic for each in agenda} == {"t0", "t1", "t2"}
    assert plans.statements
    world.database.close()


def asking(**changes: Any) -> ClaimRequest:
    """Return what a scheduler asks for, changed."""
    usual: dict[str, Any] = {
        "kind": DueKind.UNSENT,
        "topic": "t1",
        "now": 105.0,
        "owner": "x",
        "lease": 60.0,
        "limit": 100,
        "count_max": 16,
    }
    return ClaimRequest(**(usual | changes))


@pytest.mark.parametrize("newest", [False, True])
@pytest.mark.parametrize("kind", list(DueKind))
@pytest.mark.parametrize("sent", [False, True])
def test_a_claim_reads_what_it_is_asked_for(
    postgres_url: str, kind: DueKind, sent: bool, newest: bool
) -> None:
    world = World(postgres_url)
    with world.database.engine.begin() as connection:
        fill(connection, sent=sent)
    asked = asking(kind=kind, newest=newest)

    with Plans(world) as plans:
        claims = world.new_due().claim(asked)

    fits = kind is (DueKind.SENT if sent else DueKind.UNSENT)
    assert claims.found == (100 if fits else 0)
    assert plans.statements
    world.database.close()


@pytest.mark.parametrize("key", ["'hot'", "'k' || i % 500"])
def test_order_is_kept_without_reading_all_of_a_key(postgres_url: str, key: str) -> None:
    world = World(postgres_url)
    with world.database.engine.begin() as connection:
        fill(connection, sent=False, key=key)
    asked = asking()

    with Plans(world) as plans:
        claims = world.new_due().claim(asked)

    assert (len(claims.stubs), len(claims.held)) == (100, 0)
    assert plans.statements
    world.database.close()


@pytest.mark.parametrize("key", ["''", "'hot'", "'k' || i % 500"])
@pytest.mark.parametrize("is_early", [False, True])
def test_a_probe_and_an_opening_read_what_they_are_asked_for(
    postgres_url: str, key: str, is_early: bool
) -> None:
    world = World(postgres_url)
    with world.database.engine.begin() as connection:
        fill(connection, sent=False, key=key)
        # The first stub of each key has backed off.
        firsts = "SELECT min(seq) FROM rmq_message_stub GROUP BY topic, ordering_key"
        later = (
            f"UPDATE rmq_message_stub SET resend_time = to_timestamp(900) WHERE seq IN ({firsts})"
        )
        connection.execute(text(later))
        connection.execute(text("ANALYZE rmq_message_stub"))
    asked = asking(limit=8, is_probe=True, is_early=is_early)

    with Plans(world) as plans:
        claims = world.new_due().claim(asked)
        assert not SqlOpening(world.stubs).make_due("t1", 100.0)  # all was due before

    assert claims.stubs or (key != "''" and not is_early)
    assert plans.statements
    world.database.close()
