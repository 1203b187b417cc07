"""An application's databases by name. Receives settings; returns `Database` objects.

Each database has its own stubs, consume logs, relay and resend scheduler. A stub is in the database
of its business rows, a consume log in the database of its handler's effect. This module does not
know how databases inform each other; see `sql_confirmation` and `sql_notices`.
"""

from collections.abc import Callable, Iterator, Mapping
from functools import cached_property
from typing import Any
from weakref import WeakKeyDictionary

from sqlalchemy import Connection, Engine
from sqlalchemy.exc import DBAPIError, UnboundExecutionError
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncSession
from sqlalchemy.orm import Session

from reliable_mq.database.sql_database import Database
from reliable_mq.database.sql_faults import is_database_down
from reliable_mq.database.sql_places import place_of
from reliable_mq.database.sql_urls import checked_url, shown_url
from reliable_mq.error_texts import choose_error_texts
from reliable_mq.errors import ConfigurationError
from reliable_mq.runtime.stopped import StopSignal
from reliable_mq.settings import MAIN_DATABASE, Settings

REACH_SECONDS, REACH_SECONDS_MAX = 0.5, 5.0
"""The pauses between two tries to reach a database at the start: the first, and the longest."""
_REFUSALS = ("authentication failed", "does not exist", "no pg_hba.conf entry", "no password")
"""PostgreSQL refuses a new connection in words: its driver gives no SQLSTATE then."""


def _is_reached(database: Database) -> bool:
    if database.dialect == "sqlite":  # a file is never away, and a connection would make it
        return True
    try:
        with database.engine.connect():
            return True
    except DBAPIError as error:
        said = str(error.orig)
        if not is_database_down(error) or any(each in said for each in _REFUSALS):
            raise
        return False


class Databases(Mapping[str, Database]):
    """The databases of one application, `main` first. Each is made at its first use.

    Invariant: no two names lead to the same database.

    Args:
        settings: their URLs, and the settings that they share.
        connections_of: returns how many connections a database needs, by its name.
        on_made: called with each database when it is made.
        make: makes a database of its name, its URL and the options of `Database`.

    Raises:
        ConfigurationError: a URL is malformed, or of an unsupported database. A missing one is an
            error at the first use.
    """

    def __init__(
        self,
        settings: Settings,
        connections_of: Callable[[str], int],
        on_made: Callable[[Database], None] = lambda _: None,
        make: Callable[..., Database] = lambda _name, url, **options: Database(url, **options),
    ) -> None:
        self._settings = settings
        choose_error_texts(settings.error_texts)  # as the engines: of rows, too
        self._make = make
        self._connections_of = connections_of
        self._on_made = on_made
        self._urls = dict(settings.databases)
        if settings.database or not self._urls:
            self._urls = {MAIN_DATABASE: settings.database, **self._urls}
        for name, url in self._urls.items():
            _check(name, url)
        self._made: dict[str, Database] = {}
        self._known: WeakKeyDictionary[Engine, str] = WeakKeyDictionary()

    def __getitem__(self, name: str) -> Database:
        if name not in self._made:
            self.check_name(name)
            _ = self._names
            made = self._make(
                name,
                self._urls[name],
                prefix=self._settings.table_prefix,
                connections=self._settings.database_connections or self._connections_of(name),
                by_day=self._settings.retention == "partitions",
                hides_values=self._settings.error_texts != "whole",
            )
            self._on_made(made)
            self._made.setdefault(name, made)  # two threads may make it at the same time
        return self._made[name]

    def __contains__(self, name: object) -> bool:
        return name in self._urls

    def __iter__(self) -> Iterator[str]:
        return iter(self._urls)

    def __len__(self) -> int:
        return len(self._urls)

    def check_name(self, name: str) -> None:
        """Check that a database has this name.

        Raises:
            ConfigurationError: lists the names that exist.
        """
        if name not in self._urls and name == MAIN_DATABASE:
            raise ConfigurationError(
                f"no database is set, only databases={', '.join(self._urls)}: name one, or set "
                "database=… or RELIABLE_MQ_DATABASE"
            )
        if name not in self._urls:
            known = ", ".join(self._urls)
            raise ConfigurationError(f"there is no database {name!r}; known: {known}")

    @cached_property
    def _names(self) -> dict[Any, str]:
        """The names of the databases by place (server and database).

        Raises:
            ConfigurationError: two names lead to the same database; it would be served twice.
        """
        names: dict[Any, str] = {}
        for name, text in self._urls.items() if len(self._urls) > 1 else ():
            url = checked_url(text)
            other = names.setdefault(place_of(url), name)
            if other != name:
                raise ConfigurationError(
                    f"the databases {other!r} and {name!r} are the same, {shown_url(url)}: "
                    "leave one of the names out"
                )
        return names

    def name_of(self, bound: Session | AsyncSession | Connection | AsyncConnection) -> str:
        """Return the name of the database that a session or connection is bound to.

        The first name is returned if it is bound to no engine or to several. The same is true for
        an engine with another URL of one of our databases. The outbox checks exactly before a
        write, see `SameDatabase`.
        """
        engine = _engine_of(bound)
        first = next(iter(self._urls))
        if engine is None or len(self._urls) == 1:
            return first
        if engine not in self._known:
            self._known[engine] = self._names.get(place_of(engine.url), first)
        return self._known[engine]

    def create_tables(self) -> list[str]:
        """Create the missing tables; return the names of those that were missing.

        With several databases, a name is `database.table`.
        """
        if len(self) == 1:
            return next(iter(self.values())).create_tables()
        return [f"{name}.{table}" for name, each in self.items() for table in each.create_tables()]

    def wait_until_reached(self, stopped: StopSignal) -> bool:
        """Wait until each database was reached once, or `stopped`; return whether all were.

        Their watches log when one is away, and when it is back.

        Raises:
            DBAPIError: one refused us: a wrong password, no such database.
        """
        for each in self.values():
            pause = REACH_SECONDS
            while not _is_reached(each):
                if stopped.wait(pause):
                    return False
                pause = min(2 * pause, REACH_SECONDS_MAX)
        return True

    def check_tables(self) -> None:
        """Check that each database has all our tables; measure the databases' clocks.

        Raises:
            ConfigurationError: names the database, the table and what to do.
        """
        for name, each in self.items():
            try:
                each.check_tables()
            except ConfigurationError as error:
                if len(self) == 1:
                    raise
                raise ConfigurationError(f"database {name!r}: {error}") from error

    def close(self) -> None:
        """Close the connections of the databases that were made."""
        for each in self._made.values():
            each.close()

    async def close_async(self) -> None:
        """Close the connections that the running event loop has made."""
        for each in self._made.values():
            await each.close_async()


def _check(name: str, url: str) -> None:
    try:
        if url:
            checked_url(url)
    except ConfigurationError as error:
        if name == MAIN_DATABASE:  # the text names the setting
            raise
        raise ConfigurationError(f"databases: {name!r}: {error}") from error


def _engine_of(bound: Session | AsyncSession | Connection | AsyncConnection) -> Engine | None:
    if isinstance(bound, AsyncConnection):
        return bound.engine.sync_engine
    if isinstance(bound, Connection):
        return bound.engine
    if isinstance(bound, AsyncSession):
        bound = bound.sync_session
    try:
        return bound.get_bind().engine
    except UnboundExecutionError:
        return None
