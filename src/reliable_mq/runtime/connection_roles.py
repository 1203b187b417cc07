"""What a connection of a listener knows of those around it: its owner, and the listener itself."""

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Protocol

from reliable_mq.broker_core.state import PeerConnection
from reliable_mq.wire.command import Command
from reliable_mq.wire.frame import Frame

if TYPE_CHECKING:
    from reliable_mq.runtime.server_connection import ServerConnection, TurnShares

Decode = Callable[[Frame], Command]


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

    def disconnected(self, connection: PeerConnection) -> None:
        """Forget a closed connection."""


class ConnectionKeeper(Protocol):
    """The listener of a connection, as the connection knows it."""

    turns: "TurnShares"
    decode: Decode

    @property
    def no_tls(self) -> str:
        """Why a peer that begins a TLS handshake is closed."""

    def opened(self, connection: "ServerConnection", ip: str) -> int | None:
        """Record a new connection and return its id; None: it is refused."""

    def closed(self, connection: PeerConnection) -> None:
        """Forget a closed connection."""

    def note_received(self, connection_id: int, size: int) -> None:
        """Note how many bytes of incomplete frames and waiting requests are in memory."""

    def note_unsent(self, connection_id: int, size: int) -> None:
        """Note how many bytes of unread answers are in memory."""

    def handle_later(self, connection: "ServerConnection") -> None:
        """Call the connection's `handle_waiting` in a later turn, after those that wait."""

    @property
    def slice_seconds(self) -> float:
        """Seconds that one connection may use in one go."""
