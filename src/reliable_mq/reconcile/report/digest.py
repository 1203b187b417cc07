"""What people are told of a run: its new findings, in the words of one escalation. Pure.

Receives the counts of what is new; hands on the sentence that mails, webhooks and logs carry.
"""

from collections.abc import Mapping
from typing import Any, NamedTuple

from reliable_mq.reconcile.judgement.verdict import Verdict


class News(NamedTuple):
    """What nobody has been told of. `counts`: by verdict; `oldest`: a message of each verdict."""

    counts: Mapping[str, int]
    oldest: Mapping[str, str]

    @property
    def total(self) -> int:
        """How many findings are new."""
        return sum(self.counts.values())


def reason_of(news: News, summary: Mapping[str, Any]) -> str:
    """Return why a person is told, in one line.

    Args:
        news: at least one finding.
        summary: of the run.
    """
    counts = [f"{news.counts[v]} {v}" for v in Verdict if news.counts.get(v)]
    first = min(news.oldest.values())
    plural = "s" if news.total > 1 else ""
    parts = [f"{news.total} new finding{plural}: {', '.join(counts)}"]
    parts.append(f"the oldest is message {first}")
    repaired = (summary["repair"] or {}).get("changed", 0)
    if repaired:
        parts.append(f"{repaired} other{'s' if repaired > 1 else ''} repaired")
    older = summary["findings_total"] - news.total - repaired
    if older > 0:
        parts.append(f"{older} told of before, or beyond what the table keeps")
    parts.append(f"report: {summary['report']}")
    return "; ".join(parts)
