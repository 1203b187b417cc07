"""What is due, of which kind, and how much of each a turn takes. Values and decisions, pure.

A turn of the scheduler costs the same whether ten thousand stubs wait or ten million: it reads, for
each topic and kind, how early the first one is due, and takes a share of those that are. So no
topic, however many of its stubs are due, keeps another one waiting.
"""

from collections.abc import Collection, Iterable
from enum import StrEnum

import msgspec

from reliable_mq.outbox.stub import Stub


class DueKind(StrEnum):
    """What a stub that waits is waiting for. Each has an index of its own."""

    UNSENT = "unsent"  # no broker acknowledged it
    SENT = "sent"  # a broker did; is it consumed, waiting or lost?
    SUSPECT = "suspect"  # a scheduler was never heard of again that was about to send it


class DueTopic(msgspec.Struct, frozen=True):
    """One topic has stubs of one kind that wait; the earliest is due at `first_time` (seconds)."""

    kind: DueKind
    topic: str
    first_time: float


class HeldStub(msgspec.Struct, frozen=True):
    """A due stub that may not go: an earlier one of its ordering key has to go first.

    `until`: when that one is due, or now when somebody has it in hand; None: when a person says so.
    `behind`: the row of that one.
    """

    stub: Stub
    until: float | None
    behind: int


class ClaimedStubs(msgspec.Struct, frozen=True):
    """Stubs that are one scheduler's until its lease ends.

    Attributes:
        stubs: to be sent, or looked at; of those to be sent, this send is counted already.
        held: not to be sent yet.
        used_up: sent as often as allowed.
        found: how many were due and free, as many as were asked for at most.
        is_full: there may be more.
    """

    stubs: list[Stub]
    held: list[HeldStub]
    used_up: list[Stub]
    found: int
    is_full: bool = False

    @property
    def claimed(self) -> int:
        """How many there are."""
        return len(self.stubs) + len(self.held) + len(self.used_up)

    def plus(self, other: "ClaimedStubs", *, is_full: bool = False) -> "ClaimedStubs":
        """Return these and others."""
        return ClaimedStubs(
            self.stubs + other.stubs,
            self.held + other.held,
            self.used_up + other.used_up,
            self.found + other.found,
            self.is_full or other.is_full or is_full,
        )


NOTHING = ClaimedStubs([], [], [], 0)


class ClaimRequest(msgspec.Struct, frozen=True, kw_only=True):
    """What a scheduler asks for.

    Attributes:
        kind: what is wanted.
        topic: of which topic.
        now: the time, seconds since the epoch.
        owner: the scheduler's name.
        lease: seconds for which the claim holds.
        limit: most stubs that are looked at.
        sent_max: most of them that are claimed to be sent; the rest are left as they are. None: as
            many as may go.
        count_max: sends after which a stub is used up.
        newest: those that became due last instead of first.
        is_probe: the topic is closed. What may not go yet is replaced by what it waits for.
        is_early: what is not due yet counts as due, unless somebody has it in hand or the message
            is to be delivered later.
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
    """Return the topics that have something of a kind due, the earliest first, `most` of them.

    Where there are more topics than that they take turns, because what waited longest is earliest.
    `early`: topics of which what is not due yet counts, too.
    """
    due = [
        each
        for each in agenda
        if each.kind is kind and (each.first_time <= now or each.topic in early)
    ]
    return [each.topic for each in sorted(due, key=lambda each: each.first_time)[:most]]


def share(room: int, topics: int) -> int:
    """Return what one of so many topics gets of the room that is left, at least 1.

    A topic that needs less than its share leaves the rest to those that come after it.
    """
    return max(1, -(-room // topics))


def next_time(agenda: Iterable[DueTopic], now: float) -> float | None:
    """Return when the next stub becomes due, None when none waits for a time to come."""
    return min((each.first_time for each in agenda if each.first_time > now), default=None)
