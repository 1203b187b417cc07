"""OpenSSL contexts for servers and clients, made from PEM files, and what peers will think of them.

Receives settings; returns contexts. A file that cannot be used is one error that names the file.
TLS 1.2 is the oldest version. A handshake is never resumed and never repeated: each connection
shows its certificate, and pays for its handshake once.
"""

import ssl
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from reliable_mq.errors import ConfigurationError
from reliable_mq.runtime.tls_settings import ClientAuth, KeyPair, TlsSettings

_BEGIN = b"-----BEGIN "
_ROUNDS_MAX = 10  # steps of a handshake in memory; TLS 1.2 takes the most, five
NOT_VALID_YET = "certificate is not yet valid"
"""A fault of an examined certificate that time mends; OpenSSL's words."""
_NO_CHECK_TIME = 0x200000  # OpenSSL's X509_V_FLAG_NO_CHECK_TIME, which `ssl` does not name
_OF_CLOCKS = (9,)  # OpenSSL's X509_V_ERR_CERT_NOT_YET_VALID
_VERIFY_MODES = {
    ClientAuth.NONE: ssl.CERT_NONE,
    ClientAuth.OPTIONAL: ssl.CERT_OPTIONAL,
    ClientAuth.REQUIRE: ssl.CERT_REQUIRED,
}


Signature = tuple[tuple[int, int, int], ...]
"""What changes when one of some files is written or replaced."""


def signature_of(paths: Iterable[str]) -> Signature:
    """Return the signature of files; one that cannot be found has one, too."""
    found: list[tuple[int, int, int]] = []
    for path in paths:
        try:
            status = Path(path).stat()
        except OSError:
            found.append((0, 0, 0))
        else:
            found.append((status.st_ino, status.st_mtime_ns, status.st_size))
    return tuple(found)


class Examined(NamedTuple):
    """What a client sees of a server's certificate.

    Attributes:
        fault: why clients that verify will refuse it, in OpenSSL's words; "": they will not.
        begins_at: from when on it is valid, seconds since the epoch; 0.0: unknown, as something
            else than its dates is wrong.
        expires_at: when it expires; 0.0: as before.
    """

    fault: str
    begins_at: float
    expires_at: float


def server_context(settings: TlsSettings) -> ssl.SSLContext:
    """Return the context for connections that a server accepts.

    Raises:
        ConfigurationError: when a file cannot be used.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    _harden(context)
    context.num_tickets = 0
    context.set_alpn_protocols(["h2"])  # clients of gRPC demand an answer; others ask for nothing
    _load_pair(context, settings.server, "tls.server")
    if settings.client_auth is not ClientAuth.NONE:
        _load_trusted(context, settings.server.trusted, "tls.server.trustCertPath")
        context.verify_mode = _VERIFY_MODES[settings.client_auth]
    return context


def client_context(settings: TlsSettings) -> ssl.SSLContext:
    """Return the context for connections of this process to other servers.

    Raises:
        ConfigurationError: when a file cannot be used.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    _harden(context)
    if settings.client.trusted:
        _load_trusted(context, settings.client.trusted, "tls.client.trustCertPath")
    else:
        context.load_default_certs()
    if not settings.verifies_servers:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    if settings.client.cert:
        _load_pair(context, settings.client, "tls.client")
    return context


def _harden(context: ssl.SSLContext) -> None:
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.options |= ssl.OP_NO_RENEGOTIATION | ssl.OP_NO_COMPRESSION | ssl.OP_NO_TICKET


def _load_pair(context: ssl.SSLContext, pair: KeyPair, prefix: str) -> None:
    _check_pem(pair.cert, f"{prefix}.certPath")
    if pair.key:
        _check_pem(pair.key, f"{prefix}.keyPath")

    def password() -> str:
        """Give the password; without one, OpenSSL would ask for it on the terminal."""
        if not pair.password:
            raise ValueError("the key is encrypted, and there is no keyPassword")
        return pair.password

    try:
        context.load_cert_chain(pair.cert, pair.key or None, password=password)
    except (OSError, ValueError) as error:
        files = f"{pair.cert} with key {pair.key or pair.cert}"
        reason = _pair_fault(error, has_password=bool(pair.password))
        raise ConfigurationError(f"{prefix}.certPath {files}: {reason}") from error


def _load_trusted(context: ssl.SSLContext, path: str, name: str) -> None:
    _check_pem(path, name)
    try:
        context.load_verify_locations(path)
    except OSError as error:
        raise ConfigurationError(f"{name} {path}: no certificate can be read from it") from error


def _check_pem(path: str, name: str) -> None:
    try:
        content = Path(path).read_bytes()
    except OSError as error:
        raise ConfigurationError(f"{name} {path}: {error.strerror}") from error
    if _BEGIN not in content:
        raise ConfigurationError(f"{name} {path}: it is not a PEM file")


def _pair_fault(error: Exception, *, has_password: bool) -> str:
    known = _PAIR_FAULTS.get(getattr(error, "reason", None) or "")
    if known:
        return known
    if not isinstance(error, ssl.SSLError):
        return str(error)
    if has_password:
        return "the key cannot be read; perhaps the password is wrong"
    return "it is not a certificate with its key"


_PAIR_FAULTS = {
    "KEY_VALUES_MISMATCH": "the key does not match the certificate",
    "KEY_TYPE_MISMATCH": "the key does not match the certificate",
    "EE_KEY_TOO_SMALL": "its key is too short: make one of RSA with 2,048 bits, or of EC",
    "CA_KEY_TOO_SMALL": "the key of its authority is too short",
    "CA_MD_TOO_WEAK": "it is signed with a hash that is too weak: use SHA-256",
    "EE_MD_TOO_WEAK": "it is signed with a hash that is too weak: use SHA-256",
}


def reason_of(error: Exception) -> str:
    """Return why a connection failed: of TLS in a few words, else in those of the system."""
    return fault_of(error) if isinstance(error, ssl.SSLError) else str(error)


def fault_of(error: ssl.SSLError) -> str:
    """Return the reason of a failed handshake in a few words."""
    if isinstance(error, ssl.SSLCertVerificationError):
        hint = "; compare the clocks of both machines" if error.verify_code in _OF_CLOCKS else ""
        return f"the peer's certificate is refused: {error.verify_message}{hint}"
    reason = (error.reason or type(error).__name__).lower().replace("_", " ")
    return _MEANINGS.get(error.reason or "", reason)


# OpenSSL's reason -> words that say who must change what.
_MEANINGS = {
    "HTTP_REQUEST": "the peer speaks HTTP",
    "SSLV3_ALERT_HANDSHAKE_FAILURE": "the peer demands a certificate of this side, or a cipher",
    "WRONG_VERSION_NUMBER": "what the peer sends is not TLS",
    "UNSUPPORTED_PROTOCOL": "the peer has no version of TLS from 1.2",
    "NO_SHARED_CIPHER": "the peer has no cipher in common",
    "TLSV13_ALERT_CERTIFICATE_REQUIRED": "the peer demands a certificate of this side",
    "PEER_DID_NOT_RETURN_A_CERTIFICATE": "the peer has no certificate",
    "TLSV1_ALERT_UNKNOWN_CA": "the peer does not trust the certificate of this side",
    "SSLV3_ALERT_CERTIFICATE_UNKNOWN": "the peer refuses the certificate of this side",
    "SSLV3_ALERT_BAD_CERTIFICATE": "the peer refuses the certificate of this side",
    "SSLV3_ALERT_CERTIFICATE_EXPIRED": "the peer says that the certificate of this side is expired",
}


def examine(context: ssl.SSLContext, cert: str) -> Examined:
    """Return what clients see of the certificate of `context`, by a handshake in memory.

    The client in it trusts the certificate itself, and asks for no host. So it finds what every
    client will: the dates, and what the certificate is for.

    Args:
        context: a server's.
        cert: the file of its certificate and its chain.
    """
    fault, seen = _seen_by_client(context, cert, 0)
    if fault:
        _, seen = _seen_by_client(context, cert, _NO_CHECK_TIME)
    return Examined(fault, _seconds_of(seen, "notBefore"), _seconds_of(seen, "notAfter"))


def _seconds_of(certificate: Mapping[str, Any], field: str) -> float:
    return float(ssl.cert_time_to_seconds(certificate[field])) if field in certificate else 0.0


def _seen_by_client(
    context: ssl.SSLContext, cert: str, flags: int
) -> tuple[str, Mapping[str, Any]]:
    """Return why a client refuses the certificate, or "" and the certificate."""
    asking = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    asking.check_hostname = False
    asking.load_verify_locations(cert)
    asking.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN | flags
    asked, answered = ssl.MemoryBIO(), ssl.MemoryBIO()
    client = asking.wrap_bio(answered, asked)
    server = context.wrap_bio(asked, answered, server_side=True)
    for _ in range(_ROUNDS_MAX):
        try:
            client.do_handshake()
        except ssl.SSLWantReadError:
            pass
        except ssl.SSLCertVerificationError as error:
            return error.verify_message, {}
        else:
            break
        try:
            server.do_handshake()
        except ssl.SSLWantReadError:
            pass
        except ssl.SSLError:
            break  # it wants a certificate of the client, which has seen the server's by then
    return "", client.getpeercert() or {}
