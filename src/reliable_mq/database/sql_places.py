"""The place (server and database) that a database's URL leads to. Reads the whole URL, or refuses.

Receives the text of a URL; returns SQLAlchemy's `URL`. Does not know which databases are supported.

`make_url` reads the beginning that it understands, and silently ignores the rest: of
`h@[::1],a/name` it reads neither port nor name. The connection would go to another database.
"""

import re
from pathlib import Path
from typing import Any

from sqlalchemy import URL, make_url
from sqlalchemy.dialects.postgresql.psycopg import PGDialect_psycopg
from sqlalchemy.exc import ArgumentError

from reliable_mq.database.sql_types import MYSQL, dialect_family
from reliable_mq.host_and_port import NotAPlace, host_and_port_of, port_of

_ONE_HOST = (*MYSQL, "sqlite")
_LOGIN = r"(?:[^:/]*(?::[^@]*)?@)?"
_WHOLE = re.compile(rf"[\w+]+://{_LOGIN}(?P<hosts>[^/?]*)(?P<behind>(?:/[^?]*)?(?:\?.*)?)")
"""The parts of a URL as `make_url` reads them, to the very end of the text."""
_ENCODED = "/?#[]@ in the login are written %2F %3F %23 %5B %5D %40"
_AT_SOCKET = re.compile(r"[?&]host=@")  # an abstract socket (without a file), on Linux
_SEVERAL = (
    "several hosts of PostgreSQL are written"
    " postgresql+psycopg://user@/name?host=a,::1&port=5432,5433, with all"
    " ports or none, and an IPv6 address without brackets"
)


def whole_url(text: str) -> URL:
    """Return the URL of a text, if SQLAlchemy reads all of it.

    Raises:
        sqlalchemy.exc.ArgumentError: it is not a URL of SQLAlchemy.
        NotAPlace: a host or a port cannot be read, or SQLAlchemy would misread several hosts. The
            error says what to write, and shows no part of the URL.
    """
    found = _WHOLE.fullmatch(text)
    if found is None:
        raise ArgumentError("not a URL of SQLAlchemy")
    takes_several = not text.startswith(_ONE_HOST)
    _check_hosts(found["hosts"].split(","), takes_several=takes_several)
    if not text.startswith("sqlite") and "@" in _AT_SOCKET.sub("", found["behind"]):
        raise NotAPlace(f"an @ behind the host is written %40; {_ENCODED}")
    url = make_url(text)
    if takes_several:
        _check_query(url)
    return url


def _check_hosts(hosts: list[str], *, takes_several: bool) -> None:
    """Raise `NotAPlace` unless SQLAlchemy reads these hosts: of several, only the last has a port.

    That port applies to all of them. A port without a host applies to the driver's default host.
    """
    if hosts == [""]:
        return
    try:
        places = [host_and_port_of(f"host{each}" if each[:1] == ":" else each) for each in hosts]
    except NotAPlace as error:
        raise NotAPlace(f"{error}; {_ENCODED}") from None
    has_odd_one = any(each.port for each in places[:-1]) or any(":" in e.host for e in places)
    if len(places) > 1 and not takes_several:
        raise NotAPlace("this database takes one host")
    if len(places) > 1 and (has_odd_one or any(each[:1] == ":" for each in hosts)):
        raise NotAPlace(_SEVERAL)


def _check_query(url: URL) -> None:
    """Raise `NotAPlace` unless SQLAlchemy reads the hosts and ports of the query.

    It reads `?host=a,b&port=1,2` and `?host=a:1&host=b:2`; the second form has no IPv6 addresses.
    """
    values = url.normalized_query.get("host", ())
    if not values and "port" not in url.query:
        return
    try:
        dialect: Any = PGDialect_psycopg()  # type: ignore[no-untyped-call]
        _, read = dialect.create_connect_args(url)
    except (ArgumentError, ValueError):
        raise NotAPlace(_SEVERAL) from None
    hosts, ports = str(read.get("host", "")).split(","), str(read.get("port", "")).split(",")
    is_cut = len(values) > 1 and any(each.count(":") > 1 for each in values)
    are_hosts = hosts == [""] or all(map(_is_host, hosts))
    if is_cut or not are_hosts or not all(not each or port_of(each) for each in ports):
        raise NotAPlace(_SEVERAL)


def _is_host(text: str) -> bool:
    """Return whether a driver reads a text as a host; it may also be the folder of a socket."""
    if text[:1] in ("/", "@"):
        return True
    try:
        return host_and_port_of(f"[{text}]" if ":" in text else text).port is None
    except NotAPlace:
        return False


def place_of(url: URL) -> tuple[Any, ...]:
    """Return the place of a URL. Other spellings of a server give another place."""
    family = dialect_family(url.get_backend_name())
    if family == "sqlite":
        return (family, Path(url.database or "").resolve())
    # The query may name a host, a service or a search path.
    query = tuple(sorted(url.query.items()))
    return (family, url.host, url.port, url.database, query)
