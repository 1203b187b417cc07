"""May a topic's stubs be sent now? Pure: what a row says of a topic, and what follows from it.

A person pauses a topic. A topic to which nothing could be sent closes by itself, for every
scheduler: its stubs keep their sends instead of using them up against a broker that is away, and
a poisoned topic takes no turn from the others. Now and then one scheduler sends a few as a probe;
one that arrives opens the topic again.
"""

from enum import Enum

import msgspec

PROBE_STUBS = 8
"""A topic closes when so many sends in a row failed and none arrived; a probe sends as many. More
than one, so that a single message that nobody can send does not keep a topic closed."""
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
        failures: batches in a row of which nothing arrived; 0: it is open.
        probe_time: when the next probe may be sent.
        actor: who paused it.
        note: why, or what the last failure said.
    """

    topic: str
    is_paused: bool = False
    paused_until: float | None = None
    failures: int = 0
    probe_time: float | None = None
    actor: str = ""
    note: str = ""


def gate_of(row: TopicRow | None, now: float) -> Gate:
    """Return what to do with a topic whose row is `row`; None: there is none."""
    if row is None:
        return Gate.OPEN
    if row.is_paused and (row.paused_until is None or row.paused_until > now):
        return Gate.PAUSED
    if row.failures == 0:
        return Gate.OPEN
    return Gate.CLOSED if row.probe_time is not None and row.probe_time > now else Gate.PROBE


def probe_wait(failures: int) -> float:
    """Return the seconds until the next probe after so many batches that failed: 1, 2, 4 … 30."""
    return float(min(2.0 ** min(failures - 1, 16), PROBE_SECONDS_MAX))


def closes(tried: int, failed: int, gate: Gate) -> bool:
    """Say whether a topic closes, or stays closed, of whose `tried` sends `failed` did not arrive.

    A probe of fewer than `PROBE_STUBS` is all that was due, so it decides too.
    """
    return failed == tried and tried > 0 and (gate is Gate.PROBE or tried >= PROBE_STUBS)
