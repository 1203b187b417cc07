"""The URLs of databases: which are supported, and what is wrong with the others."""

import re
from urllib.parse import parse_qsl, quote_plus, unquote

from sqlalchemy import URL, make_url
from sqlalchemy.exc import ArgumentError

from reliable_mq.database.sql_places import whole_url
from reliable_mq.database.sql_types import Drivers, dialect_family, drivers_of
from reliable_mq.errors import ConfigurationError
from reliable_mq.host_and_port import NotAPlace

_SQLITE_DRIVERS = ("sqlite", "sqlite+pysqlite", "sqlite+aiosqlite")
_SECRET_OPTION = re.compile("pass|pwd|secret|token|credential", re.IGNORECASE)
_HIDDEN = "***"
_IN_MEMORY = {("mode", "memory"), ("vfs", "memdb")}


def checked_url(url: str) -> URL:
    """Return the URL of a supported database.

    Raises:
        ConfigurationError: the URL is missing or malformed, has an illegal port, has several hosts
            that SQLAlchemy would misread, or is of another database. No password is shown.
    """
    if not url:
        raise ConfigurationError(
            "no database is set: set database=… or RELIABLE_MQ_DATABASE, "
            "for example postgresql+psycopg://user@host/name or sqlite:///file.db"
        )
    try:
        parsed = whole_url(url)
    except NotAPlace as error:
        raise ConfigurationError(f"database: its URL cannot be read: {error}") from None
    except ArgumentError:  # do not show the text: it may contain a password
        raise ConfigurationError(
            "database= is not an SQLAlchemy URL: write one like"
            " postgresql+psycopg://user@host/name or sqlite:///file.db"
        ) from None
    name = parsed.get_backend_name()
    known_drivers(name)
    if dialect_family(name) == "mysql" and not parsed.database:
        shown = shown_url(parsed)
        raise ConfigurationError(f"database={shown!r} names a MySQL server, but no database")
    if name == "sqlite":
        _check_file_can_be(parsed)
    return parsed


def words_in_utf8(url: URL) -> dict[str, str]:
    """Return the words of the driver for connections that send and read text in UTF-8.

    libpq's default is the encoding of the role, the environment or the database. With LATIN1, text
    that was accepted everywhere else could not be written, and with SQL_ASCII all text is read as
    bytes. Other drivers have UTF-8 by default, or by `charset` in their URL.
    """
    return {"client_encoding": "utf8"} if url.get_backend_name() == "postgresql" else {}


def shown_url(url: URL | str) -> str:
    """Return a URL for people: `***` stands for its password, and for options with a secret.

    Drivers also take a password as an option: `?password=…`, `?sslpassword=…`, `?passwd=…`.
    """
    url = make_url(url)
    query = {
        name: _HIDDEN if _SECRET_OPTION.search(name) else value for name, value in url.query.items()
    }
    return url.set(query=query).render_as_string().replace(quote_plus(_HIDDEN), _HIDDEN)


def _check_file_can_be(url: URL) -> None:
    """Check that a URL of SQLite names a plain file."""
    if url.drivername not in _SQLITE_DRIVERS:
        raise ConfigurationError(
            f"database: {url.drivername}:// is not supported: SQLite's own library is used, which "
            "reads no encrypted file and asks no server; use sqlite:///file.db"
        )
    if _is_in_memory(url):
        raise ConfigurationError(
            "database: an SQLite database in memory is lost with its connection; use a file"
        )


def _is_in_memory(url: URL) -> bool:
    """Return whether a URL means a database in memory; SQLite has many spellings for it."""
    file = url.database or ""
    options = [(name, each) for name, values in url.normalized_query.items() for each in values]
    if file.startswith("file:"):
        file, _, query = file.removeprefix("file:").partition("#")[0].partition("?")
        file = unquote(re.sub("^//[^/]*", "", file)).lstrip("/")
        options += parse_qsl(query)
    is_virtual = any((name, each.lower()) in _IN_MEMORY for name, each in options)
    return is_virtual or file in ("", ":memory:")


def known_drivers(name: str) -> Drivers:
    """Return the drivers of a database by its name in a URL.

    Raises:
        ConfigurationError: the database is not supported.
    """
    drivers = drivers_of(name)
    if drivers is None:
        raise ConfigurationError(
            f"database {name!r} is not supported; "
            "use postgresql+psycopg://…, mysql+pymysql://… or sqlite:///…"
        )
    return drivers
