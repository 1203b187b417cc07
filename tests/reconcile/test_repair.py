"""What repairs which finding: the table, what a person may choose, and how fast."""

from typing import Any

import pytest

from reliable_mq.errors import ConfigurationError
from reliable_mq.reconcile.judgement.verdict import FINDINGS, Verdict
from reliable_mq.reconcile.repairs.repair import (
    ACTIONS,
    UNBOUNDED,
    VOIDABLE,
    FindingChoice,
    RepairAction,
    RepairRate,
    parse_rate,
    parse_verdict,
    plan,
)
from reliable_mq.reconcile.repairs.repair_outcome import ACTIONS_SHOWN_MAX, outcome_of


def finding(message: str, verdict: Verdict, group: str = "g", **more: Any) -> dict[str, Any]:
    row = {"message_id": message, "consumer_group": group, "verdict": str(verdict)}
    return {**row, "stub_status": 0, "log_owner": None, **more}


def actions(*findings: dict[str, Any], **choice: frozenset[Verdict]) -> list[tuple[str, str]]:
    return [(each.message_id, str(each.action)) for each in plan(findings, FindingChoice(**choice))]


def test_only_findings_are_repaired_and_nothing_is_voided_unasked() -> None:
    assert ACTIONS.keys() | VOIDABLE <= FINDINGS
    assert RepairAction.VOID not in ACTIONS.values()
    assert all(not actions(finding("a", v)) for v in FINDINGS - ACTIONS.keys())
    assert not actions(finding("a", Verdict.LOST, stub_status=None))


def test_one_action_is_taken_for_a_message_the_one_that_makes_the_others_needless() -> None:
    """Given two findings on one message, then the stronger repair is planned, with its groups."""
    stuck = finding("a", Verdict.STUCK, "g", log_owner="worker")
    passed = finding("a", Verdict.NOT_CONSUMED, "h")
    (both,) = plan([stuck, passed])
    assert (both.action, both.groups, both.verdicts) == (RepairAction.RELEASE, ("g",), ("stuck",))

    assert actions(finding("b", Verdict.STUCK), finding("c", Verdict.SENT_NOT_MARKED)) == [
        ("b", "resend"),
        ("c", "mark"),
    ]


def test_what_a_stub_proves_as_consumed_is_not_sent_again_for_another_group() -> None:
    """Given a confirmed stub, one group's log is gone, another group lost it, then nobody sends."""
    consumed = finding("a", Verdict.CONFIRMED_WITHOUT_LOG, "payments", stub_status=1)
    lost = finding("a", Verdict.LOST, "audit", stub_status=1)

    assert actions(consumed, lost) == []
    assert actions(lost) == [("a", "resend")]


def test_a_person_chooses_what_is_repaired_and_what_is_given_up() -> None:
    found = [
        finding("a", Verdict.NOT_SENT),
        finding("b", Verdict.STUCK),
        finding("c", Verdict.DEAD_LETTERED),
    ]
    only, void = frozenset({Verdict.NOT_SENT}), frozenset({Verdict.DEAD_LETTERED, Verdict.STUCK})

    assert actions(*found) == [("a", "resend"), ("b", "resend")]
    assert actions(*found, only=only) == [("a", "resend")]
    assert actions(*found, void=void) == [("a", "resend"), ("b", "void"), ("c", "void")]
    mixed = (finding("d", Verdict.NOT_CONSUMED), finding("d", Verdict.DEAD_LETTERED, "h"))
    assert actions(*mixed, void=void) == [("d", "resend")]


@pytest.mark.parametrize(
    ("choice", "says"),
    [
        (
            {"only": Verdict.ORPHAN},
            "--repair-only cannot repair orphan: a person decides",
        ),
        ({"only": Verdict.SETTLED}, "--repair-only cannot repair settled"),
        ({"void": Verdict.SENT_NOT_MARKED}, "--void cannot repair sent-not-marked"),
    ],
)
def test_a_verdict_that_cannot_be_repaired_so_is_refused(
    choice: dict[str, Verdict], says: str
) -> None:
    with pytest.raises(ConfigurationError, match=says):
        FindingChoice(**{name: frozenset({verdict}) for name, verdict in choice.items()})


@pytest.mark.parametrize("verdict", list(Verdict))
def test_a_verdict_may_be_written_with_hyphens_or_as_it_is_printed(verdict: Verdict) -> None:
    hyphens = verdict.replace(",", "").replace(" ", "-")

    assert parse_verdict("--void", hyphens.upper()) == parse_verdict("--void", verdict) == verdict
    with pytest.raises(ConfigurationError, match="there is no verdict 'lost'; there are settled,"):
        parse_verdict("--void", "lost")


@pytest.mark.parametrize(
    ("text", "per_second"), [("50/s", 50.0), ("600/m", 10.0), (" 1800 / h", 0.5), ("0.5/s", 0.5)]
)
def test_a_rate_is_written_by_second_minute_or_hour(text: str, per_second: float) -> None:
    assert parse_rate(text) == RepairRate(per_second)


@pytest.mark.parametrize("text", ["50", "0/s", "-1/s", "x/s", "5/day", "inf/s", "nan/s", ""])
def test_what_is_no_rate_is_refused(text: str) -> None:
    with pytest.raises(ConfigurationError, match="--repair-rate takes stubs per second"):
        parse_rate(text)


def test_a_rate_changes_at_most_a_seconds_worth_at_once_and_waits_for_the_rest() -> None:
    assert (UNBOUNDED.batch(500), UNBOUNDED.wait(10_000, 0.0)) == (500, 0.0)
    assert (
        RepairRate(50.0).batch(500),
        RepairRate(0.1).batch(500),
        RepairRate(1e9).batch(500),
    ) == (50, 1, 500)
    assert (RepairRate(50.0).wait(100, 0.5), RepairRate(50.0).wait(100, 7.0)) == (1.5, 0.0)


def test_the_outcome_counts_all_and_shows_the_first() -> None:
    count = ACTIONS_SHOWN_MAX + 5
    repairs = plan(finding(f"{number:05d}", Verdict.LOST) for number in range(count))

    told = outcome_of("apply", ((each, each.message_id > "00009", "said") for each in repairs))

    assert (told["mode"], told["planned"], told["changed"]) == ("apply", count, count - 10)
    assert told["by_action"] == {"resend": {"planned": count, "changed": count - 10}}
    assert (told["outcomes"], len(told["actions"])) == ({"said": count}, ACTIONS_SHOWN_MAX)
    assert told["actions"][0] == {
        "message_id": "00000",
        "action": "resend",
        "consumer_groups": ["g"],
        "verdicts": ["lost by the broker"],
        "outcome": "said",
    }
