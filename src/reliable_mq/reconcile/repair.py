"""What repairs a finding: a literal table from verdict to action, and the plan of a run. Pure.

Receives findings; hands on at most one action per message. Only verdicts whose repair cannot harm
are here: consumers are idempotent, so sending again is safe, and the other two actions write into
the stub what the other ledgers prove. Everything else is for a person.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from itertools import groupby
from typing import Any

from reliable_mq.reconcile.verdict import Verdict


class Action(StrEnum):
    """What is done to a stub."""

    RESEND = "resend"
    MARK = "mark"
    CONFIRM = "confirm"


ACTIONS: Mapping[Verdict, Action] = {
    Verdict.NOT_SENT: Action.RESEND,
    Verdict.LOST: Action.RESEND,
    Verdict.NOT_CONSUMED: Action.RESEND,
    Verdict.STUCK: Action.RESEND,
    Verdict.EXPIRED: Action.RESEND,
    Verdict.SENT_NOT_MARKED: Action.MARK,
    Verdict.CONSUMED_NOT_CONFIRMED: Action.CONFIRM,
}

# Of two actions on one message the stronger one is taken; it makes the weaker one needless.
_STRENGTH = (Action.MARK, Action.CONFIRM, Action.RESEND)


@dataclass(frozen=True)
class Repair:
    """One action on one stub, with what the run saw of it: a stub that moved since stays alone."""

    message_id: str
    action: Action
    groups: tuple[str, ...]
    verdicts: tuple[str, ...]
    seen: Mapping[str, Any]


def action_for(verdict: str, *, has_stub: bool) -> Action | None:
    """Return what repairs a finding by itself, or None when a person has to decide."""
    return ACTIONS.get(Verdict(verdict)) if has_stub else None


def plan(findings: Iterable[Mapping[str, Any]]) -> Iterator[Repair]:
    """Yield the repairs of a run's findings, one per message.

    Args:
        findings: sorted by message id, so that no more than one message is held at a time.
    """
    for message_id, group in groupby(findings, key=lambda finding: finding["message_id"]):
        rows = list(group)
        choices = {
            row["consumer_group"]: action
            for row in rows
            if (action := action_for(row["verdict"], has_stub=row["stub_status"] is not None))
        }
        if choices:
            action = max(choices.values(), key=_STRENGTH.index)
            kept = [row for row in rows if choices.get(row["consumer_group"]) is action]
            groups = tuple(row["consumer_group"] for row in kept)
            verdicts = tuple(dict.fromkeys(row["verdict"] for row in kept))
            yield Repair(message_id, action, groups, verdicts, kept[0])
