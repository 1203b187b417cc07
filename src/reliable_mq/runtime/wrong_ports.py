"""Peers that speak another protocol than their port: how they are seen, and what they are told.

Receives the first bytes of a connection that do not fit. Answers in the peer's own protocol, so
that its user reads it, and writes one line. Apache's servers close without a word.
A gRPC client must get an answer to its call: without one, it connects again hundreds of times a
second.
"""

import asyncio

from reliable_mq.errors import FrameError
from reliable_mq.line_limit import refusal_log
from reliable_mq.runtime.connection_roles import SecuredProtocol
from reliable_mq.runtime.tls_connection import is_hello
from reliable_mq.telemetry import broker_events
from reliable_mq.wire.answer import encode_answer
from reliable_mq.wire.codes import ResponseCode
from reliable_mq.wire.command import decode_command, reply
from reliable_mq.wire.frame import FrameReader

log = refusal_log(__name__)  # a client with a wrong port connects again and again

REMOTING = "Apache RocketMQ's remoting protocol"
_PREFACE = b"PRI * HTTP/2.0"
_METHODS = (b"GET ", b"HEAD ", b"POST ", b"PUT ", b"DELETE ", b"OPTIONS ", b"CONNECT ", b"PATCH ")
_GOING_SECONDS = 1.0
_UNIMPLEMENTED = 12  # of gRPC: a client does not try again


def speaks_http2(data: bytes) -> bool:
    """Whether the first bytes of a connection begin HTTP/2, so that its client speaks gRPC."""
    return data.startswith(_PREFACE)


def speaks_http1(data: bytes) -> bool:
    """Whether the first bytes of a connection are a request of HTTP/1."""
    return data.startswith(_METHODS)


def at_remoting_port(data: bytes, grpc_port: int) -> str:
    """Return what is wrong with bytes that are no frame; "": they are nothing known.

    Args:
        data: the bytes.
        grpc_port: the port of this process that speaks gRPC; 0: it has none.
    """
    if speaks_http1(data):
        return f"this port speaks {REMOTING}, not HTTP"
    if not speaks_http2(data):
        return ""
    where = (
        f"port {grpc_port} speaks gRPC"
        if grpc_port
        else "for gRPC, run `reliable-mq broker --grpc-port`, or `reliable-mq proxy`"
    )
    return f"this port speaks {REMOTING}, not gRPC: {where}"


def refuse(inner: SecuredProtocol, transport: asyncio.Transport, data: bytes, reason: str) -> None:
    """Answer a peer at the port of the remoting protocol, and close its connection.

    Args:
        inner: the protocol of the connection; it is told when that is lost.
        transport: of the connection.
        data: what has come.
        reason: from `at_remoting_port`.
    """
    if speaks_http2(data):
        refusal = GrpcRefusal(inner, transport, reason)
        transport.set_protocol(refusal)
        refusal.data_received(data)
    else:
        transport.write(_http1_refusal(b"400 Bad Request", reason))
        transport.close()


class GrpcRefusal(asyncio.Protocol):
    """Refuses the first call of a gRPC client, and closes the connection then."""

    def __init__(self, inner: SecuredProtocol, transport: asyncio.Transport, reason: str) -> None:
        from reliable_mq.gateway.http2 import Http2Connection  # noqa: PLC0415 - rarely needed

        self._inner = inner
        self._transport = transport
        self._reason = reason
        self._http2 = Http2Connection()
        self._has_refused = False

    def data_received(self, data: bytes) -> None:
        """Wait for a call, and refuse it."""
        from reliable_mq.gateway.answer_heads import HEAD, trailers_of  # noqa: PLC0415
        from reliable_mq.gateway.http2_frames import Http2Fault  # noqa: PLC0415

        http2 = self._http2
        if self._has_refused:
            return
        try:
            happened = http2.feed(data, asyncio.get_running_loop().time())
        except FrameError:
            self._transport.abort()
            return
        for _, stream in happened[:1]:
            http2.send_head(stream, HEAD)
            http2.end(stream, trailers_of(_UNIMPLEMENTED, self._reason))
        if happened:
            self._has_refused = True
            http2.go_away(Http2Fault.NO_ERROR, self._reason)
            # To close at once, with bytes of the peer unread, could drop the answer on its way.
            asyncio.get_running_loop().call_later(_GOING_SECONDS, self._transport.close)
        out, http2.out = b"".join(http2.out), []
        if out:
            self._transport.write(out)

    def connection_lost(self, exc: Exception | None) -> None:
        """Tell it to the protocol of the connection."""
        self._inner.connection_lost(exc)


def at_grpc_port(data: bytes, no_tls: str) -> tuple[bytes, str]:
    """Return what to answer, and why the peer is closed; "": these bytes are nothing known.

    Args:
        data: the first bytes, which are not HTTP/2.
        no_tls: why a peer that begins a TLS handshake is closed.
    """
    if is_hello(data):
        return b"", no_tls
    if speaks_http1(data):
        text = "this port speaks gRPC, which needs HTTP/2"
        refusal = _http1_refusal(b"505 HTTP Version Not Supported", text)
        return refusal, f"it speaks HTTP/1, and {text}"
    try:
        (asked,) = FrameReader().feed(data)[:1]
        command = decode_command(asked)
    except (FrameError, ValueError):
        return b"", ""
    text = "this port speaks gRPC: give this client the address of a name server"
    answer = encode_answer(reply(command, ResponseCode.SYSTEM_ERROR, text))
    return answer, f"it speaks {REMOTING}, and {text}"


def tell(client: str, reason: str) -> None:
    """Write the line about a peer; each address and reason once a minute."""
    broker_events.WRONG_PORT.log(log, client=client, reason=reason)


def _http1_refusal(status: bytes, text: str) -> bytes:
    said = f"{text[0].upper()}{text[1:]}.\n".encode()
    return (
        b"HTTP/1.1 %b\r\ncontent-type: text/plain\r\nconnection: close\r\n"
        b"content-length: %d\r\n\r\n%b" % (status, len(said), said)
    )
