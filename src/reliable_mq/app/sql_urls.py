"""The URLs of databases: which ones we take, and what is wrong with the others."""

import re
from urllib.parse import parse_qsl, unquote

from sqlalchemy import URL, make_url
from sqlalchemy.exc import ArgumentError

from reliable_mq.errors import ConfigurationError
from reliable_mq.limits import PORT_MAX
from reliable_mq.sql_types import Drivers, drivers_of, family_of

_SQLITE_DRIVERS = ("sqlite", "sqlite+pysqlite", "sqlite+aiosqlite")
_BRACKETED = re.compile(r"\[[^][]+\](?::\d*)?")
_IN_MEMORY = {("mode", "memory"), ("vfs", "memdb")}
_BAD_PORT = f"the port of database is no number from 1 to {PORT_MAX}"  # the URL may hold a password


def checked_url(url: str) -> URL:
    """Return the URL of a database that we know.

    Raises:
        ConfigurationError: when it is missing, malformed, names an impossible port, or is of
            another kind.
    """
    if not url:
        raise ConfigurationError(
            "no database is set: give database=… or RELIABLE_MQ_DATABASE, "
            "for example postgresql+psycopg://user@host/name or sqlite:///file.db"
        )
    try:
        parsed = make_url(url)
    except ArgumentError as error:
        raise ConfigurationError(f"database={url!r} is no SQLAlchemy URL") from error
    except ValueError as error:  # only ports are read as numbers
        raise ConfigurationError(_BAD_PORT) from error
    if parsed.port is not None and not 0 < parsed.port <= PORT_MAX:
        raise ConfigurationError(_BAD_PORT)
    _check_host_is_one(url)
    name = parsed.get_backend_name()
    known_drivers(name)
    if family_of(name) == "mysql" and not parsed.database:
        raise ConfigurationError(f"database={url!r} names a server of MySQL, but no database")
    if name == "sqlite":
        _check_file_can_be(parsed)
    return parsed


def _check_host_is_one(url: str) -> None:
    """Raise for hosts of which SQLAlchemy reads only the first, and drops the rest with the name.

    `postgresql://u@[::1],a/n` would reach another database than `n`.
    """
    hosts = re.split("[/?]", url.partition("://")[2].rpartition("@")[2])[0]
    if "," in hosts or ("[" in hosts and not _BRACKETED.fullmatch(hosts)):
        raise ConfigurationError(
            "database names one host before its path; several hosts of PostgreSQL are options: "
            "postgresql+psycopg://user@/name?host=a,::1&port=5432,5433"
        )


def _check_file_can_be(url: URL) -> None:
    """Raise when a URL of SQLite names no plain file."""
    if url.drivername not in _SQLITE_DRIVERS:
        raise ConfigurationError(
            f"{url.drivername}:// is not supported: SQLite's own library is used, which reads no "
            "encrypted file and asks no server; use sqlite:///file.db"
        )
    if _is_in_memory(url):
        raise ConfigurationError(
            "an SQLite database in memory is gone with its connection; give a file"
        )


def _is_in_memory(url: URL) -> bool:
    """Say whether a URL means a database in memory; SQLite lets one write that in many ways."""
    file = url.database or ""
    options = [(name, each) for name, values in url.normalized_query.items() for each in values]
    if file.startswith("file:"):
        file, _, query = file.removeprefix("file:").partition("#")[0].partition("?")
        file = unquote(re.sub("^//[^/]*", "", file)).lstrip("/")
        options += parse_qsl(query)
    is_virtual = any((name, each.lower()) in _IN_MEMORY for name, each in options)
    return is_virtual or file in ("", ":memory:")


def known_drivers(name: str) -> Drivers:
    """Return the drivers of a kind of database, by its name in a URL.

    Raises:
        ConfigurationError: when it is none that we know.
    """
    drivers = drivers_of(name)
    if drivers is None:
        raise ConfigurationError(
            f"database {name!r} is not supported; "
            "use postgresql+psycopg://…, mysql+pymysql://… or sqlite:///…"
        )
    return drivers
