"""Looks names of hosts up without holding up an event loop."""

import asyncio
import ipaddress
import socket
from functools import partial


async def addresses_of(host: str, port: int) -> list[str]:
    """Return the addresses of a host, looked up in a thread of Python's.

    Not in one of libuv's: a forked child of a process that has these dies of them when it ends.
    """
    try:
        return [str(ipaddress.ip_address(host))]
    except ValueError:
        look_up = partial(socket.getaddrinfo, host, port, type=socket.SOCK_STREAM)
        found = await asyncio.get_running_loop().run_in_executor(None, look_up)
        return list(dict.fromkeys(str(each[4][0]) for each in found))
