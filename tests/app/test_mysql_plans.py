"""By which indexes MySQL and MariaDB find what is due, though they have no partial ones."""

from collections.abc import Callable
from typing import Any

import pytest
from sqlalchemy import event, text
from tests.resend.worlds import World

from reliable_mq.database.sql_types import utc_datetime
from reliable_mq.resend.due import ClaimRequest, DueKind, DueTopic

EXPLAIN = "EXPLAIN FORMAT=TRADITIONAL"  # MySQL 9 gives a tree otherwise


def claiming(world: World, kind: DueKind, *, newest: bool) -> tuple[str, dict[str, object]]:
    """Return the statement by which a scheduler claims, and its values when all of "t" is due."""
    statements: list[tuple[str, dict[str, object]]] = []

    def note(_connection: Any, _cursor: Any, statement: str, values: Any, *_: Any) -> None:
        statements.append((statement, values))

    asked = ClaimRequest(
        kind=kind,
        topic="nobody's",
        now=2_000.0,
        owner="x",
        lease=1.0,
        limit=9,
        count_max=9,
        newest=newest,
    )
    event.listen(world.database.engine, "before_cursor_execute", note)
    world.new_due().claim(asked)
    event.remove(world.database.engine, "before_cursor_execute", note)
    ((statement, values),) = statements
    return statement, {**values, "topic": "t"}


BACKLOGS: dict[str, dict[str, object]] = {
    "their relay died": {"owner": "dead", "count": 0},
    "sends failed": {"owner": None, "count": 3},
    "sent": {"owner": None, "count": 1, "broker_name": "b", "queue_id": 0, "offset": 1},
    "sent to two brokers": {"owner": None, "count": 1, "queue_id": 0, "offset": 1},
}


def backlog_of(world: World, what: str, size: int) -> None:
    """Write very many stubs of three topics that wait, and one whose send was begun."""
    stubs: list[dict[str, object]] = []
    for number in range(size):
        stub = BACKLOGS[what] | {
            "message_id": f"{number:032}",
            "topic": f"t{number % 3}",
            "content": b"x",
            "resend_time": utc_datetime(100.0 + number),
            "create_date": utc_datetime(50.0 + number),
            "update_date": utc_datetime(50.0),
        }
        if what == "sent to two brokers":
            stub["broker_name"] = f"b{number % 2}"
        stubs.append(stub)
    begun = {"owner": "somebody", "count": 2, "broker_name": None, "queue_id": None, "offset": None}
    stubs[7] |= begun
    with world.database.engine.begin() as connection:
        connection.execute(world.database.stubs.insert(), stubs)
        connection.execute(text("ANALYZE TABLE rmq_message_stub"))


def rows_read(world: World, ask: Callable[[], object]) -> int:
    """Return how many rows a server read for the queries of what is asked."""
    queries: list[tuple[str, Any]] = []

    def note(_connection: Any, _cursor: Any, statement: str, values: Any, *_: Any) -> None:
        if statement.startswith(("SELECT", "WITH")):
            queries.append((statement, values))

    event.listen(world.database.engine, "before_cursor_execute", note)
    ask()
    event.remove(world.database.engine, "before_cursor_execute", note)
    found = 0
    with world.database.engine.connect() as connection:
        for statement, values in queries:
            connection.execute(text("FLUSH STATUS"))
            connection.exec_driver_sql(statement, values).all()
            reads = connection.execute(text("SHOW SESSION STATUS LIKE 'Handler_read%'")).all()
            found += sum(int(row[1]) for row in reads)
    assert queries
    return found


@pytest.mark.parametrize("what", BACKLOGS)
def test_a_look_steps_from_topic_to_topic_however_many_wait(mysql_url: str, what: str) -> None:
    world = World(mysql_url)
    backlog_of(world, what, 3_000)
    kind = DueKind.SENT if what.startswith("sent") else DueKind.UNSENT
    found: list[DueTopic] = []

    read = rows_read(world, lambda: found.extend(world.new_due().agenda()))

    first = [DueTopic(kind, f"t{number}", 100.0 + number) for number in range(3)]
    assert set(found) == {*first, DueTopic(DueKind.SUSPECT, "t1", 107.0)}
    assert len(found) == 4
    assert read < 100
    world.database.close()


def test_what_was_begun_is_not_taken_for_the_first_that_waits(mysql_url: str) -> None:
    world = World(mysql_url)
    world.write("begun")
    world.change("begun".ljust(32, "0"), count=1)
    assert world.new_due().agenda() == [DueTopic(DueKind.SUSPECT, "orders", 105.0)]

    world.write("later")
    world.change("later".ljust(32, "0"), resend_time=utc_datetime(200.0))

    found = {each.kind: each.first_time for each in world.new_due().agenda()}
    assert found == {DueKind.SUSPECT: 105.0, DueKind.UNSENT: 200.0}
    world.database.close()


def test_a_look_for_what_is_stuck_steps_from_topic_to_topic(mysql_url: str) -> None:
    world = World(mysql_url)
    backlog_of(world, "sent", 3_000)

    assert rows_read(world, lambda: world.stuck.escalate_stuck(3_600.0, 3_580.0)) < 100

    world.database.close()


def test_the_scheduler_finds_what_is_due_without_reading_the_rest(mysql_url: str) -> None:
    world = World(mysql_url)
    many: list[dict[str, object]] = [
        {
            "message_id": f"{number:032}",
            "topic": "t",
            "content": b"",
            # settled, or sent and due again
            "status": int(number % 2),
            "resend_time": None if number % 2 else utc_datetime(100.0),
            "broker_name": "b",
            "ordering_key": "",
            "create_date": utc_datetime(100.0),
            "update_date": utc_datetime(100.0),
        }
        for number in range(6_000)
    ]
    # not sent and not due: an index by what is not sent finds nothing of a key quickly
    for number, stub in enumerate(many[4_000:]):
        unsent = {"status": 0, "broker_name": None, "resend_time": utc_datetime(900.0)}
        stub |= {**unsent, "ordering_key": f"k{number}"}
    with world.database.engine.begin() as connection:
        connection.execute(world.database.stubs.insert(), many)
    world.write("due", key="k")
    expected = {DueKind.UNSENT: "unsent", DueKind.SUSPECT: "unsent", DueKind.SENT: "sent"}
    key = "topic = 't' AND ordering_key = 'k' AND broker_name IS NULL AND seq < 9"
    waiting = "status = 0 AND given_up = 0"
    with world.database.engine.connect() as connection:
        connection.execute(text("ANALYZE TABLE rmq_message_stub"))
        plan = f"{EXPLAIN} SELECT * FROM rmq_message_stub WHERE {waiting} AND {key}"
        row = connection.execute(text(plan)).mappings().one()
        assert row["key"] == "rmq_message_stub_ordered", dict(row)
        for kind, index in expected.items():
            for newest in (False, True):
                statement, values = claiming(world, kind, newest=newest)
                plan = f"{EXPLAIN} {statement}"
                row = connection.exec_driver_sql(plan, values).mappings().one()
                assert row["key"] == f"rmq_message_stub_{index}", (kind, newest, dict(row))
                assert "filesort" not in row["Extra"], (kind, newest, dict(row))

    world.scheduler.run_once(105.0)

    assert "due" in world.broker.sent
    world.database.close()
