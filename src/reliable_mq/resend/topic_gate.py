"""May a topic's stubs be sent now? Pure: what a row says of a topic, and what follows from it.

A person pauses a topic. A topic to which nothing could be sent closes by itself, for every
scheduler: its stubs keep their sends instead of using them up against a broker that is away, and
a poisoned topic takes no turn from the others. Now and then one scheduler sends a few as a probe;
one that arrives opens the topic again. The failures are summed over the turns of all schedulers,
because a topic with little traffic never has many due at once.

What is wrong with a message itself, which no other broker or time would take, is no failure of its
topic; what fails while its topic is closed is the topic's failure, and not the message's.
"""

from collections.abc import Sequence
from enum import Enum

import msgspec

from reliable_mq.outbox.relay import SendOutcome

PROBE_STUBS = 8
"""A topic closes when so many sends in a row failed; a probe sends as many. More than one, so that
a single message that nobody can send does not keep a topic closed."""
PROBE_SECONDS_MAX = 30.0
"""Longest wait between two probes of a topic: a broker that is back is noticed this soon."""
PROBE_LEASE = 30.0
"""After this time another scheduler probes, when the one that took a probe says nothing."""


class Gate(Enum):
    """What the scheduler does with the due stubs of a topic."""

    OPEN = "open"  # send
    PROBE = "probe"  # send a few, if no other scheduler does
    CLOSED = "closed"  # leave them alone for now
    PAUSED = "paused"  # leave them alone until a person says so, or a time has come


class TopicRow(msgspec.Struct, frozen=True, kw_only=True):
    """What is known of a topic beside its stubs. Times are seconds since the epoch.

    Attributes:
        topic: the topic.
        is_paused: a person paused it.
        paused_until: when that ends by itself; None: never.
        failures: sends in a row that failed.
        probes: how often in a row nothing of it arrived, since that closed it.
        probe_time: when the next probe may be sent; None: it is open.
        actor: who paused it.
        note: why, or what the last failure said.
    """

    topic: str
    is_paused: bool = False
    paused_until: float | None = None
    failures: int = 0
    probes: int = 0
    probe_time: float | None = None
    actor: str = ""
    note: str = ""

    @property
    def is_closed(self) -> bool:
        """Whether nothing arrives there, as far as is known."""
        return self.probe_time is not None


def gate_of(row: TopicRow | None, now: float) -> Gate:
    """Return what to do with a topic whose row is `row`; None: there is none."""
    if row is None:
        return Gate.OPEN
    if row.is_paused and (row.paused_until is None or row.paused_until > now):
        return Gate.PAUSED
    if row.probe_time is None:
        return Gate.OPEN
    return Gate.CLOSED if row.probe_time > now else Gate.PROBE


def probe_wait(probes: int) -> float:
    """Return the seconds until the next probe after so many that failed: 1, 2, 4 … 30."""
    return float(min(2.0 ** min(probes - 1, 16), PROBE_SECONDS_MAX))


class Verdict(msgspec.Struct, frozen=True):
    """What the sends of one batch say of their topic.

    Attributes:
        failures: how many failed for the topic's sake; none of them arrived, then.
        error: what one of them said.
        arrived: whether one of them arrived.
    """

    failures: int = 0
    error: str = ""
    arrived: bool = False


def verdict_of(outcomes: Sequence[SendOutcome]) -> Verdict:
    """Return what sends say of the topic that all of them went to."""
    if any(each.error is None for each in outcomes):
        return Verdict(arrived=True)
    errors = [each.error for each in outcomes if each.error is not None and not each.is_refused]
    return Verdict(len(errors), errors[-1] if errors else "")


def after_failures(row: TopicRow, failures: int, now: float) -> TopicRow:
    """Return a topic's row after sends failed and none arrived: it may close, or stays closed."""
    row = msgspec.structs.replace(row, failures=row.failures + failures)
    if not row.is_closed and row.failures < PROBE_STUBS:
        return row
    probes = row.probes + 1
    return msgspec.structs.replace(row, probes=probes, probe_time=now + probe_wait(probes))
