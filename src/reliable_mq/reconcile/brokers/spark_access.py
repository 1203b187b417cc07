"""The account and the TLS settings with which a running cluster is read.

The process that plans a run reads them from its variables `RELIABLE_MQ_…`. The partitions carry
them to Spark's workers. On other machines the PEM files must have the same paths.
"""

import ssl
from dataclasses import dataclass
from functools import cache

from reliable_mq.client.configured import of_environment
from reliable_mq.client.connecting.file_tls import ssl_context
from reliable_mq.client.connecting.security import TLS, Credentials
from reliable_mq.client.connecting.signature import Signing
from reliable_mq.errors import ConfigurationError
from reliable_mq.runtime.blocking_link import BlockingLink


@dataclass(frozen=True)
class ClusterAccess:
    """An account and TLS settings. None: the cluster needs no account; connections have no TLS."""

    credentials: Credentials | None = None
    tls: TLS | None = None

    def link(self, address: str, timeout: float) -> BlockingLink:
        """Return a connection to one broker or name server.

        Args:
            address: the peer, "host:port".
            timeout: seconds for connecting, and for each wait for bytes.

        Raises:
            ConfigurationError: when a PEM file cannot be used.
        """
        return BlockingLink(
            address,
            timeout,
            prepare=Signing(self.credentials) if self.credentials else None,
            tls=_context(self.tls) if self.tls else None,
            tls_hostname=self.tls.hostname if self.tls else "",
        )


OPEN = ClusterAccess()


def access_here() -> ClusterAccess:
    """Return the access of this process's environment.

    Raises:
        ConfigurationError: when a part of the account, or the certificate of a key, is missing.
    """
    settings = of_environment()
    return ClusterAccess(settings.credentials, settings.tls)


def refuse_namespace() -> None:
    """Refuse a namespace: stubs would name a topic `orders`, but the log names it `shop%orders`.

    Raises:
        ConfigurationError: when this process's environment names a namespace.
    """
    namespace = of_environment().namespace
    if namespace:
        raise ConfigurationError(
            f"reconcile does not support the namespace {namespace!r} (RELIABLE_MQ_NAMESPACE):"
            " stubs name topics without it, the log with it"
        )


@cache
def _context(tls: TLS) -> ssl.SSLContext:
    return ssl_context(tls)
