"""By which indexes MySQL and MariaDB find what is due, though they have no partial ones."""

from typing import Any

from sqlalchemy import event, text
from tests.resend.worlds import World

from reliable_mq.resend.due import ClaimRequest, DueKind
from reliable_mq.sql_types import utc_datetime

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
