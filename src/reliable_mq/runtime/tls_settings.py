"""The TLS settings of a server, with Apache RocketMQ's names: values, and how properties name them.

Receives properties; returns settings. It opens no file. Source: Apache RocketMQ `TlsSystemConfig`.
"""

import ipaddress
from collections.abc import Iterable, Mapping, MutableMapping
from enum import StrEnum
from typing import TypeVar

import msgspec

from reliable_mq.errors import ConfigurationError
from reliable_mq.misspelt import meant

PREFIX = "tls."
CONFIG_FILE = "tls.config.file"
KEY_PASSWORDS = ("tls.server.keyPassword", "tls.client.keyPassword")


class TlsMode(StrEnum):
    """Which connections a server accepts."""

    DISABLED = "disabled"  #: plain ones only
    PERMISSIVE = "permissive"  #: both; the first byte of a connection decides
    ENFORCING = "enforcing"  #: encrypted ones only


class ClientAuth(StrEnum):
    """Whether a server asks its clients for certificates."""

    NONE = "none"
    OPTIONAL = "optional"  #: a client without one is accepted; one that is shown is verified
    REQUIRE = "require"


class KeyPair(msgspec.Struct, frozen=True, kw_only=True):
    """A certificate and its key, as PEM files.

    Attributes:
        cert: the file of the certificate and its chain; "": there is none.
        key: the file of the key; "": `cert` holds it.
        password: the password of the key; never shown; "": the key is not encrypted.
        trusted: the file of the authorities whose certificates are trusted; "": see the user.
    """

    cert: str = ""
    key: str = ""
    password: str = ""
    trusted: str = ""

    @property
    def paths(self) -> tuple[str, ...]:
        """The files that there are."""
        return tuple(path for path in (self.cert, self.key, self.trusted) if path)

    def __repr__(self) -> str:
        return f"KeyPair(cert={self.cert!r}, key={self.key!r}, trusted={self.trusted!r})"


class TlsSettings(msgspec.Struct, frozen=True, kw_only=True):
    """How a server and its own connections to others use TLS.

    Attributes:
        mode: which connections the server accepts.
        server: its certificate; `trusted` signs the certificates of clients.
        client_auth: whether clients must have certificates.
        is_client: whether connections of this process to other servers use TLS.
        client: the certificate for these; without `trusted`, the system's authorities are trusted.
        verifies_servers: whether other servers need a certificate that is trusted and has their
            host.
    """

    mode: TlsMode = TlsMode.PERMISSIVE
    server: KeyPair = KeyPair()
    client_auth: ClientAuth = ClientAuth.NONE
    is_client: bool = False
    client: KeyPair = KeyPair()
    verifies_servers: bool = True

    def __post_init__(self) -> None:
        _check_pair("server", self.server)
        _check_pair("client", self.client)
        if self.mode is TlsMode.ENFORCING and not self.server.cert:
            raise ConfigurationError(
                "tls.server.mode=enforcing: give the certificate, tls.server.certPath and "
                "tls.server.keyPath"
            )
        if self.client_auth is not ClientAuth.NONE and not self.server.trusted:
            raise ConfigurationError(
                f"tls.server.need.client.auth={self.client_auth.value}: give the authority of the "
                "clients' certificates, tls.server.trustCertPath"
            )
        if self.client_auth is ClientAuth.REQUIRE and self.mode is not TlsMode.ENFORCING:
            raise ConfigurationError(
                "tls.server.need.client.auth=require needs tls.server.mode=enforcing: with "
                f"{self.mode.value}, plain clients are served, and they have no certificate; while "
                "clients move to TLS, set tls.server.need.client.auth=optional"
            )
        if self.server.trusted and self.client_auth is ClientAuth.NONE:
            raise ConfigurationError(
                "tls.server.trustCertPath has no effect without tls.server.need.client.auth: set "
                "that to require or optional, or remove the path"
            )

    @property
    def is_serving(self) -> bool:
        """Whether the server can accept encrypted connections."""
        return self.mode is not TlsMode.DISABLED and bool(self.server.cert)


def is_exposed(ips: Iterable[str], tls: TlsSettings) -> bool:
    """Whether strangers reach a server without access control that listens at some addresses.

    It is not if only this machine reaches it, or if all clients need a certificate.
    """
    knows_clients = tls.mode is TlsMode.ENFORCING and tls.client_auth is ClientAuth.REQUIRE
    return not knows_clients and not all(ipaddress.ip_address(ip).is_loopback for ip in ips)


def _check_pair(side: str, pair: KeyPair) -> None:
    if pair.key and not pair.cert:
        raise ConfigurationError(
            f"tls.{side}.keyPath is set without tls.{side}.certPath: give the certificate, too"
        )


# Name -> default, as Apache has it, except the two `auth…`: there Apache verifies nobody.
_TEXTS = {
    "tls.server.mode": TlsMode.PERMISSIVE.value,
    "tls.server.certPath": "",
    "tls.server.keyPath": "",
    "tls.server.keyPassword": "",
    "tls.server.trustCertPath": "",
    "tls.server.need.client.auth": ClientAuth.NONE.value,
    "tls.client.certPath": "",
    "tls.client.keyPath": "",
    "tls.client.keyPassword": "",
    "tls.client.trustCertPath": "",
}
_FLAGS = {
    "tls.enable": False,
    "tls.test.mode.enable": False,
    "tls.server.authClient": True,
    "tls.client.authServer": True,
}
Choice = TypeVar("Choice", bound=StrEnum)


def take_tls(properties: MutableMapping[str, str]) -> TlsSettings:
    """Remove the properties of TLS from `properties`, and return what they say.

    Raises:
        ConfigurationError: when a name is unknown, or a value is illegal. An unknown name is an
            error, not a warning: a misspelt one would leave a door open.
    """
    names = [name for name in properties if name.startswith(PREFIX)]
    values = {name: properties.pop(name).strip() for name in names}
    for name in names:
        if name not in _TEXTS and name not in _FLAGS:
            raise ConfigurationError(f"{name}: unknown{meant(name, [*_TEXTS, *_FLAGS])}")
    texts = {name: values.get(name, default) for name, default in _TEXTS.items()}
    flags = {name: _flag(values, name, default) for name, default in _FLAGS.items()}
    client_auth = _choice(ClientAuth, texts, "tls.server.need.client.auth")
    if flags["tls.test.mode.enable"]:
        raise ConfigurationError(
            "tls.test.mode.enable=true: this server makes no certificate of its own; give one, "
            "tls.server.certPath"
        )
    if not flags["tls.server.authClient"] and client_auth is not ClientAuth.NONE:
        raise ConfigurationError(
            "tls.server.authClient=false: this server verifies each certificate that a client "
            "shows; remove the line, or set tls.server.need.client.auth=none"
        )
    return TlsSettings(
        mode=_choice(TlsMode, texts, "tls.server.mode"),
        server=_pair(texts, "server"),
        client_auth=client_auth,
        is_client=flags["tls.enable"],
        client=_pair(texts, "client"),
        verifies_servers=flags["tls.client.authServer"],
    )


def _pair(texts: Mapping[str, str], side: str) -> KeyPair:
    return KeyPair(
        cert=texts[f"tls.{side}.certPath"],
        key=texts[f"tls.{side}.keyPath"],
        password=texts[f"tls.{side}.keyPassword"],
        trusted=texts[f"tls.{side}.trustCertPath"],
    )


def _choice(kind: type[Choice], texts: Mapping[str, str], name: str) -> Choice:
    text = texts[name].lower()
    try:
        return kind(text)
    except ValueError as error:
        raise ConfigurationError(f"{name}={text}: use {', '.join(kind)}") from error


def _flag(values: Mapping[str, str], name: str, default: bool) -> bool:
    text = values.get(name, "").lower()
    if text not in ("", "true", "false"):
        raise ConfigurationError(f"{name}={text}: use true or false")
    return text == "true" if text else default
