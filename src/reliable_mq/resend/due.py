"""Due stubs: their kinds, and how many of each a turn claims. Values and decisions, pure.

A turn of the scheduler costs the same with ten thousand waiting stubs as with ten million. For each
topic and kind it reads when the first stub is due, and claims a share of the due stubs. So a topic
with many due stubs does not delay another topic.
"""

from collections.abc import Collection, Iterable
from enum import StrEnum

import msgspec

from reliable_mq.outbox.stub import Stub


class DueKind(StrEnum):
    """Why a stub waits. Each kind has an index of its own."""

    UNSENT = "unsent"  # no broker has acknowledged it
    SENT = "sent"  # a broker has acknowledged it: is it consumed, waiting or lost?
    SUSPECT = "suspect"  # its lease expired in a send: the message may have killed its sender


class DueTopic(msgspec.Struct, frozen=True):
    """A topic with waiting stubs of one kind. The first is due at `first_time`, in seconds."""

    kind: DueKind
    topic: str
    first_time: float


class HeldStub(msgspec.Struct, frozen=True):
    """A due stub that may not be sent yet: an earlier stub of its ordering key goes first.

    Attributes:
        stub: the stub that has to wait.
        until: when the earlier stub is due, in seconds. Now, if it is claimed at this moment. None:
            it waits for a person.
        behind: the row number (`seq`) of the earlier stub.
    """

    stub: Stub
    until: float | None
    behind: int


class ClaimedStubs(msgspec.Struct, frozen=True):
    """Stubs that one scheduler owns until its lease expires.

    Attributes:
        stubs: to be sent, or to be checked. Their `count` includes a send that is about to begin.
        held: not to be sent yet.
        used_up: sent as often as allowed.
        found: number of due and free stubs that were found, at most the limit of the request.
        is_full: more stubs may be due.
    """

    stubs: list[Stub]
    held: list[HeldStub]
    used_up: list[Stub]
    found: int
    is_full: bool = False

    @property
    def claimed(self) -> int:
        """The number of claimed stubs."""
        return len(self.stubs) + len(self.held) + len(self.used_up)

    def union(self, other: "ClaimedStubs", *, is_full: bool = False) -> "ClaimedStubs":
        """Return the union of these claims and `other`."""
        return ClaimedStubs(
            self.stubs + other.stubs,
            self.held + other.held,
            self.used_up + other.used_up,
            self.found + other.found,
            self.is_full or other.is_full or is_full,
        )


NOTHING = ClaimedStubs([], [], [], 0)


class ClaimRequest(msgspec.Struct, frozen=True, kw_only=True):
    """A scheduler's request for a claim.

    Attributes:
        kind: the kind of stubs.
        topic: the topic.
        now: the time, seconds since the epoch.
        owner: the scheduler's name.
        lease: seconds that the claim lasts.
        limit: most stubs that are read.
        sent_max: most stubs that are claimed to be sent. The others stay unchanged. None: no limit.
        count_max: sends after which a stub is used up.
        newest: claim the stubs that became due last, not first.
        is_probe: the topic is closed. Instead of a held stub, claim the stub that it waits for.
        is_early: stubs that are not due yet count as due, too. Exceptions: stubs that are claimed,
            and stubs with a later delivery time.
    """

    kind: DueKind
    topic: str
    now: float
    owner: str
    lease: float
    limit: int
    count_max: int
    sent_max: int | None = None
    newest: bool = False
    is_probe: bool = False
    is_early: bool = False


def due_topics(
    agenda: Iterable[DueTopic],
    kind: DueKind,
    now: float,
    most: int,
    early: Collection[str] = (),
) -> list[str]:
    """Return at most `most` topics with due stubs of a kind, the earliest due time first.

    If there are more topics they take turns, because the longest wait comes first.
    For the topics in `early`, stubs that are not due yet count, too.
    """
    due = [
        each
        for each in agenda
        if each.kind is kind and (each.first_time <= now or each.topic in early)
    ]
    return [each.topic for each in sorted(due, key=lambda each: each.first_time)[:most]]


def share(room: int, topics: int) -> int:
    """Return the share of one topic: the room that is left, divided by the topics that are left.

    It is at least 1. The part of a share that a topic does not need goes to later topics.
    """
    return max(1, -(-room // topics))


def next_time(agenda: Iterable[DueTopic], now: float) -> float | None:
    """Return when the next stub becomes due. None: no stub waits for a future time."""
    return min((each.first_time for each in agenda if each.first_time > now), default=None)
