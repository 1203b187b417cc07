"""The decision table as tests ask for it: by the names of facts, and as an expression in SQL."""

from collections.abc import Mapping

from reliable_mq.reconcile.judgement.judge import TABLE
from reliable_mq.reconcile.judgement.verdict import FACTS, RULES, Verdict

VERDICTS = tuple(Verdict)


def decide(facts: Mapping[str, str]) -> Verdict:
    """Return the verdict that the judgement looks up for these facts."""
    place = tuple(values.index(facts[name]) for name, values in FACTS.items())
    return VERDICTS[int(TABLE[place])]


def sql_case() -> str:
    """Return the rules as one CASE expression over columns named `fact_` + the fact's name."""
    lines = []
    for rule in RULES[:-1]:
        conditions = [
            f"fact_{name} IN ({', '.join(map(_quoted, values))})"
            for name, values in rule.when.items()
        ]
        lines.append(f"WHEN {' AND '.join(conditions)} THEN {_quoted(rule.verdict)}")
    return "CASE " + "\n".join(lines) + f"\nELSE {_quoted(RULES[-1].verdict)} END"


def _quoted(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"
