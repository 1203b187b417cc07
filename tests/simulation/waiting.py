"""The promise of a long poll: answered once, when a message comes that it wants or at its end."""

from typing import TYPE_CHECKING

import msgspec
from tests.simulation.facts import Entry, Violation

if TYPE_CHECKING:
    from tests.simulation.asked import Asked


class Wait(msgspec.Struct, eq=False):
    """A pull that may wait. `tags` None: it wants every message.

    `resets`: how many resets came meanwhile; it is told of the first, if it is a member's.
    """

    asked: "Asked"
    topic: str
    queue_id: int
    tags: frozenset[str] | None
    deadline_ms: int
    must_be_answered: bool = False
    group: str = ""
    resets: int = 0


class Waiting:
    """The pulls that wait."""

    def __init__(self) -> None:
        self._waits: dict[int, Wait] = {}
        self._owed: list[Wait] = []

    def hold(self, wait: Wait) -> None:
        """Note a pull that found nothing when it came."""
        self._waits[id(wait.asked)] = wait

    def is_held(self, asked: "Asked") -> bool:
        """Whether a pull may still wait."""
        return id(asked) in self._waits

    def shown(self, entry: Entry) -> None:
        """Note that a message shows: who wants it must be answered."""
        for wait in self._waits.values():
            if (wait.topic, wait.queue_id) == (entry.topic, entry.queue_id) and (
                wait.tags is None or entry.tag in wait.tags
            ):
                self._owe(wait)

    def reset(self, group: str, topic: str, queue_id: int) -> None:
        """Note that a group's offset was reset: its members' pulls of the queue are answered."""
        for wait in self._waits.values():
            if (wait.group, wait.topic, wait.queue_id) == (group, topic, queue_id):
                wait.must_be_answered = True  # at once only if it is a member's
                wait.resets += 1

    def has_reset(self, group: str, topic: str, queue_id: int) -> bool:
        """Whether a pull of a group waits whose offset was reset."""
        place = (group, topic, queue_id)
        return any(
            each.resets and (each.group, each.topic, each.queue_id) == place
            for each in self._waits.values()
        )

    def ticked(self, now_ms: int) -> None:
        """Note the time: who has waited long enough must be answered."""
        for wait in self._waits.values():
            if wait.deadline_ms <= now_ms:
                self._owe(wait)

    def _owe(self, wait: Wait) -> None:
        wait.must_be_answered = True
        self._owed.append(wait)

    def answered(self, asked: "Asked") -> None:
        """Note an answer."""
        wait = self._waits.pop(id(asked), None)
        if wait is not None:
            asked.facts = wait

    def nobody_is_forgotten(self) -> None:
        """Check that everybody was answered who had to be."""
        for wait in self._owed:
            if id(wait.asked) in self._waits:
                raise Violation(f"a pull of {wait.topic}/{wait.queue_id} waits for ever")
        self._owed.clear()

    def disconnected(self, connection: int) -> None:
        """Forget the pulls of a connection."""
        for key, wait in list(self._waits.items()):
            if wait.asked.connection == connection:
                del self._waits[key]

    def clear(self) -> None:
        """Forget everybody."""
        self._waits.clear()
        self._owed.clear()
