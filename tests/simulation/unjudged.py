"""What a machine tells the one that judges it, when nobody does."""

from reliable_mq.broker_core.core import BrokerCore
from reliable_mq.broker_core.state import Turn
from reliable_mq.testing.memory_disk import MemoryDisk
from reliable_mq.wire.command import Command


class _NoTables:
    """Tables that nobody compares."""

    def saved(self, disk: MemoryDisk) -> None:
        """Note nothing."""


class Unjudged:
    """Takes the model's place at a machine, and lets everything pass."""

    def __init__(self) -> None:
        self.tables = _NoTables()
        self.has_room = True

    def opened(self, core: BrokerCore) -> None:
        """Note that a life begins."""

    def down(self, *, is_power_loss: bool) -> None:
        """Note that it has ended."""

    def received(self, connection: int, command: Command, now_ms: int) -> None:
        """Note a request."""

    def disconnected(self, connection: int) -> None:
        """Note that a client is gone."""

    def turn(self, turn: Turn, now_ms: int) -> None:
        """Note what the broker wants done."""

    def sent(self, replies: list[tuple[int, bytes]]) -> None:
        """Note answers between two turns."""

    def stored(self, end: int, now_ms: int) -> None:
        """Note how far the log is stored."""

    def found_no_room(self) -> None:
        """Note that a request found no room."""

    def room(self, *, has_room: bool, refusal: int | None) -> None:
        """Note whether the disk has room."""
        self.has_room = has_room

    def fenced(self, *, is_fenced: bool) -> None:
        """Note whether the broker believes that another one is the master."""

    def ticked(self, now_ms: int) -> None:
        """Note that the broker looked at the clock."""

    def nothing_is_late(self, now_ms: int) -> None:
        """Note that all that was due had time to be done."""

    def clock_was_set(self, change_ms: float) -> None:
        """Note that the clock jumped."""

    def expired(self, start: int, *, may_go: bool) -> None:
        """Note where the log begins now."""
