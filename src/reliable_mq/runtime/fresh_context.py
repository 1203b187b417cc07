"""The TLS context of connections to other servers, made again when its files have changed.

Receives how to make it, and the paths of its files. Returns the newest context that could be made.
Open connections keep theirs. It knows no connection.
"""

import ssl
from collections.abc import Callable, Sequence
from functools import partial

from reliable_mq.errors import ConfigurationError
from reliable_mq.line_limit import limited_log
from reliable_mq.runtime.tls_contexts import client_context, signature_of
from reliable_mq.runtime.tls_settings import TlsSettings
from reliable_mq.telemetry import broker_events

log = limited_log(__name__)


def context_of_client(tls: TlsSettings) -> "FreshContext | None":
    """Return what gives the context for connections of a server to others; None: they are plain.

    Raises:
        ConfigurationError: when a file cannot be used.
    """
    if not tls.is_client:
        return None
    if not tls.verifies_servers:
        broker_events.TLS_UNVERIFIED.log(log)
    return FreshContext(partial(client_context, tls), tls.client.paths)


class FreshContext:
    """Gives the context for a new connection. The files are looked at each time.

    Files that cannot be used are told once, and the context before them stays: somebody may have
    replaced the certificate, and not yet its key.

    Args:
        make: makes the context, or raises ConfigurationError.
        paths: the files that it reads.

    Raises:
        ConfigurationError: when a file cannot be used.
    """

    def __init__(self, make: Callable[[], ssl.SSLContext], paths: Sequence[str]) -> None:
        self._make, self._paths = make, paths
        self._seen = signature_of(paths)  # before the files are read: a later change shows
        self._context = make()

    def __call__(self) -> ssl.SSLContext:
        """Return the context for a connection that is opened now."""
        found = signature_of(self._paths)
        if found != self._seen:
            self._seen = found
            try:
                self._context = self._make()
            except ConfigurationError as error:
                broker_events.TLS_NOT_RELOADED.log(log, error=error)
            else:
                broker_events.TLS_RELOADED.log(log, path=", ".join(self._paths))
        return self._context
