"""Everything that runs: PostgreSQL, Valkey, broker, two workers, the scheduler, the producer.

Receives a directory for output; hands on processes that find each other by `RELIABLE_MQ_*`.
All of them listen on free ports of 127.0.0.1 only, and all of them end with the demo.
"""

import json
import os
import shutil
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from examples.demo.disk_room import lack_of_room
from examples.demo.faults import FaultTarget, PlannedFault, orders_to_die_at
from examples.demo.processes import Process, run_to_the_end
from reliable_mq.cli.reconcile import CLEAN, FINDINGS
from reliable_mq.errors import ConfigurationError
from reliable_mq.testing.local_servers import LocalPostgres, LocalValkey, free_port

APPLICATION = "examples.shop:mq"
_MARK = ".reliable-mq-demo"  # a folder that holds it was made by a demo and may be emptied
READY_SECONDS_MAX = 30.0
# Seconds between sends of a stub: the demo is more impatient than the default ladder.
RESEND_WAITS = "[4, 8, 15, 30]"
TOOL_SECONDS_MAX = 300.0
EXAMPLES_ROOT = Path(__file__).resolve().parents[2]  # what holds `examples/`


class DemoStage:
    """The servers and processes of one run.

    Invariant: whatever was started is stopped when the context ends, on an error and Ctrl-C too.

    Args:
        output: emptied and filled: `store/` (the broker's), `logs/`, `reconcile/`.
    """

    def __init__(self, output: Path) -> None:
        self.output = output.resolve()
        self.store = self.output / "store"
        self._logs = self.output / "logs"
        # PostgreSQL runs as another user where we are root; below /tmp it can reach its data.
        self._data = Path(tempfile.mkdtemp(prefix="reliable-mq-demo-"))
        self.postgres = LocalPostgres(self._data / "postgres")
        self.valkey = LocalValkey(self._data / "valkey")
        self._broker_ports = (free_port(), free_port())
        self.processes: dict[FaultTarget, Process] = {}

    def __enter__(self) -> Self:
        try:
            self._clear_output()
            self._logs.mkdir(parents=True)
            (self.output / _MARK).touch()
            self._check_room()
        except BaseException:
            shutil.rmtree(self._data, ignore_errors=True)
            raise
        self._data.chmod(0o755)
        return self

    def _check_room(self) -> None:
        """Refuse a disk on which the broker would refuse every send.

        Raises:
            ConfigurationError: when it is that full.
        """
        if too_full := lack_of_room(self.output):
            raise ConfigurationError(
                f"--out {self.output}: {too_full}; make room, or choose a folder on another disk"
            )

    def _clear_output(self) -> None:
        """Remove what an earlier demo left, and nothing else.

        Raises:
            ConfigurationError: when the folder holds something that no demo made.
        """
        if self.output.is_dir() and any(self.output.iterdir()):
            if not (self.output / _MARK).exists():
                raise ConfigurationError(
                    f"--out {self.output}: this folder is not empty and no demo made it; "
                    "choose another one"
                )
            shutil.rmtree(self.output)

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for process in reversed(list(self.processes.values())):
            if kind is None:
                process.stop()
            else:
                process.kill()
        self.valkey.stop()
        self.postgres.stop()
        shutil.rmtree(self._data, ignore_errors=True)

    @property
    def name_server(self) -> str:
        return f"127.0.0.1:{self._broker_ports[1]}"

    def start(self) -> None:
        """Start the servers, the broker, the workers and the scheduler; create the tables."""
        self.postgres.start()
        self.valkey.start()
        broker_port, name_server_port = self._broker_ports
        broker = self._add(
            FaultTarget.BROKER,
            *self._verb("broker", "--store", str(self.store)),
            *("--port", str(broker_port), "--namesrv-port", str(name_server_port)),
        )
        broker.start()
        broker.wait_for_line("ready ", READY_SECONDS_MAX)
        self.run_tool("create-tables", "-m", "examples.shop.create_tables")
        self._add(FaultTarget.WORKER_1, *self._verb("run", APPLICATION)).start()
        self._add(FaultTarget.WORKER_2, *self._verb("run", APPLICATION)).start()
        self._add(FaultTarget.SCHEDULER, *self._verb("resend", APPLICATION)).start()

    def start_producer(self, orders: int, rate: float, faults: Sequence[PlannedFault] = ()) -> None:
        """Start the process that places orders until the first `orders` are in the database."""
        deaths = [word for order in orders_to_die_at(faults) for word in ("--die-at", str(order))]
        self._add(
            FaultTarget.PRODUCER,
            *("-m", "examples.demo.producer"),
            *("--orders", str(orders), "--rate", str(rate), *deaths),
        ).start()

    def reconcile(
        self, name: str, *options: str, while_waiting: Callable[[], None]
    ) -> dict[str, Any]:
        """Run the reconciliation with its output in `output/NAME`; return its summary."""
        out = self.output / name
        self.run_tool(
            name,
            *self._verb("reconcile", "--db", self.postgres.url, "--store", str(self.store)),
            *("--out", str(out), *options),
            exit_codes=(CLEAN, FINDINGS),
            while_waiting=while_waiting,
        )
        summary: dict[str, Any] = json.loads((out / "summary.json").read_text())
        return summary

    def run_tool(
        self,
        name: str,
        *arguments: str,
        exit_codes: Sequence[int] = (0,),
        while_waiting: Callable[[], None] = lambda: None,
    ) -> int:
        """Run a process of this stage to its end; its log is `logs/NAME.log`."""
        process = self._process(name, *arguments)
        return run_to_the_end(process, TOOL_SECONDS_MAX, exit_codes, while_waiting)

    def log_of(self, name: str) -> Path:
        return self._logs / f"{name}.log"

    def _add(self, target: FaultTarget, *arguments: str) -> Process:
        self.processes[target] = self._process(target, *arguments)
        return self.processes[target]

    def _process(self, name: str, *arguments: str) -> Process:
        environment = {
            "PYTHONPATH": os.pathsep.join(
                filter(None, (str(EXAMPLES_ROOT), os.environ.get("PYTHONPATH")))
            ),
            "RELIABLE_MQ_BROKER": self.name_server,
            "RELIABLE_MQ_DATABASE": self.postgres.url,
            "RELIABLE_MQ_REDIS": self.valkey.url,
            "RELIABLE_MQ_RESEND_WAITS_SECONDS": RESEND_WAITS,
        }
        return Process(name, arguments, environment, self.log_of(name))

    @staticmethod
    def _verb(*words: str) -> tuple[str, ...]:
        return ("-m", "reliable_mq.cli.main", *words)
