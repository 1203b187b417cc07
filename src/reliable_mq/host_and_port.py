"""One host and its port, as people write them: `name:1`, `192.0.2.7:1`, `[2001:db8::7]:1`.

Receives the text of one place; returns its host and port. Does not know what listens there.

`urllib.parse.urlsplit` reads `[::1]x:1` and `x[::1]:1` on some Pythons and refuses them on others.
So all code that reads hosts from people uses this module: they mean the same everywhere.
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
    """A text is not a host with or without a port. The error shows no part of the text.

    The text may be part of a password that contains a character like `@` or `/`.
    """


class HostAndPort(NamedTuple):
    """A host (an IPv6 address without brackets) and a port; None: the text has no port."""

    host: str
    port: int | None


def port_of(text: str) -> int | None:
    """Return the port in `text`, 0 included; None: it is not a port."""
    is_number = text.isascii() and text.isdecimal() and len(text) <= _DIGITS_MAX
    return int(text) if is_number and int(text) <= PORT_MAX else None


def host_and_port_of(text: str) -> HostAndPort:
    """Return the host and the port of a text.

    An IPv6 address has brackets, and may have a zone: `[fe80::1%eth0]:1`.

    Raises:
        NotAPlace: the host is illegal, or the port is not a number from 1 to 65535.
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
        NotAPlace: they cannot be read, or the login has brackets that are not encoded.
    """
    login, _, place = text.rpartition("@")
    if "[" in login or "]" in login:  # some Pythons read the text between them as the host
        raise NotAPlace(_NO_HOST)
    return host_and_port_of(unquote(place)) if place else None


def hosts_and_ports_of(text: str) -> list[HostAndPort]:
    """Return the hosts and ports of a text, separated by commas; blanks around them are ignored.

    Raises:
        NotAPlace: one of them cannot be read, or is missing between commas.
    """
    return [host_and_port_of(each.strip()) for each in text.split(",")]


def unmapped(ip: IPv4Address | IPv6Address) -> IPv4Address | IPv6Address:
    """Return an address; an IPv4 one in IPv6 form (`::ffff:192.0.2.7`) as IPv4.

    Versions of Python write and judge that form differently.
    """
    return (isinstance(ip, IPv6Address) and ip.ipv4_mapped) or ip


def is_loopback(host: str) -> bool:
    """Return whether a host is this machine, by its address or as `localhost`."""
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
