"""May a topic's stubs be sent now? Pure: what a row says of a topic, and what follows from it.

A person pauses a topic. A topic to which nothing could be sent closes by itself, for every
scheduler: its stubs keep their sends instead of using them up against a broker that is away, and
a poisoned topic takes no turn from the others. Now and then one scheduler sends a few as a probe;
one that arrives opens the topic again. The failures are summed over the turns of all schedulers,
because a topic with little traffic never has many due at once.

A stub whose send failed waits for its topic: until the next probe, or for a short time while the
topic is still open. When the topic opens all its stubs are due at once, so nothing waits long after
the broker is back. While that is written, some thousand stubs a turn, the topic is opening.

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
PROBE_SECONDS_MAX = 10.0
"""Longest wait between two probes of a topic: a broker that is back is noticed this soon."""
PROBE_LEASE = 15.0
"""After this time another scheduler probes, when the one that took a probe says nothing."""
_AFTER_SEND_SECONDS = 6.0

AGE_PART = 0.1
"""A stub that failed in an open topic waits for this part of its age, where that is longer."""


class TopicGate(Enum):
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
        probes: how often in a row nothing of it arrived, since that closed it. Of an open topic:
            more than 0 says that it is opening.
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

    @property
    def is_opening(self) -> bool:
        """Whether something arrived again, and what waits is still to be made due."""
        return self.probe_time is None and self.probes > 0


def probe_lease(send: float) -> float:
    """Return the seconds for which a scheduler has a probe, where a send may take `send`."""
    return max(PROBE_LEASE, send + _AFTER_SEND_SECONDS)


def gate_of(row: TopicRow | None, now: float) -> TopicGate:
    """Return what to do with a topic whose row is `row`; None: there is none."""
    if row is None:
        return TopicGate.OPEN
    if row.is_paused and (row.paused_until is None or row.paused_until > now):
        return TopicGate.PAUSED
    if row.probe_time is None:
        return TopicGate.OPEN
    return TopicGate.CLOSED if row.probe_time > now else TopicGate.PROBE


def gate_text(row: TopicRow, now: float) -> str:
    """Return a line that tells a person what is known of a topic that is not simply open."""
    gate = gate_of(row, now)
    if gate is TopicGate.PAUSED:
        end = "" if row.paused_until is None else f" for {row.paused_until - now:.0f} s more"
        by = f" by {row.actor}" if row.actor else ""
        return f"topic {row.topic} is paused{by}{end}{row.note and f': {row.note}'}"
    if row.probe_time is None:
        return f"topic {row.topic} is open; of the last sends {row.failures} failed"
    ahead = row.probe_time - now
    probe = f"is due in {ahead:.0f} s" if ahead > 0 else f"has been due for {-ahead:.0f} s"
    return (
        f"topic {row.topic} is closed: {row.failures} sends in a row failed, the last one said: "
        f"{row.note}; the next probe {probe}"
    )


def probe_wait(probes: int) -> float:
    """Return the seconds until the next probe after so many that failed: 1, 2, 4, 8, 10 …"""
    return float(min(2.0 ** min(probes - 1, 16), PROBE_SECONDS_MAX))


class TopicVerdict(msgspec.Struct, frozen=True):
    """What the sends of one batch say of their topic.

    Attributes:
        failures: how many failed for the topic's sake; none of them arrived, then.
        error: what one of them said.
        arrived: whether one of them arrived.
    """

    failures: int = 0
    error: str = ""
    arrived: bool = False


def verdict_of(outcomes: Sequence[SendOutcome]) -> TopicVerdict:
    """Return what sends say of the topic that all of them went to."""
    if any(each.error is None for each in outcomes):
        return TopicVerdict(arrived=True)
    errors = [each.error for each in outcomes if each.error is not None and not each.is_refused]
    return TopicVerdict(len(errors), errors[-1] if errors else "")


def after_failures(row: TopicRow, failures: int, now: float) -> TopicRow:
    """Return a topic's row after sends failed and none arrived: it may close, or stays closed."""
    row = msgspec.structs.replace(row, failures=row.failures + failures)
    if not row.is_closed and row.failures < PROBE_STUBS:
        return row
    probes = row.probes + 1
    return msgspec.structs.replace(row, probes=probes, probe_time=now + probe_wait(probes))


def after_failure(
    outcome: SendOutcome, row: TopicRow, now: float, born: float, *, free: bool
) -> SendOutcome:
    """Return what is to be recorded of a send that failed for the sake of its topic.

    In an open topic it waits for 10 s at most, or for a tenth of its age: nothing says when the
    topic works again, so it is tried. Such a send does not count: an outage of some seconds shall
    not use up a stub. With its age its waits grow until they are its own; those count.

    Args:
        outcome: what the send came to.
        row: the topic's row after it.
        now: when that was.
        born: when the stub was written.
        free: the send does not count, because the topic was closed.
    """
    if row.probe_time is not None:
        latest, is_free = row.probe_time, free
    else:
        latest = now + max(PROBE_SECONDS_MAX, (now - born) * AGE_PART)
        if outcome.next_time <= latest:
            return outcome
        is_free = True
    return msgspec.structs.replace(outcome, count=outcome.count - is_free, next_time=latest)
