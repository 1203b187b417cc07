"""URLs of Redis servers. Receives a text; returns its parts, or refuses it. Needs no redis-py.

    redis://[user:password@]host:6379/0           rediss:// over TLS, unix:///path?db=0
    redis+sentinel://[user:password@]host:26379,host:26379/primary-name/0
    redis+cluster://[user:password@]host:6379,host:6379
                                                  rediss+sentinel://, rediss+cluster:// over TLS

The query may have all options of redis-py (`?ssl_ca_certs=…`); `sentinel_username` and
`sentinel_password` are for the Sentinels themselves. `/?#[]@` in the login and the query are
percent-encoded. An IPv6 address has brackets: `[::1]:6379`, with a zone `[fe80::1%25eth0]`.

Only redis-py knows its options: `redis_servers` checks them.
"""

import re
from typing import NamedTuple
from urllib.parse import SplitResult, parse_qsl, unquote, urlsplit

from reliable_mq.errors import ConfigurationError
from reliable_mq.host_and_port import NotAPlace, hosts_and_ports_of

ONE, SENTINEL, CLUSTER = "one", "sentinel", "cluster"
SCHEMES = {
    **dict.fromkeys(("redis", "rediss", "unix"), ONE),
    **{f"{scheme}+sentinel": SENTINEL for scheme in ("redis", "rediss")},
    **{f"{scheme}+cluster": CLUSTER for scheme in ("redis", "rediss")},
}
"""What a URL leads to, by its scheme."""

_SENTINEL_PORT, _PORT = 26379, 6379

_HOST = r" *(?:[\w.-]+|\[[\da-fA-F:.]+(?:%25[\w.-]+)?\])(?::\d+)? *"
_PLAIN = re.compile(
    r"(?P<scheme>(?:[a-z+]+://)?)(?:(?P<user>[^:@/?#\[\]]*)(?::[^@/?#\[\]]*)?(?P<at>@))?"
    rf"(?P<place>(?:{_HOST}(?:,{_HOST})*)?(?:/[^@?#]*)?)(?P<options>\?[^@]*)?"
)
"""A URL with each of `/?#[]@` only in its proper place, or encoded."""
_AUTHORITY = re.compile(r"[^/?#]*")
"""The text between `://` and the path, RFC 3986, section 3.2."""
_AS_IT_IS_WRITTEN = (
    "write redis://user:password@host:6379/0, and /?#[]@ in the login and the options"
    " as %2F %3F %23 %5B %5D %40"
)


class RedisPlace(NamedTuple):
    """The contents of a URL.

    `kind`: `ONE`, `SENTINEL` or `CLUSTER`; `scheme`: "redis", "rediss" or "unix"; `login`: as it is
    written, with the `@`; `hosts`: none of a socket; `primary`: what a Sentinel calls it;
    `database`: None if the URL names none; `query`: the options.
    """

    kind: str
    scheme: str
    login: str
    hosts: list[tuple[str, int]]
    primary: str
    database: int | None
    query: list[tuple[str, str]]


def place_of(url: str) -> RedisPlace:
    """Return the contents of a URL.

    Raises:
        ConfigurationError: the URL has none of the forms at the head of this module.
    """
    scheme = url.partition("://")[0]
    if scheme not in SCHEMES:
        why = f"it must begin with {', '.join(f'{each}://' for each in SCHEMES)}"
        raise ConfigurationError(f"redis={hidden(url)!r} is not a Redis URL: {why}")
    try:
        _check_login(url)
        return _place(url, SCHEMES[scheme])
    except NotAPlace as error:  # its text shows nothing of the URL
        why = str(error) if _plain(url) else f"{_AS_IT_IS_WRITTEN}; {error}"
        raise ConfigurationError(f"redis={hidden(url)!r} is not a Redis URL: {why}") from None
    except ValueError as error:
        why = str(error)
    raise refusal(url, why)  # not `from error`: a traceback would show its text


def refusal(url: str, why: str) -> ConfigurationError:
    """Return the error for a URL whose parts or options are wrong."""
    if _plain(url) is None:  # the password may have been read as another part
        why = _AS_IT_IS_WRITTEN
    return ConfigurationError(f"redis={hidden(url)!r} is not a Redis URL: {why}")


def hidden(url: str) -> str:
    """Return the parts of a URL that are certainly no password and no option, for error texts."""
    found = _plain(url)
    if found is None:
        scheme, slashes, _ = url.partition("://")
        return f"{scheme}://…" if slashes and scheme in SCHEMES else "…"
    shown = "".join(found[part] or "" for part in ("scheme", "user", "at", "place"))
    return f"{shown}{'?…' if found['options'] else ''}"


def _plain(url: str) -> re.Match[str] | None:
    """Return the parts of a URL; None: the end of its login is ambiguous."""
    return _PLAIN.fullmatch(url) if url.isascii() else None


def _check_login(url: str) -> None:
    """Refuse an `@` behind the hosts: a person may mean it as the end of the login.

    redis-py would read `user:123?x@host` as a server `user` at port 123, and show it in its errors.
    """
    parts, hosts = _parts_of(url)
    is_file = parts.scheme == "unix" and not hosts
    if "@" in f"{parts.path}{parts.query}{parts.fragment}" and not is_file:
        raise ValueError(_AS_IT_IS_WRITTEN)


def _place(url: str, kind: str) -> RedisPlace:
    parts, written = _parts_of(url)
    login, at, _ = parts.netloc.rpartition("@")
    scheme = parts.scheme.partition("+")[0]
    query = parse_qsl(parts.query)
    if scheme == "unix":
        if written:
            raise NotAPlace("the path of a socket begins with a slash: unix:///path")
        return RedisPlace(kind, scheme, f"{login}{at}", [], "", None, query)
    if not written.strip() and kind != ONE:
        raise ValueError("it names no host")
    port = _SENTINEL_PORT if kind == SENTINEL else _PORT
    places = hosts_and_ports_of(unquote(written if written.strip() else "localhost"))
    hosts = [(each.host, each.port or port) for each in places]
    if {"host", "port"} & dict(query).keys():
        raise ValueError("write hosts and ports before the path, not among the options")
    path = [each for each in parts.path.split("/") if each]
    primary = ""
    if kind == SENTINEL:
        if not path:
            raise ValueError("it names no primary: use redis+sentinel://host:26379/primary-name/0")
        primary, *path = path
    elif kind == CLUSTER and path not in ([], ["0"]):
        raise ValueError("a cluster has database 0 only")
    elif kind == ONE and len(hosts) > 1:
        raise ValueError("several hosts need redis+sentinel:// or redis+cluster://")
    return RedisPlace(
        *(kind, scheme, f"{login}{at}", hosts, unquote(primary), _database(path), query)
    )


def _database(path: list[str]) -> int | None:
    """Return the database number in a path. (redis-py reads a wrong number as 0.)"""
    if len(path) > 1 or not all(each.isdecimal() for each in path):
        raise ValueError(f"/{'/'.join(path)} is not the number of a database")
    return int(path[0]) if path else None


def _parts_of(url: str) -> tuple[SplitResult, str]:
    """Return the parts of a URL without its hosts, and the list of hosts as written.

    The list of hosts is removed before `urlsplit` reads the URL. Newer Pythons accept an IPv6
    address only if it is the whole host (CPython gh-105704), so `a:1,[::1]` is an error there.
    """
    scheme, slashes, rest = url.partition("://")
    authority = _AUTHORITY.match(rest)[0]  # type: ignore[index]  # it matches the empty text, too
    login, at, hosts = authority.rpartition("@")
    if "[" in login or "]" in login:  # some Pythons would read it as a host
        raise ValueError(_AS_IT_IS_WRITTEN)
    parts = urlsplit(f"{scheme}{slashes}{login}{at}{rest.removeprefix(authority)}")
    return parts, hosts
