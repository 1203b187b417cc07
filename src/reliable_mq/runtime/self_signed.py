"""A certificate for an endpoint that has none: it hides what is sent, and proves nothing.

Apache's Java and Go clients encrypt unless they are told not to, and then accept any certificate.
So an endpoint without a certificate makes one when it starts, as Apache's proxy does. Nobody else
trusts it.
"""

import datetime
import tempfile
from pathlib import Path

import msgspec

from reliable_mq.extras import extra_of
from reliable_mq.runtime.server_tls import ServerTls
from reliable_mq.runtime.tls_settings import KeyPair, TlsMode, TlsSettings

_DAYS = 3650
_NAME = "reliable-mq"


def endpoint_tls(settings: TlsSettings) -> ServerTls:
    """Return the TLS of an endpoint: with the certificate of the settings, else with a new one.

    Raises:
        ConfigurationError: when a file cannot be used.
    """
    if settings.is_serving or settings.mode is TlsMode.DISABLED:
        return ServerTls(settings)
    with tempfile.TemporaryDirectory(prefix="reliable-mq-") as folder:
        cert, key = Path(folder) / "cert.pem", Path(folder) / "key.pem"
        key.touch(mode=0o600)
        write_self_signed(cert, key)
        pair = KeyPair(cert=str(cert), key=str(key))
        return ServerTls(msgspec.structs.replace(settings, server=pair))


def write_self_signed(cert: Path, key: Path) -> None:
    """Write a new certificate and its key, for `localhost` and some years, to files."""
    with extra_of("the gRPC endpoint"):
        from cryptography import x509  # noqa: PLC0415 - only where no certificate is given
        from cryptography.hazmat.primitives import hashes, serialization  # noqa: PLC0415
        from cryptography.hazmat.primitives.asymmetric import ec  # noqa: PLC0415

    secret = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, _NAME)])
    now = datetime.datetime.now(datetime.UTC)
    made = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(secret.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(days=1))
        .not_valid_after(now + datetime.timedelta(days=_DAYS))
        .add_extension(x509.SubjectAlternativeName([x509.DNSName("localhost")]), critical=False)
        .sign(secret, hashes.SHA256())
    )
    cert.write_bytes(made.public_bytes(serialization.Encoding.PEM))
    key.write_bytes(
        secret.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.NoEncryption(),
        )
    )
