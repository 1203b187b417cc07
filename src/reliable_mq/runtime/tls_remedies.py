"""What to do when two programs do not agree about TLS, by the text of the failure. Pure."""

import re
from typing import NamedTuple

CLOSED_IN_HANDSHAKE = "closed the connection in the TLS handshake"
"""Why a connection failed that was to have TLS: the text to which `tls_remedy` has an answer."""

_NO_TLS_THERE = re.compile(rf"{CLOSED_IN_HANDSHAKE}|is not TLS")
_LISTENS = re.compile(r"closed the connection|sent an invalid command")


class TlsWords(NamedTuple):
    """What the user of a side sets for its connections to others."""

    certificate: str
    trust: str
    begin: str
    end: str


CLIENT_WORDS = TlsWords(
    certificate="RELIABLE_MQ_TLS_CERT and RELIABLE_MQ_TLS_KEY",
    trust="RELIABLE_MQ_TLS_CA, RELIABLE_MQ_TLS_HOSTNAME",
    begin="RELIABLE_MQ_TLS_CA=FILE",
    end="unset RELIABLE_MQ_TLS_CA",
)
SERVER_WORDS = TlsWords(
    certificate="tls.client.certPath and tls.client.keyPath",
    trust="tls.client.trustCertPath",
    begin="tls.enable=true and tls.client.trustCertPath=FILE",
    end="set tls.enable=false",
)
"""Of a broker, a name server or a proxy: `--set NAME=VALUE`, or the file of `--config`."""


def tls_remedy(text: str, *, tls_fits: bool = False, words: TlsWords = CLIENT_WORDS) -> str:
    """Return what to do about a connection that failed; "" if TLS is not the likely reason.

    Args:
        text: why it failed.
        tls_fits: whether a lack of TLS is no reason: this side encrypts its connections, or has got
            answers from this peer before.
        words: what the user of this side sets.
    """
    if "demands a certificate" in text or "certificate of this side" in text:
        return f"set {words.certificate} to a certificate that it trusts"
    if "certificate is refused" in text:
        return f"give it another certificate, or correct {words.trust}"
    if _NO_TLS_THERE.search(text):
        return f"perhaps it has no TLS: {words.end}, or let the server have TLS"
    if not tls_fits and _LISTENS.search(text):
        return (
            f"a program listens there: if it demands TLS, set {words.begin}; else correct"
            " the address"
        )
    return ""
