"""What a connection of a listener knows of those around it: its owner, and the listener itself."""

import asyncio
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Protocol

from reliable_mq.broker_core.state import PeerConnection
from reliable_mq.wire.command import Command, decode_request
from reliable_mq.wire.frame import Frame, Known
from reliable_mq.wire.long_frame import AnyFrame

if TYPE_CHECKING:
    from reliable_mq.runtime.server_connection import TurnShares

Decode = Callable[[Frame], Command]
Decoder = Callable[[bytes], tuple[Known[Command], Decode]]
"""Returns what recognises frames of a new connection from a packed host, and decodes the others."""


def plain_decoder(_host: bytes) -> tuple[Known[Command], Decode]:
    """Decode each frame without a memory of earlier ones."""
    return {}, decode_request


class ConnectionOwner(Protocol):
    """Receives the commands of a listener's connections.

    Attributes:
        small_answers: codes of requests whose answers are always small.
    """

    small_answers: frozenset[int]

    def received(self, connection: PeerConnection, commands: Iterable[Command]) -> bool | None:
        """Handle the commands of one read.

        Returns:
            Whether a command takes so long that other connections must come first. It leaves those
            behind it in the iterator, and wakes the connection when it wants them.
        """

    def received_known(self, connection: PeerConnection, command: Command) -> bool | None:
        """Handle the one command of a read, which was recognised; see `FrameReader`.

        It does not take long itself. Nothing else of the connection waits.

        Returns:
            Whether it is left, because an earlier command takes long. See `received`.
        """

    def disconnected(self, connection: PeerConnection) -> None:
        """Forget a closed connection."""


class SecuredProtocol(Protocol):
    """A protocol of asyncio that can get another transport while it is connected."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Take the plain transport; nothing has come yet."""

    def secured(self, transport: asyncio.Transport) -> None:
        """Take the encrypted transport, instead of the plain one, before the first data."""

    def data_received(self, data: bytes) -> None:
        """Take plain data."""

    def connection_lost(self, exc: Exception | None) -> None:
        """Forget the connection."""

    def pause_writing(self) -> None:
        """Stop writing: the peer reads too slowly."""

    def resume_writing(self) -> None:
        """Write again."""


class HeldConnection(SecuredProtocol, Protocol):
    """A connection as its listener knows it, whatever is spoken on it."""

    @property
    def received_size(self) -> int:
        """Bytes in memory of what has not come in whole, or waits."""

    @property
    def unsent_size(self) -> int:
        """Bytes in memory of unread answers."""

    def send(self, frames: Sequence[AnyFrame]) -> None:
        """Write frames."""

    def wake(self) -> None:
        """Let the owner have the requests behind one that took long."""

    def handle_waiting(self) -> None:
        """Handle waiting requests for one slice."""

    def cut_off(self, why: str) -> None:
        """Close at once, and log why."""

    def close_if_idle(self, silent_since: float) -> None:
        """Close if the peer is silent since before this time."""

    @property
    def is_answering(self) -> bool:
        """Whether the peer has not got all of its answers, and may still get them."""

    def stop_reading(self) -> None:
        """Take no more requests."""

    def finish(self) -> None:
        """Take no more requests, and go on with the answers that are on their way."""

    def close(self) -> None:
        """Close when what is written has left."""


class ConnectionKeeper(Protocol):
    """The listener of a connection, as the connection knows it."""

    turns: "TurnShares"
    decoder: Decoder
    grpc_port: int
    """The port of this process that speaks gRPC; 0: there is none."""

    @property
    def no_tls(self) -> str:
        """Why a peer that begins a TLS handshake is closed."""

    def opened(self, connection: HeldConnection, ip: str) -> int | None:
        """Record a new connection and return its id; None: it is refused."""

    def closed(self, connection: PeerConnection) -> None:
        """Forget a closed connection."""

    def note_received(self, connection_id: int, size: int) -> None:
        """Note how many bytes of incomplete frames and waiting requests are in memory."""

    def note_unsent(self, connection_id: int, size: int) -> None:
        """Note how many bytes of unread answers are in memory."""

    def handle_later(self, connection: HeldConnection) -> None:
        """Call the connection's `handle_waiting` in a later turn, after those that wait."""

    @property
    def slice_seconds(self) -> float:
        """Seconds that one connection may use in one go."""
