"""Looks up host names without blocking the event loop, and binds sockets to them."""

import ipaddress
import socket
from functools import partial

from reliable_mq.errors import AddressRefused
from reliable_mq.host_and_port import unmapped
from reliable_mq.runtime.asyncio_threads import in_thread


async def addresses_of(host: str, port: int) -> list[str]:
    """Return the addresses of a host, looked up in a Python thread.

    libuv's threads are no option: a child that is forked from a process with them crashes at its
    end.
    """
    try:
        return [str(ipaddress.ip_address(host))]
    except ValueError:
        look_up = partial(socket.getaddrinfo, host, port, type=socket.SOCK_STREAM)
        found = await in_thread(look_up)
        return list(dict.fromkeys(str(each[4][0]) for each in found))


async def bound_sockets(host: str, port: int) -> list[socket.socket]:
    """Return a bound socket for each address of a host, all on one port. None listens yet.

    The loop's own `create_server` would use libuv's threads; see `addresses_of`.

    Args:
        host: a name or an address.
        port: 0: the system chooses one.

    Raises:
        AddressRefused: when the host is unknown, or an address cannot be bound.
    """
    sockets: list[socket.socket] = []
    wanted = f"{host}:{port}"
    try:
        for address in await addresses_of(host, port):
            bound = _bound(address, port)
            sockets.append(bound)
            port = bound.getsockname()[1]
    except BaseException as error:
        for each in sockets:
            each.close()
        if not isinstance(error, OSError):
            raise
        raise AddressRefused(
            f"{wanted}: cannot listen here ({reason_of(error)}); choose another address"
        ) from error
    return sockets


def connected_pair() -> tuple[socket.socket, socket.socket]:
    """Return two sockets of this process that are connected to each other over TCP.

    A pair of the Unix kind would have no addresses, which servers need of their peers.

    Raises:
        OSError: when this machine has no loopback address, or another process took the place.
    """
    with socket.create_server(("127.0.0.1", 0), backlog=1) as door:
        ours = socket.create_connection(door.getsockname())
        try:
            theirs, peer = door.accept()
        except BaseException:
            ours.close()
            raise
    if peer != ours.getsockname():  # another process was faster
        ours.close()
        theirs.close()
        raise ConnectionRefusedError("another process connected to the socket of this one")
    for each in (ours, theirs):
        each.setblocking(False)
        each.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return ours, theirs


def _bound(address: str, port: int) -> socket.socket:
    is_v6 = ":" in address
    bound = socket.socket(socket.AF_INET6 if is_v6 else socket.AF_INET, socket.SOCK_STREAM)
    try:
        bound.setblocking(False)
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if is_v6:  # "::" does not include "0.0.0.0", as in asyncio
            bound.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        bound.bind((address, port))
    except BaseException:
        bound.close()
        raise
    return bound


def reason_of(error: OSError) -> str:
    """Return why an address is refused, within a sentence."""
    text = error.strerror or str(error)
    text = text.rpartition(": ")[2] or text  # asyncio puts its own words before the system's
    return text[:1].lower() + text[1:]  # lower case, as it is used within a sentence


def plain_ip(address: str) -> str:
    """Return a peer's address without its zone; an IPv4 address mapped into IPv6 as IPv4."""
    return str(unmapped(ipaddress.ip_address(address.partition("%")[0])))
