"""What people are told of a run: what is new, in the words of one escalation. Pure.

Receives the counts of new findings, and what is newly missing of a ledger; hands on the sentence
that mails, webhooks and logs carry.
"""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

from reliable_mq.reconcile.judgement.verdict import Verdict


class NewFindings(NamedTuple):
    """What nobody has been told of.

    `counts`: findings by verdict; `oldest`: a message of each verdict; `flaws`: by the name of the
    ledger, what is missing of it.
    """

    counts: Mapping[str, int]
    oldest: Mapping[str, str]
    flaws: Mapping[str, str] = MappingProxyType({})

    @property
    def new_count(self) -> int:
        """How many findings are new."""
        return sum(self.counts.values())

    @property
    def total(self) -> int:
        """How many findings and flaws are new."""
        return self.new_count + len(self.flaws)


def flaws_in(summary: Mapping[str, Any]) -> dict[str, str]:
    """Return what is missing of the ledgers of a run, by their names."""
    return {name: why for name, why in summary["whole"].items() if why}


def has_read_all(summary: Mapping[str, Any]) -> bool:
    """Return whether a run has read whole logs: an increment reads only what is new of them."""
    increment = summary.get("increment")
    return increment is None or increment["changed_since"] is None


def reason_of(news: NewFindings, summary: Mapping[str, Any]) -> str:
    """Return why a person is told, in one line.

    Args:
        news: at least one finding or flaw.
        summary: of the run.
    """
    parts = []
    if news.new_count:
        counts = [f"{news.counts[v]} {v}" for v in Verdict if news.counts.get(v)]
        plural = "s" if news.new_count > 1 else ""
        parts.append(f"{news.new_count} new finding{plural}: {', '.join(counts)}")
        parts.append(f"the oldest is message {min(news.oldest.values())}")
    parts += [f"not whole: {name}: {why}" for name, why in news.flaws.items()]
    repaired = (summary["repair"] or {}).get("changed", 0)
    if repaired:
        parts.append(f"{repaired} other{'s' if repaired > 1 else ''} repaired")
    older = summary["findings_total"] - news.new_count - repaired
    if older > 0:
        parts.append(f"{older} told of before, or beyond what the table keeps")
    parts.append(f"report: {summary['report']}")
    return "; ".join(parts)
