"""The headers of answers: gRPC's, and those to calls that do not speak it. Values only."""

from urllib.parse import quote

from reliable_mq.gateway.hpack import block_of

HEAD = b"\x88" + block_of([(b"content-type", b"application/grpc")])
OK = block_of([(b"grpc-status", b"0")])
NOT_GRPC = block_of([(b":status", b"415"), (b"content-length", b"0")])
NOT_POST = block_of([(b":status", b"405"), (b"allow", b"POST"), (b"content-length", b"0")])


def trailers_of(status: int, text: str) -> bytes:
    """Return the last headers of an answer."""
    if not status:
        return OK
    shown = quote(text[:500], safe=" !#$&'()*+,/:;=?@[]\"<>^`{|}").encode()
    return block_of([(b"grpc-status", str(status).encode()), (b"grpc-message", shown)])
