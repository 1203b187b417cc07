"""The decision: what three ledgers know about one message and one consumer group is one verdict.

`FACTS` names what is known and every value it can have. `RULES` is the decision table: the first
rule all of whose conditions hold gives the verdict, and the last rule holds always, so that every
combination of facts has exactly one verdict. `judge` looks it up for whole columns at a time; there
is no other source of a verdict. Everything that influences one is in this table; how the facts are
found in the ledgers is not known here.

Theory. A message's effect is what counts, so the consume log speaks before the broker's log, and
the broker's log before the stub. Whatever changed a moment ago is in flight: the ledgers are not
read at one instant. Nothing is called lost that can still arrive, and nothing is called waiting
that will not.
"""

from collections.abc import Mapping
from enum import StrEnum
from typing import NamedTuple


class Verdict(StrEnum):
    """The closed list. What each means: `MEANINGS`; which are findings: `FINDINGS`."""

    SETTLED = "settled"
    IN_FLIGHT = "in flight"
    WAITING = "waiting"
    VOIDED = "voided"
    UNMANAGED = "unmanaged"
    NOT_SENT = "not sent"
    LOST = "lost by the broker"
    SENT_NOT_MARKED = "sent, not marked"
    NOT_CONSUMED = "not consumed"
    STUCK = "stuck"
    STRANDED = "stranded"
    CONSUMED_NOT_CONFIRMED = "consumed, not confirmed"
    CONFIRMED_WITHOUT_LOG = "confirmed without a log"
    DEAD_LETTERED = "dead-lettered"
    VOIDED_BUT_CONSUMED = "voided but consumed"
    ORPHAN = "orphan"
    CONTENT_DIFFERS = "content differs"
    FORGED = "forged"
    SUPPRESSED = "suppressed"
    EXPIRED = "expired"
    DUPLICATE_EFFECT = "duplicate effect"


MEANINGS: dict[Verdict, str] = {
    Verdict.SETTLED: "the business transaction, the broker and the consumer agree",
    Verdict.IN_FLIGHT: "younger than the grace time, or somebody is at work on it now",
    Verdict.WAITING: "stored by the broker; the consumer group has not reached it yet",
    Verdict.VOIDED: "given up by a person or a rolled-back half message; nobody consumed it",
    Verdict.UNMANAGED: "in a topic that nobody sends to through the outbox; nothing is promised",
    Verdict.NOT_SENT: "committed, but the broker's log does not hold it and never acknowledged it",
    Verdict.LOST: "acknowledged by the broker, whose log does not hold it any more",
    Verdict.SENT_NOT_MARKED: "in the broker's log, but the stub does not know of it",
    Verdict.NOT_CONSUMED: "the consumer group has passed it without consuming it",
    Verdict.STUCK: "somebody began with it, and nobody is at work on it or will get it again",
    Verdict.STRANDED: "in the broker's log, but its topic was deleted: no consumer can read it",
    Verdict.CONSUMED_NOT_CONFIRMED: "every required group consumed it; the stub does not say so",
    Verdict.CONFIRMED_WITHOUT_LOG: "the stub is confirmed; the group's consume log knows nothing",
    Verdict.DEAD_LETTERED: "the consumer group gave up; it lies in the dead-letter topic",
    Verdict.VOIDED_BUT_CONSUMED: "the stub is voided, and yet the group consumed it",
    Verdict.ORPHAN: "in a managed topic or consumed, without a committed stub; or rolled back, and"
    " yet visible",
    Verdict.CONTENT_DIFFERS: "what the broker holds is not what the business transaction wrote",
    Verdict.FORGED: "beside what the business transaction wrote, the broker holds another message"
    " of its id",
    Verdict.SUPPRESSED: "the group consumed another message of its id, not what the business"
    " transaction wrote",
    Verdict.EXPIRED: "not consumed, and the broker's log no longer reaches back to it",
    Verdict.DUPLICATE_EFFECT: "the group consumed it twice, in two databases",
}

FINDINGS = frozenset(Verdict) - {
    Verdict.SETTLED,
    Verdict.IN_FLIGHT,
    Verdict.WAITING,
    Verdict.VOIDED,
    Verdict.UNMANAGED,
}

# What is known, and every value it can have.
FACTS: dict[str, tuple[str, ...]] = {
    # the stub's status; a "tombstone" stands for a half message that was rolled back
    "stub": ("none", "unconfirmed", "confirmed", "voided", "tombstone"),
    # how the group stands to the stub: "ack" is the row of a stub that names no group and is
    # confirmed by the broker's acknowledgement; "extra" consumes without being required
    "group": ("ack", "required", "extra"),
    # whether the stub holds the broker position of an acknowledged send
    "position": ("unknown", "known"),
    # the first delivery in the broker's log; "expired": older than the log's first record;
    # "delayed": still in the delay queue; "overdue": still there though its time has passed;
    # "differs": it is not what the stub says; "forged": one is, and another one is not;
    # "stranded": in the log, but in no queue that consumers can read: the topic was deleted;
    # "unknown": in no log that was read, and the log that may hold it was not reached
    "record": (
        *("absent", "expired", "delayed", "overdue", "present", "stranded", "differs"),
        *("forged", "unknown"),
    ),
    # whether the group's committed offset has passed every copy of the record
    "progress": ("behind", "passed"),
    # what became of failed attempts: a copy still to be delivered, or a dead letter
    "retry": ("none", "waiting", "dead"),
    # the group's consume log; "live" and "dead" are RECEIVED by a lease that holds or has ended;
    # "twice": CONSUMED in two databases, neither as the duplicate of a business key; "other": of a
    # forged pair the group consumed the record that is not what the stub says
    "log": ("none", "live", "dead", "consumed", "other", "twice"),
    # whether all required groups have consumed the message
    "everyone": ("no", "yes"),
    # "fresh": within the grace time, or changed while the ledgers were read
    "age": ("fresh", "old"),
    # "managed": at least one stub was ever written for this topic
    "topic": ("managed", "unmanaged"),
}


class Rule(NamedTuple):
    """If every fact named in `when` has one of the values given there, `verdict` is the verdict."""

    when: Mapping[str, tuple[str, ...]]
    verdict: Verdict


_STORED = ("delayed", "overdue", "present")
_VISIBLE = (*_STORED, "differs", "forged")
_NEEDED = ("required", "extra")

RULES: tuple[Rule, ...] = (
    # Once is promised, whoever sent the message.
    Rule({"log": ("twice",)}, Verdict.DUPLICATE_EFFECT),
    Rule({"log": ("other",)}, Verdict.SUPPRESSED),
    # A voided stub or a tombstone: only a consumed effect contradicts it, and a tombstone a record.
    Rule({"stub": ("voided", "tombstone"), "log": ("consumed",)}, Verdict.VOIDED_BUT_CONSUMED),
    Rule({"stub": ("tombstone",), "record": _VISIBLE, "age": ("old",)}, Verdict.ORPHAN),
    Rule({"stub": ("tombstone",), "record": _VISIBLE}, Verdict.IN_FLIGHT),
    Rule({"stub": ("voided", "tombstone")}, Verdict.VOIDED),
    # No stub: either nothing was promised, or the message has no business transaction behind it.
    Rule({"stub": ("none",), "topic": ("unmanaged",)}, Verdict.UNMANAGED),
    # Without the log of its broker only what needs none can be said.
    Rule({"record": ("unknown",), "log": ("consumed",), "stub": ("confirmed",)}, Verdict.SETTLED),
    Rule({"record": ("unknown",)}, Verdict.IN_FLIGHT),
    Rule({"stub": ("none",), "age": ("fresh",)}, Verdict.IN_FLIGHT),
    Rule({"stub": ("none",), "record": ("expired",)}, Verdict.EXPIRED),
    Rule({"stub": ("none",)}, Verdict.ORPHAN),
    # From here on a stub exists and is not voided, and the logs are known.
    Rule({"record": ("differs",)}, Verdict.CONTENT_DIFFERS),
    Rule({"record": ("forged",)}, Verdict.FORGED),
    # The effect exists.
    Rule({"log": ("consumed",), "stub": ("confirmed",)}, Verdict.SETTLED),
    Rule({"log": ("consumed",), "group": ("ack", "extra")}, Verdict.SETTLED),
    Rule({"log": ("consumed",), "everyone": ("no",)}, Verdict.SETTLED),
    Rule({"log": ("consumed",), "age": ("fresh",)}, Verdict.IN_FLIGHT),
    Rule({"log": ("consumed",)}, Verdict.CONSUMED_NOT_CONFIRMED),
    # The effect does not exist, and the consumer gave up.
    Rule({"group": _NEEDED, "retry": ("dead",)}, Verdict.DEAD_LETTERED),
    # The broker's acknowledgement was all that was asked for, and it stands.
    Rule(
        {"group": ("ack",), "stub": ("confirmed",), "record": (*_STORED, "stranded", "expired")},
        Verdict.SETTLED,
    ),
    # It may still come by itself.
    Rule({"age": ("fresh",)}, Verdict.IN_FLIGHT),
    Rule({"group": _NEEDED, "log": ("live",)}, Verdict.IN_FLIGHT),
    Rule({"group": _NEEDED, "retry": ("waiting",)}, Verdict.WAITING),
    # The stub says that this required group has consumed it. That stands whatever the broker still
    # holds: to send it again could repeat the effect.
    Rule({"stub": ("confirmed",), "group": ("required",)}, Verdict.CONFIRMED_WITHOUT_LOG),
    # The broker does not hold it.
    Rule({"record": ("absent",), "position": ("known",)}, Verdict.LOST),
    Rule({"record": ("absent",), "stub": ("confirmed",)}, Verdict.LOST),
    Rule({"record": ("absent",)}, Verdict.NOT_SENT),
    Rule({"record": ("expired",)}, Verdict.EXPIRED),
    # The broker holds it, and the stub waits for the broker only.
    Rule({"group": ("ack",)}, Verdict.SENT_NOT_MARKED),
    # The broker holds it, and the group has not consumed it.
    Rule({"record": ("stranded",)}, Verdict.STRANDED),
    Rule({"record": ("overdue",)}, Verdict.STUCK),
    Rule({"record": ("present",), "progress": ("passed",), "log": ("dead",)}, Verdict.STUCK),
    Rule({"record": ("present",), "progress": ("passed",)}, Verdict.NOT_CONSUMED),
    Rule({"group": ("required",), "position": ("unknown",)}, Verdict.SENT_NOT_MARKED),
    Rule({}, Verdict.WAITING),
)
