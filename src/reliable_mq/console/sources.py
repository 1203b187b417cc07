"""What a console reads: the databases, the cluster and the last runs of one application.

Each source may be away. Then `Answer.fault` says so in one line, and the page shows the rest.
"""

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from concurrent.futures import TimeoutError as NotInTime
from contextlib import contextmanager
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any, Generic, NamedTuple, TypeVar

import msgspec
from sqlalchemy import Connection
from sqlalchemy.exc import SQLAlchemyError

from reliable_mq.app.application import ReliableMQ
from reliable_mq.cli.database_options import OpenedDatabase
from reliable_mq.cli.found_messages import why_not_asked
from reliable_mq.cli.remote_words import words_of
from reliable_mq.client.administering.cluster_facts import ClusterFacts
from reliable_mq.client.administering.thread_admin import Admin
from reliable_mq.client.administering.thread_all_progress import GroupLine, all_progress
from reliable_mq.client.configured import configured
from reliable_mq.client.connecting.namespace import SEPARATOR, Namespace
from reliable_mq.client.thread_client import Client
from reliable_mq.console.broker_legs import broker_legs
from reliable_mq.console.kept import KeptResults, KeptValue
from reliable_mq.console.waiting_at_brokers import waiting_halves, waiting_timers
from reliable_mq.database.sql_database import Database
from reliable_mq.database.sql_faults import fault_line, is_missing_column, known_fault
from reliable_mq.database.sql_statement_limit import limit_statements
from reliable_mq.errors import ConfigurationError, ReliableMQError, Unavailable
from reliable_mq.measuring.sql_figures import SqlFigures
from reliable_mq.measuring.sql_last_run import LastRun, last_run
from reliable_mq.measuring.sql_latency import LatencySample, Leg, LegTimes, SqlLatency
from reliable_mq.measuring.sql_machines import Machines, machines_of
from reliable_mq.measuring.sql_throughput import HOUR, Happening, SqlThroughput
from reliable_mq.names import DEAD_LETTER_PREFIX, RETRY_PREFIX
from reliable_mq.plain_text import printable
from reliable_mq.telemetry.families import Sample

T = TypeVar("T")

ANSWER_SECONDS = 8.0
"""A page waits for a source for this time."""
PART_SECONDS = 3.5
"""A page that asks two sources, one after the other, waits for each for this time."""
_NOT_FOR_INCREMENTS = frozenset(
    {"--db", "--app", "--ledgers", "--key", "--follow", "--every", "--forget"}
    | {"--repair", "--repair-only", "--repair-rate", "--void"}
    | {"--broker", "--cluster", "--table-prefix", "--prefix"}
)
FLAGS_OF_INCREMENTS = frozenset(
    {"--increment", "--full", "--json", "--partial", "--no-partial", "--tell"}
)
"""Options of `reliable-mq reconcile` without a value, other than those that are not allowed."""
STATEMENT_SECONDS = 5.0
"""The database ends a statement of a page after this time."""
FIGURES_SECONDS, CLUSTER_SECONDS, THROUGHPUT_SECONDS, RUN_SECONDS = 3.0, 10.0, 10.0, 15.0
BROKERS_SECONDS, MACHINES_SECONDS, LATENCY_SECONDS, DAY_SECONDS = 15.0, 15.0, 30.0, 300.0
WAITING_SECONDS = 2.0
"""What waits at brokers is read again after this time: pages that are loaded again read it once."""
COUNTS_SECONDS = 60.0
"""The findings of a run are counted again after this time."""
LESS_PATIENCE = 0.5
"""A page waits so long for what is not the first thing that a person asks."""

_OLDER = "if its tables are of an older release, run reliable-mq migrate --app MODULE:OBJECT"


class Answer(NamedTuple, Generic[T]):
    """The answer of a source. `value` None: there is none, and `fault` says why in one line."""

    value: T | None
    fault: str = ""


class ClusterState(msgspec.Struct, frozen=True):
    """The consumer groups of the cluster, and why brokers did not answer, by their names."""

    groups: list[GroupLine]
    failures: dict[str, str]


class KeptOfDatabase(NamedTuple):
    """What is kept of one database."""

    figures: KeptValue[list[Sample]]
    throughput: KeptValue[dict[Happening, list[int]]]
    day: KeptValue[dict[Happening, list[int]]]
    latency: KeptValue[LatencySample]
    at_brokers: KeptValue[dict[Leg, LegTimes]]
    machines: KeptValue[Machines]
    run: KeptValue[LastRun | None]


class ConsoleSources:
    """The sources of a console.

    Invariant: there is one client of the cluster at most.

    Args:
        mq: the application.
        broker: name servers; "": those of the application.
        runs: the folder with runs of reconciliation; None: there is none.
        stores: folders of brokers' stores by the names of the brokers; "": of any broker.
        increment_options: options of `reliable-mq reconcile` for increments of the console.

    Raises:
        ConfigurationError: one of these options is not for an increment of the console.
    """

    def __init__(
        self,
        mq: ReliableMQ,
        broker: str = "",
        runs: Path | None = None,
        stores: Mapping[str, Path] | None = None,
        increment_options: Sequence[str] = (),
    ) -> None:
        self.mq = mq
        self.runs = runs
        self.stores = stores or {}
        self.increment_options = checked_options(increment_options)
        self.broker = broker or mq.settings.broker
        self.client_settings = configured(mq.settings)
        self._lock = threading.Lock()
        self._client: Client | None = None
        self._places = {
            name: threading.BoundedSemaphore(max(1, database.connections_max // 2))
            for name, database in mq.databases.items()
        }
        self.cluster = KeptValue(self._cluster_state, CLUSTER_SECONDS)
        wait_max = max(mq.settings.resend_waits_seconds)
        self.halves = KeptValue(
            self._with_admin(waiting_halves), WAITING_SECONDS, patience=2 * PART_SECONDS
        )
        self.timers = KeptValue(
            self._with_admin(lambda admin: waiting_timers(admin, datetime.now(UTC))),
            WAITING_SECONDS,
            patience=PART_SECONDS,
        )
        self.brokers = KeptValue(self._cluster_facts, BROKERS_SECONDS, patience=LESS_PATIENCE)
        self.counts = KeptResults(COUNTS_SECONDS)
        self.kept: dict[str, KeptOfDatabase] = {
            name: self._kept_of(name, database, wait_max)
            for name, database in self.databases.items()
        }

    def _kept_of(self, name: str, database: Database, wait_max: float) -> KeptOfDatabase:
        hours = SqlThroughput(database, spans=24, length=HOUR)

        def kept(read: Callable[[], T], seconds: float, patience: float) -> KeptValue[T]:
            def in_place() -> T:
                with self.place(name):
                    return read()

            return KeptValue(in_place, seconds, patience=patience)

        latency = kept(SqlLatency(database).read, LATENCY_SECONDS, LESS_PATIENCE)
        return KeptOfDatabase(
            figures=KeptValue(SqlFigures(name, database, wait_max).read, FIGURES_SECONDS),
            throughput=KeptValue(SqlThroughput(database).read, THROUGHPUT_SECONDS),
            day=kept(hours.read, DAY_SECONDS, 0.0),
            latency=latency,
            at_brokers=KeptValue(
                partial(self._at_brokers, latency), LATENCY_SECONDS, patience=LESS_PATIENCE
            ),
            machines=kept(partial(machines_of, database), MACHINES_SECONDS, LESS_PATIENCE),
            run=KeptValue(partial(last_run, database), RUN_SECONDS),
        )

    def begin_all(self) -> None:
        """Begin all readings that are old: they run at once, and a page waits for the slowest."""
        for kept in self.kept.values():
            for each in kept:
                each.begin()
        self.cluster.begin()
        self.brokers.begin()

    @property
    def databases(self) -> Mapping[str, Database]:
        """The databases of the application, by name; the first one is asked by default."""
        return self.mq.databases

    @property
    def found(self) -> OpenedDatabase:
        """The application in the form that the functions of commands take."""
        databases = self.databases
        first = next(iter(databases.values()))
        groups = self.mq._declared.groups
        topics = self.mq.topics
        return OpenedDatabase(first, databases, self.broker, self.client_settings, topics, groups)

    def whole_name(self, topic: str) -> str:
        """Return the name of a topic at brokers: with its namespace, if there is one."""
        return Namespace(self.client_settings.namespace).full_name(topic)

    def typed_name(self, name: str) -> str:
        """Return the name at brokers of a topic or group that a person has typed or chosen.

        With a namespace, a name without one is the application's own: brokers may have another
        application's topic of that name. A name with a namespace is whole.
        """
        bare = name.removeprefix(RETRY_PREFIX).removeprefix(DEAD_LETTER_PREFIX)
        is_own = name in self.mq.topics or name in self.mq.consumer_groups
        return self.whole_name(name) if is_own or SEPARATOR not in bare else name

    def own_name(self, topic: str) -> str:
        """Return the name of a topic as stubs have it: without the application's namespace."""
        return Namespace(self.client_settings.namespace).own_name(topic)

    @property
    def why_no_cluster(self) -> str:
        """Why the cluster cannot be asked; "": it can."""
        return why_not_asked(self.broker)

    @contextmanager
    def reading(self, database: str) -> Iterator[tuple[Database, Connection]]:
        """Open a database and a connection whose statements end in time.

        Raises:
            ConfigurationError: there is no such database.
        """
        chosen = self.databases[database]
        with self.place(database), chosen.forgiving_engine.begin() as connection:
            limit_statements(connection, STATEMENT_SECONDS)
            yield chosen, connection

    @contextmanager
    def place(self, database: str) -> Iterator[None]:
        """Take one of the places of pages at a database: at most half of its connections.

        A mounted console shares the connections of the application.

        Raises:
            Unavailable: all places are taken, and no reading has ended.
        """
        places = self._places[database]
        if not places.acquire(timeout=STATEMENT_SECONDS):
            raise Unavailable("other pages wait for this database already, and none has an answer")
        try:
            yield
        finally:
            places.release()

    def check_cluster(self) -> None:
        """Check that brokers can be asked.

        Raises:
            ClusterNotAsked: they cannot.
        """
        if self.why_no_cluster:
            raise ClusterNotAsked(self.why_no_cluster)

    @contextmanager
    def client(self) -> Iterator[Client]:
        """Give the client of the cluster. It is kept open for all pages.

        Raises:
            ClusterNotAsked: see `check_cluster`.
        """
        self.check_cluster()
        with self._lock:
            if self._client is None:
                settings = msgspec.structs.replace(self.client_settings, namespace="")
                client = Client(self.broker, settings=settings)
                client.start()
                self._client = client
            client = self._client
        yield client

    @contextmanager
    def admin(self) -> Iterator[Admin]:
        """Give the administration of the cluster; see `client`."""
        with self.client() as client:
            yield client.admin

    def _with_admin(self, read: Callable[[Admin], T]) -> Callable[[], T]:
        def reads() -> T:
            with self.admin() as admin:
                return read(admin)

        return reads

    def _cluster_state(self) -> ClusterState:
        with self.admin() as admin:
            answers = all_progress(admin)
        return ClusterState(
            answers.value, {name: words_of(error) for name, error in answers.failures.items()}
        )

    def _cluster_facts(self) -> ClusterFacts:
        with self.client() as client:
            return client.cluster_facts()

    def _at_brokers(self, latency: KeptValue[LatencySample]) -> dict[Leg, LegTimes]:
        """Ask brokers for the newest messages that a database has the deliveries of."""
        running = latency.begin()
        if running is not None:
            running.wait(STATEMENT_SECONDS)
        sample = latency.look().value
        if self.why_no_cluster or sample is None or not sample.newest:
            return {}
        with self.admin() as admin:
            return broker_legs(admin, sample.newest, self.whole_name)

    def close(self) -> None:
        """Close the client of the cluster."""
        with self._lock:
            client, self._client = self._client, None
        if client is not None:
            client.close()


def checked_options(options: Sequence[str]) -> tuple[str, ...]:
    """Return the options of an increment. A page shows them, so that a URL is none of them.

    Raises:
        ConfigurationError: an option says what the console knows, or does what no preview shows.
    """
    is_value = False
    for each in options:
        if is_value:
            is_value = False
            continue
        name, gives, _ = each.partition("=")
        if name in _NOT_FOR_INCREMENTS or name == "--" or not name.startswith("--"):
            raise ConfigurationError(
                f"increment_options {printable(name)}: the console gives the databases and"
                " the broker itself, and an increment repairs nothing"
            )
        is_value = not gives and name not in FLAGS_OF_INCREMENTS
    return tuple(options)


class ClusterNotAsked(ReliableMQError):
    """The cluster cannot be asked; the text says why."""


def ask(read: Callable[[], T], seconds: float = ANSWER_SECONDS) -> Answer[T]:
    """Return what `read` returns, or why there is no answer. It waits `seconds` at most.

    A database that is cut off may take minutes to fail. So each reading has its own thread.

    Raises:
        Exception: what `read` raised, if it is neither ours nor the database's.
    """
    answer: Future[T] = Future()

    def run() -> None:
        try:
            answer.set_result(read())
        except BaseException as error:  # noqa: BLE001 - raised below
            answer.set_exception(error)

    threading.Thread(target=run, name="reliable-mq-console-ask", daemon=True).start()
    try:
        return Answer(answer.result(seconds))
    except NotInTime:
        return Answer(None, f"no answer within {seconds:g} s")
    except (ReliableMQError, SQLAlchemyError, OSError) as error:
        return Answer(None, fault_of(error))


def fault_of(error: Any) -> str:
    """Return an error in one line for a page."""
    if isinstance(error, SQLAlchemyError):
        if is_missing_column(error):
            return f"the database says: {fault_line(error)}; {_OLDER}"
        return known_fault(error) or f"the database says: {fault_line(error)}"
    return words_of(error)
