"""Every request code, each with no credentials, a wrong secret, no policy and exactly its policies.

The table in docs/reference/access_codes.md is made here. If it is out of date, the test prints it.
"""

from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest
from tests.access.access_world import (
    CLUSTER,
    NAMES,
    AccessWorld,
    is_let_in,
    policies_for,
    request_of,
)

from reliable_mq.access.resources import Kind
from reliable_mq.access.rules import OF_APACHE, OWN, RULES, STRICTER, CodeRule, Need
from reliable_mq.broker_core.requests.handlers import HANDLERS
from reliable_mq.wire.codes import RequestCode as Ask
from reliable_mq.wire.codes import ResponseCode as Code

PAGE = Path(__file__).parents[2] / "docs" / "reference" / "access_codes.md"
INVENTED = (0, 1, 9, 16, 44, 350, 2005, 3000, 3011, 3442, 77_777, -1)
CODES = [*Ask, *INVENTED]


@cache
def rows() -> dict[int, tuple[str, str, str, str]]:
    """Return what the guard says to each code and each sender, in the order of the columns."""
    world = AccessWorld()
    world.make_user("bare")
    found = {}
    for number, code in enumerate(CODES):
        rule = RULES.get(code)
        ext, body = request_of(rule) if rule is not None else ({"a": "b"}, b"")
        user = f"user{number}"
        world.make_user(user)
        if rule is None:
            world.allow(user, "*")
        for resource, action in policies_for(rule) if rule is not None else ():
            world.allow(user, resource, actions=[action])
        answers = (
            world.ask(code, ext, body),
            world.ask_as("bare", code, ext, body, secret="wrong"),
            world.ask_as("bare", code, ext, body),
            world.ask_as(user, code, ext, body),
        )
        one, two, three, four = (
            "passes" if is_let_in(answer) else f"refused, {answer.code}" for answer in answers
        )
        found[code] = (one, two, three, four)
        world.ask_as("root", Ask.AUTH_DELETE_USER, {"username": user})
    return found


@pytest.mark.parametrize("code", CODES, ids=str)
def test_nobody_but_a_user_with_the_policies_of_a_code_may_send_it(code: int) -> None:
    nobody, wrong, bare, user = rows()[code]

    refused = f"refused, {Code.NO_PERMISSION}"
    assert nobody == wrong == bare == refused
    assert user == ("passes" if code in RULES else refused), "* is not enough without a rule"


@pytest.mark.parametrize("code", RULES, ids=str)
def test_each_policy_of_a_code_is_needed(code: int) -> None:
    rule = RULES[code]
    ext, body = request_of(rule)
    world = AccessWorld()
    needed = policies_for(rule)
    for number, left_out in enumerate(needed):
        user = f"user{number}"
        world.make_user(user)
        for resource, action in needed:
            if resource != left_out[0]:
                world.allow(user, resource, actions=[action])
        world.allow(user, left_out[0], actions=["List"])
        assert not is_let_in(world.ask_as(user, code, ext, body)), left_out


@pytest.mark.parametrize("code", RULES, ids=str)
def test_what_a_request_does_not_name_opens_nothing(code: int) -> None:
    """Given a user who may do everything with topics and groups, but nothing with the cluster."""
    rule = RULES[code]
    world = AccessWorld()
    world.make_user("joe")
    world.allow("joe", "Topic:t", "Group:g")

    assert is_let_in(world.ask_as("joe", code, {"unused": "x"})) == rule.may_name_none


def test_every_request_that_the_broker_answers_has_a_rule() -> None:
    assert HANDLERS.keys() <= RULES.keys()


def test_no_code_has_two_rules() -> None:
    assert len(RULES) == len(OF_APACHE) + len(OWN) + len(STRICTER)


def test_the_table_of_the_docs_is_what_the_guard_does() -> None:
    made = "\n".join(_table())
    text = PAGE.read_text()
    assert made in text, f"write this table into {PAGE.name}:\n{made}"


def _table() -> Iterator[str]:
    yield "| code | request | needs | no credentials, wrong secret | no policy | exactly these |"
    yield "|---|---|---|---|---|---|"
    for code in sorted(Ask):
        nobody, wrong, bare, user = rows()[code]
        assert nobody == wrong
        name, needs = f"`{code.name}`", _needs(code)
        yield f"| {int(code)} | {name} | {needs} | {nobody} | {bare} | {user} |"


def _needs(code: int) -> str:
    rule = RULES.get(code)
    if rule is None:
        return "a super user"
    mark = " ²" if code in OWN else " ³" if code in STRICTER else ""
    return (", ".join(map(_of_need, rule.needs)) or _of_cluster(rule)) + mark


def _of_need(need: Need) -> str:
    optional = " ¹" if need.is_optional else ""
    return f"{need.kind} {' or '.join(need.actions)}{optional}"


def _of_cluster(rule: CodeRule) -> str:
    return f"{Kind.CLUSTER} {' or '.join(rule.actions)}"


def test_the_names_of_the_requests_are_no_names_of_the_cluster() -> None:
    assert CLUSTER not in NAMES.values()
