"""The settings and files of TLS: what is wrong is one line that names it, and no open door."""

from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import rsa
from cryptography.x509.oid import NameOID
from tests.runtime.tls_world import Certificates

from reliable_mq.errors import ConfigurationError
from reliable_mq.runtime.server_tls import ServerTls
from reliable_mq.runtime.tls_contexts import client_context
from reliable_mq.runtime.tls_settings import (
    ClientAuth,
    KeyPair,
    TlsMode,
    TlsSettings,
    is_exposed,
    take_tls,
)


def test_the_properties_of_tls_are_taken_and_the_others_are_left() -> None:
    properties = {
        "brokerName": "a",
        "tls.server.mode": "Enforcing ",
        "tls.server.certPath": "c.pem",
        "tls.server.keyPath": "k.pem",
        "tls.server.keyPassword": "secret",
        "tls.server.trustCertPath": "ca.pem",
        "tls.server.need.client.auth": "require",
        "tls.enable": "true",
        "tls.client.trustCertPath": "ca.pem",
        "tls.client.authServer": "false",
    }
    settings = take_tls(properties)
    assert properties == {"brokerName": "a"}
    assert settings == TlsSettings(
        mode=TlsMode.ENFORCING,
        server=KeyPair(cert="c.pem", key="k.pem", password="secret", trusted="ca.pem"),
        client_auth=ClientAuth.REQUIRE,
        is_client=True,
        client=KeyPair(trusted="ca.pem"),
        verifies_servers=False,
    )


def test_without_properties_a_server_is_plain_and_its_own_connections_too() -> None:
    settings = take_tls({})
    assert settings == TlsSettings()
    assert not settings.is_serving
    assert not settings.is_client
    assert settings.verifies_servers


@pytest.mark.parametrize(
    ("properties", "words"),
    [
        ({"server.certpath": "c"}, "tls.server.certpath: unknown; did you mean"),
        ({"server.mode": "on"}, "tls.server.mode=on: use disabled, permissive, enforcing"),
        ({"server.mode": "enforcing"}, "enforcing: give the certificate"),
        ({"server.keyPath": "k"}, "without tls.server.certPath"),
        ({"client.keyPath": "k"}, "without tls.client.certPath"),
        ({"server.need.client.auth": "require"}, "tls.server.trustCertPath"),
        ({"server.need.client.auth": "maybe"}, "use none, optional, require"),
        (
            {"server.need.client.auth": "require", "server.trustCertPath": "ca"},
            "need.client.auth=require needs tls.server.mode=enforcing",
        ),
        ({"server.trustCertPath": "ca"}, "no effect without tls.server.need.client.auth"),
        ({"enable": "yes"}, "tls.enable=yes: use true or false"),
        ({"test.mode.enable": "true"}, "makes no certificate of its own"),
        (
            {
                "server.need.client.auth": "require",
                "server.trustCertPath": "ca",
                "server.authClient": "false",
            },
            "verifies each certificate",
        ),
    ],
)
def test_a_wrong_property_is_told_by_its_name(properties: dict[str, str], words: str) -> None:
    given = {f"tls.{name}": value for name, value in properties.items()}
    with pytest.raises(ConfigurationError) as told:
        take_tls(given)
    assert words in str(told.value)
    assert "\n" not in str(told.value)


def test_a_password_is_never_shown() -> None:
    settings = take_tls({"tls.server.certPath": "c", "tls.server.keyPassword": "hush"})
    assert settings.server.password == "hush"
    assert "hush" not in repr(settings)


def test_a_password_opens_an_encrypted_key(made: Certificates) -> None:
    cert, key = made.pair("locked", b"open sesame")
    files = {"server_certPath": cert, "server_keyPath": key}
    assert ServerTls(made.settings(server_keyPassword="open sesame", **files)).context is not None
    for wrong, words in (("", "there is no keyPassword"), ("open", "password is wrong")):
        with pytest.raises(ConfigurationError, match=words) as told:
            ServerTls(made.settings(server_keyPassword=wrong, **files))
        assert "sesame" not in str(told.value)


def short_key(made: Certificates) -> tuple[str, str]:
    """Write a certificate with an RSA key of 1,024 bits; return its path, and the key's."""
    cert, key = made.folder / "short.crt", made.folder / "short.key"
    secret = rsa.generate_private_key(65_537, 1_024)
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "short")])
    now = datetime.now(UTC)
    then = now + timedelta(days=1)
    made_of = x509.CertificateBuilder(name, name, secret.public_key(), 1, now, then)
    signed = made_of.sign(secret, hashes.SHA256())
    pem = serialization.Encoding.PEM
    cert.write_bytes(signed.public_bytes(pem))
    form, secrecy = serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    key.write_bytes(secret.private_bytes(pem, form, secrecy))
    return str(cert), str(key)


def broken(made: Certificates, kind: str) -> tuple[str, str, str]:
    """Return a certificate, a key and the words of the error."""
    cert, key = made.pair("good")
    other = made.pair("other")[1]
    text = made.folder / "text.pem"
    text.write_text("no certificate")
    torn = made.folder / "torn.pem"
    torn.write_text(Path(cert).read_text()[:200])
    folder = str(made.folder)
    if kind == "a short key":
        cert, key = short_key(made)
    return {
        "no such file": ("nowhere.pem", key, "nowhere.pem: No such file"),
        "no such key": (cert, "nowhere.key", "nowhere.key: No such file"),
        "a folder": (folder, key, f"{folder}: Is a directory"),
        "no PEM": (str(text), key, "text.pem: it is not a PEM file"),
        "a torn file": (str(torn), key, "it is not a certificate with its key"),
        "a key for a certificate": (key, key, "it is not a certificate with its key"),
        "a short key": (cert, key, "its key is too short"),
        "another key": (cert, other, "the key does not match the certificate"),
    }[kind]


KINDS = (
    *("no such file", "no such key", "a folder", "no PEM", "a torn file"),
    *("a key for a certificate", "another key", "a short key"),
)


@pytest.mark.parametrize("kind", KINDS)
def test_a_file_that_cannot_be_used_is_told_by_its_name(made: Certificates, kind: str) -> None:
    cert, key, words = broken(made, kind)
    with pytest.raises(ConfigurationError) as told:
        ServerTls(made.settings(server_certPath=cert, server_keyPath=key))
    assert words in str(told.value)
    assert str(told.value).startswith("tls.server.")
    assert "\n" not in str(told.value)


def test_a_trusted_file_that_cannot_be_used_is_told_by_its_name(made: Certificates) -> None:
    key = made.pair("good")[1]
    for path, words in (("nowhere", "No such file"), (key, "no certificate can be read")):
        with pytest.raises(ConfigurationError, match=words):
            ServerTls(made.settings(server_need_client_auth="require", server_trustCertPath=path))
        with pytest.raises(ConfigurationError, match=words):
            client_context(take_tls({"tls.client.trustCertPath": path}))


def test_a_server_is_exposed_if_strangers_reach_it_and_need_no_certificate(
    made: Certificates,
) -> None:
    plain = take_tls({})
    assert is_exposed(["0.0.0.0"], plain)
    assert is_exposed(["127.0.0.1", "192.0.2.1"], plain)
    assert not is_exposed(["127.0.0.1", "::1"], plain)
    known = {"server_need_client_auth": "require", "server_trustCertPath": made.ca}
    assert not is_exposed(["0.0.0.0"], made.settings(**known))
    asked = {**known, "server_need_client_auth": "optional"}
    assert is_exposed(["0.0.0.0"], made.settings("permissive", **asked)), "plain ones need none"
    assert is_exposed(["0.0.0.0"], made.settings())
