"""Tools ask a consumer behind the endpoint: the broker passes it on, and the client answers."""

from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count
from threading import Thread
from typing import Any

import grpc
import msgspec
import pytest
from bench.reliable_mq_broker import ReliableMQBroker
from tests.gateway.grpc_client import GrpcClient, client_at, until
from tests.interop.sdk_servers import Endpoint
from tests.waiting import until as eventually

from reliable_mq.gateway.codes import Code
from reliable_mq.wire.codes import RequestCode, ResponseCode
from reliable_mq.wire.command import Command

pytestmark = pytest.mark.processes
_numbers = count(1)


class Asked:
    """A consumer behind the endpoint, and a tool that asks about it."""

    def __init__(self, client: GrpcClient, endpoint: Endpoint, kind: int) -> None:
        self.client, self.endpoint = client, endpoint
        self.topic = f"asked-{next(_numbers)}"
        self.group = f"{self.topic}-readers"
        endpoint.make_topic(self.topic, "NORMAL")
        self.stream = client.consumer(self.group, self.topic, kind)

    def ask(self, code: int, **fields: str) -> Command:
        """Ask the broker about the consumer."""
        named = {"consumerGroup": self.group, "clientId": "client-1", **fields}
        return self.endpoint.ask(code, **named)

    @contextmanager
    def asking(self, code: int, **fields: str) -> Iterator[list[Command]]:
        """Ask while the block runs; the answer is there afterwards."""
        found: list[Command] = []
        thread = Thread(target=lambda: found.append(self.ask(code, **fields)))
        thread.start()
        try:
            yield found
        finally:
            thread.join(60)

    def connections(self) -> Command:
        """Ask for the connections of the group."""
        return self.ask(RequestCode.GET_CONSUMER_CONNECTION_LIST)


@pytest.fixture
def asked(client: GrpcClient, endpoint: Endpoint) -> Asked:
    return Asked(client, endpoint, kind=2)


def stored_id(asked: Asked) -> str:
    """Send a message; return the broker's id of it."""
    asked.client.send(asked.topic, b"look at me", tag="red")
    return asked.endpoint.first_message(asked.topic)


def test_tools_see_the_consumers_of_the_endpoint(asked: Asked) -> None:
    answer = asked.connections()
    assert answer.code == 0, answer.remark
    found = msgspec.json.decode(answer.body)
    (connection,) = found["connectionSet"]
    assert (connection["clientId"], connection["clientAddr"]) == ("client-1", "127.0.0.1:0")
    assert found["consumeType"] == "CONSUME_PASSIVELY"
    assert found["subscriptionTable"][asked.topic]["subString"] == "*"


def test_a_consumer_that_has_left_is_seen_no_more(asked: Asked) -> None:
    left = asked.client.call("NotifyClientTermination", group={"name": asked.group})
    assert left.status.code == Code.OK
    assert asked.connections().code == ResponseCode.CONSUMER_NOT_ONLINE
    refused = asked.ask(RequestCode.GET_CONSUMER_RUNNING_INFO, jstackEnable="true")
    assert "not online" in (refused.remark or "")


def test_members_that_share_queues_do_not_count_it_as_one(asked: Asked) -> None:
    """Else queues were given to a client that gets its messages one by one."""
    answer = asked.ask(RequestCode.GET_CONSUMER_LIST_BY_GROUP)
    assert answer.code == ResponseCode.SYSTEM_ERROR


def test_a_consumer_is_asked_for_its_stacks(asked: Asked) -> None:
    with asked.asking(RequestCode.GET_CONSUMER_RUNNING_INFO, jstackEnable="true") as answers:
        command = until(asked.stream, "print_thread_stack_trace_command")
        stacks = "main: " + "x" * 500_000  # as long as those of a Java client with many threads
        asked.client.tell(
            status={"code": Code.OK},
            thread_stack_trace={"nonce": command.nonce, "thread_stack_trace": stacks},
        )
    (answer,) = answers
    assert answer.code == 0, answer.remark
    assert msgspec.json.decode(answer.body)["jstack"] == stacks


def test_without_stacks_nobody_is_asked(asked: Asked) -> None:
    answer = asked.ask(RequestCode.GET_CONSUMER_RUNNING_INFO, jstackEnable="false")
    info = msgspec.json.decode(answer.body)
    assert info["properties"]["PROP_CLIENT_VERSION"] == "5.2.0"
    assert [each["topic"] for each in info["subscriptionSet"]] == [asked.topic]


@pytest.mark.parametrize(
    ("code", "result"),
    [
        (Code.OK, "CR_SUCCESS"),
        (Code.FAILED_TO_CONSUME_MESSAGE, "CR_LATER"),
        (Code.MESSAGE_CORRUPTED, "CR_RETURN_NULL"),
    ],
)
def test_a_consumer_handles_a_message_for_a_tool(asked: Asked, code: Code, result: str) -> None:
    message_id = stored_id(asked)
    with asked.asking(RequestCode.CONSUME_MESSAGE_DIRECTLY, msgId=message_id) as answers:
        command = until(asked.stream, "verify_message_command")
        assert command.message.body == b"look at me"
        assert command.message.system_properties.tag == "red"
        asked.client.tell(status={"code": code}, verify_message_result={"nonce": command.nonce})
    (answer,) = answers
    assert answer.code == 0, answer.remark
    assert msgspec.json.decode(answer.body)["consumeResult"] == result


def test_a_client_that_cannot_do_it_says_so(asked: Asked) -> None:
    with asked.asking(RequestCode.CONSUME_MESSAGE_DIRECTLY, msgId=stored_id(asked)) as answers:
        command = until(asked.stream, "verify_message_command")
        asked.client.tell(
            status={"code": Code.NOT_IMPLEMENTED},
            verify_message_result={"nonce": command.nonce},
        )
    (answer,) = answers
    assert (answer.code, answer.remark) == (1, "the client answers NOT_IMPLEMENTED")


def test_another_client_cannot_answer_a_question(asked: Asked, endpoint: Endpoint) -> None:
    with (
        client_at(endpoint.address, "liar") as liar,
        asked.asking(RequestCode.GET_CONSUMER_RUNNING_INFO, jstackEnable="true") as answers,
    ):
        stream = liar.consumer(asked.group, asked.topic)
        command = until(asked.stream, "print_thread_stack_trace_command")
        for name, text in (("liar", "a lie"), ("client-1", "the truth")):
            teller: Any = liar if name == "liar" else asked.client
            teller.tell(
                status={"code": Code.OK},
                thread_stack_trace={"nonce": command.nonce, "thread_stack_trace": text},
            )
            if teller is liar:  # its next settings are answered after that
                liar.tell(settings=_settings(asked))
                assert until(stream, "settings")
    (answer,) = answers
    assert msgspec.json.decode(answer.body)["jstack"] == "the truth"


def _settings(asked: Asked) -> dict[str, Any]:
    entry = {"topic": {"name": asked.topic}, "expression": {"type": 1, "expression": "*"}}
    subscription = {"group": {"name": asked.group}, "subscriptions": [entry]}
    return {"client_type": 3, "subscription": subscription}


def test_a_client_without_a_stream_is_not_waited_for(asked: Asked) -> None:
    asked.client.close()

    def refused() -> bool:
        answer = asked.ask(RequestCode.GET_CONSUMER_RUNNING_INFO, jstackEnable="true")
        return "has no Telemetry stream" in (answer.remark or "")

    eventually(refused)


def test_clients_are_told_to_connect_again_when_the_endpoint_stops(
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    directory = tmp_path_factory.mktemp("stops")
    with (
        ReliableMQBroker(directory, "ASYNC_FLUSH", has_grpc=True) as running,
        client_at(running.grpc_address) as client,
    ):
        stream = client.consumer("readers", "stops")
        found: list[Any] = []
        reader = Thread(target=lambda: found.extend(stream))
        reader.start()
        running.stop()
        reader.join(60)
        assert found[-1].HasField("reconnect_endpoints_command")
        assert stream.code() is grpc.StatusCode.OK
