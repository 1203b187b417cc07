"""The address that clients use for a broker that listens on all addresses."""

import ipaddress
import socket

from reliable_mq.errors import ConfigurationError
from reliable_mq.host_and_port import unmapped


def advertised_ip(host: str) -> str:
    """Return the IP address that a broker listening on `host` advertises to clients.

    A name becomes its first address. "0.0.0.0" and "::" become the source address of this machine's
    outgoing connections, or the loopback address when there is no network.

    Raises:
        ConfigurationError: when the name has no address.
    """
    try:
        ip = ipaddress.ip_address(host.strip("[]"))
    except ValueError:
        ip = _resolved(host)
    if not ip.is_unspecified:
        return str(unmapped(ip))
    family, far, loopback = (
        (socket.AF_INET, "192.0.2.1", "127.0.0.1")
        if ip.version == 4
        else (socket.AF_INET6, "2001:db8::1", "::1")
    )
    with socket.socket(family, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect((far, 9))  # connecting a datagram socket sends nothing
        except OSError:
            return loopback
        return str(probe.getsockname()[0])


def _resolved(host: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address:
    try:
        found = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
    except OSError as error:
        raise ConfigurationError(
            f"--host {host}: no such host ({error.strerror}); write an address of this machine"
        ) from error
    return ipaddress.ip_address(found[0][4][0])
