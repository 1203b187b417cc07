"""The decision table, over every combination of facts there is."""

import itertools
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import duckdb
from tests.reconcile.decisions import decide, sql_case

from reliable_mq.reconcile.judgement.verdict import (
    FACTS,
    FINDINGS,
    MEANINGS,
    RULES,
    Verdict,
)
from reliable_mq.reconcile.repairs.repair import ACTIONS


def combinations() -> Iterator[dict[str, str]]:
    for values in itertools.product(*FACTS.values()):
        yield dict(zip(FACTS, values, strict=True))


def expected(facts: dict[str, str]) -> Verdict:  # noqa: C901, PLR0912 - told at length
    """Say the verdict from the promises, written without a look at the table's order."""
    stub, log, record = facts["stub"], facts["log"], facts["record"]
    is_needed = facts["group"] != "ack"
    if log == "twice":
        return Verdict.DUPLICATE_EFFECT
    if log == "other":
        return Verdict.SUPPRESSED
    if stub in ("voided", "tombstone"):
        if log == "consumed":
            return Verdict.VOIDED_BUT_CONSUMED
        if stub == "voided" or record in ("absent", "stranded", "expired", "unknown"):
            return Verdict.VOIDED
        return Verdict.ORPHAN if facts["age"] == "old" else Verdict.IN_FLIGHT
    if stub == "none":
        if facts["topic"] == "unmanaged":
            return Verdict.UNMANAGED
        if facts["age"] == "fresh" or record == "unknown":
            return Verdict.IN_FLIGHT
        return Verdict.EXPIRED if record == "expired" else Verdict.ORPHAN
    if record == "unknown":
        is_sure = log == "consumed" and stub == "confirmed"
        return Verdict.SETTLED if is_sure else Verdict.IN_FLIGHT
    if record == "differs":
        return Verdict.CONTENT_DIFFERS
    if record == "forged":
        return Verdict.FORGED
    if log == "consumed":
        is_owed = facts["group"] == "required" and facts["everyone"] == "yes"
        if stub == "confirmed" or not is_owed:
            return Verdict.SETTLED
        return Verdict.IN_FLIGHT if facts["age"] == "fresh" else Verdict.CONSUMED_NOT_CONFIRMED
    if is_needed and facts["retry"] == "dead":
        return Verdict.DEAD_LETTERED
    if not is_needed and stub == "confirmed" and record != "absent":
        return Verdict.SETTLED
    if facts["age"] == "fresh" or (is_needed and log == "live"):
        return Verdict.IN_FLIGHT
    if is_needed and facts["retry"] == "waiting":
        return Verdict.WAITING
    if facts["group"] == "required" and stub == "confirmed":
        return Verdict.CONFIRMED_WITHOUT_LOG
    if record == "absent":
        was_acknowledged = facts["position"] == "known" or stub == "confirmed"
        return Verdict.LOST if was_acknowledged else Verdict.NOT_SENT
    if record == "expired":
        return Verdict.EXPIRED
    if not is_needed:
        return Verdict.SENT_NOT_MARKED
    if record == "stranded":
        return Verdict.STRANDED
    if record == "overdue":
        return Verdict.STUCK
    if record == "present" and facts["progress"] == "passed":
        return Verdict.STUCK if log == "dead" else Verdict.NOT_CONSUMED
    if facts["group"] == "required" and facts["position"] == "unknown":
        return Verdict.SENT_NOT_MARKED
    return Verdict.WAITING


def test_every_combination_of_facts_has_the_verdict_that_the_promises_ask_for() -> None:
    wrong = [facts for facts in combinations() if decide(facts) is not expected(facts)]

    assert wrong == []


def test_every_verdict_can_occur() -> None:
    counts = Counter(decide(facts) for facts in combinations())

    assert counts.keys() == set(Verdict)


def test_every_rule_decides_something() -> None:
    """Given a rule that an earlier one hides, then it would be a sentence that means nothing."""
    deciding = {
        next(
            number
            for number, rule in enumerate(RULES)
            if all(facts[name] in values for name, values in rule.when.items())
        )
        for facts in combinations()
    }

    assert deciding == set(range(len(RULES)))


def test_rules_speak_only_of_known_facts_and_values() -> None:
    for rule in RULES:
        for name, values in rule.when.items():
            assert set(values) <= set(FACTS[name])


def test_what_is_looked_up_is_what_the_rules_say_in_sql() -> None:
    """Given all combinations as rows, when SQL goes through the rules in their order, then each has
    the verdict that the judgement looks up."""
    connection = duckdb.connect()
    names = ", ".join(f"fact_{name}" for name in FACTS)
    tables = ", ".join(
        f"(VALUES {', '.join(f'({value!r})' for value in values)}) AS t_{name}(fact_{name})"
        for name, values in FACTS.items()
    )
    query = f"SELECT {names}, {sql_case()} FROM {tables}"

    rows = connection.execute(query).fetchall()

    assert len(rows) == sum(1 for _ in combinations())
    wrong = [row for row in rows if decide(dict(zip(FACTS, row[:-1], strict=True))) != row[-1]]
    assert wrong == []


def test_every_verdict_says_what_it_means() -> None:
    assert MEANINGS.keys() == set(Verdict)
    assert set(Verdict) > FINDINGS


def test_the_documentation_has_the_same_list_of_verdicts() -> None:
    page = (Path(__file__).parents[2] / "docs" / "reconciliation_verdicts.md").read_text()

    for verdict, meaning in MEANINGS.items():
        kind = "yes" if verdict in FINDINGS else ""
        action = ACTIONS.get(verdict, "a person decides" if kind else "")
        row = f"| {verdict} | {kind} | {meaning} | {action} |"
        assert row.replace("|  |", "| |").replace("|  |", "| |") in page


def told_rules() -> str:
    """Return the decision table as the documentation prints it."""
    lines = ["| | when | verdict |", "|---|---|---|"]
    for number, rule in enumerate(RULES, 1):
        when = ", ".join(f"{name} {' or '.join(values)}" for name, values in rule.when.items())
        lines.append(f"| {number} | {when or 'else'} | {rule.verdict} |")
    return "\n".join(lines)


def test_the_documentation_prints_the_decision_table_and_the_facts() -> None:
    page = (Path(__file__).parents[2] / "docs" / "reconciliation_verdicts.md").read_text()

    assert told_rules() in page
    for name, values in FACTS.items():
        assert f"| {name} | {', '.join(values)} | " in page
