"""URLs of the ledgers' databases, and connections that are closed after each use."""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TypeVar

from sqlalchemy import URL, Connection, Engine, create_engine
from sqlalchemy.exc import ArgumentError, NoSuchModuleError
from sqlalchemy.pool import NullPool

from reliable_mq.database.sql_places import whole_url
from reliable_mq.database.sql_types import drivers_of
from reliable_mq.database.sql_urls import words_in_utf8
from reliable_mq.errors import ConfigurationError
from reliable_mq.host_and_port import NotAPlace

T = TypeVar("T")

# A URL without a driver names SQLAlchemy's default driver, which may not be installed.
_PLAIN = ("postgresql", "mysql", "mariadb")


def sync_url(url: str) -> URL:
    """Return a URL with a driver that works without asyncio.

    Raises:
        ConfigurationError: when `url` is invalid or its database is not supported.
    """
    try:
        parsed = whole_url(url)
        name = parsed.get_backend_name()
        drivers = drivers_of(name)
        is_ours = parsed.drivername in _PLAIN or name in _PLAIN[1:]
        if drivers is not None and (is_ours or parsed.get_dialect().is_async):
            return parsed.set(drivername=drivers.for_threads)
        parsed.get_dialect()
    except (ArgumentError, NoSuchModuleError, NotAPlace) as error:  # no text has a password
        raise ConfigurationError(
            "not a database URL; write it like postgresql+psycopg://user@host/name,"
            f" mysql+pymysql://user@host/name or sqlite:////path/to/file ({error})"
        ) from None
    return parsed


def open_engine(url: str) -> Engine:
    """Return an engine without a connection pool. It does not create SQLite files.

    Raises:
        ConfigurationError: when `url` is invalid, or its SQLite file does not exist.
    """
    parsed = sync_url(url)
    path = parsed.database or ""
    is_file = parsed.get_backend_name() == "sqlite" and not path.startswith(("file:", ":memory:"))
    if is_file and not Path(path).exists():
        raise ConfigurationError(f"the SQLite file {path!r} does not exist")
    options = {"connect_args": words_in_utf8(parsed), "hide_parameters": True}
    return create_engine(parsed, poolclass=NullPool, **options)


@contextmanager
def connected(url: str) -> Iterator[Connection]:
    """Open a connection for reading; it is rolled back and closed at the end.

    Raises:
        ConfigurationError: when `url` is invalid, or its SQLite file does not exist.
        sqlalchemy.exc.SQLAlchemyError: when the database cannot be reached.
    """
    engine = open_engine(url)
    try:
        with engine.connect() as connection:
            yield connection
    finally:
        engine.dispose()


def paced(answers: Iterator[T], share: float) -> Iterator[T]:
    """Sleep after each answer, so that the database works only for `share` of the time."""
    while True:
        began = time.monotonic()
        answer = next(answers, None)
        if answer is None:
            return
        pause = (time.monotonic() - began) * (1 / share - 1)
        yield answer
        if pause > 0:
            time.sleep(pause)
