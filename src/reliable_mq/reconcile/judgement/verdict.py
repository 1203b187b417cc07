"""The decision table: the facts about a message and a consumer group give exactly one verdict.

`FACTS` lists the facts and their values. `RULES` is the decision table: the first rule whose
conditions all hold gives the verdict. The last rule always holds, so every combination of facts has
one verdict. Every verdict comes from this table; `judge` uses it on whole columns. This module does
not know how the facts are found in the ledgers.

The idea: the effect of a message counts most. So the consume log goes before the broker's log, and
the broker's log before the stub. The ledgers are not read at the same instant, so a message that
changed a moment ago is in flight. A message that can still arrive is not lost, and a message that
cannot arrive any more is not waiting.
"""

from collections.abc import Mapping
from enum import StrEnum
from typing import NamedTuple


class Verdict(StrEnum):
    """All verdicts. `ABOUT` explains them."""

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


class About(NamedTuple):
    """What there is to say about a verdict.

    `repair`: the safe repair of a finding (`RepairAction`), empty: a person decides.
    `may_be_voided`: a person may give the message up by `--void`, because no group has consumed it,
    or will without help.
    """

    meaning: str
    is_finding: bool = True
    repair: str = ""
    may_be_voided: bool = False


ABOUT: Mapping[Verdict, About] = {
    Verdict.SETTLED: About(
        "the business transaction, the broker and the consumer agree", is_finding=False
    ),
    Verdict.IN_FLIGHT: About("younger than the grace time, or being handled now", is_finding=False),
    Verdict.WAITING: About(
        "stored by the broker; the consumer group has not reached it yet", is_finding=False
    ),
    Verdict.VOIDED: About(
        "given up by a person or a rolled-back half message; nobody consumed it", is_finding=False
    ),
    Verdict.UNMANAGED: About(
        "in a topic that has never had a stub; nothing is guaranteed", is_finding=False
    ),
    Verdict.NOT_SENT: About(
        "committed, but no broker acknowledged it, and no log has it",
        repair="resend",
        may_be_voided=True,
    ),
    Verdict.LOST: About(
        "acknowledged by the broker, but its log does not have it any more",
        repair="resend",
        may_be_voided=True,
    ),
    Verdict.SENT_NOT_MARKED: About(
        "in the broker's log, but the stub does not have its position", repair="mark"
    ),
    Verdict.NOT_CONSUMED: About(
        "the consumer group has passed it without consuming it", repair="resend", may_be_voided=True
    ),
    Verdict.STUCK: About(
        "an attempt or a delay has begun, but no process continues it",
        repair="resend",
        may_be_voided=True,
    ),
    Verdict.STRANDED: About(
        "in the broker's log, but its topic was deleted: no consumer can read it",
        repair="resend",
        may_be_voided=True,
    ),
    Verdict.CONSUMED_NOT_CONFIRMED: About(
        "every required group consumed it; the stub does not say so", repair="confirm"
    ),
    Verdict.CONFIRMED_WITHOUT_LOG: About("the stub is confirmed, but no consume log says CONSUMED"),
    Verdict.DEAD_LETTERED: About(
        "the consumer group gave it up; it is in the dead-letter topic", may_be_voided=True
    ),
    Verdict.VOIDED_BUT_CONSUMED: About("the stub is voided, but the group consumed it"),
    Verdict.ORPHAN: About(
        "in a managed topic or consumed, without a committed stub; or rolled back, and yet visible"
    ),
    Verdict.CONTENT_DIFFERS: About(
        "what the broker holds is not what the business transaction wrote"
    ),
    Verdict.FORGED: About(
        "beside what the business transaction wrote, the broker holds another message of its id"
    ),
    Verdict.SUPPRESSED: About(
        "the group consumed another message of its id, not what the business transaction wrote"
    ),
    Verdict.EXPIRED: About(
        "not consumed, and the broker's log no longer reaches back to it",
        repair="resend",
        may_be_voided=True,
    ),
    Verdict.DUPLICATE_EFFECT: About("the group consumed it twice, in two databases"),
}
MEANINGS: Mapping[Verdict, str] = {verdict: about.meaning for verdict, about in ABOUT.items()}
FINDINGS = frozenset(verdict for verdict, about in ABOUT.items() if about.is_finding)

# Each fact with all its values.
FACTS: dict[str, tuple[str, ...]] = {
    # the status of the stub; "tombstone": its half message was rolled back
    "stub": ("none", "unconfirmed", "confirmed", "voided", "tombstone"),
    # the relation of group and stub; "ack": the stub requires no group, and the broker's
    # acknowledgement confirms it; "extra": the group consumes but is not required
    "group": ("ack", "required", "extra"),
    # whether the stub has the position of an acknowledged send
    "position": ("unknown", "known"),
    # the first delivery in the broker's log; "expired": older than the log's first record;
    # "delayed": still in the delay queue; "overdue": still there although its time has passed;
    # "differs": it does not match the stub; "forged": one record matches, another one does not;
    # "stranded": in the log, but in no queue that consumers can read: the topic was deleted;
    # "unknown": in no log that was read, and the log that may have it was not reached
    "record": (
        *("absent", "expired", "delayed", "overdue", "present", "stranded", "differs"),
        *("forged", "unknown"),
    ),
    # whether the group's committed offset has passed every copy of the record
    "progress": ("behind", "passed"),
    # the result of failed attempts; "waiting": a copy is still to be delivered; "dead": a dead
    # letter
    "retry": ("none", "waiting", "dead"),
    # the group's consume log; "live", "dead": RECEIVED, and the lease is running or has expired;
    # "twice": CONSUMED in two databases, neither as the duplicate of a business key; "other": of a
    # forged pair, the group consumed the record that does not match the stub
    "log": ("none", "live", "dead", "consumed", "other", "twice"),
    # whether all required groups have consumed the message
    "everyone": ("no", "yes"),
    # "fresh": within the grace time, or changed while the ledgers were read
    "age": ("fresh", "old"),
    # "managed": at least one stub was ever written for this topic
    "topic": ("managed", "unmanaged"),
}


class Rule(NamedTuple):
    """If every fact in `when` has one of the values listed there, the verdict is `verdict`."""

    when: Mapping[str, tuple[str, ...]]
    verdict: Verdict


_STORED = ("delayed", "overdue", "present")
_VISIBLE = (*_STORED, "differs", "forged")
_NEEDED = ("required", "extra")

RULES: tuple[Rule, ...] = (
    # One effect is guaranteed for every message, whether it has a stub or not.
    Rule({"log": ("twice",)}, Verdict.DUPLICATE_EFFECT),
    Rule({"log": ("other",)}, Verdict.SUPPRESSED),
    # A voided stub or a tombstone: an effect contradicts both, a record only the tombstone.
    Rule({"stub": ("voided", "tombstone"), "log": ("consumed",)}, Verdict.VOIDED_BUT_CONSUMED),
    Rule({"stub": ("tombstone",), "record": _VISIBLE, "age": ("old",)}, Verdict.ORPHAN),
    Rule({"stub": ("tombstone",), "record": _VISIBLE}, Verdict.IN_FLIGHT),
    Rule({"stub": ("voided", "tombstone")}, Verdict.VOIDED),
    # No stub: nothing is guaranteed in an unmanaged topic, else a business transaction is missing.
    Rule({"stub": ("none",), "topic": ("unmanaged",)}, Verdict.UNMANAGED),
    # The log of its broker is unknown: only verdicts that do not need the log are possible.
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
    # The stub requires only the broker's acknowledgement, and has it.
    Rule(
        {"group": ("ack",), "stub": ("confirmed",), "record": (*_STORED, "stranded", "expired")},
        Verdict.SETTLED,
    ),
    # It may still settle by itself.
    Rule({"age": ("fresh",)}, Verdict.IN_FLIGHT),
    Rule({"group": _NEEDED, "log": ("live",)}, Verdict.IN_FLIGHT),
    Rule({"group": _NEEDED, "retry": ("waiting",)}, Verdict.WAITING),
    # The stub says that this required group has consumed it. This decides, whatever the broker
    # still has: to send it again could repeat the effect.
    Rule({"stub": ("confirmed",), "group": ("required",)}, Verdict.CONFIRMED_WITHOUT_LOG),
    # The broker does not have it.
    Rule({"record": ("absent",), "position": ("known",)}, Verdict.LOST),
    Rule({"record": ("absent",), "stub": ("confirmed",)}, Verdict.LOST),
    Rule({"record": ("absent",)}, Verdict.NOT_SENT),
    Rule({"record": ("expired",)}, Verdict.EXPIRED),
    # The broker has it, and the stub waits for the broker only.
    Rule({"group": ("ack",)}, Verdict.SENT_NOT_MARKED),
    # The broker has it, and the group has not consumed it.
    Rule({"record": ("stranded",)}, Verdict.STRANDED),
    Rule({"record": ("overdue",)}, Verdict.STUCK),
    Rule({"record": ("present",), "progress": ("passed",), "log": ("dead",)}, Verdict.STUCK),
    Rule({"record": ("present",), "progress": ("passed",)}, Verdict.NOT_CONSUMED),
    Rule({"group": ("required",), "position": ("unknown",)}, Verdict.SENT_NOT_MARKED),
    Rule({}, Verdict.WAITING),
)
