"""Everything that runs under chaos, and what is done to it.

Receives a directory and a seed; hands on faults that were done. Every process is one that this
stage started, and is killed by its own process id.
"""

import contextlib
import os
import shutil
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Self

import psycopg
from bench.reliable_mq_broker import ReliableMQBroker
from sqlalchemy import create_engine
from tests.chaos.application import TABLES
from tests.chaos.faults import Fault, Planned
from tests.crash_matrix.tables import our_tables

from reliable_mq.cli.demo.processes import Process
from reliable_mq.testing.local_servers import LocalPostgres, LocalServerFailed, LocalValkey

ROOT = Path(__file__).parents[2]
HASTY = {"transactionTimeOut": "3000", "transactionCheckInterval": "1000"}
"""The broker asks soon for the halves of producers that were killed."""
PRODUCERS, WORKERS, SCHEDULERS = 2, 2, 2


class Stage:
    """Servers and processes, killed and brought back. A context manager.

    Invariant: a process runs, or is away with a time to come back.

    Args:
        rate: orders a second that each producer places.
    """

    def __init__(self, rate: float) -> None:
        self._rate = rate
        self.directory = Path(tempfile.mkdtemp(prefix="reliable-mq-chaos-"))
        self.directory.chmod(0o755)  # PostgreSQL's user must get to its data
        self.postgres = LocalPostgres(self.directory / "postgres")
        self.valkey = LocalValkey(self.directory / "valkey")
        self.broker = ReliableMQBroker(self.directory / "broker", settings=HASTY)
        self.processes: dict[str, Process] = {}
        self._back_at: dict[str, float] = {}
        self.done: Counter[Fault] = Counter()
        self.ended_by_themselves: Counter[str] = Counter()

    @property
    def url(self) -> str:
        """Where psycopg finds the database."""
        return self.postgres.url.replace("+psycopg", "")

    def __enter__(self) -> Self:
        self.postgres.start()
        self.valkey.start()
        self.broker.start()
        engine = create_engine(self.postgres.url)
        for metadata in (TABLES, our_tables()):
            metadata.create_all(engine)
        engine.dispose()
        application = "tests.chaos.application:mq"
        command = ("-m", "reliable_mq.cli.main")
        for number in range(WORKERS):
            self._start(f"worker-{number}", *command, "run", application)
        for number in range(SCHEDULERS):
            self._start(f"scheduler-{number}", *command, "resend", application)
        for number in range(PRODUCERS):
            words = (str(number), str(PRODUCERS), str(self._rate))
            self._start(f"producer-{number}", "-m", "tests.chaos.producer", *words)
        return self

    def __exit__(self, *_: object) -> None:
        for process in self.processes.values():
            process.kill()
        self.broker.kill()
        self.valkey.stop()
        self.postgres.stop()
        shutil.rmtree(self.directory, ignore_errors=True)

    def _start(self, name: str, *arguments: str) -> None:
        environment = {
            "PYTHONPATH": os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH")))),
            "RELIABLE_MQ_BROKER": self.broker.name_server_address,
            "RELIABLE_MQ_DATABASE": self.postgres.url,
            "RELIABLE_MQ_REDIS": self.valkey.url,
        }
        process = Process(name, arguments, environment, self.directory / f"{name}.log")
        process.start()
        self.processes[name] = process

    def do(self, planned: Planned) -> None:
        """Do a fault, unless its victim is away already."""
        kinds = {
            Fault.WORKER: ("worker", WORKERS),
            Fault.PRODUCER: ("producer", PRODUCERS),
            Fault.SCHEDULER: ("scheduler", SCHEDULERS),
        }
        match planned.fault:
            case Fault.FLUSH:
                with contextlib.suppress(OSError, LocalServerFailed):  # it may be away
                    self.valkey.flush()
                    self.done[planned.fault] += 1
                return
            case Fault.CONNECTIONS:
                self._cut_connections(planned)
                return
            case Fault.BROKER | Fault.REDIS | Fault.DATABASE:
                name = planned.fault.name
            case _:
                kind, count = kinds[planned.fault]
                name = f"{kind}-{planned.victim % count}"
        if name in self._back_at:
            return
        self._kill(name)
        self.done[planned.fault] += 1
        self._back_at[name] = time.monotonic() + planned.away

    def _kill(self, name: str) -> None:
        match name:
            case Fault.BROKER.name:
                self.broker.kill()
            case Fault.REDIS.name:
                self.valkey.kill()
            case Fault.DATABASE.name:
                self.postgres.kill()
            case _:
                self.processes[name].kill()

    def _cut_connections(self, planned: Planned) -> None:
        """Let the database end some of the connections to it."""
        question = (
            b"SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity "
            b"WHERE backend_type = 'client backend' AND pid <> pg_backend_pid() AND pid %% 3 = %s"
        )
        with contextlib.suppress(psycopg.OperationalError):  # it may be away
            with psycopg.connect(self.url, autocommit=True) as connection:
                connection.execute(question, [planned.victim % 3])
            self.done[planned.fault] += 1

    def tick(self) -> None:
        """Bring back what was away long enough, and what ended by itself."""
        now = time.monotonic()
        for name in [name for name, at in self._back_at.items() if at <= now]:
            del self._back_at[name]
            self._bring_back(name)
        for name, process in self.processes.items():
            if name not in self._back_at and process.exit_code is not None:
                code = process.collect()
                self.ended_by_themselves[f"{name.partition('-')[0]} with {code}"] += 1
                self._back_at[name] = now + 0.5

    def _bring_back(self, name: str) -> None:
        match name:
            case Fault.BROKER.name:
                self.broker.start()
            case Fault.REDIS.name:
                self.valkey.start()
            case Fault.DATABASE.name:
                self.postgres.start()
            case _:
                self.processes[name].start()

    def stop_producing(self) -> None:
        """Let no more orders be placed, and bring everything else back."""
        for name in [name for name in self.processes if name.startswith("producer")]:
            self._back_at.pop(name, None)
            self.processes.pop(name).stop()
        for name in list(self._back_at):
            del self._back_at[name]
            self._bring_back(name)

    def log_counts(self, text: str) -> int:
        """Return how often a text stands in the logs of the workers."""
        logs = self.directory.glob("worker-*.log")
        return sum(log.read_text(errors="replace").count(text) for log in logs)
