"""Expressions that are short, and would take for ever: no consumer holds a broker up with one."""

from collections import UserDict
from functools import lru_cache

import pytest
from tests.broker_core.broker_world import BrokerWorld, pull_header

from reliable_mq.broker_core.filter import java_values
from reliable_mq.broker_core.filter.expressions import DEPTH_MAX
from reliable_mq.broker_core.filter.sql92 import compile_filter
from reliable_mq.broker_core.filter.tokens import FilterRefused
from reliable_mq.limits import FILTER_SEARCHES_MAX
from reliable_mq.wire.codes import RequestCode, ResponseCode

DEEP = 33  # as deep as the limit of nested expressions allows


class Looks(UserDict[str, str]):
    """Properties that count how often one of them is looked at."""

    count = 0

    def __getitem__(self, name: str) -> str:
        self.count += 1
        return self.data[name]


def nested(depth: int, word: str = "BETWEEN") -> str:
    text = "a"
    for _ in range(depth):
        text = f"-({text}) {word} 1 AND 2"
    return text


@pytest.mark.parametrize("word", ["BETWEEN", "NOT BETWEEN"])
def test_a_range_within_a_range_is_looked_at_once(word: str) -> None:
    """Each level looked at the one below twice: eight thousand million times in all."""
    properties = Looks(a="1")
    assert not compile_filter(nested(DEEP, word)).matches(properties)
    assert properties.count == 1
    with pytest.raises(FilterRefused, match=f"more than {DEPTH_MAX} nested"):
        compile_filter(nested(DEEP + 1, word))


@pytest.mark.parametrize("word", ["BETWEEN", "NOT BETWEEN"])
def test_the_refusal_of_a_nested_range_is_short(word: str) -> None:
    """Its text doubled with each level, to gigabytes."""
    with pytest.raises(FilterRefused, match="not result in a boolean") as refused:
        compile_filter(f"-({nested(DEEP - 1, word)})")
    assert len(str(refused.value)) < 2_000


def test_the_refusal_of_a_long_expression_is_short() -> None:
    long = " OR ".join(f"name{number} = {number}" for number in range(490))
    with pytest.raises(FilterRefused, match="not result in a boolean") as refused:
        compile_filter(f"-({long})")
    assert len(str(refused.value)) < 2_000


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("a BETWEEN b AND c", [None, None, None, False, False, None, True]),
        ("a NOT BETWEEN b AND c", [None, None, None, True, True, None, False]),
        ("a BETWEEN 1 AND 3", [None, True, True, True, True, True, True]),
        ("a NOT BETWEEN 1 AND 3", [None, False, False, False, False, False, False]),
    ],
)
def test_a_range_has_the_value_of_its_two_bounds(text: str, wanted: list[bool | None]) -> None:
    values: list[dict[str, str]] = [
        {},
        {"a": "2"},
        {"a": "2", "b": "1"},
        {"a": "2", "b": "3"},
        {"a": "2", "c": "1"},
        {"a": "2", "c": "3"},
        {"a": "2", "b": "1", "c": "3"},
    ]
    evaluate = compile_filter(text).evaluate
    assert [evaluate(each) for each in values] == wanted


def test_a_long_number_is_read_once_for_a_message(monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[int] = []

    def once(text: str) -> float:
        read.append(len(text))
        return 7.0

    monkeypatch.setattr(java_values, "_of_long_text", lru_cache(once))
    text = " OR ".join(["size < 2.5"] * 300)
    assert not compile_filter(text).matches({"size": "1" + "0" * 32_000})
    assert read == [32_001]


@pytest.mark.parametrize("text", ["{}x", "{}.{}x", "0x{}z", "0x{}.{}z", ".{}x", "{}e{}x"])
def test_a_text_that_is_almost_a_number_is_read_in_one_pass(text: str) -> None:
    """32,000 digits and a letter took 21 seconds; here are so many that it would be a quarter of an
    hour."""
    digits = "1" * 200_000
    assert not compile_filter("size > 1.5").matches({"size": text.format(digits, digits)})


def test_a_long_text_is_not_lowered_to_be_compared_with_a_word() -> None:
    assert compile_filter("a = TRUE").matches({"a": "True"})
    assert compile_filter("a = FALSE").matches({"a": "t" * 30_000})
    assert compile_filter("a = FALSE").matches({"a": "nott"})


def test_an_expression_searches_so_many_times() -> None:
    """A text of 30 KB, and a part that almost occurs everywhere in it, take half a millisecond."""
    search = "a CONTAINS 'aab'"
    compiled = compile_filter(" OR ".join([search] * FILTER_SEARCHES_MAX))
    assert compiled.searches == FILTER_SEARCHES_MAX
    with pytest.raises(FilterRefused, match="at most 32 CONTAINS"):
        compile_filter(" OR ".join([search] * (FILTER_SEARCHES_MAX + 1)))
    assert compile_filter(" OR ".join(["a STARTSWITH 'aab'"] * 100)).searches == 0


@pytest.mark.parametrize(("searches", "looked_at"), [(1, 22), (32, 1), (0, 40)])
def test_a_pull_that_searches_in_long_properties_looks_at_few_messages(
    searches: int, looked_at: int
) -> None:
    world = BrokerWorld(enablePropertyFilter="true")
    world.create_topic()
    for _ in range(40):
        world.send(b"x", a="a" * 30_000)
    text = " OR ".join(["a CONTAINS 'aab'"] * searches) or "a = 'b'"
    header = pull_header(0, subscription=text, expressionType="SQL92")
    answer = world.ask(RequestCode.PULL_MESSAGE, header)
    assert answer.code == ResponseCode.PULL_RETRY_IMMEDIATELY
    assert int(answer.ext_fields["nextBeginOffset"]) == looked_at
