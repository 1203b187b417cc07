"""As whom a running cluster is read, and how its connections are encrypted.

Read where a run is planned, from the variables `RELIABLE_MQ_…` of that process; goes with the
partitions to Spark's workers. On other machines the PEM files have to lie at the same places.
"""

import ssl
from dataclasses import dataclass
from functools import cache, partial

from reliable_mq.client.configured import of_environment
from reliable_mq.client.connecting.file_tls import ssl_context
from reliable_mq.client.connecting.security import TLS, Credentials
from reliable_mq.client.connecting.signature import sign
from reliable_mq.errors import ConfigurationError
from reliable_mq.runtime.blocking_link import BlockingLink


@dataclass(frozen=True)
class ClusterAccess:
    """An account, and TLS; both None: the cluster is open, and its connections are plain."""

    credentials: Credentials | None = None
    tls: TLS | None = None

    def link(self, address: str, timeout: float) -> BlockingLink:
        """Return a connection to one broker or name server.

        Args:
            address: the peer, "host:port".
            timeout: seconds that connecting, and each wait for bytes, may take.

        Raises:
            ConfigurationError: when a PEM file cannot be used.
        """
        return BlockingLink(
            address,
            timeout,
            prepare=partial(sign, credentials=self.credentials) if self.credentials else None,
            tls=_context(self.tls) if self.tls else None,
            tls_hostname=self.tls.hostname if self.tls else "",
        )


OPEN = ClusterAccess()


def access_here() -> ClusterAccess:
    """Return what this process's environment says.

    Raises:
        ConfigurationError: when there is half of an account, or a key without its certificate.
    """
    settings = of_environment()
    return ClusterAccess(settings.credentials, settings.tls)


def refuse_namespace() -> None:
    """Let nobody be judged by names that the log has not: stubs say orders, it says shop%orders.

    Raises:
        ConfigurationError: when this process's environment names a namespace.
    """
    namespace = of_environment().namespace
    if namespace:
        raise ConfigurationError(
            f"reconcile cannot judge the namespace {namespace!r} (RELIABLE_MQ_NAMESPACE): stubs"
            " name topics without it, the log with it"
        )


@cache
def _context(tls: TLS) -> ssl.SSLContext:
    return ssl_context(tls)
