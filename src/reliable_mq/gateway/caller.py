"""Who makes a call: what the headers of the call say of it. Pure.

Source: apache/rocketmq-clients `Signature.java`.
"""

from collections.abc import Mapping
from typing import NamedTuple

from reliable_mq.gateway.codes import Code, RpcRefused
from reliable_mq.limits import NAME_LENGTH_MAX

CLIENT_ID = b"x-mq-client-id"
_CLIENT_ID_MAX = 2 * NAME_LENGTH_MAX
_HEADER_SIZE_MAX = 1024
_SENDER_SIZE_MAX = 2048  # bytes of headers that are kept for a silent connection
_KEPT = (b"authorization", b"x-mq-date-time", b"x-mq-client-version", b"x-mq-language")
_SECONDS = dict(zip(b"HMSmun", (3600.0, 60.0, 1.0, 1e-3, 1e-6, 1e-9), strict=True))
_DIGITS_MAX = 8


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


class Senders:
    """Who makes the calls of one connection: clients say it in each call, in the same words.

    Invariant: what is kept is what the headers say that are kept beside it.
    """

    __slots__ = ("_client_id", "_headers", "_kept")

    def __init__(self) -> None:
        self._headers: tuple[bytes | None, ...] = ()
        self._client_id = ""
        self._kept: dict[bytes, bytes] = {}

    def of(self, headers: Mapping[bytes, bytes]) -> tuple[str, dict[bytes, bytes]]:
        """Return the id of the client, and those headers that are looked at later.

        Raises:
            RpcRefused: when there is no id.
        """
        get = headers.get
        found = get(CLIENT_ID), get(_KEPT[0]), get(_KEPT[1]), get(_KEPT[2]), get(_KEPT[3])
        if found != self._headers:
            client_id, kept = client_id_of(headers), kept_headers(headers)
            if sum(map(len, filter(None, found))) > _SENDER_SIZE_MAX:
                return client_id, kept  # too long to stay in memory while the connection is silent
            self._client_id, self._kept, self._headers = client_id, kept, found
        return self._client_id, self._kept
