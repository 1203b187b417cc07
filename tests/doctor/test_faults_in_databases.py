"""What is planted in a database is found by the check that is for it, which was silent before."""

import json
import re
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from tests.doctor.worlds import EVERY, MYSQL, POSTGRES, SQLITE, World

from reliable_mq.database.sql_types import utc_datetime
from reliable_mq.database.sql_watched_time import SqlWatchedTime
from reliable_mq.doctor.finding import Level, worst
from reliable_mq.reconcile.runs.sql_outcome import allow_retention
from reliable_mq.watched_time import ClockReading, first_look


class Fault(NamedTuple):
    """A fault in the database of a world: how it is planted, and what must be said."""

    check: str
    dialects: tuple[str, ...]
    plant: Callable[[World], None]
    says: str
    level: Level = Level.ERROR
    undo: str = ""


def drop_index(world: World) -> None:
    where = " ON rmq_message_stub" if world.dialect == MYSQL else ""
    world.sql(f"DROP INDEX rmq_message_stub_settled{where}")


def database_default(setting: str) -> Callable[[World], None]:
    def plant(world: World) -> None:
        world.sql(f"ALTER DATABASE {world.database.url.database} SET {setting}")
        world.renew()

    return plant


def globally(setting: str) -> Callable[[World], None]:
    def plant(world: World) -> None:
        world.sql(f"SET GLOBAL {setting}")
        world.renew()

    return plant


def date_of_no_time(world: World) -> None:
    world.stub()
    world.sql("UPDATE rmq_message_stub SET create_date = 'infinity'")


def jumped(world: World) -> None:
    """Let retention have seen that the clock went forty days ahead."""
    before = first_look(ClockReading(0.0, 0.0, "a"), None, unwatched_max=0.0)
    known = before.looked(ClockReading(40 * 86_400.0, 0.0, "a"), unwatched_max=0.0)
    with world.database.engine.begin() as connection:
        SqlWatchedTime(world.database.watched_time).save(connection, known)


def url_of(world: World) -> str:
    return world.database.engine.url.render_as_string(hide_password=False)


INVALID = (
    "UPDATE pg_index SET indisvalid = false WHERE indexrelid = 'rmq_message_stub_settled'::regclass"
)
NO_KEY = "ALTER TABLE rmq_message_stub DROP CONSTRAINT rmq_message_stub_message_id_key"
LONG_AGO = utc_datetime(1_000_000_000.0)

FAULTS = [
    Fault("tables", EVERY, lambda w: w.sql("DROP TABLE rmq_audit"), "table rmq_audit is missing"),
    Fault(
        "tables",
        EVERY,
        lambda w: w.sql("ALTER TABLE rmq_message_stub DROP COLUMN note"),
        "rmq_message_stub has no column note",
    ),
    Fault(
        "tables",
        EVERY,
        lambda w: w.sql("UPDATE rmq_schema_version SET version_num = '0000'"),
        "are of revision 0000",
    ),
    Fault(
        "tables",
        EVERY,
        lambda w: w.sql("DELETE FROM rmq_schema_version"),
        "notes no revision",
        Level.WARNING,
    ),
    Fault("indexes", EVERY, drop_index, "has no index rmq_message_stub_settled"),
    Fault("indexes", (POSTGRES,), lambda w: w.sql(NO_KEY), "has no key message_id"),
    Fault(
        "indexes",
        (MYSQL,),
        lambda w: w.sql("ALTER TABLE rmq_message_stub DROP INDEX message_id"),
        "has no key message_id",
    ),
    Fault("indexes", (POSTGRES,), lambda w: w.sql(INVALID), "rmq_message_stub_settled is invalid"),
    Fault(
        "storage",
        (MYSQL,),
        lambda w: w.sql("ALTER TABLE rmq_audit ENGINE = MyISAM"),
        "MyISAM, which has no transactions",
    ),
    Fault(
        "storage",
        (MYSQL,),
        lambda w: w.sql(
            "ALTER TABLE rmq_consume_log CONVERT TO CHARACTER SET utf8mb4 "
            "COLLATE utf8mb4_general_ci"
        ),
        "rmq_consume_log.message_id has the collation utf8mb4_general_ci",
    ),
    Fault(
        "writes",
        (POSTGRES,),
        database_default("default_transaction_read_only = on"),
        "the database accepts no writes: cannot execute INSERT in a read-only transaction",
    ),
    Fault(
        "writes",
        (MYSQL,),
        lambda w: w.on_connect("SET SESSION TRANSACTION READ ONLY"),
        "the database accepts no writes",
    ),
    Fault(
        "writes",
        (MYSQL,),
        globally("read_only = ON"),
        "read_only is ON, but this account may write",
        Level.WARNING,
        undo="SET GLOBAL read_only = OFF",
    ),
    Fault(
        "writes",
        (SQLITE,),
        lambda w: w.on_connect("PRAGMA query_only = ON"),
        "the database accepts no writes: attempt to write a readonly database",
    ),
    Fault(
        "isolation",
        (POSTGRES,),
        database_default("default_transaction_isolation = 'repeatable read'"),
        "transactions are REPEATABLE READ",
    ),
    Fault(
        "isolation",
        (MYSQL,),
        lambda w: w.on_connect("SET SESSION TRANSACTION ISOLATION LEVEL REPEATABLE READ"),
        "transactions are REPEATABLE READ",
    ),
    Fault(
        "isolation",
        (SQLITE,),
        lambda w: w.on_connect("PRAGMA journal_mode = DELETE"),
        "journal_mode is delete",
    ),
    Fault(
        "durability",
        (POSTGRES,),
        database_default("synchronous_commit = off"),
        "synchronous_commit is off",
    ),
    Fault(
        "durability",
        (MYSQL,),
        globally("innodb_flush_log_at_trx_commit = 2"),
        "innodb_flush_log_at_trx_commit is 2",
        undo="SET GLOBAL innodb_flush_log_at_trx_commit = 1",
    ),
    Fault(
        "durability",
        (SQLITE,),
        lambda w: w.on_connect("PRAGMA synchronous = NORMAL"),
        "synchronous is 1",
    ),
    Fault(
        "limits",
        (POSTGRES,),
        database_default("idle_in_transaction_session_timeout = '2s'"),
        "idle_in_transaction_session_timeout is 2000 ms",
    ),
    Fault(
        "limits",
        (MYSQL,),
        globally("max_allowed_packet = 1048576"),
        "max_allowed_packet is 1048576",
        undo="SET GLOBAL max_allowed_packet = 16777216",
    ),
    Fault(
        "clocks",
        EVERY,
        lambda w: w.process(clock_ahead=-600.0),
        "process 7 on there (shop) is 600.0 s behind",
    ),
    Fault("clocks", EVERY, lambda w: w.process(clock_ahead=2.0), "2.0 s ahead of", Level.WARNING),
    Fault(
        "clocks",
        EVERY,
        jumped,
        "the database's clock jumped by 3456000 s that were not watched",
        Level.WARNING,
    ),
    Fault(
        "leases",
        EVERY,
        lambda w: w.process(handling=json.dumps({"payments": 61.5})),
        "handlers of group payments took 61.5 s, their lease is 10 s",
    ),
    Fault("orphans", EVERY, lambda w: w.stub(resend_time=LONG_AGO), "1 stub(s) are due and nobody"),
    Fault(
        "topics",
        EVERY,
        lambda w: w.close_topic(time.time()),
        "topic orders is closed: 8 sends in a row failed, the last one said: ConnectionLost: gone",
    ),
    Fault(
        "topics",
        (SQLITE,),
        lambda w: w.close_topic(time.time() - 600.0, resend_time=LONG_AGO),
        "the next probe has been due for",
    ),
    Fault(
        "topics",
        (SQLITE,),
        lambda w: w.pause_topic("repair", resend_time=LONG_AGO),
        "repair; 1 stub(s) wait",
        Level.WARNING,
    ),
    Fault(
        "orphans",
        EVERY,
        lambda w: allow_retention([url_of(w)], "rmq_", LONG_AGO),
        "days, and retention waits for it",
        Level.WARNING,
    ),
    Fault("orphans", EVERY, lambda w: w.give_up(), "wait for a person", Level.WARNING),
    Fault(
        "orphans",
        EVERY,
        lambda w: w.stub(resend_time=None),
        "1 stub(s) have no time of a next send and no escalation",
    ),
    *(
        Fault(
            "orphans",
            EVERY,
            lambda w, value=value: w.stub(status=value),  # type: ignore[misc]
            f"1 stub(s) have the status {value}, which this package never writes",
        )
        for value in (-1, 3, 300)
    ),
    Fault(
        "orphans",
        EVERY,
        lambda w: w.stub(status=1, create_date=utc_datetime(time.time() + 600)),
        "have a date in the future",
    ),
    Fault(
        "orphans",
        (POSTGRES,),
        date_of_no_time,
        "have a date in the future",
    ),
    Fault(
        "orphans",
        EVERY,
        lambda w: w.stub(create_date=utc_datetime(time.time() + 600)),
        "have a date in the future",
    ),
    Fault(
        "orphans",
        EVERY,
        lambda w: w.log(state=0, owner="gone", lease_until=LONG_AGO),
        "1 attempt(s) of group payments have a lease that expired",
    ),
]


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: f"{fault.check}: {fault.says}")
def test_a_fault_planted_in_the_database_is_found(
    fault: Fault, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    for dialect in fault.dialects:
        if dialect == SQLITE:
            url = f"sqlite:///{tmp_path / 'application.db'}"
        else:
            url = request.getfixturevalue(
                "postgres_url" if dialect == POSTGRES else "mysql_url_or_none"
            )
        if url is None and len(fault.dialects) == 1:
            pytest.skip("no mariadbd or mysqld is installed")
        if url is not None:
            _must_be_found(fault, url)


@pytest.fixture
def mysql_url_or_none(request: pytest.FixtureRequest) -> Any:
    try:
        return request.getfixturevalue("mysql_url")
    except pytest.skip.Exception:
        return None


def _must_be_found(fault: Fault, url: str) -> None:
    world = World(url)
    try:
        before = world.findings(fault.check)
        fault.plant(world)
        after = world.findings(fault.check)
    finally:
        if fault.undo:
            world.sql(fault.undo)
        world.close()

    assert worst(before) is Level.OK
    told = [each for each in after if fault.says in each.text]
    assert [each.level for each in told] == [fault.level], after
    assert told[0].remedy
    # A person pastes a command, so it must name the application. Reconciliation reads databases.
    commands = set(re.findall(r"reliable-mq ([\w-]+)", told[0].remedy)) - {"reconcile"}
    assert not commands or "MODULE:OBJECT" in told[0].remedy
