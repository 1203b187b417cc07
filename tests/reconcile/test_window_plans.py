"""A window of a table costs what the window costs: no full table is read, to plan it or to read."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

import pytest
from sqlalchemy import Connection, Engine, create_engine, event, text
from sqlalchemy.pool import NullPool
from tests.reconcile.ledgers import LONG_AGO, NOW, TableWriter, message_id
from tests.resend.test_partitions import DAY, MONDAY, Days

from reliable_mq.reconcile.databases import sql_ledger, sql_ranges
from reliable_mq.reconcile.databases.ledger_columns import COLUMNS, CONSUME_LOG, STUB, TOLD
from reliable_mq.reconcile.databases.sql_arrow import LedgerQuery, postgres_text, read
from reliable_mq.reconcile.databases.sql_ranges import ChangeWindow, IdWindow, key_ranges
from reliable_mq.reconcile.moments import first_id

MANY = 20_000
INSIDE = 200  # rows of a window of as many seconds
ODD = 3  # rows whose ids tell no time
OPEN = 20  # rows that wait, are parked or received
WINDOW_START = LONG_AGO + timedelta(seconds=MANY // 2)
WINDOW_END = WINDOW_START + timedelta(seconds=INSIDE)

_MS = f"{int(LONG_AGO.timestamp() * 1000)} + i::bigint * 1000"
_ID = f"upper(lpad(to_hex({_MS}), 12, '0')) || '7' || '000' || '8' || lpad(i::text, 15, '0')"
_AT = f"to_timestamp({LONG_AGO.timestamp()} + i)"
_ODD_ID = "'order-' || i"


def fill(url: str) -> None:
    """Write very many rows, one a second, nearly all of them done with."""
    TableWriter(url).write()
    stub = "INSERT INTO rmq_message_stub (message_id, topic, content, status, resend_time,"
    stub += " create_date, update_date)"
    log = "INSERT INTO rmq_consume_log (consumer_group, message_id, topic, broker_name, queue_id,"
    log += ' "offset", state, attempt, create_date, consume_date)'
    told = "INSERT INTO rmq_confirmation (consumer_group, message_id, state, notices, create_date,"
    told += " update_date)"
    many, odd = (f"FROM generate_series(1, {count}) i" for count in (MANY, ODD))
    state = f"CASE WHEN i <= {OPEN} THEN 0 ELSE 1 END"
    consumed_at = f"CASE WHEN i > {OPEN} THEN {_AT} END"
    engine = create_engine(url, isolation_level="AUTOCOMMIT")
    with engine.connect() as connection:
        for statement in (
            f"{stub} SELECT {_ID}, 't' || i % 3, '', {state}, {_AT}, {_AT}, {_AT} {many}",
            f"{stub} SELECT {_ODD_ID}, 't', '', 1, NULL, {_AT}, {_AT} {odd}",
            f"UPDATE rmq_message_stub SET resend_time = NULL WHERE seq <= {OPEN // 2}",
            f"{log} SELECT 'g', {_ID}, 't', 'b', 0, i, {state}, 1, {_AT}, {consumed_at} {many}",
            f"{log} SELECT 'g', {_ODD_ID}, 't', 'b', 0, i, 1, 1, {_AT}, {_AT} {odd}",
            f"{told} SELECT 'g', {_ID}, 1, 1, {_AT}, {_AT} {many}",
            "VACUUM ANALYZE",
        ):
            connection.execute(text(statement))
    engine.dispose()


def steps(plan: dict[str, Any]) -> Iterator[dict[str, Any]]:
    waiting = [plan]
    while waiting:
        step = waiting.pop()
        waiting += step.get("Plans", [])
        yield step


def check(plan: dict[str, Any]) -> None:
    """No step reads a whole table or many more rows than the window has."""
    check_rows(plan, INSIDE + OPEN + ODD)


def check_rows(plan: dict[str, Any], rows_max: int) -> None:
    for step in steps(plan):
        removed = step.get("Rows Removed by Filter", 0)
        read_rows = (step["Actual Rows"] + removed) * step["Actual Loops"]
        assert "Seq Scan" not in step["Node Type"], step
        assert read_rows <= rows_max, step


def plan_of(connection: Connection, statement: str) -> dict[str, Any]:
    explained = f"EXPLAIN (ANALYZE, FORMAT JSON) {statement}"
    (found,) = connection.exec_driver_sql(explained).scalar_one()
    plan: dict[str, Any] = found["Plan"]
    return plan


@contextmanager
def planning_checked(url: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """Check the plans of what is asked to find the ranges."""
    asked: list[str] = []
    engine: Engine = create_engine(url, poolclass=NullPool)

    @event.listens_for(engine, "before_cursor_execute")
    def note(_connection: Any, cursor: Any, statement: str, values: Any, *_: Any) -> None:
        if "pg_catalog" in statement:
            return
        with cursor.connection.cursor() as other:
            other.execute(f"EXPLAIN (ANALYZE, FORMAT JSON) {statement}", values)
            (found,) = other.fetchone()
        check(found[0]["Plan"])
        asked.append(statement)

    @contextmanager
    def connected(_url: str) -> Iterator[Connection]:
        with engine.connect() as connection:
            yield connection

    for module in (sql_ranges, sql_ledger):
        monkeypatch.setattr(module, "connected", connected)
    yield asked
    engine.dispose()


IDS = IdWindow(first_id(WINDOW_START), first_id(WINDOW_END))
CHANGED = ChangeWindow(WINDOW_START, WINDOW_END)
SINCE_THEN = ChangeWindow(WINDOW_START, WINDOW_END, with_open=True)


def test_windows_are_planned_and_read_by_their_indexes(
    postgres_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(postgres_url)
    engine = create_engine(postgres_url)
    with engine.connect() as connection:
        for ledger, window, count in (
            (STUB, IDS, INSIDE + ODD),
            (CONSUME_LOG, IDS, INSIDE + ODD),
            (TOLD, IDS, INSIDE),
            (STUB, CHANGED, INSIDE),
            (STUB, SINCE_THEN, INSIDE + OPEN),
            (CONSUME_LOG, CHANGED, INSIDE),
            (CONSUME_LOG, SINCE_THEN, INSIDE + OPEN),
            (TOLD, CHANGED, INSIDE),
        ):
            with planning_checked(postgres_url, monkeypatch) as planned:
                parts = key_ranges(postgres_url, ledger, "rmq_", window, 50)
            assert planned
            assert len(parts) >= INSIDE / 50, (ledger, window)
            found = 0
            for part in parts:
                asked = LedgerQuery(ledger, "rmq_", tuple(COLUMNS[ledger]), part)
                check(plan_of(connection, postgres_text(asked).replace("%", "%%")))
                found += sum(batch.num_rows for batch in read(postgres_url, asked))
            assert found == count, (ledger, window)
    engine.dispose()


def test_topics_and_groups_are_found_without_reading_all_rows(
    postgres_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(postgres_url)

    with planning_checked(postgres_url, monkeypatch) as planned:
        assert sql_ledger.managed_topics(postgres_url, "rmq_") == ["t", "t0", "t1", "t2"]
        assert sql_ledger.groups_with_notices([postgres_url], "rmq_") == []
        for window in (IDS, CHANGED, SINCE_THEN):
            assert sql_ledger.broker_names(postgres_url, "rmq_", window) == {"b"}

    assert len(planned) >= 15


def test_brokers_are_looked_for_in_pieces_so_that_no_statement_takes_all_processors_for_long(
    postgres_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(postgres_url)
    monkeypatch.setattr(sql_ledger, "_ROWS_OF_A_PIECE", 2_000)  # as these tables are small
    for ledger, broker in (("message_stub", "of a stub"), ("consume_log", "of a log")):
        rare = f"UPDATE rmq_{ledger} SET broker_name = '{broker}' WHERE topic = 't' AND"
        change(postgres_url, f"{rare} message_id = 'order-1'")
    plans: list[dict[str, Any]] = []

    with before_each_piece(
        lambda cursor, statement, values: plans.append(explained(cursor, statement, values))
    ):
        names = sql_ledger.broker_names(postgres_url, "rmq_", IdWindow())

    assert names == {"b", "of a stub", "of a log"}
    assert len(plans) >= 2 * MANY / 2_000
    for plan in plans:
        check_rows(plan, 2 * 2_000)
        assert not any("Gather" in step["Node Type"] for step in steps(plan))


def test_no_broker_is_missed_and_no_snapshot_held_when_rows_are_written_anew_between_the_pieces(
    postgres_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(postgres_url)
    monkeypatch.setattr(sql_ledger, "_ROWS_OF_A_PIECE", 5_000)
    for ledger, broker in (("message_stub", "of a stub"), ("consume_log", "of a log")):
        rare = f"UPDATE rmq_{ledger} SET broker_name = '{broker}' WHERE message_id ="
        last = f"(SELECT max(message_id) FROM rmq_{ledger} WHERE message_id < 'order')"
        change(postgres_url, f"{rare} {last}")
    holding: list[int] = []

    def write_anew(_cursor: Any, statement: str, _values: Any) -> None:
        ledger = "message_stub" if "message_stub" in statement else "consume_log"
        change(postgres_url, f"UPDATE rmq_{ledger} SET topic = topic || 'x'")
        holding.append(transactions_at(postgres_url))

    with before_each_piece(write_anew):
        names = sql_ledger.broker_names(postgres_url, "rmq_", IdWindow())

    assert names == {"b", "of a stub", "of a log"}
    assert set(holding) == {0}


def test_of_partitions_every_piece_finds_something(
    postgres_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Given days in partitions, then each has its brokers found, by no statement for nothing."""
    days = Days(postgres_url)
    for number in range(4 * 40):
        days.message(MONDAY + number % 4 * DAY + number)
    days.database.close()
    for ledger in ("message_stub", "consume_log"):
        change(postgres_url, f"UPDATE rmq_{ledger} SET broker_name = 'of ' || tableoid::regclass")
    change(postgres_url, "ANALYZE")
    monkeypatch.setattr(sql_ledger, "_ROWS_OF_A_PIECE", 20)
    plans: list[dict[str, Any]] = []

    with before_each_piece(
        lambda cursor, statement, values: plans.append(explained(cursor, statement, values))
    ):
        names = sql_ledger.broker_names(postgres_url, "rmq_", IdWindow())

    of_days = [f"d202611{16 + day}" for day in range(4)]
    ledgers = ("message_stub", "consume_log")
    assert names == {f"of rmq_{ledger}_{day}" for ledger in ledgers for day in of_days}
    assert len(plans) >= 2 * 8
    assert all(plan["Actual Rows"] >= 1 for plan in plans)


def change(url: str, statement: str) -> None:
    engine = create_engine(url, poolclass=NullPool)
    with engine.begin() as connection:
        connection.execute(text(statement))


def transactions_at(url: str) -> int:
    """Return how many transactions are open in this database, and wait."""
    idle = "SELECT count(*) FROM pg_stat_activity WHERE state LIKE 'idle in transaction%'"
    engine = create_engine(url, poolclass=NullPool)
    with engine.connect() as connection:
        return int(connection.scalar(text(f"{idle} AND datname = current_database()")) or 0)


def explained(cursor: Any, statement: str, values: Any) -> dict[str, Any]:
    cursor.execute(f"EXPLAIN (ANALYZE, FORMAT JSON) {statement}", values)
    plan: dict[str, Any] = cursor.fetchone()[0][0]["Plan"]
    return plan


@contextmanager
def before_each_piece(do: Callable[[Any, str, Any], None]) -> Iterator[None]:
    """Do something before each statement that looks for brokers."""

    def look(_connection: Any, cursor: Any, statement: str, values: Any, *_: Any) -> None:
        if "SELECT DISTINCT" in statement:
            do(cursor, statement, values)

    event.listen(Engine, "before_cursor_execute", look)
    try:
        yield
    finally:
        event.remove(Engine, "before_cursor_execute", look)


@pytest.mark.parametrize(
    "window", [ChangeWindow(NOW, None), ChangeWindow(NOW, None, with_open=True)]
)
def test_every_stub_is_among_the_changed_ones_once_whatever_its_status(
    database_url: str, window: ChangeWindow
) -> None:
    """Given a stub of each status, also of those that nobody of us writes, then all are found by
    what changed; what is not settled also by being open, whenever it was changed."""
    tables = TableWriter(database_url)
    kinds: tuple[dict[str, Any], ...] = (
        *({"status": status} for status in (-2, -1, 1, 2, 3)),
        {"status": 0, "resend_time": NOW},
        {"status": 0},
        {"status": 0, "resend_time": NOW, "given_up": True},
    )
    stubs = [(at, kind) for at in (LONG_AGO, NOW) for kind in kinds]
    for number, (at, kind) in enumerate(stubs):
        tables.stub(message_id(number), update_date=at, **kind)
    tables.write()

    found = [
        identity
        for part in key_ranges(database_url, STUB, "rmq_", window)
        for batch in read(database_url, LedgerQuery(STUB, "rmq_", ("message_id",), part))
        for identity in batch.column("message_id").to_pylist()
    ]

    settled = ({"status": 1}, {"status": 2})
    assert sorted(found) == [
        message_id(number)
        for number, (at, kind) in enumerate(stubs)
        if at == NOW or (window.with_open and kind not in settled)
    ]


def test_a_whole_table_is_cut_by_a_sample_into_parts_of_about_one_size(postgres_url: str) -> None:
    """Given ids of which half are of one second, then no part is much larger than asked for."""
    TableWriter(postgres_url).write()
    burst = _ID.replace("i::bigint * 1000", f"(CASE WHEN i < {MANY // 2} THEN i * 10 ELSE 9 END)")
    engine = create_engine(postgres_url)
    with engine.begin() as connection:
        connection.execute(
            text(
                "INSERT INTO rmq_consume_log (consumer_group, message_id, topic, broker_name,"
                ' queue_id, "offset", state, attempt, create_date)'
                f" SELECT 'g', {burst}, 't', 'b', 0, i, 0, 1, {_AT}"
                f" FROM generate_series(1, {MANY}) i"
            )
        )
    engine.dispose()

    parts = key_ranges(postgres_url, CONSUME_LOG, "rmq_", IdWindow(), 1_000)

    sizes = [
        sum(batch.num_rows for batch in read(postgres_url, asked))
        for asked in (LedgerQuery(CONSUME_LOG, "rmq_", ("offset",), part) for part in parts)
    ]
    assert sum(sizes) == MANY
    assert max(sizes) < 2_000
