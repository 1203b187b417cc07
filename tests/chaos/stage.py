"""Everything that runs under chaos, and what is done to it.

Receives a scene: which broker, how many databases; hands on faults that were done. Every process is
one that this stage started, and is killed or stopped by its own process id.
"""

import contextlib
import json
import math
import os
import re
import shutil
import signal
import tempfile
import time
from collections import Counter
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple, Protocol, Self

import psycopg
from sqlalchemy import create_engine
from tests.chaos.application import TABLES
from tests.chaos.brokers import BROKERS
from tests.chaos.faults import STOPS, Fault, Planned
from tests.chaos.mortal import LIFE_SECONDS
from tests.chaos.slaves import MASTER, Slave
from tests.crash_matrix.tables import our_tables

from examples.demo.processes import Process
from reliable_mq.testing.local_servers import LocalPostgres, LocalServerFailed, LocalValkey

ROOT = Path(__file__).parents[2]
PRODUCERS, WORKERS, SCHEDULERS = 2, 2, 2
AGAIN_SECONDS = 0.5
"""What ended by itself is started again so long afterwards."""
BROKER = "broker-0"
_SUPPRESSED = re.compile(r"suppressed duplicate .*; (\d+) more since")
STATEMENT = "processes that died at an SQL statement"


class Scene(NamedTuple):
    """What runs.

    Args:
        rate: orders a second that each producer places.
        broker: "ours" or "apache".
        databases: 1, or 2 on two servers; then three groups have their effects in the second.
        life_seconds: after so long on the mean a process dies at an SQL statement; 0: never.
        slaves: of our broker, 0 or 1.
    """

    rate: float
    broker: str = "ours"
    databases: int = 1
    life_seconds: float = 30.0
    slaves: int = 0


class Victim(Protocol):
    """What can be killed, stopped and started again."""

    @property
    def pid(self) -> int | None: ...

    @property
    def is_running(self) -> bool: ...

    def start(self) -> object: ...

    def kill(self) -> None: ...


class Stage:
    """Servers and processes, killed and brought back. A context manager.

    Invariant: a victim runs, or is away with a time to come back, or is just coming back.
    """

    def __init__(self, scene: Scene) -> None:
        self._scene = scene
        self.directory = Path(tempfile.mkdtemp(prefix="reliable-mq-chaos-"))
        self.directory.chmod(0o755)  # PostgreSQL's user must get to its data
        self.databases = [
            LocalPostgres(self.directory / f"postgres-{number}")
            for number in range(scene.databases)
        ]
        self.valkey = LocalValkey(self.directory / "valkey")
        settings = MASTER if scene.slaves else {}
        self.broker = BROKERS[scene.broker](self.directory / "broker", settings)
        self.slaves = [
            Slave(self.directory / f"slave-{number}", self.broker.name_server_address)
            for number in range(scene.slaves)
        ]
        self.processes: dict[str, Process] = {}
        self._commands: dict[str, tuple[str, ...]] = {}
        self._victims: dict[str, Victim] = {BROKER: self.broker, "redis-0": self.valkey}
        self._victims |= {f"slave-{number}": slave for number, slave in enumerate(self.slaves)}
        self._back_at: dict[str, float] = {}
        self._coming: dict[str, Future[object]] = {}
        self._stopped: set[str] = set()
        self._bringing = ThreadPoolExecutor(8)  # a broker of Apache's takes ten seconds
        self.done: Counter[str] = Counter()
        self.ended_by_themselves: Counter[str] = Counter()

    @property
    def urls(self) -> list[str]:
        """Where psycopg finds the databases; the orders are in the first one."""
        return [database.url.replace("+psycopg", "") for database in self.databases]

    def __enter__(self) -> Self:
        try:
            self._set_up()
        except BaseException:
            self.__exit__()
            raise
        return self

    def _set_up(self) -> None:
        for number, database in enumerate(self.databases):
            database.start()
            self._victims[f"database-{number}"] = database
            engine = create_engine(database.url)
            for metadata in (TABLES, our_tables()):
                metadata.create_all(engine)
            engine.dispose()
        self.valkey.start()
        self.broker.start()
        for slave in self.slaves:
            slave.start()
        application = "tests.chaos.application:mq"
        command = ("reliable_mq.cli.main",)
        for number in range(WORKERS):
            self._commands[f"worker-{number}"] = (*command, "run", application)
        for number in range(SCHEDULERS):
            self._commands[f"scheduler-{number}"] = (*command, "resend", application)
        for number in range(PRODUCERS):
            words = (str(number), str(PRODUCERS), str(self._scene.rate))
            self._commands[f"producer-{number}"] = ("tests.chaos.producer", *words)
        for name in self._commands:
            self._start(name)

    def __exit__(self, *_: object) -> None:
        self._bringing.shutdown(cancel_futures=True)
        for process in self.processes.values():
            process.kill()
        for slave in self.slaves:
            slave.end()
        self.broker.end()
        self.valkey.kill()
        for database in self.databases:
            database.stop()
        shutil.rmtree(self.directory, ignore_errors=True)

    def _start(self, name: str) -> None:
        arguments = self._commands[name]
        environment = {
            "PYTHONPATH": os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH")))),
            "RELIABLE_MQ_BROKER": self.broker.name_server_address,
            "RELIABLE_MQ_DATABASE": self.databases[0].url,
            "RELIABLE_MQ_REDIS": self.valkey.url,
        }
        if len(self.databases) > 1:
            branch = {"branch": self.databases[1].url}
            environment["RELIABLE_MQ_DATABASES"] = json.dumps(branch)
        if life := self._scene.life_seconds:
            environment[LIFE_SECONDS] = str(life)
            arguments = ("tests.chaos.mortal", *arguments)
        process = Process(name, ("-m", *arguments), environment, self.directory / f"{name}.log")
        process.start()
        self.processes[name] = self._victims[name] = process

    def do(self, planned: Planned) -> None:
        """Do a fault, unless its victim is away already."""
        match planned.fault:
            case Fault.FLUSH:
                if "redis-0" not in self._stopped:
                    with contextlib.suppress(OSError, LocalServerFailed):  # it may be away
                        self.valkey.flush()
                        self.done[planned.fault] += 1
            case Fault.CONNECTIONS:
                self._cut_connections(planned)
            case _:
                self._send_away(planned)

    def _send_away(self, planned: Planned) -> None:
        """Kill or stop one of a kind; never two of a kind are stopped."""
        kind = planned.fault.name.removesuffix("_STOPPED").lower()
        names = sorted(name for name in self._victims if name.startswith(f"{kind}-"))
        name = names[planned.victim % len(names)]
        if name in self._back_at or name in self._coming or not self._victims[name].is_running:
            return
        if planned.fault in STOPS:
            if any(stopped.startswith(f"{kind}-") for stopped in self._stopped):
                return
            self._signal(name, signal.SIGSTOP)
            self._stopped.add(name)
        else:
            self._victims[name].kill()
        self.done[planned.fault] += 1
        self._back_at[name] = time.monotonic() + planned.away

    def _signal(self, name: str, what: signal.Signals) -> None:
        if (pid := self._victims[name].pid) is not None:
            os.kill(pid, what)

    def _cut_connections(self, planned: Planned) -> None:
        """Let a database end some of the connections to it."""
        question = (
            b"SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity "
            b"WHERE backend_type = 'client backend' AND pid <> pg_backend_pid() AND pid %% 3 = %s"
        )
        url = self.urls[planned.victim % len(self.urls)]
        with contextlib.suppress(psycopg.OperationalError):  # it may be away
            with psycopg.connect(url, autocommit=True) as connection:
                connection.execute(question, [planned.victim % 3])
            self.done[planned.fault] += 1

    def tick(self) -> None:
        """Bring back what was away long enough, and what ended by itself."""
        now = time.monotonic()
        for name in [name for name, at in self._back_at.items() if at <= now]:
            self._bring_back(name)
        for name in [name for name, coming in self._coming.items() if coming.done()]:
            self._coming.pop(name).result()
        for name, victim in self._victims.items():
            is_away = name in self._back_at or name in self._coming
            if not is_away and not victim.is_running:
                self._note_end(name)
                self._back_at[name] = now + AGAIN_SECONDS

    def _note_end(self, name: str) -> None:
        process = self.processes.get(name)
        code = None if process is None else process.collect()
        if code == -signal.SIGKILL:
            self.done[STATEMENT] += 1
        else:
            self.ended_by_themselves[f"{name.partition('-')[0]} with code {code}"] += 1

    def _bring_back(self, name: str) -> None:
        del self._back_at[name]
        if name in self._stopped:
            self._stopped.remove(name)
            self._signal(name, signal.SIGCONT)
        else:
            self._coming[name] = self._bringing.submit(self._victims[name].start)

    def take_broker_away(self) -> None:
        """Kill the broker, whatever state it is in; it comes back with the peace."""
        if (coming := self._coming.pop(BROKER, None)) is not None:
            coming.result()
        self._stopped.discard(BROKER)
        self.broker.kill()
        self._back_at[BROKER] = math.inf

    def make_peace(self) -> None:
        """Let no more orders be placed and nothing die; return when everything else is back."""
        for name in list(self._back_at):
            self._bring_back(name)
        for name in list(self._coming):
            self._coming.pop(name).result()
        for name, process in list(self.processes.items()):
            if name.startswith("producer"):
                process.stop()
                del self.processes[name], self._victims[name]
        if self._scene.life_seconds:  # the last deaths, and lives without an end
            self._scene = self._scene._replace(life_seconds=0.0)
            for process in self.processes.values():
                process.kill()
            for name in list(self.processes):
                self._start(name)

    def suppressed(self) -> int:
        """Return how many duplicates the workers have suppressed, by their logs; at least so many.

        A line stands for itself, and for those of the minute before.
        """
        texts = (log.read_text(errors="replace") for log in self.directory.glob("worker-*.log"))
        return sum(1 + int(more) for text in texts for more in _SUPPRESSED.findall(text))
