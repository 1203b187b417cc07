"""The gate of a topic: may the scheduler send its stubs now? Pure.

A person can pause a topic. If sends to a topic fail and none arrives, the topic closes by itself,
for all schedulers. So its stubs do not use up their sends while a broker is down, and a poisoned
topic does not delay others. From time to time one scheduler sends a few stubs as a probe. If one
arrives, the topic opens again. Failures are summed over all schedulers and turns, because a topic
with little traffic never has many due stubs at once.

After a failed send a stub waits for its topic: until the next probe, or for a short time while the
topic is still open. When a topic opens, all its stubs become due at once, so none waits long after
the broker is back. This takes several turns, of some thousand stubs each: the topic is "opening".

A message that every broker would refuse at any time is no failure of its topic. Any send that fails
while the topic is closed is a failure of the topic, not of the message.
"""

from collections.abc import Sequence
from enum import Enum

import msgspec

from reliable_mq.outbox.relay import SendOutcome

PROBE_STUBS = 8
"""A topic closes after so many failed sends in a row. A probe sends as many stubs. It sends more
than one, so that a single bad message does not keep a topic closed."""
PROBE_SECONDS_MAX = 10.0
"""Longest wait between two probes of a topic, seconds. So soon a broker that is back is found."""
PROBE_LEASE = 15.0
"""Seconds after which another scheduler may probe, if the first one has reported no outcome."""
_AFTER_SEND_SECONDS = 6.0

AGE_PART = 0.1
"""A stub whose send failed in an open topic waits for this part of its age, if that is longer."""


class TopicGate(Enum):
    """What the scheduler does with the due stubs of a topic."""

    OPEN = "open"  # send
    PROBE = "probe"  # send a few, unless another scheduler does
    CLOSED = "closed"  # send none until the next probe
    PAUSED = "paused"  # send none until a person ends the pause, or its time is over


class TopicRow(msgspec.Struct, frozen=True, kw_only=True):
    """The state of a topic. Times are seconds since the epoch.

    Attributes:
        topic: the topic.
        is_paused: a person has paused it.
        paused_until: when the pause ends by itself. None: never.
        failures: number of failed sends in a row.
        probes: of a closed topic: number of batches in a row without an arrival, since it closed.
            Of an open topic: more than 0 means that it is opening.
        probe_time: when the next probe may be sent. None: the topic is open.
        actor: the person who paused it.
        note: the reason of the pause, or the text of the last failure.
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
        """Whether the topic is closed: the last sends failed."""
        return self.probe_time is not None

    @property
    def is_opening(self) -> bool:
        """Whether a send has arrived again, but not all waiting stubs are made due yet."""
        return self.probe_time is None and self.probes > 0


def probe_lease(send: float) -> float:
    """Return the seconds that the right to probe lasts. `send`: seconds that a send may take."""
    return max(PROBE_LEASE, send + _AFTER_SEND_SECONDS)


def gate_of(row: TopicRow | None, now: float) -> TopicGate:
    """Return what to do with the stubs of a topic. `row` None: the topic has no row."""
    if row is None:
        return TopicGate.OPEN
    if row.is_paused and (row.paused_until is None or row.paused_until > now):
        return TopicGate.PAUSED
    if row.probe_time is None:
        return TopicGate.OPEN
    return TopicGate.CLOSED if row.probe_time > now else TopicGate.PROBE


def gate_text(row: TopicRow, now: float) -> str:
    """Return a line for a person: the state of a topic that has a row."""
    gate = gate_of(row, now)
    if gate is TopicGate.PAUSED:
        end = "" if row.paused_until is None else f" for {row.paused_until - now:.0f} s more"
        by = f" by {row.actor}" if row.actor else ""
        return f"topic {row.topic} is paused{by}{end}{row.note and f': {row.note}'}"
    if row.probe_time is None:
        return f"topic {row.topic} is open; its last {row.failures} sends failed"
    ahead = row.probe_time - now
    probe = f"is due in {ahead:.0f} s" if ahead > 0 else f"has been due for {-ahead:.0f} s"
    return (
        f"topic {row.topic} is closed: {row.failures} sends in a row failed, the last one said: "
        f"{row.note}; the next probe {probe}"
    )


def probe_wait(probes: int) -> float:
    """Return the seconds until the next probe, after `probes` failures: 1, 2, 4, 8, 10, 10 …"""
    return float(min(2.0 ** min(probes - 1, 16), PROBE_SECONDS_MAX))


class TopicVerdict(msgspec.Struct, frozen=True):
    """What the sends of one batch say about their topic.

    Attributes:
        failures: number of sends that failed because of the topic. More than 0 only if none
            arrived.
        error: the error text of one of them.
        arrived: whether at least one send arrived.
    """

    failures: int = 0
    error: str = ""
    arrived: bool = False


def verdict_of(outcomes: Sequence[SendOutcome]) -> TopicVerdict:
    """Return what the outcomes of sends to one topic say about it."""
    if any(each.error is None for each in outcomes):
        return TopicVerdict(arrived=True)
    errors = [each.error for each in outcomes if each.error is not None and not each.is_refused]
    return TopicVerdict(len(errors), errors[-1] if errors else "")


def after_failures(row: TopicRow, failures: int, now: float) -> TopicRow:
    """Return the row of a topic after failed sends without an arrival: it may close now."""
    row = msgspec.structs.replace(row, failures=row.failures + failures)
    if not row.is_closed and row.failures < PROBE_STUBS:
        return row
    probes = row.probes + 1
    return msgspec.structs.replace(row, probes=probes, probe_time=now + probe_wait(probes))


def after_failure(
    outcome: SendOutcome, row: TopicRow, now: float, born: float, *, free: bool
) -> SendOutcome:
    """Return the outcome to record for a send that failed because of its topic.

    In a closed topic the stub waits for the next probe. In an open topic it waits for at most 10 s
    or a tenth of its age, whichever is longer; only a try can show that the topic works again. Such
    a send does not count: an outage of some seconds must not use up a stub. When the stub's own
    wait is shorter than that limit, it applies, and the send counts.

    Args:
        outcome: the outcome of the send.
        row: the topic's row after the send.
        now: the time after the send, seconds since the epoch.
        born: when the stub was written, seconds since the epoch.
        free: the send does not count, because the topic was closed before it.
    """
    if row.probe_time is not None:
        latest, is_free = row.probe_time, free
    else:
        latest = now + max(PROBE_SECONDS_MAX, (now - born) * AGE_PART)
        if outcome.next_time <= latest:
            return outcome
        is_free = True
    return msgspec.structs.replace(outcome, count=outcome.count - is_free, next_time=latest)
