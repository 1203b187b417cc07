"""Where runs have their tables: empty ones of a database, which others use again afterwards.

Receives what every run has in its database; hands on URLs. SQLite needs a file and a copy of it;
servers are started with the first run that wants them, and a run gets a schema of PostgreSQL or a
database of MySQL, because making tables takes longer than emptying them.
"""

import contextlib
import itertools
import shutil
import sqlite3
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import quote

import psycopg
import pymysql
from sqlalchemy import MetaData, create_engine, create_mock_engine, make_url
from tests.local_mysql import LocalMySQL

from reliable_mq.testing.local_servers import LocalPostgres

SEARCH = "-csearch_path="


class Places(ABC):
    """Gives empty tables to one run after another.

    Invariant: what is taken is nobody else's until it is given back.
    """

    def __init__(self, directory: Path, tables: Sequence[MetaData]) -> None:
        self._directory = directory
        self._tables = tables
        self._lock = threading.Lock()
        self._numbers = itertools.count(1)
        self._free: list[str] = []
        self._stop: Callable[[], None] | None = None

    def take(self) -> str:
        """Return the URL of empty tables: of those that a run has left behind, or of new ones."""
        with self._lock:
            if self._stop is None:
                self._stop = self._start()
            if self._free:
                return self._free.pop()
            number = next(self._numbers)
        return self._make(f"world_{number}")

    def give_back(self, url: str) -> None:
        """Empty tables that a run has left, when nobody lives in it any more."""
        with contextlib.closing(connect(url)) as connection:
            for metadata in self._tables:
                for name in metadata.tables:
                    connection.execute(f"DELETE FROM {name}")
        with self._lock:
            self._free.append(url)

    def stop(self) -> None:
        """Stop the server, if one was started."""
        if self._stop is not None:
            self._stop()

    @abstractmethod
    def _start(self) -> Callable[[], None]:
        """Start the server; return what stops it."""

    @abstractmethod
    def _make(self, name: str) -> str:
        """Make tables under a name that is new; return their URL."""


class Schemas(Places):
    """Those of a PostgreSQL server."""

    def _start(self) -> Callable[[], None]:
        self._server = LocalPostgres(self._directory / "postgres")
        self._server.start()
        self._definition = ";\n".join(map(_definition, self._tables))
        return self._server.stop

    def _make(self, name: str) -> str:
        with contextlib.closing(connect(self._server.url)) as connection:
            connection.execute(
                f"CREATE SCHEMA {name}; SET search_path = {name}; {self._definition}"
            )
        return f"{self._server.url}?options={quote(f'{SEARCH}{name}')}"


class Databases(Places):
    """Those of a MySQL or MariaDB server, whichever is installed."""

    def _start(self) -> Callable[[], None]:
        self._server = LocalMySQL(self._directory / "mysql", "--max-connections=1000")
        self._server.start()
        return self._server.stop

    def _make(self, name: str) -> str:
        with contextlib.closing(connect(self._server.url_of(""))) as connection:
            connection.execute(f"CREATE DATABASE {name}")
        url = self._server.url_of(name)
        engine = create_engine(url)
        for metadata in self._tables:
            metadata.create_all(engine)
        engine.dispose()
        return url


class Files:
    """Copies of an SQLite file with empty tables."""

    def __init__(self, directory: Path, tables: Sequence[MetaData]) -> None:
        self._template = directory / "template.db"
        engine = create_engine(f"sqlite:///{self._template}")
        for metadata in tables:
            metadata.create_all(engine)
        engine.dispose()

    def copy(self, file: Path) -> str:
        """Make a file with empty tables; return its URL."""
        shutil.copy(self._template, file)
        return f"sqlite:///{file}"


def connect(url: str) -> Any:
    """Return a driver's own connection, whose `execute` reads, or writes and commits.

    Args:
        url: of SQLAlchemy, as a world has it.
    """
    if url.startswith("sqlite"):
        return sqlite3.connect(url.removeprefix("sqlite:///"), timeout=30, isolation_level=None)
    if url.startswith("postgresql"):
        return psycopg.connect(url.replace("+psycopg", ""), autocommit=True)
    return _MySQLConnection(url)


class _MySQLConnection:
    """Makes PyMySQL's connection look as those of psycopg and sqlite3 do."""

    def __init__(self, url: str) -> None:
        place = make_url(url)
        self._connection = pymysql.connect(
            host=place.host,
            port=place.port or 0,
            user=place.username,
            database=place.database or None,
            autocommit=True,
            sql_mode="STRICT_TRANS_TABLES,ANSI_QUOTES",  # names stand in double quotes
        )

    def execute(self, statement: str) -> Any:
        cursor = self._connection.cursor()
        cursor.execute(statement)
        return cursor

    def close(self) -> None:
        self._connection.close()


def _definition(metadata: MetaData) -> str:
    """Return the statements that make tables in PostgreSQL, in one text."""
    made: list[str] = []

    def note(statement: Any, *_: object, **__: object) -> None:
        made.append(str(statement.compile(dialect=engine.dialect)))

    engine = create_mock_engine("postgresql+psycopg://", note)
    metadata.create_all(engine, checkfirst=False)
    return ";\n".join(made)
