"""A standalone Spark cluster from the wheel: a master and workers as processes of this machine.

Receives a directory; hands on a URL, `spark://127.0.0.1:PORT`. The processes are started as on a
cluster, by `spark-class`, on free loopback ports, and can be killed. Executors inherit what the
workers' environment says, so that they find the interpreter and the packages of this process.
"""

import json
import os
import signal
import sys
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path
from urllib.request import urlopen

from reliable_mq.runtime.java_home import use_java
from reliable_mq.testing.local_servers import LocalServer, LocalServerFailed, free_port

_HOST = "127.0.0.1"
_LOCAL_IP = {"SPARK_LOCAL_IP": _HOST, "SPARK_NO_DAEMONIZE": "1"}
_SMALL_JAVA = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"


def spark_program(name: str) -> str:
    """Return the path of a program of the wheel, for example `spark-submit`.

    Raises:
        LocalServerFailed: when the wheel is not installed.
    """
    found = find_spec("pyspark")
    if found is None or not found.submodule_search_locations:
        raise LocalServerFailed("pyspark is not installed; do: pip install 'reliable-mq[spark]'")
    return str(Path(next(iter(found.submodule_search_locations))) / "bin" / name)


def spark_environment() -> dict[str, str]:
    """Return the environment in which Spark's programs of this machine find Java and Python."""
    environment = {**os.environ, **_LOCAL_IP, "PYSPARK_PYTHON": sys.executable}
    use_java(environment)
    return environment


class _SparkDaemon(LocalServer):
    """A process of the cluster. Its page for people is asked whether it is up."""

    main_class = ""
    start_seconds_max = 180.0  # a Java on a busy machine

    def __init__(self, directory: Path | str) -> None:
        super().__init__(directory)
        self.page_port = free_port()

    def _command(self) -> list[str]:
        os.environ.update(_LOCAL_IP)
        use_java()
        ports = ("--host", _HOST, "--port", str(self.port), "--webui-port", str(self.page_port))
        return [spark_program("spark-class"), self.main_class, *ports, *self._arguments()]

    def _arguments(self) -> list[str]:
        return []

    def _page(self) -> dict[str, object] | None:
        address = f"http://{_HOST}:{self.page_port}/json/"
        with suppress(OSError, ValueError), urlopen(address, timeout=5) as answer:
            page: dict[str, object] = json.load(answer)
            return page
        return None


class LocalSparkMaster(_SparkDaemon):
    """The master of a standalone cluster."""

    name = "Spark-master"
    main_class = "org.apache.spark.deploy.master.Master"

    @property
    def url(self) -> str:
        """What `spark-submit --master` takes."""
        return f"spark://{_HOST}:{self.port}"

    def _answers(self) -> bool:
        return self._page() is not None


class LocalSparkWorker(_SparkDaemon):
    """A worker with one core and a gigabyte for executors."""

    name = "Spark-worker"
    main_class = "org.apache.spark.deploy.worker.Worker"

    def __init__(self, directory: Path | str, master: LocalSparkMaster) -> None:
        super().__init__(directory)
        self._master = master

    @property
    def url(self) -> str:
        return f"http://{_HOST}:{self.page_port}"

    def executors(self) -> list[int]:
        """Return the process ids of the executors that run under this worker."""
        return [pid for pid in _children(self.pid or 0) if "CoarseGrained" in _command_of(pid)]

    def _arguments(self) -> list[str]:
        folder = self.directory / "work"
        return ["--cores", "1", "--memory", "1g", "--work-dir", str(folder), self._master.url]

    def _answers(self) -> bool:
        page = self._page()
        return page is not None and page.get("masterurl") == self._master.url


class LocalSparkCluster:
    """A master and workers; `start` returns when all have found each other."""

    def __init__(self, directory: Path, workers: int = 2) -> None:
        self.master = LocalSparkMaster(directory / "master")
        self.workers = [
            LocalSparkWorker(directory / f"worker-{number}", self.master)
            for number in range(workers)
        ]

    @property
    def url(self) -> str:
        """What `spark-submit --master` takes."""
        return self.master.url

    def start(self) -> str:
        """Start the processes.

        Raises:
            LocalServerFailed: when one does not answer.
        """
        self.master.start()
        for worker in self.workers:
            worker.start()
        return self.url

    def stop(self) -> None:
        """Stop the processes, and the executors with their worker."""
        for worker in self.workers:
            executors = worker.executors()
            worker.stop()
            for pid in executors:
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
        self.master.stop()

    def executors(self) -> list[int]:
        """Return the process ids of all executors."""
        return [pid for worker in self.workers for pid in worker.executors()]


def _children(parent: int) -> list[int]:
    """Return the processes that a process has started (Linux)."""
    found = []
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit():
            with suppress(OSError, ValueError):
                if int((folder / "stat").read_text().rpartition(")")[2].split()[1]) == parent:
                    found.append(int(folder.name))
    return found


def _command_of(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode()
    except OSError:
        return ""
