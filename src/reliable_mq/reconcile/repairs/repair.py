"""Plan repairs: which action a verdict asks for (`ABOUT` says it), and the plan of a run. Pure.

Receives findings. Returns at most one action for each message. By default, only safe repairs are
planned. To send again is safe, because consumers are idempotent. To mark or confirm a stub is safe,
because the other ledgers prove it. Only a person can decide to give a message up, and names the
verdicts for it.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from itertools import groupby
from math import ceil
from typing import Any

from reliable_mq.errors import ConfigurationError
from reliable_mq.reconcile.judgement.stub_states import ODD
from reliable_mq.reconcile.judgement.verdict import ABOUT, Verdict


class RepairAction(StrEnum):
    """An action on a stub."""

    RESEND = "resend"
    RELEASE = "release"  # end an attempt with an expired lease, and send the message again
    MARK = "mark"
    CONFIRM = "confirm"
    VOID = "void"


AGAIN = (RepairAction.RESEND, RepairAction.RELEASE)
"""Actions that send a message again."""

ACTIONS: Mapping[Verdict, RepairAction] = {
    verdict: RepairAction(about.repair) for verdict, about in ABOUT.items() if about.repair
}
"""The safe repairs. STUCK is RELEASE if an attempt with an expired lease holds the message."""
VOIDABLE = frozenset(verdict for verdict, about in ABOUT.items() if about.may_be_voided)
"""Verdicts that allow to give a message up: no group has consumed it, or will without help."""

# If a message has two actions, the stronger (later) one is done; it includes the weaker one.
_STRENGTH = (
    RepairAction.VOID,
    RepairAction.MARK,
    RepairAction.CONFIRM,
    RepairAction.RESEND,
    RepairAction.RELEASE,
)


def _slug(text: str) -> str:
    return "-".join(text.lower().replace(",", " ").replace("-", " ").split())


def _check(option: str, named: frozenset[Verdict], possible: frozenset[Verdict]) -> None:
    wrong = sorted(map(_slug, named - possible))
    if wrong:
        names = ", ".join(_slug(verdict) for verdict in Verdict if verdict in possible)
        raise ConfigurationError(
            f"{option} cannot repair {', '.join(wrong)}: a person decides; it takes {names}"
        )


@dataclass(frozen=True)
class FindingChoice:
    """The choice of findings to repair.

    Attributes:
        only: repair only findings of these verdicts. Empty: all verdicts with a safe repair.
        void: give messages of these verdicts up, instead of any other repair.

    Raises:
        ConfigurationError: when a named verdict does not allow this repair.
    """

    only: frozenset[Verdict] = frozenset()
    void: frozenset[Verdict] = frozenset()

    def __post_init__(self) -> None:
        _check("--repair-only", self.only - self.void, frozenset(ACTIONS))
        _check("--void", self.void, VOIDABLE)

    def action_for(self, finding: Mapping[str, Any]) -> RepairAction | None:
        """Return the action for a finding. None: it is not chosen, or a person must decide."""
        verdict = Verdict(finding["verdict"])
        if finding["stub_status"] in {None, ODD}:
            return None
        if verdict in self.void:
            return RepairAction.VOID
        if self.only and verdict not in self.only:
            return None
        if verdict is Verdict.STUCK and finding["log_owner"]:
            return RepairAction.RELEASE
        return ACTIONS.get(verdict)


ALL_THAT_IS_SAFE = FindingChoice()


@dataclass(frozen=True)
class Repair:
    """One action on one stub, with the values that the run saw.

    A stub that has changed since the run is not repaired.
    """

    message_id: str
    action: RepairAction
    groups: tuple[str, ...]
    verdicts: tuple[str, ...]
    seen: Mapping[str, Any]


def plan(
    findings: Iterable[Mapping[str, Any]], choice: FindingChoice = ALL_THAT_IS_SAFE
) -> Iterator[Repair]:
    """Yield the repairs of a run's findings, at most one for each message.

    Args:
        findings: sorted so that the findings of a message follow one another. So only one message
            is in memory.
        choice: the findings to repair. Default: all safe repairs.
    """
    for message_id, group in groupby(findings, key=lambda finding: finding["message_id"]):
        rows = list(group)
        choices = {
            row["consumer_group"]: action
            for row in rows
            if (action := choice.action_for(row)) is not None
        }
        if any(row["verdict"] == Verdict.CONFIRMED_WITHOUT_LOG for row in rows):
            # A message that is sent again goes to all its groups. One of them has no consume log to
            # prevent a second effect, so no other finding may send the message again.
            choices = {group: each for group, each in choices.items() if each not in AGAIN}
        if choices:
            action = max(choices.values(), key=_STRENGTH.index)
            kept = [row for row in rows if choices.get(row["consumer_group"]) is action]
            groups = tuple(row["consumer_group"] for row in kept)
            verdicts = tuple(dict.fromkeys(row["verdict"] for row in kept))
            yield Repair(message_id, action, groups, verdicts, kept[0])


@dataclass(frozen=True)
class RepairRate:
    """The most stubs that may be changed in one second. None: as fast as the database allows."""

    per_second: float | None = None

    def batch(self, most: int) -> int:
        """Return the size of a batch: at most `most`, and at most the stubs of one second."""
        return most if self.per_second is None else max(1, min(most, ceil(self.per_second)))

    def wait(self, done: int, elapsed: float) -> float:
        """Return the seconds to wait after `done` stubs were changed in `elapsed` seconds."""
        return 0.0 if self.per_second is None else max(0.0, done / self.per_second - elapsed)


UNBOUNDED = RepairRate()
_SECONDS_OF_UNIT = {"s": 1.0, "m": 60.0, "h": 3600.0}


def parse_rate(text: str) -> RepairRate:
    """Parse a rate that a person wrote: 50/s, 600/m, 1000/h.

    Raises:
        ConfigurationError: when it is no rate.
    """
    count, _, unit = text.strip().partition("/")
    try:
        per_second = float(count) / _SECONDS_OF_UNIT[unit.strip()]
    except (KeyError, ValueError):
        per_second = 0.0
    if not 0 < per_second < float("inf"):
        raise ConfigurationError(
            f"--repair-rate takes stubs per second, minute or hour, like 50/s, 600/m or 1000/h,"
            f" not {text!r}"
        )
    return RepairRate(per_second)


def parse_verdict(option: str, text: str) -> Verdict:
    """Return the verdict of a name, as printed or with hyphens: sent-not-marked.

    Raises:
        ConfigurationError: when there is no such verdict.
    """
    wanted = _slug(text)
    for verdict in Verdict:
        if _slug(verdict) == wanted:
            return verdict
    names = ", ".join(_slug(verdict) for verdict in Verdict)
    raise ConfigurationError(f"{option}: there is no verdict {text!r}; there are {names}")
