"""Apache's consumer as a member of a group, beside ours: see tests/interop/java/Member.java."""

import time
from pathlib import Path
from typing import NamedTuple

from tests.interop.java_shell import TalkingProgram, source_command

ANSWER_SECONDS_MAX = 60.0


class Delivery(NamedTuple):
    """One message in the hands of one member; times are milliseconds since the epoch."""

    member: str
    queue: str
    offset: int
    body: str
    begun: int
    ended: int


class JavaMember(TalkingProgram):
    """A JVM with a consumer that joins and leaves. A context manager.

    Args:
        directory: where its errors go.
        words: name servers, group, topic, "ordered", "concurrent" or "broadcast", and perhaps the
            host that it says it is on; its home is `directory`.
        deliveries: gets what the consumer got, from another thread.
    """

    def __init__(self, directory: Path, words: tuple[str, ...], deliveries: list[Delivery]) -> None:
        self._deliveries = deliveries
        command = source_command("Member", directory, *words)
        super().__init__(command, directory, "Member", end_seconds=10)

    def heard(self, line: str) -> None:
        """Note a delivery; keep anything else as an answer."""
        kind, *fields = line.split()
        if kind == "got":
            place, offset, body, begun, ended = fields
            got = Delivery("java", place, int(offset), body, int(begun), int(ended))
            self._deliveries.append(got)
        else:
            super().heard(line)

    def ask(self, word: str) -> list[str]:
        """Give the JVM a word, and return those of its answer.

        Raises:
            ChildError: when the JVM ends.
            TimeoutError: when no answer comes in time.
        """
        self.tell(word)
        return self.line(ANSWER_SECONDS_MAX).split()

    def queues(self) -> set[str]:
        """Return the queues that are the member's own now, as BROKER:ID."""
        return set(self.ask("queues")[1:])


def now_ms() -> int:
    return int(time.time() * 1000)
