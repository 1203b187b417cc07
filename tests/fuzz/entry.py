"""How peers come in at the servers of the fuzzer: plainly, or encrypted and with signatures."""

import functools
import socket
import ssl
from pathlib import Path

import msgspec
import trustme
from tests.access.access_world import ON, ROOT, SECRET

from reliable_mq.wire.command import Command, encode_command
from reliable_mq.wire.request_signature import add_signature

_HOST = "127.0.0.1"


class Entry(msgspec.Struct, frozen=True):
    """How a peer connects and asks.

    Args:
        authority: the file of the authority that it trusts. Then it encrypts, and it signs as an
            administrator. "": it does neither.
    """

    authority: str = ""

    def opened(self, connected: socket.socket) -> socket.socket:
        """Return a connected socket, encrypted if need be."""
        if not self.authority:
            return connected
        return _context(self.authority).wrap_socket(connected, server_hostname=_HOST)

    def encoded(self, command: Command) -> bytes:
        """Return the frame of a request, signed if need be."""
        if self.authority:
            add_signature(command, ROOT, SECRET)
        return encode_command(command)


@functools.cache
def _context(authority: str) -> ssl.SSLContext:
    return ssl.create_default_context(cafile=authority)


def secure(folder: Path) -> tuple[list[str], Entry]:
    """Return the words that make a broker demand TLS and signatures, and the entry of its peers."""
    authority, certificate = folder / "ca.pem", folder / "server.pem"
    if not authority.exists():
        made = trustme.CA()
        made.cert_pem.write_to_path(str(authority))
        made.issue_cert(_HOST).private_key_and_cert_chain_pem.write_to_path(str(certificate))
    properties = {
        **ON,
        "tls.server.mode": "enforcing",
        "tls.server.certPath": str(certificate),
    }
    config = folder / "secured.conf"
    config.write_text("".join(f"{name}={value}\n" for name, value in properties.items()))
    return ["--config", str(config)], Entry(str(authority))
