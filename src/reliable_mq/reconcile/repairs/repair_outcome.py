"""The outcome of repairs, for the summary. Pure.

Receives any number of repairs one by one. Keeps only their sums and the first ones.
"""

from collections import Counter
from collections.abc import Iterable
from typing import Any

from reliable_mq.reconcile.repairs.repair import Repair

ACTIONS_SHOWN_MAX = 1_000


def outcome_of(mode: str, results: Iterable[tuple[Repair, bool, str]]) -> dict[str, Any]:
    """Return the field `repair` of the summary, see docs/explanation/reconciliation.md.

    Args:
        mode: "plan" or "apply".
        results: for each repair, whether it changed its stub, and its outcome as a text.
    """
    planned, changed, outcomes = Counter[str](), Counter[str](), Counter[str]()
    shown: list[dict[str, Any]] = []
    for repair, has_changed, outcome in results:
        planned[repair.action] += 1
        changed[repair.action] += has_changed
        outcomes[outcome] += 1
        if len(shown) < ACTIONS_SHOWN_MAX:
            shown.append(_action(repair, outcome))
    return {
        "mode": mode,
        "planned": planned.total(),
        "changed": changed.total(),
        "by_action": {
            str(action): {"planned": count, "changed": changed[action]}
            for action, count in sorted(planned.items())
        },
        "outcomes": dict(sorted(outcomes.items())),
        "actions": shown,
    }


def _action(repair: Repair, outcome: str) -> dict[str, Any]:
    return {
        "message_id": repair.message_id,
        "action": str(repair.action),
        "consumer_groups": list(repair.groups),
        "verdicts": list(repair.verdicts),
        "outcome": outcome,
    }
