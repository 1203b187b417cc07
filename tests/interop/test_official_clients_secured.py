"""Apache's official clients tell their stories at our broker as users who sign, over TLS.

The broker takes no plain connection, and nobody without a signature. The clients for Python and
Node.js know the broker's certificate by its authority; those for Java and Go always use TLS, and
trust any certificate.
"""

from collections.abc import Iterator
from pathlib import Path

import pytest
import trustme
from bench.reliable_mq_broker import ReliableMQBroker
from tests.access.access_world import ON, ROOT, SECRET
from tests.interop import test_official_clients as stories
from tests.interop.sdk_servers import BROKER_SETTINGS, Endpoint, Security
from tests.with_java import INTEROP

pytestmark = INTEROP


@pytest.fixture(scope="module")
def secured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Endpoint]:
    directory = tmp_path_factory.mktemp("secured")
    authority, issued = trustme.CA(), {}
    certificate = authority.issue_cert("localhost", "127.0.0.1")
    for name, blob in (
        ("authority", authority.cert_pem),
        ("cert", certificate.cert_chain_pems[0]),
        ("key", certificate.private_key_pem),
    ):
        issued[name] = directory / f"{name}.pem"
        blob.write_to_path(issued[name])
        issued[name].chmod(0o600)
    encrypted = {
        "tls.server.mode": "enforcing",
        "tls.server.certPath": str(issued["cert"]),
        "tls.server.keyPath": str(issued["key"]),
        "tls.client.trustCertPath": str(issued["authority"]),
    }
    settings = {**BROKER_SETTINGS, **ON, **encrypted}
    with ReliableMQBroker(directory, "ASYNC_FLUSH", settings=settings, has_grpc=True) as broker:
        security = Security(ROOT, SECRET, issued["authority"])
        yield Endpoint("secured", broker.grpc_address, broker.address, security)


@pytest.fixture(params=stories.LANGUAGES)
def language(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def teller(language: str, secured: Endpoint, tmp_path: Path) -> stories.Teller:
    return stories.Teller(language, secured, tmp_path)


class TestSecuredStories(stories.TestStories):
    """The same stories."""
