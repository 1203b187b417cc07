"""A blocking connection to one broker or name server: one request, one reply.

It is for processes without an event loop, such as Spark's workers. It does not answer requests of
the peer. A peer sends none to a client that sends no heartbeats.
"""

import socket
import ssl
from collections.abc import Callable
from typing import Self

from reliable_mq.errors import ConnectionLost, FrameError, ProtocolError, RequestTimeout
from reliable_mq.runtime.reply_reader import ReplyReader
from reliable_mq.wire.command import Command, encode_command

_RECEIVE_SIZE = 256 * 1024


class BlockingLink:
    """One connection, opened with the first call. A context manager, not thread-safe.

    Args:
        address: the peer, "host:port".
        timeout: seconds for connecting, and for each wait for bytes.
        prepare: called with each request before it is sent, for example to sign it.
        tls: encrypts the connection; None: plain.
        tls_hostname: the name in the peer's certificate; "" for the host of the address.
    """

    def __init__(
        self,
        address: str,
        timeout: float,
        *,
        prepare: Callable[[Command], None] | None = None,
        tls: ssl.SSLContext | None = None,
        tls_hostname: str = "",
    ) -> None:
        self.address = address
        self._timeout = timeout
        self._prepare = prepare
        self._tls, self._tls_hostname = tls, tls_hostname
        self._socket: socket.socket | None = None
        self._replies = ReplyReader()

    def call(self, command: Command) -> Command:
        """Send a request and return its reply. After an error the next call connects again.

        Raises:
            ConnectionLost: when the peer cannot be reached, or ends the connection.
            RequestTimeout: when the peer sends nothing for `timeout` seconds.
            ProtocolError: when the peer sends bytes that are not a command.
        """
        try:
            connection = self._open()
            command.opaque = self._replies.next_opaque()
            if self._prepare is not None:
                self._prepare(command)
            connection.sendall(encode_command(command))
            return self._reply(connection)
        except TimeoutError as error:
            self.close()
            raise RequestTimeout(f"{self.address} is silent for {self._timeout:g} s") from error
        except OSError as error:
            self.close()
            raise ConnectionLost(f"{self.address}: {error.strerror or error}") from error
        except FrameError as error:
            self.close()
            raise ProtocolError(f"{self.address} sent an invalid command: {error}") from error

    def close(self) -> None:
        """Close the connection, if it is open."""
        if self._socket is not None:
            self._socket.close()
            self._socket = None

    def _open(self) -> socket.socket:
        if self._socket is None:
            self._socket = self._connected()
            self._replies = ReplyReader()
        return self._socket

    def _connected(self) -> socket.socket:
        host, _, port = self.address.rpartition(":")
        host = host.strip("[]")
        plain = socket.create_connection((host, int(port)), self._timeout)
        plain.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if self._tls is None:
            return plain
        try:
            return self._tls.wrap_socket(plain, server_hostname=self._tls_hostname or host)
        except BaseException:
            plain.close()
            raise

    def _reply(self, connection: socket.socket) -> Command:
        while True:
            reply = self._replies.feed(connection.recv(_RECEIVE_SIZE))
            if reply is not None:
                return reply

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
