"""Our broker with a gRPC endpoint, and a client of it, for the tests of a module."""

from collections.abc import Iterator

import pytest
from bench.reliable_mq_broker import ReliableMQBroker
from tests.gateway.grpc_client import GrpcClient, client_at
from tests.interop.sdk_servers import BROKER_SETTINGS, Endpoint

KINDS = {"plain": "NORMAL", "ordered": "FIFO", "late": "DELAY", "halves": "TRANSACTION"}


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ReliableMQBroker]:
    directory = tmp_path_factory.mktemp("broker")
    running = ReliableMQBroker(directory, "ASYNC_FLUSH", settings=BROKER_SETTINGS, has_grpc=True)
    with running:
        yield running


@pytest.fixture(scope="module")
def endpoint(broker: ReliableMQBroker) -> Endpoint:
    found = Endpoint("ours", broker.grpc_address, broker.address)
    for name, kind in KINDS.items():
        found.make_topic(name, kind)
    return found


@pytest.fixture
def client(endpoint: Endpoint) -> Iterator[GrpcClient]:
    with client_at(endpoint.address) as made:
        yield made
