"""An encrypted connection of a server, between its socket and the protocol that speaks on it.

`TlsGate` stands before a protocol of any kind until the first byte has come. That byte says whether
a TLS handshake follows. A plain connection then goes past the gate, and costs nothing more.
`TlsConnection` decrypts what comes and encrypts what leaves, in memory (`ssl.MemoryBIO`). To the
socket it is the protocol, and to the protocol behind it the transport.
Source: Apache RocketMQ `NettyRemotingServer.TlsModeHandler`.
"""

import asyncio
import contextlib
import ssl
import sys
from collections.abc import Iterable
from typing import Any, cast

from reliable_mq.line_limit import limited_log
from reliable_mq.runtime.connection_roles import SecuredProtocol
from reliable_mq.runtime.server_tls import DONE, FAILED, GIVEN_UP, PLAIN, ServerTls
from reliable_mq.runtime.tls_contexts import fault_of
from reliable_mq.telemetry import broker_events

log = limited_log(__name__)

_HANDSHAKE = b"\x16"
_RECORD_SIZE = 16 * 1024  # the most plain bytes of one TLS record
# A `MemoryBIO` keeps the most that it ever had: so each connection puts little into it at once.
_PIECE_SIZE = 64 * 1024
RECORDS_AT_ONCE = 256
"""So many records are decrypted in one go, in a millisecond. One read may bring 12,000."""
BEHIND_SIZE_MAX = 64 * 1024 * 1024
"""If so many bytes wait for that, of all connections together, no more of them wait."""


def is_hello(data: bytes) -> bool:
    """Whether the first bytes of a connection begin a TLS handshake.

    A frame with this first byte would be longer than 352 MiB.
    """
    return data[:1] == _HANDSHAKE


class TlsGate(asyncio.Protocol):
    """Waits for the first byte of a connection, and then gives the connection to who speaks on it.

    Args:
        inner: the protocol that speaks on the connection.
        tls: the mode and the certificate.
    """

    def __init__(self, inner: SecuredProtocol, tls: ServerTls) -> None:
        self._inner = inner
        self._tls = tls
        self._transport: asyncio.Transport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Tell the protocol behind the gate that there is a connection."""
        self._transport = cast("asyncio.Transport", transport)  # uvloop's are not subclasses
        self._inner.connection_made(transport)

    def data_received(self, data: bytes) -> None:
        """Look at the first byte; see the class."""
        if self._transport.is_closing():
            return
        context = self._tls.context
        if is_hello(data) and context is not None:
            encrypted = TlsConnection(self._inner, self._tls, self._transport, context)
            self._transport.set_protocol(encrypted)
            encrypted.data_received(data)
        elif self._tls.is_enforcing:
            self._tls.outcomes[PLAIN] += 1
            broker_events.TLS_WANTED.log(log, client=address_of_peer(self._transport))
            self._transport.abort()
        else:
            self._transport.set_protocol(cast("asyncio.Protocol", self._inner))
            self._inner.data_received(data)

    def connection_lost(self, exc: Exception | None) -> None:
        """Tell it to the protocol: nothing had come."""
        self._inner.connection_lost(exc)


def address_of_peer(transport: asyncio.BaseTransport) -> str:
    """Return the address of a peer for a log line."""
    peer = transport.get_extra_info("peername")
    return f"{peer[0]}:{peer[1]}" if peer else "a peer that has left"


class TlsConnection(asyncio.Protocol, asyncio.Transport):
    """One encrypted connection.

    Args:
        inner: the protocol that speaks on it.
        tls: where outcomes are counted.
        transport: the plain transport below.
        context: has the certificate. A later one is for later connections.
    """

    def __init__(
        self,
        inner: SecuredProtocol,
        tls: ServerTls,
        transport: asyncio.Transport,
        context: ssl.SSLContext,
    ) -> None:
        self._inner = inner
        self._tls = tls
        self._transport = transport
        self._incoming, self._outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._cipher = context.wrap_bio(self._incoming, self._outgoing, server_side=True)
        self._is_open = False  # whether the handshake is done
        self._behind = b""  # what has come and is not given to the cipher yet
        self._is_later = False  # whether records that have come wait for the next turn of the loop
        self._is_due = False  # whether `_read_on` is called then
        self._is_held = False  # whether the protocol wants nothing more now
        self._timer: asyncio.TimerHandle | None = asyncio.get_running_loop().call_later(
            tls.handshake_seconds, self._give_up
        )

    # What the socket calls.

    def data_received(self, data: bytes) -> None:
        """Decrypt data, and hand it on. Before the handshake is done, continue that."""
        if self._is_open:
            self._read(data)
            return
        # OpenSSL bounds the messages of a handshake: a chain may have 100 KiB.
        self._incoming.write(data)
        self._transport.pause_reading()
        self._tls.take_step(self._shake_hands)

    def _shake_hands(self) -> None:
        """Do one step of the handshake."""
        if self._transport.is_closing():
            return
        self._transport.resume_reading()
        try:
            self._cipher.do_handshake()
        except ssl.SSLWantReadError:
            self._flush()
            return
        except ssl.SSLError as error:
            self._flush()  # the alert tells the peer why
            self._refuse(fault_of(error))
            return
        self._is_open = True
        self._stop_timer()
        self._tls.outcomes[DONE] += 1
        self._flush()
        self._inner.secured(self)
        if self._incoming.pending or self._cipher.pending():
            self._read(b"")

    def _read(self, data: bytes) -> None:
        """Decrypt what has come. A record that has not come in whole waits."""
        plain: list[bytes] = []
        most = RECORDS_AT_ONCE if self._tls.behind_size < BEHIND_SIZE_MAX else sys.maxsize
        if len(data) <= _PIECE_SIZE and not self._behind:
            is_over = self._decrypt(data, plain, most)
        else:
            is_over = self._decrypt_pieces(memoryview(self._behind + data), plain, most)
        if len(plain) >= RECORDS_AT_ONCE and not is_over:
            self._read_on_later()
        if self._outgoing.pending:
            self._flush()
        if plain:
            self._inner.data_received(plain[0] if len(plain) == 1 else b"".join(plain))
        if is_over:
            self.close()

    def _read_on_later(self) -> None:
        """Read the records that have come in the next turn of the loop, and no others until then.

        Others have their turn in between.
        """
        if not self._is_later:
            self._is_later = True
            self._transport.pause_reading()
            self._read_on_soon()

    def _read_on_soon(self) -> None:
        if not self._is_due:  # the protocol may pause and go on several times in one turn
            self._is_due = True
            asyncio.get_running_loop().call_soon(self._read_on)

    def _read_on(self) -> None:
        self._is_due = False
        if self._transport.is_closing():
            return
        if self._is_held:  # until the protocol wants more
            return
        self._is_later = False
        self._read(b"")
        if not (self._is_later or self._is_held or self._transport.is_closing()):
            self._transport.resume_reading()

    def _decrypt_pieces(self, view: memoryview, plain: list[bytes], most: int) -> bool:
        """Do `_decrypt` with what waits for it, and keep the rest.

        The cipher gets the next piece when it has read the last one: see `_PIECE_SIZE`.
        """
        at, is_over = 0, bool(self._incoming.pending) and self._decrypt(b"", plain, most)
        while at < len(view) and not is_over and len(plain) < most:
            is_over = self._decrypt(view[at : at + _PIECE_SIZE], plain, most)
            at += _PIECE_SIZE
        self._keep(bytes(view[at:]))
        return is_over

    def _keep(self, behind: bytes) -> None:
        self._tls.behind_size += len(behind) - len(self._behind)
        self._behind = behind

    def _decrypt(self, data: bytes | memoryview, plain: list[bytes], most: int) -> bool:
        """Add the plain bytes of data to `plain`. Return whether nothing more can come.

        If there are more than `most` records, some stay in the cipher's input.
        """
        cipher, incoming = self._cipher, self._incoming
        incoming.write(data)
        try:
            while len(plain) < most:
                piece = cipher.read(_RECORD_SIZE)
                if not piece:
                    return True
                plain.append(piece)
                if not (incoming.pending or cipher.pending()):
                    break
        except ssl.SSLWantReadError:
            return False
        except ssl.SSLError as error:
            self._tell_broken(error)
            return True
        return False

    def eof_received(self) -> None:
        """Let the transport close: the peer sends no more."""

    def connection_lost(self, exc: Exception | None) -> None:
        """Tell it to the protocol."""
        if self._timer is not None:
            self._fail("the peer left; perhaps it does not trust the certificate")
        self._keep(b"")
        inner = self._inner
        # Each knows the other. Else what the protocol holds stays until the garbage is collected:
        # half a frame may have 16 MiB.
        del self._inner
        inner.connection_lost(exc)

    def pause_writing(self) -> None:
        """Tell the protocol that the peer reads too slowly."""
        self._inner.pause_writing()

    def resume_writing(self) -> None:
        """Tell the protocol that the peer reads again."""
        self._inner.resume_writing()

    def _give_up(self) -> None:
        self._timer = None
        self._tls.outcomes[GIVEN_UP] += 1
        broker_events.TLS_GIVEN_UP.log(
            log, client=address_of_peer(self._transport), seconds=self._tls.handshake_seconds
        )
        self._transport.abort()

    def _refuse(self, reason: str) -> None:
        self._fail(reason)
        self._transport.close()

    def _fail(self, reason: str) -> None:
        self._stop_timer()
        self._tls.outcomes[FAILED] += 1
        broker_events.TLS_REFUSED.log(log, client=address_of_peer(self._transport), reason=reason)

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    # What the protocol calls.

    def set_protocol(self, protocol: asyncio.BaseProtocol) -> None:
        """Let another protocol speak on the connection."""
        self._inner = cast("SecuredProtocol", protocol)

    def write(self, data: bytes | bytearray | memoryview) -> None:
        """Encrypt data and send it."""
        self.writelines((data,))

    def writelines(self, list_of_data: Iterable[bytes | bytearray | memoryview]) -> None:
        """Encrypt all data and send it together."""
        if self._transport.is_closing():
            return
        cipher, outgoing = self._cipher, self._outgoing
        pieces: list[bytes] = []
        try:
            for data in list_of_data:
                size = len(data)
                sent = cipher.write(data if size <= _PIECE_SIZE else memoryview(data)[:_PIECE_SIZE])
                while sent < size:
                    pieces.append(outgoing.read())
                    sent += cipher.write(memoryview(data)[sent : sent + _PIECE_SIZE])
        except ssl.SSLError as error:
            self._tell_broken(error)
            self._transport.abort()
            return
        if pieces:
            self._transport.writelines(pieces)
        self._flush()

    def _tell_broken(self, error: ssl.SSLError) -> None:
        broker_events.TLS_BROKEN.log(
            log, client=address_of_peer(self._transport), reason=fault_of(error)
        )

    def _flush(self) -> None:
        data = self._outgoing.read()
        if data and not self._transport.is_closing():
            self._transport.write(data)

    def close(self) -> None:
        """Tell the peer that nothing more comes, and close when all has left."""
        if self._transport.is_closing():
            return
        if self._is_open:
            with contextlib.suppress(ssl.SSLError):  # the peer has not answered yet, or never will
                self._cipher.unwrap()
            self._flush()
        self._transport.close()

    def abort(self) -> None:
        """Close at once."""
        self._transport.abort()

    def is_closing(self) -> bool:
        """Whether it is closed or about to be."""
        return self._transport.is_closing()

    def pause_reading(self) -> None:
        """Read no more from the socket."""
        self._is_held = True
        self._transport.pause_reading()

    def resume_reading(self) -> None:
        """Read again: first what has come already."""
        self._is_held = False
        if self._is_later:
            self._read_on_soon()
        else:
            self._transport.resume_reading()

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        """Set when the protocol is told to pause; in encrypted bytes."""
        self._transport.set_write_buffer_limits(high, low)

    def get_write_buffer_size(self) -> int:
        """Return how many encrypted bytes wait for the socket."""
        return self._transport.get_write_buffer_size()

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        """Return a fact of the connection; `ssl_object` has the peer's certificate."""
        if name == "ssl_object":
            return self._cipher
        return self._transport.get_extra_info(name, default)
