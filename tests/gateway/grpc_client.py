"""A client of the endpoint: grpcio's real channel, and the messages as the endpoint knows them."""

import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from queue import SimpleQueue
from typing import Any

import grpc

from reliable_mq.gateway.message_facts import SERVICE
from reliable_mq.gateway.message_types import TYPES

SECONDS = 10.0


class GrpcClient:
    """One client on one channel.

    Args:
        address: of the endpoint, "host:port".
        client_id: in the headers of its calls; "": none.
        more: further headers.
        tls: the certificate of the authority; None: plain.
    """

    def __init__(
        self,
        address: str,
        client_id: str = "client-1",
        more: Mapping[str, str] | None = None,
        tls: bytes | None = None,
    ) -> None:
        headers = {"x-mq-client-id": client_id, "x-mq-client-version": "5.2.0", **(more or {})}
        self.headers = tuple((name, value) for name, value in headers.items() if value)
        if tls is None:
            self.channel = grpc.insecure_channel(address)
        else:
            options = (("grpc.ssl_target_name_override", "localhost"),)
            credentials = grpc.ssl_channel_credentials(tls)
            self.channel = grpc.secure_channel(address, credentials, options)
        self.host, _, port = address.rpartition(":")
        self.port = int(port)
        self._commands: SimpleQueue[Any] = SimpleQueue()

    def call(self, name: str, seconds: float = SECONDS, **fields: Any) -> Any:
        """Make a call with one answer."""
        make = TYPES[f"{name}Request"]
        method = self.channel.unary_unary(
            f"/{SERVICE}/{name}",
            request_serializer=make.SerializeToString,
            response_deserializer=TYPES[f"{name}Response"].FromString,
        )
        return method(make(**fields), timeout=seconds, metadata=self.headers)

    def stream(self, name: str, seconds: float = SECONDS, **fields: Any) -> Any:
        """Make a call with many answers; return them as they come."""
        make = TYPES[f"{name}Request"]
        method = self.channel.unary_stream(
            f"/{SERVICE}/{name}",
            request_serializer=make.SerializeToString,
            response_deserializer=TYPES[f"{name}Response"].FromString,
        )
        return method(make(**fields), timeout=seconds, metadata=self.headers)

    def telemetry(self) -> Any:
        """Open the stream of commands; `tell` sends on it."""
        kind = TYPES["TelemetryCommand"]
        method = self.channel.stream_stream(
            f"/{SERVICE}/Telemetry",
            request_serializer=kind.SerializeToString,
            response_deserializer=kind.FromString,
        )
        return method(self._sent(), metadata=self.headers)

    def _sent(self) -> Iterator[Any]:
        while (command := self._commands.get()) is not None:
            yield command

    def tell(self, **fields: Any) -> None:
        """Send a command on the open stream."""
        self._commands.put(TYPES["TelemetryCommand"](**fields))

    def producer(self, *topics: str) -> Any:
        """Be a producer: open the stream, tell the settings, and take the answer."""
        stream = self.telemetry()
        named = [{"name": each} for each in topics]
        self.tell(settings={"client_type": 1, "publishing": {"topics": named}})
        assert next(stream).status.code == 20000
        return stream

    def consumer(self, group: str, topic: str, kind: int = 3) -> Any:
        """Be a consumer, as `producer`."""
        stream = self.telemetry()
        entry = {"topic": {"name": topic}, "expression": {"type": 1, "expression": "*"}}
        subscription = {"group": {"name": group}, "subscriptions": [entry]}
        self.tell(settings={"client_type": kind, "subscription": subscription})
        assert next(stream).status.code == 20000
        return stream

    @property
    def endpoints(self) -> dict[str, Any]:
        """The address as clients name it."""
        return {"scheme": 1, "addresses": [{"host": self.host, "port": self.port}]}

    def send(self, topic: str, body: bytes = b"body", number: int = 1, **system: Any) -> Any:
        """Send one message."""
        given = {"message_id": f"ID{number:030d}", "message_type": 1, "body_encoding": 1, **system}
        message = {"topic": {"name": topic}, "body": body, "system_properties": given}
        return self.call("SendMessage", messages=[message])

    def receive(
        self, group: str, topic: str, seconds: float = SECONDS, **more: Any
    ) -> tuple[int, str, list[Any]]:
        """Receive messages; return the status and them."""
        fields = {
            "group": {"name": group},
            "message_queue": {"topic": {"name": topic}},
            "filter_expression": {"type": 1, "expression": "*"},
            "batch_size": 32,
            "invisible_duration": {"seconds": 15},
            "long_polling_timeout": {"seconds": 5},
            **more,
        }
        answers = list(self.stream("ReceiveMessage", seconds, **fields))
        (status,) = [each.status for each in answers if each.HasField("status")]
        found = [each.message for each in answers if each.HasField("message")]
        return status.code, status.message, found

    def close(self) -> None:
        """Close the channel."""
        self._commands.put(None)
        self.channel.close()


@contextmanager
def client_at(address: str, client_id: str = "client-1", **more: Any) -> Iterator[GrpcClient]:
    """Give a client, and close it."""
    client = GrpcClient(address, client_id, **more)
    try:
        yield client
    finally:
        client.close()


def until(stream: Iterable[Any], field: str, seconds: float = SECONDS) -> Any:
    """Return the next command of a stream that has this field."""
    end = time.monotonic() + seconds
    for command in stream:
        if command.HasField(field):
            return getattr(command, field)
        assert time.monotonic() < end
    raise AssertionError(f"the stream has ended without {field}")
