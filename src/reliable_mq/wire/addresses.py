"""Addresses in the form that people write: "host:port", joined by ";" or ","."""

from reliable_mq.errors import ConfigurationError
from reliable_mq.host_and_port import NotAPlace, host_and_port_of

_SCHEMES = ("http", "https", "tcp", "rocketmq", "grpc")
"""What people write before the address of a name server."""


def split_addresses(text: str) -> tuple[str, ...]:
    """Return the addresses of name servers in "host:port;host:port".

    An IPv6 address has brackets: "[::1]:9876".

    Raises:
        ConfigurationError: when the text has no address, or when one is not "host:port".
    """
    addresses = tuple(part.strip() for part in text.replace(",", ";").split(";") if part.strip())
    if not addresses:
        raise ConfigurationError("no name server is given: use host:port, several joined by ;")
    for address in addresses:
        shown = repr(address) if "@" not in address else "with an @, which takes no login,"
        scheme, is_url, rest = address.partition("://")
        if is_url:
            place = rest.partition("/")[0]
            how = f"leave {scheme}:// out, and write {place}" if "@" not in place else "it is a URL"
            if scheme not in _SCHEMES:
                how = "it is the URL of another program; write the name server's, such as h:9876"
            raise ConfigurationError(f"name server {shown} is no host:port: {how}")
        try:
            port = host_and_port_of(address).port
        except NotAPlace as error:
            raise ConfigurationError(f"name server {shown} is no host:port: {error}") from None
        if port is None:
            example = f"; write {address}:9876" if "@" not in address else ""
            raise ConfigurationError(
                f"name server {shown} is no host:port: it has no port{example}"
            )
    return addresses


def address_of(host: str, port: int) -> str:
    """Return "host:port", with an IPv6 address in brackets, as Apache's clients expect."""
    is_bare = ":" in host and not host.startswith("[")
    return f"[{host}]:{port}" if is_bare else f"{host}:{port}"
