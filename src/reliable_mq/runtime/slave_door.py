"""Who may follow a master, and whether the connection is encrypted.

Receives the first things that are known of a peer: its address, its first byte, its certificate.
Returns why it gets nothing of the log. It knows no frames of replication.

Slaves have no accounts: Apache's protocol has no place for one. So a slave proves who it is by
where it is (`haAllowedAddresses`), by its certificate (`haAllowedNames`), or by both.
"""

import asyncio
import ipaddress
import ssl
from collections.abc import Mapping, Sequence
from typing import Any

from reliable_mq.broker_core.config import BrokerConfig
from reliable_mq.broker_core.config_texts import Network
from reliable_mq.errors import ConfigurationError
from reliable_mq.host_and_port import unmapped
from reliable_mq.plain_text import cut
from reliable_mq.runtime.connection_roles import SecuredProtocol
from reliable_mq.runtime.server_tls import ServerTls
from reliable_mq.runtime.tls_connection import TlsGate, is_hello
from reliable_mq.runtime.tls_settings import ClientAuth, TlsMode, TlsSettings

_SHOWN_MAX = 200  # characters of the names of a certificate in a line


class SlaveDoor:
    """Lets slaves in, or says why not.

    Args:
        networks: where slaves may be; None: anywhere.
        names: of which the certificate of a slave must have one; none: it needs no certificate.
        tls: the mode and the certificate of the port; None: all connections are plain.
    """

    def __init__(
        self,
        networks: Sequence[Network] | None = None,
        names: frozenset[str] = frozenset(),
        tls: ServerTls | None = None,
    ) -> None:
        self._networks = networks
        self._names = names
        self._tls = tls

    def gated(self, protocol: SecuredProtocol) -> asyncio.BaseProtocol:
        """Return what stands before the protocol of a new connection until its first byte."""
        if self._tls is not None and self._tls.decides_by_first_byte:
            return TlsGate(protocol, self._tls)
        return protocol  # type: ignore[return-value]  # it has all methods of one

    def refusal_at(self, ip: str) -> str:
        """Return why a peer at an address is refused; "": it is not."""
        source = unmapped(ipaddress.ip_address(ip.partition("%")[0]))
        networks = self._networks
        if networks is not None and not any(source in network for network in networks):
            return "with access control, slaves must be where haAllowedAddresses says"
        return ""

    def refusal_of_plain(self, first: bytes) -> str:
        """Return why a peer without encryption is refused after its first bytes; "": it is not."""
        if is_hello(first):
            return "it speaks TLS, and this port does not: tls.server.certPath, haTlsEnable"
        if self._names:
            return "it shows no certificate, and haAllowedNames demands one: tls.enable=true there"
        return ""

    def refusal_of_certificate(self, cipher: ssl.SSLObject) -> str:
        """Return why an encrypted peer is refused after its handshake; "": it is not."""
        if not self._names:
            return ""
        shown = names_of(cipher.getpeercert() or {})
        if not shown:
            return "it shows no certificate, and haAllowedNames demands one: tls.client.certPath"
        if shown & self._names:
            return ""
        found = cut(", ".join(sorted(shown)), _SHOWN_MAX)
        return f"its certificate is of {found}, and haAllowedNames has none of these"


def names_of(certificate: Mapping[str, Any]) -> frozenset[str]:
    """Return the hosts, addresses and common names of a certificate, in small letters.

    Args:
        certificate: as `ssl.SSLObject.getpeercert` returns it.
    """
    kinds = ("DNS", "IP Address")
    alternative = [name for kind, name in certificate.get("subjectAltName", ()) if kind in kinds]
    subject = (pair for part in certificate.get("subject", ()) for pair in part)
    common = [value for field, value in subject if field == "commonName"]
    return frozenset(name.strip().lower() for name in (*alternative, *common) if name.strip())


def slave_door(config: BrokerConfig, tls: ServerTls) -> SlaveDoor:
    """Return the door of a master.

    Raises:
        ConfigurationError: when it demands certificates that it cannot see.
    """
    return SlaveDoor(
        config.slave_networks, _names(config, tls.settings), tls if config.ha_tls else None
    )


def _names(config: BrokerConfig, tls: TlsSettings) -> frozenset[str]:
    names = frozenset(each.strip().lower() for each in config.ha_names.split(",") if each.strip())
    sees_them = config.ha_tls and tls.is_serving and tls.client_auth is not ClientAuth.NONE
    if names and not sees_them:
        raise ConfigurationError(
            "haAllowedNames needs the certificates of slaves: set tls.server.certPath, "
            "tls.server.trustCertPath and tls.server.need.client.auth=require (or optional), and "
            "leave haTlsEnable=true"
        )
    return names


def is_bare(config: BrokerConfig, tls: TlsSettings) -> bool:
    """Whether slaves get the log without encryption though clients must encrypt."""
    return not config.ha_tls and tls.mode is TlsMode.ENFORCING
