"""Real servers for the tests: one of each kind per test process, clean per test; own names."""

import gc
import itertools
import logging
import os
import shutil
import signal
import sys
import tempfile
import threading
from collections.abc import Generator, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psycopg
import pymysql
import pytest
from hypothesis import settings
from sqlalchemy import Engine, event
from tests import patient_clients, spark_archive
from tests.local_mysql import LocalMySQL, find_mysqld
from tests.planted_secrets import PLANTED, leaks_in_files, planted
from tests.postgres_databases import new_database
from tests.recorded_tables import recorded
from tests.telemetry import noted_events

from examples.demo.disk_room import lack_of_room
from reliable_mq.database import sql_database
from reliable_mq.database.sql_schema import create_and_note
from reliable_mq.database.sql_transactions import make_sqlite_durable
from reliable_mq.line_limit import LineLimit
from reliable_mq.testing.local_servers import LocalPostgres, LocalValkey

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from tests.work_order import LongestFirst

# See the Makefile: this holds where pytest is called directly.
sys.dont_write_bytecode = False
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)

# What is collected stays until the end: to look in it for garbage takes a quarter of the time.
gc.disable()

# The same examples in every run, without a clock: a property that fails here fails everywhere.
settings.register_profile("repeatable", derandomize=True, deadline=None, max_examples=40)
settings.load_profile("repeatable")

_database_numbers = itertools.count(1)
_names = itertools.count(1)
_lacked_room: list[str] = []
UNSYNCED = ("SET fsync = off", "SET full_page_writes = off")
"""How the tests' PostgreSQL runs: see `postgres_server`."""


@pytest.fixture(scope="module", autouse=True)
def what_earlier_modules_left_is_set_aside() -> None:
    """Keep it out of later collections of garbage, each of which would take a second by the end."""
    gc.collect()
    gc.freeze()


@pytest.fixture(autouse=True)
def signals_do_after_a_test_what_they_did_before() -> Iterator[None]:
    """Else a later one's interrupt is swallowed, and it waits for ever."""
    before = [signal.getsignal(each) for each in (signal.SIGINT, signal.SIGTERM)]
    yield
    assert [signal.getsignal(each) for each in (signal.SIGINT, signal.SIGTERM)] == before


def _disk_too_full() -> str:
    """Return what to say of a disk on which every broker of the tests refuses sends; else ""."""
    folder = Path(tempfile.gettempdir())
    too_full = lack_of_room(folder)
    return too_full and f"{folder}: {too_full}; make room, or let TMPDIR name another disk"


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """Note when a test fails on a disk that is too full: later there may be room again."""
    if report.failed and (too_full := _disk_too_full()):
        _lacked_room[:] = [too_full]


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> Iterator[None]:
    """Say, as the last lines, that the disk was too full for a test, or what no test logged."""
    yield
    for too_full in _lacked_room:
        terminalreporter.write_line(f"when a test failed, {too_full}", red=True)
    if terminalreporter.config.args_source is pytest.Config.ArgsSource.TESTPATHS:
        for name in noted_events.missing():
            terminalreporter.write_line(f"no test made the log event {name}", red=True)


def pytest_sessionstart() -> None:
    """End at once on a disk on which every broker of the tests would refuse sends.

    Let applications and clients reach their broker as `patient_clients` says, unless a test says
    otherwise.

    Let tests interrupt themselves and what they start: a shell's background jobs ignore SIGINT, and
    children inherit that.
    """
    if too_full := _disk_too_full():
        pytest.exit(too_full, pytest.ExitCode.USAGE_ERROR)
    spark_archive.use()
    patient_clients.use()
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(scope="session", autouse=True)
def events_are_noted() -> Iterator[None]:
    """See `noted_events`."""
    with noted_events.noting():
        yield


@pytest.hookimpl(optionalhook=True)  # where xdist is installed
def pytest_testnodedown(node: Any) -> None:
    """Take what a worker has noted."""
    noted_events.take(node)


def pytest_sessionfinish(session: pytest.Session) -> None:
    """Fail when everything was run and an event of the catalogue did not appear."""
    config = session.config
    noted_events.report(config)
    is_worker = hasattr(config, "workeroutput")
    is_whole = config.args_source is pytest.Config.ArgsSource.TESTPATHS
    if is_whole and not is_worker and not config.option.keyword and noted_events.missing():
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


def pytest_collection_finish() -> None:
    """Look for garbage from now on, but not among what was collected."""
    gc.freeze()
    gc.enable()


def pytest_unconfigure() -> None:
    """Let what was set aside be taken apart in the end, or extensions say that it leaks."""
    gc.unfreeze()


@pytest.fixture
def caplog(caplog: pytest.LogCaptureFixture) -> Iterator[pytest.LogCaptureFixture]:
    """Leave out what threads say that lived before the test, as those of a client left open.

    Lines that earlier tests caused do not count against the limit of lines a minute.
    """
    for log in logging.Logger.manager.loggerDict.values():
        if isinstance(log, logging.Logger):
            log.filters = [f.renewed() if isinstance(f, LineLimit) else f for f in log.filters]
    earlier = set(threading.enumerate()) - {threading.current_thread()}

    def is_of_this_test(_record: logging.LogRecord) -> bool:
        return threading.current_thread() not in earlier

    caplog.handler.addFilter(is_of_this_test)
    yield caplog
    caplog.handler.removeFilter(is_of_this_test)


_create_quickly = recorded(create_and_note)


def _unsynced(engine: Engine) -> None:
    """Do what the product does for a file of SQLite, but wait for no disk: see `UNSYNCED`."""
    make_sqlite_durable(engine)
    pragma = "PRAGMA synchronous = OFF"
    event.listen(engine, "connect", lambda driver, _record: driver.cursor().execute(pragma))


@pytest.fixture(scope="module", autouse=True)
def databases_are_quick(request: pytest.FixtureRequest) -> Iterator[None]:
    """Let `create_tables` repeat itself and SQLite not sync, but where this is what is tested."""
    name = request.module.__name__
    with pytest.MonkeyPatch.context() as patch:
        if not name.endswith(".test_schema"):
            patch.setattr(sql_database, "create_and_note", _create_quickly)
        if not name.startswith("tests.doctor."):
            patch.setattr(sql_database, "make_sqlite_durable", _unsynced)
        yield


@pytest.fixture(scope="session")
def server_directory() -> Iterator[Path]:
    """Give a directory that PostgreSQL's user may enter, which pytest's own is not for root."""
    directory = Path(tempfile.mkdtemp(prefix="reliable-mq-tests-"))
    directory.chmod(0o755)
    yield directory
    shutil.rmtree(directory, ignore_errors=True)


@pytest.fixture(scope="session")
def postgres_server(server_directory: Path) -> Iterator[LocalPostgres]:
    """Give the running PostgreSQL server; a test that kills it must start it again.

    Processes are killed, the power is not cut, so nothing has to be on the disk.
    """
    server = LocalPostgres(server_directory / "postgres")
    server.start()
    configure(server, *UNSYNCED)
    yield server
    server.stop()


@pytest.fixture(scope="session")
def valkey_server(server_directory: Path) -> Iterator[LocalValkey]:
    """Give the running Valkey server; a test that kills it must start it again."""
    server = LocalValkey(server_directory / "valkey")
    server.start()
    yield server
    server.stop()


@pytest.fixture(scope="session")
def spark() -> Iterator["SparkSession"]:
    """Give a session of Spark, which what reconciles in this process uses; it starts in seconds."""
    from reliable_mq.reconcile.runs.spark_session import session
    from reliable_mq.runtime.java_home import use_java

    use_java()
    with session(is_small=True) as started:
        yield started


def configure(server: LocalPostgres, *changes: str) -> None:
    """Change settings of a running server, for example `SET fsync = off` or `RESET ALL`."""
    with psycopg.connect(server.url.replace("+psycopg", ""), autocommit=True) as connection:
        for change in changes:
            connection.execute(f"ALTER SYSTEM {change}".encode())
        connection.execute("SELECT pg_reload_conf()")


@pytest.fixture(scope="session")
def mysql_server(server_directory: Path) -> Iterator[LocalMySQL]:
    """Give the running MariaDB or MySQL server; a test that kills it must start it again.

    As with PostgreSQL nothing has to be on the disk: the system keeps what a killed server wrote.
    """
    if find_mysqld() is None:
        pytest.skip("no mariadbd or mysqld is installed: apt-get install mariadb-server")
    unsynced = ("--innodb-flush-method=nosync",)
    server = LocalMySQL(server_directory / "mysql", *unsynced)
    server.start()
    yield server
    server.stop()


@pytest.fixture
def mysql_url(mysql_server: LocalMySQL) -> Iterator[str]:
    """Give the SQLAlchemy URL of a database made for this test, dropped after it."""
    name = f"test_{next(_database_numbers)}"
    place = {"host": "127.0.0.1", "port": mysql_server.port, "user": "root"}
    with pymysql.connect(**place) as connection:
        connection.cursor().execute(f"CREATE DATABASE {name}")
    yield mysql_server.url_of(name)
    with pymysql.connect(**place) as connection:
        connection.cursor().execute(f"DROP DATABASE {name}")


@pytest.fixture
def postgres_url(postgres_server: LocalPostgres, request: pytest.FixtureRequest) -> Iterator[str]:
    """Give the SQLAlchemy URL of an empty database of this test's own."""
    with new_database(postgres_server, request.module.__name__) as url:
        yield planted(url)


@pytest.fixture
def redis_url(valkey_server: LocalValkey) -> str:
    """Give the URL of an empty Valkey."""
    valkey_server.flush()
    return planted(valkey_server.url)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item,
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Fail a test that passed, if a password was printed or logged: see `tests.planted_secrets`."""
    report = yield
    # pytest-xdist ends its worker at a text that is no UTF-8, for example a name from the system.
    report.sections[:] = [
        (name, text.encode(errors="backslashreplace").decode()) for name, text in report.sections
    ]
    if report.passed:
        places = [name for name, text in report.sections if PLANTED in text]
        if report.when == "call":  # after it, the folder is removed
            folder = getattr(item, "funcargs", {}).get("tmp_path")
            places += leaks_in_files(folder) if isinstance(folder, Path) else ()
        if places:
            report.outcome = "failed"
            report.longrepr = f"the password of a server is in: {', '.join(places)}"
    return report


ON_MYSQL_TOO = frozenset(
    {
        "test_schema",
        "test_migration_under_traffic",
        "test_faults_in_databases",
        "test_doctor",
        "test_sources",
        "test_sql_arrow",
    }
    | {"test_sql_consume_log", "test_sql_stubs", "test_scheduler"}
    | {"test_attempt_lists", "test_log_rows"}
    | {"test_deliveries", "test_failures", "test_handlers_transaction", "test_ended_transactions"}
    | {"test_alerts", "test_stuck", "test_operator_actions", "test_dead_letters"}
    | {"test_claimed_letters", "test_statement_limit"}
    | {"test_sql_repair", "test_digest", "test_sql_figures"}
    | {"test_django_transactions", "test_django_consumers", "test_django_deaths"}
    | {"test_django_schema", "test_django_idempotent"}
)
"""The modules whose tests of databases run on MySQL or MariaDB, too, where one is installed. With
the variable `TEST_ALL_ON_MYSQL` all do, which takes a quarter of an hour."""


@pytest.hookimpl(optionalhook=True)  # where xdist is installed
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> "LongestFirst | None":
    """Spread modules as `tests.work_order` tells, where they are spread by modules."""
    if config.getvalue("dist") != "loadscope":
        return None
    from tests.work_order import LongestFirst

    return LongestFirst(config, log)


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report(
    collector: pytest.Collector,
) -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
    """See `tests.work_order.from_own_place`."""
    report = yield
    worker = getattr(collector.config, "workerinput", None)
    if worker and report.passed and collector.path == Path(__file__).parent:
        from tests.work_order import from_own_place

        report.result = from_own_place(report.result, worker)
    return report


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """See `tests.work_order.in_one_order`."""
    if hasattr(config, "workerinput"):
        from tests.work_order import in_one_order

        in_one_order(items)


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Run tests that ask for `database_url` on each kind of database."""
    if "database_url" in metafunc.fixturenames:
        kinds = ["sqlite", "postgresql"]
        name = metafunc.module.__name__.rpartition(".")[2]
        if name in ON_MYSQL_TOO or "TEST_ALL_ON_MYSQL" in os.environ:
            kinds.append("mysql")
        metafunc.parametrize("database_url", kinds, indirect=True)


@pytest.fixture
def database_url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """Give the URL of an empty database, of each kind in turn."""
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path / 'application.db'}"
    name = "postgres_url" if request.param == "postgresql" else "mysql_url"
    url: str = request.getfixturevalue(name)
    return url


@pytest.fixture
def other_url(database_url: str, tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[str]:
    """Give the URL of a second empty database, of the same kind as `database_url`."""
    if database_url.startswith("sqlite"):
        yield f"sqlite:///{tmp_path / 'other.db'}"
        return
    server = request.getfixturevalue("postgres_server")
    with new_database(server, request.module.__name__) as url:
        yield planted(url)


@pytest.fixture
def topic() -> str:
    """Give a topic that no other test uses."""
    return f"topic-{next(_names)}"


@pytest.fixture
def group() -> str:
    """Give a consumer group that no other test uses."""
    return f"group-{next(_names)}"
