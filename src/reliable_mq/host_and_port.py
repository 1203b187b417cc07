"""One host and its port, as people write them: `name:1`, `192.0.2.7:1`, `[2001:db8::7]:1`.

Receives the text of one place; hands on its host and its port. Refuses to know what listens there.

`urllib.parse.urlsplit` reads `[::1]x:1` and `x[::1]:1` on some Pythons and refuses them on others.
So whatever takes hosts of people takes them from here, and they mean the same everywhere.
"""

import re
from ipaddress import IPv4Address, IPv6Address, ip_address
from typing import NamedTuple
from urllib.parse import unquote

from reliable_mq.limits import PORT_MAX

_DIGITS_MAX = len(str(PORT_MAX))
_PLACE = re.compile(r"(?:\[(?P<ipv6>[^\[\]]*)\]|(?P<name>[^:\[\]]+))(?::(?P<port>[^:\[\]]*))?")
_LABEL = r"[\w-]{1,63}"
_NAME = re.compile(rf"{_LABEL}(?:\.{_LABEL})*\.?")
_ZONE = re.compile(r"[\w.-]+")
_NO_HOST = "a host is a name, an IPv4 address or, in brackets, an IPv6 address"
_NO_PORT = f"a port is a number from 1 to {PORT_MAX}"


class NotAPlace(ValueError):
    """A text is no host with or without a port. The words show no part of it.

    It may be a part of a password that holds a sign like `@` or `/`.
    """


class HostAndPort(NamedTuple):
    """A host, an IPv6 address without its brackets; a port, None: the text names none."""

    host: str
    port: int | None


def port_of(text: str) -> int | None:
    """Return the port that `text` is, 0 included; None when it is none."""
    is_number = text.isascii() and text.isdecimal() and len(text) <= _DIGITS_MAX
    return int(text) if is_number and int(text) <= PORT_MAX else None


def host_and_port_of(text: str) -> HostAndPort:
    """Return the host and the port of a text.

    An IPv6 address stands in brackets, and may have a zone: `[fe80::1%eth0]:1`.

    Raises:
        NotAPlace: when the host is none, or the port is no number from 1 to 65535.
    """
    found = _PLACE.fullmatch(text)
    if found is None:
        raise NotAPlace(_NO_HOST)
    ipv6, name, port = found.group("ipv6", "name", "port")
    is_host = _is_ipv6(ipv6) if name is None else _NAME.fullmatch(name)
    if not is_host:
        raise NotAPlace(_NO_HOST)
    if port is not None and not port_of(port):
        raise NotAPlace(_NO_PORT)
    return HostAndPort(ipv6 or name, None if port is None else int(port))


def place_of_authority(text: str) -> HostAndPort | None:
    """Return the host and the port of a URL's `[user:password@]host[:port]`; None: it has no host.

    Raises:
        NotAPlace: when they do not read, or the login has brackets that are not encoded.
    """
    login, _, place = text.rpartition("@")
    if "[" in login or "]" in login:  # some Pythons take what is between them for the host
        raise NotAPlace(_NO_HOST)
    return host_and_port_of(unquote(place)) if place else None


def hosts_and_ports_of(text: str) -> list[HostAndPort]:
    """Return the hosts and ports of a text with commas between them, and blanks where one likes.

    Raises:
        NotAPlace: when one of them does not read, or there is nothing where one should stand.
    """
    return [host_and_port_of(each.strip()) for each in text.split(",")]


def unmapped(ip: IPv4Address | IPv6Address) -> IPv4Address | IPv6Address:
    """Return an address; an IPv4 one that is written as IPv6 (`::ffff:192.0.2.7`) as IPv4.

    Pythons write and judge that form in different ways.
    """
    return (isinstance(ip, IPv6Address) and ip.ipv4_mapped) or ip


def is_loopback(host: str) -> bool:
    """Say whether a host is this machine, by its address or as `localhost`."""
    try:
        return unmapped(ip_address(host)).is_loopback
    except ValueError:
        return host == "localhost"


def _is_ipv6(text: str) -> bool:
    address, percent, zone = text.partition("%")
    try:
        IPv6Address(address)
    except ValueError:
        return False
    return not percent or _ZONE.fullmatch(zone) is not None
