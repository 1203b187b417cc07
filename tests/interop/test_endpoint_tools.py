"""mqadmin at our broker sees a consumer of the gRPC endpoint, and asks it something."""

from collections.abc import Iterator
from itertools import count
from pathlib import Path
from threading import Thread
from typing import Any, NamedTuple

import pytest
from bench.reliable_mq_broker import ReliableMQBroker
from tests.gateway.grpc_client import GrpcClient, client_at, until
from tests.interop.admin_shell import AdminShell
from tests.interop.sdk_servers import Endpoint
from tests.with_java import INTEROP

from reliable_mq.gateway.codes import Code

pytestmark = INTEROP

ID, GROUP, TOPIC = "laptop@77@0@abc", "readers", "orders"


class Place(NamedTuple):
    """A broker with an endpoint, and one consumer there."""

    broker: ReliableMQBroker
    endpoint: Endpoint
    client: GrpcClient
    stream: Any


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    directory: Path = tmp_path_factory.mktemp("endpoint")
    more = {"x-mq-language": "JAVA"}
    with ReliableMQBroker(directory, "ASYNC_FLUSH", has_grpc=True) as broker:
        endpoint = Endpoint("ours", broker.grpc_address, broker.address)
        endpoint.make_topic(TOPIC, "NORMAL")
        endpoint.make_topic(f"%RETRY%{GROUP}", "NORMAL")  # by its route mqadmin finds a group
        with client_at(broker.grpc_address, ID, more=more) as client:
            yield Place(broker, endpoint, client, client.consumer(GROUP, TOPIC, 2))


def asked(place: Place, shell: AdminShell, field: str, answer: Any, *words: str) -> str:
    """Run mqadmin; answer the command that the client gets meanwhile."""

    def told() -> None:
        place.client.tell(**answer(until(place.stream, field, 60)))

    Thread(target=told, daemon=True).start()
    return shell.run(words[0], "-n", place.broker.name_server_address, *words[1:])


def test_it_lists_the_consumer(place: Place, shell: AdminShell) -> None:
    words = ("consumerConnection", "-n", place.broker.name_server_address, "-g", GROUP)
    printed = shell.run(*words)
    assert ID in printed
    assert "JAVA" in printed
    assert "CONSUME_PASSIVELY" in printed
    assert f"{TOPIC} " in printed


def test_it_shows_its_stacks(place: Place, shell: AdminShell) -> None:
    def answer(command: Any) -> dict[str, Any]:
        stack = {"nonce": command.nonce, "thread_stack_trace": "main waits at Thread.sleep"}
        return {"status": {"code": Code.OK}, "thread_stack_trace": stack}

    field = "print_thread_stack_trace_command"
    words = ("consumerStatus", "-g", GROUP, "-i", ID, "-s")
    assert "main waits at Thread.sleep" in asked(place, shell, field, answer, *words)


def test_it_lets_the_consumer_handle_a_message(place: Place, shell: AdminShell) -> None:
    place.client.send(TOPIC, b"look at me")
    numbers = count()

    def answer(command: Any) -> dict[str, Any]:
        assert command.message.body == b"look at me"
        assert next(numbers) == 0
        result = {"nonce": command.nonce}
        return {"status": {"code": Code.OK}, "verify_message_result": result}

    message_id = place.endpoint.first_message(TOPIC)
    words = ("queryMsgById", "-t", TOPIC, "-i", message_id, "-g", GROUP, "-d", ID)
    assert "CR_SUCCESS" in asked(place, shell, "verify_message_command", answer, *words)
