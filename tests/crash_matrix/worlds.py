"""Worlds: what one run has for itself on servers that all runs share.

Receives a mode; hands on a `World`, which is all that the processes of a run are told. A run has
its own tables (see `places`), its own topics and consumer groups, and the Redis database of the
hand that runs it.
"""

import contextlib
import itertools
import shutil
import tempfile
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec
from bench.reliable_mq_broker import ReliableMQBroker
from redis import Redis as RedisClient
from sqlalchemy import MetaData
from tests.crash_matrix import places
from tests.crash_matrix.modes import Databases, Form, Kind, Mode, Redis
from tests.crash_matrix.redis_gates import RedisGates

from reliable_mq.testing.local_servers import LocalValkey, free_port

__all__ = ["CHECK_BACK", "LONG_AGO", "SECOND", "Books", "Servers", "World"]

SECOND = "billing"
"""The name of the second database, where there is one."""
LONG_AGO = "2020-01-01"
"""A day that every window has passed."""
CHECK_BACK = {"transactionTimeOut": "1000", "transactionCheckInterval": "200"}
"""When the broker asks for a half message that nobody ends, milliseconds."""
RUNS_OF_A_BROKER = 400
"""A broker that has known so many runs is replaced: their topics only make it slower."""
HANDS_MAX = 16
"""Each hand has a Redis database of its own, and there are so many."""
# A send that a busy machine keeps waiting is no finding: the application would be told "busy".
PATIENT = {"waitTimeMillsInSendQueue": "60000"}


class World(msgspec.Struct, frozen=True):
    """Where the processes of one run find everything."""

    run: int
    mode: Mode
    #: the database "main", and "billing" where there are two
    databases: tuple[str, ...]
    redis: str
    broker: str
    directory: str
    #: a planted flaw, see `flaws`; empty: none
    flaw: str = ""

    @property
    def is_half(self) -> bool:
        """Whether messages leave as half messages."""
        return self.mode.form is Form.HALF

    def topic(self, name: str) -> str:
        """Return the run's own topic of this name."""
        return f"{name}-{self.run}"

    def group(self, name: str) -> str:
        """Return the run's own consumer group of this name."""
        return f"{name}-{self.run}"


class Books:
    """The tables of a world, read and written in plain SQL past everything that is tested."""

    def __init__(self, world: World) -> None:
        self._connections = [places.connect(url) for url in world.databases]

    def ask(self, question: str) -> list[tuple[Any, ...]]:
        """Return all rows that answer a question, those of the first database first."""
        return [row for each in self._connections for row in each.execute(question).fetchall()]

    def each(self) -> Iterator[Callable[[str], list[tuple[Any, ...]]]]:
        """Yield for each database what answers a question to it alone."""
        for connection in self._connections:
            yield lambda question, asked=connection: list(asked.execute(question).fetchall())  # type: ignore[misc]

    def count(self, what: str) -> int:
        """Return how many rows there are "FROM …", in all databases."""
        return sum(int(row[0]) for row in self.ask(f"SELECT count(*) {what}"))

    def run(self, statement: str) -> None:
        """Run a statement in every database and commit it."""
        for each in self._connections:
            each.execute(statement)

    def close(self) -> None:
        for each in self._connections:
            each.close()

    def __enter__(self) -> "Books":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class Servers:
    """Databases, two Valkeys and brokers, shared by all runs. A context manager.

    Invariant: a run number is given once.

    Args:
        tables: what every run has in its database.
    """

    def __init__(self, tables: Sequence[MetaData]) -> None:
        self._tables = tables
        self._numbers = itertools.count(1)
        self._brokers: list[ReliableMQBroker] = []
        self._lock = threading.Lock()

    def __enter__(self) -> "Servers":
        with contextlib.ExitStack() as stack:
            self.directory = Path(tempfile.mkdtemp(prefix="reliable-mq-crash-"))
            stack.callback(shutil.rmtree, self.directory, ignore_errors=True)
            self.directory.chmod(0o755)  # PostgreSQL's user must get to its data
            self._valkey = LocalValkey(self.directory / "valkey")
            replica = LocalValkey(self.directory / "replica")
            for server in (self._valkey, replica):
                server.start()
                stack.callback(server.stop)
            self._gates = stack.enter_context(RedisGates(self._valkey.port, replica.port))
            stack.callback(self._stop_brokers)
            self._nobody = f"redis://127.0.0.1:{free_port()}/0"
            self._files = places.Files(self.directory, self._tables)
            self._places: Mapping[Kind, places.Places] = {
                Kind.POSTGRESQL: places.Schemas(self.directory, self._tables),
                Kind.MYSQL: places.Databases(self.directory, self._tables),
            }
            for each in self._places.values():
                stack.callback(each.stop)
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def _stop_brokers(self) -> None:
        for broker in self._brokers[-2:]:
            broker.stop()

    def world(self, mode: Mode, hand: int) -> World:
        """Return a new world for the hand of this number, which has a Redis database."""
        with self._lock:
            run = next(self._numbers)
            broker = self._broker(run)
        directory = self.directory / f"run-{run}"
        directory.mkdir()
        return World(
            run=run,
            mode=mode,
            databases=tuple(
                self._new_database(mode.kind, name, directory) for name in _names(mode)
            ),
            redis=self._redis_url(mode.redis, hand),
            broker=broker.name_server_address,
            directory=str(directory),
        )

    def _broker(self, run: int) -> ReliableMQBroker:
        if run % RUNS_OF_A_BROKER == 1:
            if len(self._brokers) > 1:  # its last run has ended long ago
                self._brokers[-2].stop()
            broker = ReliableMQBroker(
                self.directory / f"broker-{run}",
                settings={**CHECK_BACK, "transactionCheckMax": "1000", **PATIENT},
            )
            broker.start()
            self._brokers.append(broker)
        return self._brokers[-1]

    def _new_database(self, kind: Kind, name: str, directory: Path) -> str:
        if kind is Kind.SQLITE:
            return self._files.copy(directory / f"{name}.db")
        return self._places[kind].take()

    def _redis_url(self, redis: Redis, hand: int) -> str:
        if redis is Redis.DOWN:
            return self._nobody
        port = self._gates.open() if redis is Redis.FAILING_OVER else self._valkey.port
        return f"redis://127.0.0.1:{port}/{hand}"

    def after_death(self, world: World) -> World:
        """Do to Redis what the mode wants at a death; return the world as it is from then on."""
        if world.mode.redis is Redis.FLUSHED:
            with RedisClient.from_url(world.redis) as client:
                client.flushdb()
        if world.mode.redis is Redis.LOST:
            return msgspec.structs.replace(world, redis=self._nobody)
        return world

    def remove(self, world: World) -> None:
        """Forget a world that was judged. Nobody lives in it any more, so its tables are empty
        when they are emptied, and another one may have them.
        """
        shutil.rmtree(world.directory, ignore_errors=True)
        if world.mode.redis is Redis.FAILING_OVER:
            self._gates.close(int(world.redis.rpartition(":")[2].partition("/")[0]))
        if world.mode.kind in self._places:
            for url in world.databases:
                self._places[world.mode.kind].give_back(url)


def _names(mode: Mode) -> tuple[str, ...]:
    return ("main",) if mode.databases is Databases.ONE else ("main", SECOND)
