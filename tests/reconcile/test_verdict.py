"""The decision table, over every combination of facts there is."""

import itertools
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import duckdb
from tests.reconcile.decisions import decide, sql_case
from tests.reconcile.duckdb_rival import VERDICT

from reliable_mq.reconcile.judgement.verdict import (
    FACTS,
    FINDINGS,
    MEANINGS,
    RULES,
    Verdict,
)
from reliable_mq.reconcile.repairs.repair import ACTIONS

PAGE = Path(__file__).parents[2] / "docs" / "reference" / "reconciliation_verdicts.md"


def combinations() -> Iterator[dict[str, str]]:
    for values in itertools.product(*FACTS.values()):
        yield dict(zip(FACTS, values, strict=True))


# What the second implementation knows of a message and group, by the facts of the product.
KNOWN = """
    log = 'twice' AS is_doubled, log = 'other' AS is_suppressed,
    CASE stub WHEN 'unconfirmed' THEN 0 WHEN 'confirmed' THEN 1 WHEN 'none' THEN NULL ELSE 2 END
        AS status,
    stub = 'tombstone' AS is_tombstone, stub <> 'none' AS has_stub,
    "group" <> 'ack' AS has_group, "group" = 'required' AS is_required,
    position = 'known' AS is_acknowledged,
    record IN ('present', 'differs', 'forged') AS is_stored,
    record IN ('delayed', 'overdue') AS is_delayed, record = 'overdue' AS is_overdue,
    record = 'stranded' AS is_stranded, record = 'expired' AS is_expired,
    record = 'differs' AS differs, record = 'forged' AS is_forged, record = 'unknown' AS is_unread,
    progress = 'passed' AS has_passed,
    retry = 'dead' AS is_dead, retry = 'waiting' AS waits,
    log = 'consumed' AS is_consumed, log = 'live' AS is_at_work, log <> 'none' AS was_begun,
    everyone = 'yes' AS everyone, age = 'fresh' AS is_young, topic = 'managed' AS is_managed
"""


def test_every_combination_of_facts_has_the_verdict_that_the_promises_ask_for() -> None:
    """Given all combinations of facts, then the decision table gives each the verdict of the second
    implementation (`duckdb_rival.VERDICT`)."""
    tables = ", ".join(
        f'(VALUES {", ".join(f"({value!r})" for value in values)}) AS t_{name}("{name}")'
        for name, values in FACTS.items()
    )
    facts = ", ".join(f'"{name}" AS fact_{name}' for name in FACTS)
    query = f"SELECT COLUMNS('fact_.*'), {VERDICT} FROM (SELECT {facts}, {KNOWN} FROM {tables})"

    rows = duckdb.connect().execute(query).fetchall()

    assert len(rows) == sum(1 for _ in combinations())
    judged = [(dict(zip(FACTS, row[:-1], strict=True)), row[-1]) for row in rows]
    wrong = [(each, decide(each), other) for each, other in judged if decide(each) != other]
    assert wrong[:1] == [], f"{len(wrong)} combinations: facts, verdict by RULES, by duckdb_rival"


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
    page = PAGE.read_text()

    for verdict, meaning in MEANINGS.items():
        kind = "yes" if verdict in FINDINGS else ""
        action = ACTIONS.get(verdict, "a person decides" if kind else "")
        row = f"| {verdict} | {kind} | {meaning} | {action} |"
        row = row.replace("|  |", "| |").replace("|  |", "| |")
        assert row in page, f"write this row into {PAGE}:\n{row}"


def told_rules() -> str:
    """Return the decision table as the documentation prints it."""
    lines = ["| | when | verdict |", "|---|---|---|"]
    for number, rule in enumerate(RULES, 1):
        when = ", ".join(f"{name} {' or '.join(values)}" for name, values in rule.when.items())
        lines.append(f"| {number} | {when or 'else'} | {rule.verdict} |")
    return "\n".join(lines)


def test_the_documentation_prints_the_decision_table_and_the_facts() -> None:
    page = PAGE.read_text()

    rules = told_rules()
    assert rules in page, f"write this table into {PAGE}:\n{rules}"
    for name, values in FACTS.items():
        assert f"| {name} | {', '.join(values)} | " in page
