"""What to do when two programs do not agree about TLS, by the text of the failure. Pure."""

import re

CLOSED_IN_HANDSHAKE = "closed the connection in the TLS handshake"
"""Why a connection failed that was to have TLS: the text to which `tls_remedy` has an answer."""

_NO_TLS_THERE = re.compile(rf"{CLOSED_IN_HANDSHAKE}|is not TLS")
_LISTENS = re.compile(r"closed the connection|sent an invalid command")


def tls_remedy(text: str, *, has_tls: bool = False) -> str:
    """Return what to do about a connection that failed; "" if TLS is not the likely reason.

    Args:
        text: why it failed.
        has_tls: whether this side encrypts its connections for sure.
    """
    if "demands a certificate" in text or "certificate of this side" in text:
        return "set RELIABLE_MQ_TLS_CERT and RELIABLE_MQ_TLS_KEY to a certificate that it trusts"
    if "certificate is refused" in text:
        return (
            "give it another certificate, or correct RELIABLE_MQ_TLS_CA, RELIABLE_MQ_TLS_HOSTNAME"
        )
    if _NO_TLS_THERE.search(text):
        return "perhaps it has no TLS: unset RELIABLE_MQ_TLS_CA, or let the server have TLS"
    if not has_tls and _LISTENS.search(text):
        return (
            "a program listens there: if it demands TLS, set RELIABLE_MQ_TLS_CA=FILE; else correct"
            " the address"
        )
    return ""
