"""Certificates for the tests of TLS, and clients that speak it well or badly."""

import asyncio
import ssl
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path

import trustme
from cryptography.hazmat.primitives import serialization
from tests.runtime.echo_server import Echo

from reliable_mq.runtime.server_tls import ServerTls
from reliable_mq.runtime.tls_settings import TlsSettings, take_tls

HOST = "127.0.0.1"


class Certificates:
    """An authority, and files of certificates that it signed. All are in one folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.authority = trustme.CA()
        self.authority.cert_pem.write_to_path(str(folder / "ca.pem"))

    @property
    def ca(self) -> str:
        return str(self.folder / "ca.pem")

    def issue(
        self,
        name: str,
        host: str = HOST,
        not_after: datetime | None = None,
        not_before: datetime | None = None,
    ) -> str:
        """Write a certificate with its chain and its key into one file; return the path."""
        made = self.authority.issue_cert(host, not_after=not_after, not_before=not_before)
        path = self.folder / f"{name}.pem"
        path.unlink(missing_ok=True)
        made.private_key_and_cert_chain_pem.write_to_path(str(path))
        return str(path)

    def expired(self, name: str) -> str:
        return self.issue(name, not_after=datetime.now(UTC) - timedelta(days=1))

    def later(self, name: str) -> str:
        """Write a certificate that is valid from tomorrow on; return the path."""
        return self.issue(name, not_before=datetime.now(UTC) + timedelta(days=1))

    def pair(self, name: str, password: bytes = b"") -> tuple[str, str]:
        """Write a certificate and its key into two files, the key as PKCS #8; return the paths."""
        made = self.authority.issue_cert(HOST)
        cert, key = self.folder / f"{name}.crt", self.folder / f"{name}.key"
        cert.write_bytes(b"".join(part.bytes() for part in made.cert_chain_pems))
        secret = serialization.load_pem_private_key(made.private_key_pem.bytes(), None)
        secrecy: serialization.KeySerializationEncryption = serialization.NoEncryption()
        if password:
            secrecy = serialization.BestAvailableEncryption(password)
        pem, pkcs8 = serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8
        key.write_bytes(secret.private_bytes(pem, pkcs8, secrecy))
        return str(cert), str(key)

    def settings(self, mode: str = "enforcing", **more: str) -> TlsSettings:
        """Return the settings of a server; names in `more` have "_" for ".", without "tls."."""
        given = {"tls.server.mode": mode}
        if "server_certPath" not in more:
            given["tls.server.certPath"] = self.issue("server")
        given |= {f"tls.{name.replace('_', '.')}": value for name, value in more.items()}
        return take_tls(given)

    @contextmanager
    def server(self, mode: str = "enforcing", **more: str) -> Iterator[ServerTls]:
        tls = ServerTls(self.settings(mode, **more))
        yield tls
        tls.close()

    def client(self, cert: str = "", version: ssl.TLSVersion | None = None) -> ssl.SSLContext:
        """Return the context of a client that trusts the authority."""
        context = ssl.create_default_context(cafile=self.ca)
        if cert:
            context.load_cert_chain(cert)
        if version is not None:
            context.maximum_version = version
        return context


async def connect_encrypted(
    echo: Echo, context: ssl.SSLContext, host: str = HOST
) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    return await asyncio.open_connection(
        HOST, echo.listener.port, limit=1 << 24, ssl=context, server_hostname=host
    )
