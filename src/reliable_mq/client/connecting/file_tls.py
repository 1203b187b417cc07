"""Creates the TLS context of encrypted connections from PEM files."""

import ssl
from functools import partial

from reliable_mq.client.connecting.security import TLS
from reliable_mq.errors import ConfigurationError
from reliable_mq.runtime.fresh_context import FreshContext


def ssl_context(tls: TLS) -> ssl.SSLContext:
    """Return the TLS context for the settings in `tls`.

    Raises:
        ConfigurationError: when a file cannot be read or is not PEM; the text names the file.
    """
    try:
        context = ssl.create_default_context(cafile=tls.ca or None)
    except (OSError, ssl.SSLError) as error:
        raise ConfigurationError(f"tls: ca {tls.ca!r} cannot be used: {error}") from error
    if not tls.verify:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    if tls.cert:
        try:
            context.load_cert_chain(tls.cert, tls.key or None, password=_no_password)
        except (OSError, ssl.SSLError, ValueError) as error:
            files = tls.cert if not tls.key else f"{tls.cert} with key {tls.key}"
            raise ConfigurationError(f"tls: cert {files} cannot be used: {error}") from error
    return context


def fresh_context(tls: TLS) -> FreshContext:
    """Return what gives the context for each new connection; it follows changes of the files.

    Raises:
        ConfigurationError: as in `ssl_context`.
    """
    paths = [path for path in (tls.ca, tls.cert, tls.key) if path]
    return FreshContext(partial(ssl_context, tls), paths)


def _no_password() -> str:
    """Replace OpenSSL's password prompt on the terminal by an error."""
    raise ValueError("the key is encrypted: give one that is not")
