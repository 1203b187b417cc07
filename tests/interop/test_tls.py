"""Apache's Java client, encrypted, at our broker and our name server."""

from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest
from bench.reliable_mq_broker import ReliableMQBroker
from tests.interop.java_shell import PROGRAM_SECONDS_MAX, source_command
from tests.runtime.tls_world import Certificates
from tests.waiting import NEVER_BUSY, run_process
from tests.with_java import INTEROP

pytestmark = INTEROP

ANYBODY = {"tls.enable": "true"}  # Apache's default: it trusts every server


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    return Certificates(tmp_path_factory.mktemp("certificates"))


@pytest.fixture(scope="module")
def verifying(made: Certificates) -> Mapping[str, str]:
    """Give the properties of a client that verifies the broker."""
    return {
        **ANYBODY,
        "tls.test.mode.enable": "false",
        "tls.client.authServer": "true",
        "tls.client.trustCertPath": made.ca,
    }


@pytest.fixture(scope="module")
def known(made: Certificates, verifying: Mapping[str, str]) -> Mapping[str, str]:
    """Give the properties of a client that has a certificate, too."""
    cert, key = made.pair("java")
    return {**verifying, "tls.client.certPath": cert, "tls.client.keyPath": key}


def serving(made: Certificates, folder: Path, **tls: str) -> ReliableMQBroker:
    cert, key = made.pair("server")
    settings = {"tls.server.certPath": cert, "tls.server.keyPath": key}
    settings |= {f"tls.server.{name.replace('_', '.')}": value for name, value in tls.items()}
    return ReliableMQBroker(folder, settings={**NEVER_BUSY, **settings})


@pytest.fixture(scope="module")
def enforcing(
    made: Certificates, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[ReliableMQBroker]:
    """Give a broker that demands TLS and certificates."""
    demands = {"mode": "enforcing", "need_client_auth": "require", "trustCertPath": made.ca}
    with serving(made, tmp_path_factory.mktemp("enforcing"), **demands) as broker:
        yield broker


def said(
    broker: ReliableMQBroker, home: Path, properties: Mapping[str, str], size: int = 100
) -> list[str]:
    """Return what the program says at a broker."""
    flags = tuple(f"-D{name}={value}" for name, value in properties.items())
    words = (broker.name_server_address, f"sized-{size}", 20, size)
    command = source_command("Encrypted", home, *words, flags=flags)
    ended = run_process(command, capture_output=True, timeout=PROGRAM_SECONDS_MAX)
    return [line for line in ended.stdout.splitlines() if line.split()[0] in WORDS]


WORDS = {"sent", "consumed", "failed:"}
ALL = ["sent 20", "consumed 20"]


@pytest.mark.parametrize("size", [100, 1_000_000])
def test_a_client_with_a_certificate_sends_and_consumes(
    enforcing: ReliableMQBroker, known: Mapping[str, str], tmp_path: Path, size: int
) -> None:
    assert said(enforcing, tmp_path, known, size) == ALL


@pytest.mark.parametrize("kind", ["plain", "encrypted", "verifying"])
def test_a_client_without_one_gets_nothing(
    enforcing: ReliableMQBroker, verifying: Mapping[str, str], tmp_path: Path, kind: str
) -> None:
    properties = {"plain": {}, "encrypted": ANYBODY, "verifying": verifying}[kind]
    (line,) = said(enforcing, tmp_path, properties)
    assert line.startswith("failed: ")


@pytest.mark.parametrize("kind", ["plain", "encrypted", "verifying"])
def test_a_permissive_broker_serves_all(
    made: Certificates, verifying: Mapping[str, str], tmp_path: Path, kind: str
) -> None:
    properties = {"plain": {}, "encrypted": ANYBODY, "verifying": verifying}[kind]
    with serving(made, tmp_path / "broker") as broker:
        assert said(broker, tmp_path, properties) == ALL


def test_a_client_that_does_not_trust_the_broker_leaves_it(
    made: Certificates, verifying: Mapping[str, str], tmp_path: Path
) -> None:
    (tmp_path / "elsewhere").mkdir()
    others = Certificates(tmp_path / "elsewhere")
    with serving(made, tmp_path / "broker") as broker:
        properties = {**verifying, "tls.client.trustCertPath": others.ca}
        (line,) = said(broker, tmp_path, properties)
        assert line.startswith("failed: ")
        assert "TLS handshake failed" in broker.process.output()
