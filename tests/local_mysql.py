"""A real MariaDB or MySQL server, where one is installed; no wheel has one.

Receives a directory; hands on a URL. The program is `mariadbd` or `mysqld` on the PATH or where
Debian puts it (`apt-get install mariadb-server`), or what the variable `RELIABLE_MQ_MYSQLD` names.
"""

import contextlib
import os
import shutil
import signal
import socket
from pathlib import Path

from reliable_mq.testing.local_servers import LocalDatabaseServer, LocalServerFailed

PROGRAM_VARIABLE = "RELIABLE_MQ_MYSQLD"
_PROGRAMS = ("mariadbd", "mysqld")
_PLACES = ("/usr/sbin", "/usr/local/sbin", "/usr/local/bin", "/usr/libexec", "/opt/mysql/bin")
_PROTOCOL_VERSION = 10  # the fifth byte that a server sends to whoever connects


def find_mysqld() -> Path | None:
    """Return the server's program, None: there is none on this machine."""
    named = os.environ.get(PROGRAM_VARIABLE)
    if named:
        return Path(named)
    path = os.pathsep.join((os.environ.get("PATH", ""), *_PLACES))
    for name in _PROGRAMS:
        if found := shutil.which(name, path=path):
            return Path(found)
    return None


class LocalMySQL(LocalDatabaseServer):
    """A MariaDB or MySQL server with its data under `directory`; what it committed survives `kill`.

    Args:
        directory: made if missing; holds `data/` and `mysql.log`. When the caller is root every
            directory above it must be open to other users (a directory under `/tmp` is).
        options: further words for the server, for example `--binlog-format=STATEMENT`.

    Raises:
        LocalServerFailed: when no program is found.
    """

    name = "MySQL"
    stop_signal = signal.SIGTERM

    def __init__(self, directory: Path | str, *options: str) -> None:
        super().__init__(directory)
        program = find_mysqld()
        if program is None:
            raise LocalServerFailed(
                "there is no mariadbd or mysqld on this machine; apt-get install mariadb-server, "
                f"or name the program in {PROGRAM_VARIABLE}"
            )
        self._program = program
        self._temporary = self.directory / "temporary"
        self._options = options

    @property
    def url(self) -> str:
        """The SQLAlchemy URL of the database `test`, user `root`, no password."""
        return self.url_of("test")

    def url_of(self, database: str) -> str:
        """Return the SQLAlchemy URL of one database of this server."""
        return f"mysql+pymysql://root@127.0.0.1:{self.port}/{database}"

    def _command(self) -> list[str]:
        if not (self._data / "mysql").exists():
            self._create_data()
        return [
            str(self._program),
            "--no-defaults",
            *self._place(),
            f"--port={self.port}",
            "--bind-address=127.0.0.1",
            f"--socket={self.directory / 'mysql.sock'}",
            f"--pid-file={self._data / 'mysql.pid'}",
            # What distributions build in is another user's, or not there: MySQL would not start.
            f"--secure-file-priv={self.directory}",
            "--loose-mysqlx=OFF",  # MySQL's second port, open to all; MariaDB has none
            "--innodb-buffer-pool-size=64M",
            "--max-connections=200",
            *self._options,
        ]

    def _answers(self) -> bool:
        with contextlib.suppress(OSError):
            with socket.create_connection(("127.0.0.1", self.port), timeout=5) as connection:
                greeting = connection.recv(64)
            return len(greeting) > 4 and greeting[4] == _PROTOCOL_VERSION
        return False

    def _create_data(self) -> None:
        shutil.rmtree(self._data, ignore_errors=True)  # what an interrupted start left
        self._data.mkdir(mode=0o700, parents=True)
        self._temporary.mkdir(mode=0o700, exist_ok=True)
        self._give_away(self.directory, self._data, self._temporary)  # `directory`: for the socket
        self._run(self._creation())

    def _creation(self) -> list[str]:
        """Return the command that makes an empty data directory."""
        installer = self._program.parent.parent / "bin" / "mariadb-install-db"
        if not installer.exists():
            return [str(self._program), "--no-defaults", "--initialize-insecure", *self._place()]
        return [
            str(installer),
            "--no-defaults",
            "--auth-root-authentication-method=normal",
            "--skip-name-resolve",
            *self._place(),
        ]

    def _place(self) -> list[str]:
        """Return the options of the server's own folders.

        A server that starts removes all `#sql*` files of its temporary folder. In a shared `/tmp`
        those may belong to another server.
        """
        return [f"--datadir={self._data}", f"--tmpdir={self._temporary}"]
