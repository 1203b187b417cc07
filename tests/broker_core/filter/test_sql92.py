"""What filter expressions mean; `test_against_apache_filter.py` asks Apache's classes the same."""

from itertools import accumulate

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from tests.broker_core.filter.generated import VALUES, cases

from reliable_mq.broker_core.filter.java_values import compare_floating, floating_number
from reliable_mq.broker_core.filter.sql92 import compile_filter
from reliable_mq.broker_core.filter.tokens import FilterRefused

MESSAGE = {"color": "red", "price": "10", "weight": "1.5", "gift": "true", "note": "it's late"}
PROPERTIES = st.dictionaries(st.sampled_from("abc"), st.sampled_from(VALUES) | st.text())


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("color = 'red'", True),
        ("color <> 'red'", False),
        ("size = 'red'", None),
        ("size <> 'red'", None),
        ("color = size", False),
        ("size = color", None),
        ("price >= 10 AND price <= 10.0e0", True),
        ("price > 9 AND weight < 2.5", True),
        ("price = 10", True),
        ("price = 10L", True),
        ("weight = 1.5", True),
        ("price BETWEEN 5 AND 10", True),
        ("price NOT BETWEEN 5 AND 10", False),
        ("price BETWEEN -10 AND -20", False),
        ("color IN ('blue', 'red')", True),
        ("color not in ('blue', 'red')", False),
        ("size IN ('blue')", None),
        ("size IS NULL", True),
        ("color IS NOT NULL", True),
        ("gift = TRUE", True),
        ("gift", False),
        ("size", None),
        ("NOT size", None),
        ("size OR TRUE", True),
        ("size OR FALSE", None),
        ("size AND FALSE", False),
        ("size AND TRUE", None),
        ("note = 'it''s late'", True),
        ("note CONTAINS '''s'", True),
        ("note STARTSWITH 'it' AND note ENDSWITH 'late'", True),
        ("note NOT CONTAINS ''", False),
        ("size NOT CONTAINS 'x'", False),
        ("color = 'red' OR color = 'blue' AND price > 99", True),
        ("-price = 10 OR -price IS NULL", True),
        ("price > weight", True),
        ("color /* which */ = 'red' -- and why\n AND price = 10", True),
        ("color = 'red' and what follows is never read", None),
    ],
)
def test_an_expression_has_one_of_three_values(text: str, value: bool | None) -> None:
    assert compile_filter(text).evaluate(MESSAGE) is value


@pytest.mark.parametrize(
    "text",
    ["color > 1", "color = 5", "price > color", "weight = 1", "TRUE = gift", "color = 1 OR TRUE"],
)
def test_a_message_that_cannot_be_judged_is_not_wanted(text: str) -> None:
    with pytest.raises((ValueError, TypeError)):
        compile_filter(text).evaluate(MESSAGE)
    assert not compile_filter(text).matches(MESSAGE)


@pytest.mark.parametrize(
    "text",
    [
        *("", "color =", "= 1", "(color = 1", "color = 'red", "color != 1", "1", "'red'", "-color"),
        *("color = NULL", "color > 'red'", "color > TRUE", "TRUE = 1", "1 IN ('1')", "color IN ()"),
        *("price BETWEEN 5 AND 1", "price BETWEEN 5", "color IN ('red'", "color CONTAINS size"),
        *("price = 0.0", "price = 1e999", "price = 9223372036854775808", "color NOT", "color IS 1"),
        "(" * 200 + "color = 'red'" + ")" * 200,
        "color = 'red'" + " = TRUE" * 200,
        "NOT " * 5_000 + "gift",
    ],
)
def test_an_expression_that_does_not_read_is_refused(text: str) -> None:
    with pytest.raises(FilterRefused):
        compile_filter(text)


def test_a_long_chain_is_no_deep_one() -> None:
    wanted = compile_filter(" OR ".join(f"price = {number}" for number in range(400)))
    assert wanted.matches({"price": "399"})
    assert not wanted.matches({"price": "400"})


def test_nan_is_the_largest_number_as_in_java() -> None:
    assert compile_filter("price > 1.5").matches({"price": "NaN"})
    assert not compile_filter("price < 1.5").matches({"price": "NaN"})
    assert compare_floating(floating_number("-0.0"), 0.0) < 0


@given(st.text())
def test_any_text_compiles_or_is_refused(text: str) -> None:
    try:
        wanted = compile_filter(text)
    except FilterRefused:
        return
    assert wanted.matches({}) in (True, False)


@settings(deadline=None)
@given(st.integers(), PROPERTIES)
@example(694, {})
def test_what_one_filter_wants_its_negation_does_not(seed: int, properties: dict[str, str]) -> None:
    for case in cases(20, seed):
        if _ends_what_it_did_not_begin(case.text):
            continue  # in brackets it would be two expressions, and only one of them negated
        try:
            wanted = compile_filter(f"({case.text})")
            unwanted = compile_filter(f"NOT ({case.text})")
        except FilterRefused:
            continue
        assert not (wanted.matches(properties) and unwanted.matches(properties))


def _ends_what_it_did_not_begin(text: str) -> bool:
    depths = accumulate((letter == "(") - (letter == ")") for letter in text)
    return min(depths, default=0) < 0
