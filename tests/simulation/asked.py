"""A request as the model sees it, and what says how it must be answered."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Protocol

import msgspec
from tests.simulation.facts import Expected

from reliable_mq.broker_core.answers import Answer
from reliable_mq.wire.command import Command, decode_command
from reliable_mq.wire.frame import FrameReader

if TYPE_CHECKING:
    from tests.simulation.model import Model


class Asked(msgspec.Struct, eq=False):
    """A request that the broker took. `entries` are the numbers in the log of what it stored."""

    connection: int
    command: Command
    kind: "Kind"
    now_ms: int
    visible: int  # so many entries of the log showed when it came
    start: int  # where the log began then
    expected_count: int = 0
    entries: list[int] = msgspec.field(default_factory=list)
    is_answered: bool = False
    lacks_room: bool = False  # whether the disk had none for it
    new_topic: str = ""  # which its answer waits for, too
    facts: Any = None  # what the kind wants to remember


class Kind(Protocol):
    """One kind of requests: what the broker must do with it."""

    def expect(self, model: "Model", asked: Asked) -> list[Expected]:
        """Return the records that the request makes; note what else it changes."""
        ...

    def check(self, model: "Model", asked: Asked, reply: Command) -> None:
        """Raise `Violation` unless this is the right answer."""
        ...

    def may_wait(self, model: "Model", asked: Asked) -> bool:
        """Whether the answer may come in a later turn though nothing was stored."""
        ...


def whole(answers: Sequence[Answer]) -> list[tuple[int, bytes]]:
    """Return answers in one piece each; a long one can be taken once only."""
    return [(connection, bytes(frame)) for connection, frame in answers]


def commands_of(frames: Sequence[tuple[int, bytes]]) -> list[tuple[int, Command]]:
    """Return the commands in what a broker sends, each with its connection."""
    return [
        (connection, decode_command(cut))
        for connection, frame in frames
        for cut in FrameReader().feed(frame)
    ]
