"""A client without opinions: any command over a socket, and whatever comes back."""

import socket
import struct
import time
from collections.abc import Mapping
from typing import Self

from reliable_mq.wire.command import Command, decode_command, encode_command, request
from reliable_mq.wire.frame import FrameReader

TIMEOUT_SECONDS = 60.0


class NoAnswer(AssertionError):
    """Nothing came in time, or the peer closed the connection."""


class RawClient:
    """One connection. A context manager.

    Args:
        address: "host:port".
        version: the MQVersion ordinal that its commands claim; 493 is V5_4_0.
    """

    def __init__(self, address: str, *, version: int = 493) -> None:
        host, _, port = address.rpartition(":")
        self._socket = socket.create_connection((host, int(port)), TIMEOUT_SECONDS)
        self._reader = FrameReader()
        self._version = version
        self._opaque = 0
        self._replies: dict[int, Command] = {}
        self.pushed: list[Command] = []  # requests of the peer, oldest first

    def ask(
        self,
        code: int,
        ext: Mapping[str, object] | None = None,
        body: bytes = b"",
        *,
        timeout: float = TIMEOUT_SECONDS,
    ) -> Command:
        """Send a request and return its reply; ext values become text, None is left out."""
        return self.wait(self.begin(code, ext, body), timeout)

    def begin(
        self,
        code: int,
        ext: Mapping[str, object] | None = None,
        body: bytes = b"",
        *,
        oneway: bool = False,
    ) -> int:
        """Send a request and return its opaque."""
        self._opaque += 1
        fields = {name: str(value) for name, value in (ext or {}).items() if value is not None}
        command = request(code, fields, body, oneway=oneway)
        command.opaque = self._opaque
        command.version = self._version
        self.write(encode_command(command))
        return self._opaque

    def wait(self, opaque: int, timeout: float = TIMEOUT_SECONDS) -> Command:
        """Return the reply to a request that was begun."""
        deadline = time.monotonic() + timeout
        while opaque not in self._replies:
            self._read(deadline)
        return self._replies.pop(opaque)

    def wait_for_push(self, timeout: float = TIMEOUT_SECONDS) -> Command:
        """Return the oldest request of the peer that was not looked at yet."""
        deadline = time.monotonic() + timeout
        while not self.pushed:
            self._read(deadline)
        return self.pushed.pop(0)

    def has_answered(self, opaque: int) -> bool:
        """Whether the reply has come, as far as another request's reply can tell."""
        self.ask(-1)  # handled after everything that was sent before it
        return opaque in self._replies

    def write(self, data: bytes) -> None:
        """Send bytes as they are."""
        self._socket.sendall(data)

    def is_closed_by_peer(self, timeout: float = TIMEOUT_SECONDS) -> bool:
        """Whether the peer ends the connection in time; what it says before is dropped."""
        self._socket.settimeout(timeout)
        try:
            while self._socket.recv(65536):
                pass
        except TimeoutError:
            return False
        except ConnectionError:
            return True
        return True

    def reset(self) -> None:
        """End the connection without a goodbye."""
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self._socket.close()

    def close(self) -> None:
        """End the connection."""
        self._socket.close()

    def _read(self, deadline: float) -> None:
        self._socket.settimeout(max(0.001, deadline - time.monotonic()))
        try:
            data = self._socket.recv(1 << 20)
        except TimeoutError as late:
            raise NoAnswer("nothing came in time") from late
        if not data:
            raise NoAnswer("the peer closed the connection")
        for frame in self._reader.feed(data):
            command = decode_command(frame)
            if command.is_reply:
                self._replies[command.opaque] = command
            else:
                self.pushed.append(command)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
