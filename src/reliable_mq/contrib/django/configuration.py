"""Reads Django's settings: RELIABLE_MQ and DATABASES. Returns the arguments of a `ReliableMQ`."""

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from tempfile import gettempdir
from typing import Any

from django.conf import settings
from django.db import DEFAULT_DB_ALIAS, connections
from django.utils.connection import ConnectionDoesNotExist
from sqlalchemy import URL

from reliable_mq.database.sql_consume_log_table import DEFAULT_PREFIX
from reliable_mq.errors import ConfigurationError
from reliable_mq.settings import MAIN_DATABASE

SETTING = "RELIABLE_MQ"
_OURS = ("NAME", "DATABASES")
_NOT_LIBPQ = frozenset(
    {"isolation_level", "server_side_binding", "pool", "assume_role", "cursor_factory", "context"}
)
_PYMYSQL = frozenset({"read_default_file", "read_default_group", "unix_socket"})
_CHECKS_HOST = {"REQUIRED": "false", "VERIFY_CA": "false", "VERIFY_IDENTITY": "true"}
"""mysqlclient's `ssl_mode` -> PyMySQL's `check_hostname`; either value asks for TLS."""


def configured() -> Mapping[str, Any]:
    """Return the dictionary RELIABLE_MQ of Django's settings; empty if there is none.

    Raises:
        ConfigurationError: it is no dictionary, or has a key that cannot be.
    """
    given = getattr(settings, SETTING, {})
    if not isinstance(given, Mapping):
        raise ConfigurationError(
            f"{SETTING} in the settings of Django must be a dictionary, such as "
            f'{{"BROKER": "127.0.0.1:9876"}}'
        )
    check_keys(given)
    return given


def check_keys(given: Mapping[Any, Any]) -> None:
    """Check the keys of RELIABLE_MQ.

    Raises:
        ConfigurationError: one of them cannot be.
    """
    for name in given:
        if not isinstance(name, str) or not name.isupper():
            wanted = str(name).upper()
            raise ConfigurationError(f"{SETTING}[{name!r}]: write its keys in capitals, {wanted!r}")
    if "DATABASE" in given:
        raise ConfigurationError(
            f"{SETTING}['DATABASE']: the database is one of Django's DATABASES; name its alias, "
            f"{SETTING}['DATABASES'] = ['default']"
        )


def aliases(given: Mapping[str, Any] | None = None) -> tuple[str, ...]:
    """Return the aliases of the databases with our tables; the first one is "main".

    Args:
        given: instead of RELIABLE_MQ. Default: that.

    Raises:
        ConfigurationError: one of them is not in DATABASES, or "main" is not the first one.
    """
    wanted = (configured() if given is None else given).get("DATABASES", [DEFAULT_DB_ALIAS])
    if isinstance(wanted, str) or not isinstance(wanted, Sequence) or not wanted:
        raise ConfigurationError(f"{SETTING}['DATABASES'] must be a list of aliases: ['default']")
    for alias in wanted:
        try:
            connections[alias]
        except ConnectionDoesNotExist as error:
            known = ", ".join(connections)
            raise ConfigurationError(
                f"{SETTING}['DATABASES'] names {alias!r}; DATABASES has {known}"
            ) from error
    if MAIN_DATABASE in wanted[1:]:
        raise ConfigurationError(
            f"{SETTING}['DATABASES']: reliable_mq calls the first alias {MAIN_DATABASE!r}, so an "
            "alias of this name must be the first one"
        )
    return tuple(wanted)


def arguments(given: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """Return the arguments of `ReliableMQ`, without the databases of other aliases.

    Args:
        given: instead of RELIABLE_MQ. Default: that.

    Raises:
        ConfigurationError: a setting is wrong.
    """
    given = configured() if given is None else given
    name = (
        given.get("NAME")
        or str(getattr(settings, "ROOT_URLCONF", "") or "django").partition(".")[0]
    )
    more = {key.lower(): value for key, value in given.items() if key not in _OURS}
    main, *others = aliases(given)
    more["database"] = text_of_url(main)
    if others:
        more["databases"] = {alias: text_of_url(alias) for alias in others}
    return {"name": name, **more}


def table_prefix() -> str:
    """Return the beginning of the names of our tables.

    A wrong RELIABLE_MQ is told later: this is asked while the models are imported.
    """
    given = getattr(settings, SETTING, {})
    return str(given.get("TABLE_PREFIX", DEFAULT_PREFIX)) if isinstance(given, Mapping) else ""


def alias_of(name: str) -> str:
    """Return the alias of a database's name: "main" is the first alias."""
    return aliases()[0] if name == MAIN_DATABASE else name


def name_of_alias(alias: str) -> str:
    """Return the name of an alias: the first one is "main"."""
    return _name_among(aliases(), alias)


def _name_among(known: Sequence[str], alias: str) -> str:
    return MAIN_DATABASE if alias in (MAIN_DATABASE, known[0]) else alias


def named(alias: str) -> str:
    """Return the name of an alias that a caller gave.

    Raises:
        ConfigurationError: RELIABLE_MQ does not name it, or DATABASES has none of this name.
    """
    known = aliases()
    name = _name_among(known, alias)
    if name == MAIN_DATABASE or name in known:
        return name
    if alias not in connections.settings:
        raise ConfigurationError(
            f"DATABASES has no {alias!r}; {SETTING}['DATABASES'] has {', '.join(known)}"
        )
    listed = ", ".join(repr(each) for each in (*known, alias))
    raise ConfigurationError(
        f"the database {alias!r} has no tables for messages: write {SETTING}['DATABASES'] = "
        f"[{listed}], then run python manage.py migrate reliable_mq --database {alias}"
    )


def text_of_url(alias: str) -> str:
    """Return the SQLAlchemy URL of an alias, as its settings are now (tests change them).

    Raises:
        ConfigurationError: the database is not supported.
    """
    return url_of(alias).render_as_string(hide_password=False)


def url_of(alias: str) -> URL:
    """Return the same as a `URL`."""
    wrapper = connections[alias]
    kinds = {"postgresql": _postgresql, "mysql": _mysql, "sqlite": _sqlite}
    if wrapper.vendor not in kinds:
        raise ConfigurationError(
            f"DATABASES[{alias!r}] is {wrapper.vendor}; supported are PostgreSQL, MySQL, MariaDB "
            "and SQLite"
        )
    return kinds[wrapper.vendor](alias, wrapper.settings_dict)


def is_test_memory(alias: str) -> bool:
    """Return whether this is the database in memory that Django's test runner makes for SQLite."""
    return str(connections[alias].settings_dict["NAME"]).startswith("file:memorydb_")


def is_under_test() -> bool:
    """Return whether Django's test runner, or pytest-django, has set up its environment."""
    state = getattr(sys.modules.get("django.test.utils"), "_TestState", None)
    return hasattr(state, "saved_data")


def _postgresql(_alias: str, given: Mapping[str, Any]) -> URL:
    options = given.get("OPTIONS") or {}
    query = {
        name: str(value)
        for name, value in options.items()
        if name not in _NOT_LIBPQ and isinstance(value, str | int)
    }
    if role := options.get("assume_role"):
        query["options"] = f"{query.get('options', '')} -c role={role}".strip()
    host = str(given.get("HOST") or "")
    if host.startswith("/"):
        query["host"], host = host, ""
    return _url("postgresql+psycopg", given, host, query)


def _mysql(_alias: str, given: Mapping[str, Any]) -> URL:
    options = given.get("OPTIONS") or {}
    query = {name: str(options[name]) for name in _PYMYSQL & options.keys()}
    for name, value in (options.get("ssl") or {}).items():
        query[f"ssl_{name}"] = str(value)
    mode = str(options.get("ssl_mode", "")).upper()
    if mode in _CHECKS_HOST:
        query["ssl_check_hostname"] = _CHECKS_HOST[mode]
    host = str(given.get("HOST") or "")
    if host.startswith("/"):
        query["unix_socket"], host = host, ""
    return _url("mysql+pymysql", given, host, query)


def _url(driver: str, given: Mapping[str, Any], host: str, query: dict[str, str]) -> URL:
    port = given.get("PORT")
    return URL.create(
        driver,
        username=given.get("USER") or None,
        password=given.get("PASSWORD") or None,
        host=host or None,
        port=int(port) if port else None,
        database=given.get("NAME") or None,
        query=query,
    )


def _sqlite(alias: str, given: Mapping[str, Any]) -> URL:
    file = str(given["NAME"])
    if is_test_memory(alias):  # nobody connects to it, see `DjangoDatabase.handover_to`
        return URL.create("sqlite", database=f"{gettempdir()}/reliable-mq-nowhere-{alias}.db")
    if file == ":memory:" or "mode=memory" in file:
        raise ConfigurationError(
            f"DATABASES[{alias!r}] is in memory, where the relay cannot read it: use a file"
        )
    return URL.create("sqlite", database=file if file.startswith("file:") else str(Path(file)))
