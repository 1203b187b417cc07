"""What a call is, and who makes it: what its headers say. Pure.

Source: apache/rocketmq-clients `Signature.java`.
"""

from collections.abc import Mapping
from typing import NamedTuple

from reliable_mq.gateway.answer_heads import NOT_GRPC, NOT_POST
from reliable_mq.gateway.call_body import CALLS
from reliable_mq.gateway.codes import Code, RpcRefused
from reliable_mq.gateway.header_rules import is_grpc
from reliable_mq.gateway.message_facts import SERVICE
from reliable_mq.gateway.request_heads import RequestHead
from reliable_mq.limits import NAME_LENGTH_MAX

CLIENT_ID = b"x-mq-client-id"
_CLIENT_ID_MAX = 2 * NAME_LENGTH_MAX
_HEADER_SIZE_MAX = 1024
_KEPT = (b"authorization", b"x-mq-date-time", b"x-mq-client-version", b"x-mq-language")
_SECONDS = dict(zip(b"HMSmun", (3600.0, 60.0, 1.0, 1e-3, 1e-6, 1e-9), strict=True))
_DIGITS_MAX = 8
_NAMES = {f"/{SERVICE}/{name}".encode(): name for name in (*CALLS, "Telemetry")}
"""The names of the calls that there are, by their paths."""


class Caller(NamedTuple):
    """One call's sender.

    `deadline`: when the client stops waiting, by the loop's clock; infinity: never. `host` is its
    address without the port.
    """

    client_id: str
    host: str
    headers: Mapping[bytes, bytes]
    deadline: float

    def text(self, name: bytes) -> str:
        """Return a header; "" if it is not there."""
        return self.headers.get(name, b"").decode("utf-8", "replace")

    @property
    def client_version(self) -> str:
        """The version of its library."""
        return self.text(b"x-mq-client-version")

    @property
    def language(self) -> str:
        """The language of its library."""
        return self.text(b"x-mq-language")


def client_id_of(headers: Mapping[bytes, bytes]) -> str:
    """Return the id of the client that makes a call.

    Raises:
        RpcRefused: when there is none.
    """
    found = headers.get(CLIENT_ID, b"")
    if not found.strip():
        raise RpcRefused(Code.CLIENT_ID_REQUIRED, "client id cannot be empty")
    if len(found) > _CLIENT_ID_MAX:
        raise RpcRefused(Code.BAD_REQUEST, f"a client id has at most {_CLIENT_ID_MAX} bytes")
    return found.decode("utf-8", "replace")


def kept_headers(headers: Mapping[bytes, bytes]) -> dict[bytes, bytes]:
    """Return those headers that are looked at later; one that is too long is cut."""
    return {name: headers[name][: _HEADER_SIZE_MAX + 1] for name in _KEPT if name in headers}


def seconds_of(timeout: bytes | None) -> float | None:
    """Return the seconds of a `grpc-timeout` header; None: it is none."""
    if not timeout:
        return None
    number, unit = timeout[:-1], _SECONDS.get(timeout[-1])
    if unit is None or not number.isdigit() or len(number) > _DIGITS_MAX:
        return None
    return int(number) * unit


class Sender(NamedTuple):
    """Who makes calls with the same headers. `refused`: why nobody may make them so."""

    client_id: str
    headers: Mapping[bytes, bytes]
    refused: RpcRefused | None


def sender_of(headers: Mapping[bytes, bytes]) -> Sender:
    """Return who makes a call."""
    kept = kept_headers(headers)
    try:
        return Sender(client_id_of(headers), kept, None)
    except RpcRefused as refused:
        return Sender("", kept, refused)


class KindOfCall(NamedTuple):
    """What all calls with the same head have in common.

    `no_call`: the answer to a request that is no call of gRPC. `name`: "" if there is no such call.
    """

    no_call: bytes
    name: str
    sender: Sender


def kind_of_call(head: RequestHead) -> KindOfCall:
    """Return what the head of a request says of it."""
    values = head.values
    no_call = b"" if is_grpc(values.get(b"content-type", b"")) else NOT_GRPC
    if not no_call and values[b":method"] != b"POST":
        no_call = NOT_POST
    return KindOfCall(no_call, _NAMES.get(values.get(b":path", b""), ""), sender_of(values))
