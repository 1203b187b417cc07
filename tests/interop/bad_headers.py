"""Wrong headers and wrong protocols at a gRPC endpoint, sent as raw bytes.

An answer is a status of HTTP, with that of gRPC if it is 200, or how the stream or the connection
ends.
"""

import socket
from collections.abc import Callable

from tests.interop.sdk_servers import Endpoint

from reliable_mq.gateway.hpack import HeaderReader, block_of
from reliable_mq.gateway.http2_frames import HEAD, PREFACE, Http2Fault, frame_of

Outcome = int | str
RawAsk = Callable[[Endpoint], Outcome]
CALL = [(b":method", b"POST"), (b":scheme", b"http"), (b":authority", b"localhost")]
PATH, TYPE = (b":path", b"/x.y/Z"), (b"content-type", b"application/grpc")
TE = (b"te", b"trailers")
_HEADERS, _RESET, _GO_AWAY = 1, 3, 7


def connected(endpoint: Endpoint) -> socket.socket:
    host, _, port = endpoint.address.rpartition(":")
    return socket.create_connection((host, int(port)), 10)


def head_of(headers: list[tuple[bytes, bytes]]) -> bytes:
    return block_of([*headers, (b"x-mq-client-id", b"raw")])


def request(*headers: tuple[bytes, bytes]) -> RawAsk:
    """Send headers as a request."""
    return lambda endpoint: _answer_to(endpoint, frame_of(1, 5, 1, block_of(list(headers))))


def _answer_to(endpoint: Endpoint, frames: bytes) -> Outcome:
    found: dict[bytes, bytes] = {}
    reader = HeaderReader()
    with connected(endpoint) as raw:
        raw.sendall(PREFACE + frame_of(4, 0, 0) + frames)
        with raw.makefile("rb") as stream:
            while head := stream.read(HEAD.size):
                high, low, kind, _, _ = HEAD.unpack(head)
                payload = stream.read(high << 8 | low)
                if kind == _HEADERS:
                    found.update(reader.read(payload))
                    status, of_grpc = found[b":status"].decode(), found.get(b"grpc-status")
                    if status != "200":
                        return f"status {status}"
                    if of_grpc is not None:
                        return f"status 200, that of gRPC {of_grpc.decode()}"
                elif kind == _RESET:
                    return f"reset with {Http2Fault(int.from_bytes(payload)).name}"
                elif kind == _GO_AWAY:
                    return f"closed with {Http2Fault(int.from_bytes(payload[4:8])).name}"
    return "closed"


def http1(endpoint: Endpoint) -> Outcome:
    """Return how an endpoint answers HTTP/1, by its first bytes."""
    with connected(endpoint) as raw:
        raw.sendall(b"GET / HTTP/1.1\r\nhost: x\r\n\r\n")
        answer = b"".join(iter(lambda: raw.recv(4096), b""))
    if answer.startswith(b"HTTP/1.1 "):
        return f"status {answer[9:12].decode()}"
    return "frames of HTTP/2, then closed" if answer else "closed"


RAW_ASKS: dict[str, RawAsk] = {
    "HTTP/1": http1,
    "headers: no content type": request(*CALL, PATH, TE),
    "headers: another content type": request(*CALL, PATH, (b"content-type", b"text/html"), TE),
    "headers: GET": request((b":method", b"GET"), *CALL[1:], PATH, TYPE, TE),
    "headers: no te": request(*CALL, PATH, TYPE),
    "headers: no path": request(*CALL, TYPE, TE),
    "headers: no method": request(*CALL[1:], PATH, TYPE, TE),
    "headers: path twice": request(*CALL, PATH, PATH, TYPE, TE),
    "headers: path behind others": request(*CALL, TYPE, PATH, TE),
    "headers: capitals in a name": request(*CALL, PATH, TYPE, TE, (b"X-Upper", b"x")),
    "headers: connection": request(*CALL, PATH, TYPE, TE, (b"connection", b"close")),
    "headers: unknown pseudo-header": request(*CALL, PATH, (b":odd", b"x"), TYPE, TE),
}
