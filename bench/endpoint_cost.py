"""What one message costs the gRPC endpoint of a broker in processor time, without sockets.

Broker, endpoint and a client that only makes bytes share one process. The client talks as Apache's
SDK for Java does: 16 threads receive 32 messages each and acknowledge one after another, and each
read of the connection brings so many calls. Its own time is taken off. So the figure hardly depends
on what else the machine does, and two versions can be compared on a busy one.

    python -m bench.endpoint_cost              # eight calls a read, as under the SDK for Java
    python -m bench.endpoint_cost --calls 1    # one call a read
"""

import argparse
import asyncio
import struct
import tempfile
import time
from collections import deque
from pathlib import Path
from typing import Any, cast

import uvloop

from reliable_mq.gateway.hpack import _STATIC
from reliable_mq.gateway.http2_frames import PREFACE, frame_of
from reliable_mq.gateway.message_facts import SERVICE
from reliable_mq.gateway.message_types import TYPES
from reliable_mq.runtime.broker_endpoint import BrokerEndpoint
from reliable_mq.runtime.broker_server import BrokerOptions, BrokerServer
from reliable_mq.runtime.grpc_connection import GrpcConnection
from reliable_mq.wire.codes import RequestCode
from reliable_mq.wire.command import request

LANES, RECEIVE, QUEUES = 16, 32, 8
COUNT = 2_048  # messages of a round
TABLE_SIZE, OK = 4096, 20000
_HEAD = struct.Struct(">BHBBI")
_WINDOW = 1024 * 1024
Call = tuple[int, bytes]


class HeaderWriter:
    """Header blocks as Netty writes them: all goes into the table, nothing is a Huffman text."""

    def __init__(self) -> None:
        self._table: deque[tuple[bytes, bytes]] = deque()
        self._size = 0

    def block(self, headers: list[tuple[bytes, bytes]]) -> bytes:
        """Return the block of some headers."""
        parts: list[bytes] = []
        for header in headers:
            known = [*_STATIC, *self._table]
            if header in known:
                parts.append(_number(0x80, 7, known.index(header) + 1))
                continue
            name, value = header
            names = [each[0] for each in known]
            if name in names:
                parts.append(_number(0x40, 6, names.index(name) + 1))
            else:
                parts += (b"\x40", _number(0, 7, len(name)), name)
            parts += (_number(0, 7, len(value)), value)
            self._table.appendleft(header)
            self._size += len(name) + len(value) + 32
            while self._size > TABLE_SIZE:
                gone = self._table.pop()
                self._size -= len(gone[0]) + len(gone[1]) + 32
        return b"".join(parts)


def _number(first: int, bits: int, number: int) -> bytes:
    limit = (1 << bits) - 1
    if number < limit:
        return bytes((first | number,))
    parts, number = [first | limit], number - limit
    while number >= 0x80:
        parts.append(number & 0x7F | 0x80)
        number >>= 7
    return bytes((*parts, number))


class Socket:
    """Keeps what the endpoint writes; stands for a transport and its socket."""

    def __init__(self) -> None:
        self.written: list[bytes] = []
        self.write = self.written.append

    def get_extra_info(self, name: str) -> Any:
        """Return the address of the peer, or the socket."""
        return ("127.0.0.1", 55_555) if name == "peername" else self

    def fileno(self) -> int:
        """Return a descriptor that is not the last one."""
        return 0

    def is_closing(self) -> bool:
        """Whether it is closed: never."""
        return False

    def get_write_buffer_size(self) -> int:
        """Return 0: everything is read at once."""
        return 0

    def set_write_buffer_limits(self, high: int) -> None:
        """Do nothing."""

    def close(self) -> None:
        """Do nothing."""


class Client:
    """One connection of an SDK, and the processor time that it takes itself."""

    def __init__(self, endpoint: BrokerEndpoint) -> None:
        self._socket, self._headers = Socket(), HeaderWriter()
        listener: Any = endpoint._grpc.listener
        self._connection: GrpcConnection = listener._make(listener)
        self._connection.connection_made(cast("Any", self._socket))
        self._next, self._received = 1, 0
        self._bodies: dict[int, list[bytes]] = {}
        self.own = 0.0
        settings = struct.pack(">HIHI", 4, _WINDOW, 3, 0)
        grown = frame_of(8, 0, 0, (_WINDOW - 65_535).to_bytes(4))
        self._connection.data_received(PREFACE + frame_of(4, 0, 0, settings) + grown)

    def call(self, name: str, *, is_whole: bool = True, **fields: Any) -> Call:
        """Return the stream and the bytes of a call."""
        begun = time.thread_time()
        kind = "TelemetryCommand" if name == "Telemetry" else f"{name}Request"
        body: bytes = TYPES[kind](**fields).SerializeToString()
        number, self._next = self._next, self._next + 2
        self._bodies[number] = []
        texts = {
            ":authority": "127.0.0.1:8081",
            ":path": f"/{SERVICE}/{name}",
            ":method": "POST",
            ":scheme": "http",
            "content-type": "application/grpc",
            "te": "trailers",
            "user-agent": "grpc-java-netty/1.50.0",
            "x-mq-language": "JAVA",
            "x-mq-protocol": "v2",
            "x-mq-client-version": "5.2.0",
            "x-mq-date-time": "20261129T060000Z",
            "x-mq-request-id": f"00000000-0000-0000-0000-{number:012d}",
            "x-mq-client-id": "DESKTOP@1@0@abcdefgh",
            "grpc-accept-encoding": "gzip",
            "grpc-timeout": f"{13_000_000 - number % 9000}u",
        }
        block = self._headers.block([(key.encode(), each.encode()) for key, each in texts.items()])
        data = frame_of(0, int(is_whole), number, b"\0" + len(body).to_bytes(4) + body)
        self.own += time.thread_time() - begun
        return number, frame_of(1, 4, number, block) + data

    async def answers(self, calls: list[Call], kind: str) -> list[list[Any]]:
        """Make calls in one read; return the answers of each."""
        self._connection.data_received(b"".join(data for _, data in calls))
        found: dict[int, bytes] = {}
        while len(found) < len(calls):
            await asyncio.sleep(0)
            begun = time.thread_time()
            found |= self._taken()
            self.own += time.thread_time() - begun
        begun = time.thread_time()
        decoded = [_messages(kind, found[number]) for number, _ in calls]
        self.own += time.thread_time() - begun
        return decoded

    def tell(self, call: Call) -> None:
        """Send the bytes of a call, and wait for nothing."""
        self._connection.data_received(call[1])

    def _taken(self) -> dict[int, bytes]:
        """Return the whole answers that were written, and give their window back."""
        data, at, found = b"".join(self._socket.written), 0, {}
        self._socket.written.clear()
        while at < len(data):
            high, low, kind, flags, number = _HEAD.unpack_from(data, at)
            begin, at = at + 9, at + 9 + (high << 16 | low)
            if kind == 0:
                self._bodies[number].append(data[begin:at])
                self._received += at - begin
            elif kind == 1 and flags & 1:
                found[number] = b"".join(self._bodies.pop(number))
        if self._received >= _WINDOW // 2:
            self._connection.data_received(frame_of(8, 0, 0, self._received.to_bytes(4)))
            self._received = 0
        return found


def _messages(kind: str, body: bytes) -> list[Any]:
    found, at = [], 0
    while at < len(body):
        end = at + 5 + int.from_bytes(body[at + 1 : at + 5])
        found.append(TYPES[kind].FromString(body[at + 5 : end]))
        at = end
    return found


async def send(client: Client, count: int, calls: int) -> None:
    """Send messages of 1 KiB."""
    for first in range(0, count, calls):
        made = []
        for number in range(first, first + calls):
            system = {"message_id": f"01{number:030X}", "message_type": 1, "body_encoding": 1}
            born = {"seconds": 1_790_000_000, "nanos": number % 1_000 * 1_000_000}
            system |= {"born_timestamp": born, "born_host": "shop", "queue_id": number % QUEUES}
            message = {"topic": {"name": "cost"}, "body": b"x" * 1024, "system_properties": system}
            made.append(client.call("SendMessage", messages=[message]))
        for (answer,) in await client.answers(made, "SendMessageResponse"):
            assert answer.status.code == OK, answer


async def receive(client: Client, count: int, calls: int) -> int:
    """Receive and acknowledge messages; return how many."""
    done = 0
    named = {"group": {"name": "g"}}
    while done < count:
        lanes: list[list[Any]] = []
        for _ in range(LANES // 2):
            queue = {"topic": {"name": "cost"}}
            times = {"invisible_duration": {"seconds": 60}, "long_polling_timeout": {"seconds": 3}}
            fields: dict[str, Any] = {
                **named,
                "message_queue": queue,
                "batch_size": RECEIVE,
                **times,
            }
            made = [client.call("ReceiveMessage", **fields) for _ in range(2)]
            answers = await client.answers(made, "ReceiveMessageResponse")
            lanes += [
                [each.message for each in some if each.HasField("message")] for some in answers
            ]
        while lanes := [each for each in lanes if each]:
            for first in range(0, len(lanes), calls):
                made = []
                for lane in lanes[first : first + calls]:
                    system = lane.pop().system_properties
                    handle, number = system.receipt_handle, system.message_id
                    entry = {"message_id": number, "receipt_handle": handle}
                    fields = {**named, "topic": {"name": "cost"}, "entries": [entry]}
                    made.append(client.call("AckMessage", **fields))
                for (answer,) in await client.answers(made, "AckMessageResponse"):
                    assert answer.status.code == OK, answer
                done += len(made)
    return done


async def measure(folder: Path, calls: int, rounds: int) -> tuple[float, float]:
    """Return the microseconds of a send, and of a receive with its acknowledgement: the least."""
    options = BrokerOptions(
        store=folder, port=0, name_server_port=0, properties={"flushDiskType": "ASYNC_FLUSH"}
    )
    server = BrokerServer(options)
    await server.start()
    endpoint = BrokerEndpoint(server, options, 0)
    await endpoint.start()
    queues = str(QUEUES)
    fields = {"topic": "cost", "readQueueNums": queues, "writeQueueNums": queues, "perm": "6"}
    await endpoint._direct.ask("", request(RequestCode.UPDATE_AND_CREATE_TOPIC, fields), 3.0)
    await asyncio.sleep(1.5)  # until the name server knows it
    client = Client(endpoint)
    subscription = {"group": {"name": "g"}, "subscriptions": [{"topic": {"name": "cost"}}]}
    settings = {"client_type": 3, "subscription": subscription}
    client.tell(client.call("Telemetry", is_whole=False, settings=settings))
    await asyncio.sleep(0.1)
    await send(client, LANES * RECEIVE, calls)
    await receive(client, 1, calls)
    figures: list[tuple[float, float]] = []
    for number in range(rounds + 1):
        took = []
        for work in (send, receive):
            begun, own = time.process_time(), client.own
            count = await work(client, COUNT, calls) or COUNT
            spent = time.process_time() - begun - (client.own - own)
            took.append(spent / count * 1e6)
        if number:
            figures.append((took[0], took[1]))
            print(f"send {took[0]:.1f}, receive + ack {took[1]:.1f} us", flush=True)
    await endpoint.close()
    await server.close()
    return min(each[0] for each in figures), min(each[1] for each in figures)


def main() -> None:
    parser = argparse.ArgumentParser(description="Processor time of the endpoint for a message.")
    parser.add_argument("--calls", type=int, default=8, help="of one read of the connection")
    parser.add_argument("--rounds", type=int, default=10)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="reliable-mq-cost-") as name:
        work = measure(Path(name) / "store", options.calls, options.rounds)
        sent, received = uvloop.run(work)
    print(f"least of the rounds: send {sent:.1f} us, receive + ack {received:.1f} us")


if __name__ == "__main__":
    main()
