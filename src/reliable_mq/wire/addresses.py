"""Addresses as people write them: "host:port", several joined by ";" or ","."""

from reliable_mq.errors import ConfigurationError
from reliable_mq.limits import PORT_MAX

_DIGITS_MAX = len(str(PORT_MAX))


def port_of(text: str) -> int | None:
    """Return the port that `text` is, 0 included; None when it is none."""
    is_number = text.isascii() and text.isdecimal() and len(text) <= _DIGITS_MAX
    return int(text) if is_number and int(text) <= PORT_MAX else None


def split_addresses(text: str) -> tuple[str, ...]:
    """Return the addresses of name servers in "host:port;host:port".

    Raises:
        ConfigurationError: when there is none, or one is no host:port.
    """
    addresses = tuple(part.strip() for part in text.replace(",", ";").split(";") if part.strip())
    if not addresses:
        raise ConfigurationError("no name server is given: use host:port, several joined by ;")
    for address in addresses:
        host, _, port = address.rpartition(":")
        if not host or "/" in host or not port_of(port):
            raise ConfigurationError(f"name server {address!r} is no host:port")
    return addresses
