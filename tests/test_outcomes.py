"""What a handler may say, as values: equal to their like, pickled, checked; and the old words."""

import copy
import math
import pickle
import traceback
import warnings
from functools import partial
from typing import Any

import pytest

import reliable_mq
from reliable_mq import outcomes
from reliable_mq.client.consuming import subscription
from reliable_mq.errors import UsageError
from reliable_mq.outcomes import (
    CONSUMED,
    Consumed,
    Dead,
    Later,
    Reject,
    Retry,
    checked_outcomes,
    is_failure,
    raised_outcomes,
    retry_of_ours,
)


class CardBusy(Retry):
    """A subclass of an application, with arguments of its own."""

    def __init__(self, card: str) -> None:
        super().__init__(after=5, reason=f"card {card} is busy")
        self.card = card


class NoCard(Reject):
    """A subclass that forgets its parent."""

    def __init__(self, card: str) -> None:
        self.card = card


class Nameless(Reject):
    """A subclass that needs no argument."""

    def __init__(self) -> None:
        super().__init__("it has no name")


SAID = [
    *(Retry(), Retry(7.5), Retry(reason="busy"), Retry(5, "busy", counts=False), Reject("no")),
    *(Later(5, False, "busy"), Later(), Dead("no")),
]


@pytest.mark.parametrize("outcome", SAID, ids=repr)
def test_an_outcome_is_equal_to_its_copy_and_the_same_after_pickling(outcome: Any) -> None:
    for twin in (pickle.loads(pickle.dumps(outcome)), copy.copy(outcome), copy.deepcopy(outcome)):
        assert twin is not outcome
        assert twin == outcome
        assert hash(twin) == hash(outcome)
        assert (repr(twin), str(twin), type(twin)) == (repr(outcome), str(outcome), type(outcome))


def test_outcomes_that_say_different_things_are_not_equal() -> None:
    different = {
        *(Retry(), Retry(1), Retry(reason="x"), Retry(counts=False)),
        *(Reject("x"), Reject("y"), CONSUMED),
    }
    assert len(different) == 7
    assert Retry() != "again"
    assert Reject("x") != Retry(reason="x")


def test_an_outcome_shows_how_to_make_it() -> None:
    for outcome in (Retry(), Retry(0.5), Retry(reason="x"), Retry(1, "x", counts=False)):
        assert eval(repr(outcome)) == outcome
    assert repr(Reject("no such card")) == "Reject('no such card')"
    assert str(Retry(5, "busy")) == "again after 5 s: busy"
    assert str(Reject("no such card")) == "no such card"


def test_a_subclass_may_carry_more_and_is_equal_to_itself_alone() -> None:
    busy = CardBusy("1")
    assert busy == busy  # noqa: PLR0124 - that is the point
    assert busy != CardBusy("1")
    assert busy != Retry(5, "card 1 is busy")
    assert len({busy, CardBusy("1")}) == 2
    twin = pickle.loads(pickle.dumps(busy))
    assert (type(twin), twin.card, twin.after, twin.reason) == (CardBusy, "1", 5.0, busy.reason)


def test_a_subclass_that_forgets_its_parent_says_what_its_parent_says_by_default() -> None:
    assert checked_outcomes([NoCard("1")], 1)[0].reason == ""  # type: ignore[union-attr]
    assert repr(NoCard("1")) == "NoCard('')"


def test_the_reason_names_the_error_that_a_retry_was_raised_from_or_after() -> None:
    def fail() -> None:
        raise OSError("y")

    def from_an_error(cause: Exception | None) -> None:
        try:
            fail()
        except OSError:
            raise Retry(reason="busy") from cause

    def after_an_error() -> None:
        try:
            fail()
        except OSError:
            raise Retry  # noqa: B904 - as a handler may

    said: list[Retry] = []
    for way in (
        partial(from_an_error, ValueError("x")),
        partial(from_an_error, None),
        after_an_error,
    ):
        with pytest.raises(Retry) as raised:
            way()
        said.append(raised.value)

    assert [each.grounds for each in said] == ["busy; ValueError: x", "busy", "OSError: y"]
    assert (Retry().grounds, Retry().why) == ("", "the handler asked for it and gave no reason")


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        ({"counts": 1}, "counts of Retry is 1: give True or False"),
        ({"reason": None}, "the reason of Retry is None: give text"),
        ({"after": "5"}, "after of Retry is '5': give a number of seconds, a timedelta or None"),
        ({"after": math.inf}, "within 0..7200 s"),
    ],
)
def test_a_retry_of_wrong_values_is_not_made(wrong: dict[str, Any], says: str) -> None:
    with pytest.raises(UsageError, match=says):
        Retry(**wrong)


def test_a_retry_of_our_own_may_wait_longer_than_a_handlers() -> None:
    outcome = retry_of_ours(86_400.0, reason="its lease is long")
    assert (outcome.after, outcome.reason, outcome.counts) == (86_400.0, "its lease is long", True)


@pytest.mark.parametrize(
    ("answer", "meant"),
    [
        (Retry(5), [Retry(5)] * 2),
        (CONSUMED, [CONSUMED] * 2),
        (Consumed, [CONSUMED] * 2),
        (Retry, [Retry()] * 2),
        (Dead("x"), [Reject("x")] * 2),
        ([Consumed, Retry], [CONSUMED, Retry()]),
        ((Retry, CONSUMED), [Retry(), CONSUMED]),
    ],
)
def test_one_outcome_counts_for_all_and_a_class_for_what_it_makes(answer: Any, meant: Any) -> None:
    assert list(checked_outcomes(answer, 2)) == meant


def test_a_class_without_arguments_is_as_good_as_its_object() -> None:
    (outcome,) = checked_outcomes([Nameless], 1)
    assert isinstance(outcome, Nameless)
    assert outcome.reason == "it has no name"


@pytest.mark.parametrize(
    ("answer", "says"),
    [
        (
            [Reject],
            "returned the class .*: .*reason is missing",
        ),
        (
            CardBusy,
            "returned the class .*: .*missing 1 required positional argument: 'card'",
        ),
        (None, "got 1 messages and returned None: return one outcome for each, or one for all"),
        ([Retry(), Retry()], "got 1 messages and returned .*: return one outcome for each"),
        ((each for each in [Retry()]), "returned <generator object"),
        ({Retry()}, "returned {Retry()}"),
        ([[Retry()]], "which is not an outcome"),
        ([ValueError()], "which is not an outcome"),
        ([Exception], "which is not an outcome"),
        ([None], "which is not an outcome"),
    ],
)
def test_what_is_no_outcome_is_refused_with_what_to_do(answer: Any, says: str) -> None:
    with pytest.raises(UsageError, match=says.replace("()}", r"\(\)}")):
        checked_outcomes(answer, 1)


@pytest.mark.parametrize(
    ("name", "value"),
    [("after", "5"), ("after", math.nan), ("after", 10**400), ("counts", 0), ("reason", None)],
)
def test_what_was_set_wrong_since_is_refused_when_it_is_said(name: str, value: Any) -> None:
    outcome = Retry()
    setattr(outcome, name, value)
    with pytest.raises(UsageError, match=f"{name} of Retry is of type {type(value).__name__}"):
        checked_outcomes([outcome], 1)
    assert raised_outcomes(outcome, 1) is None
    assert f"{name} of Retry is of type" in traceback.format_exception_only(outcome)[-1]


def test_what_is_raised_again_and_again_does_not_grow() -> None:
    outcome = Retry()
    for _ in range(3):
        with pytest.raises(Retry) as raised:
            raise outcome
        assert raised_outcomes(raised.value, 2) == [outcome, outcome]
        assert outcome.__traceback__ is None


def test_an_error_that_is_no_word_says_nothing() -> None:
    assert raised_outcomes(ValueError(), 1) is None
    assert [is_failure(each) for each in (CONSUMED, Retry(), Retry(counts=False), Reject(""))] == [
        *(False, True, False, True)
    ]


# The old words


@pytest.mark.parametrize(("old", "new"), [("Later", "Retry"), ("Dead", "Reject")])
@pytest.mark.parametrize("home", [reliable_mq, subscription])
@pytest.mark.parametrize("way", ["import", "attribute"])
def test_an_old_name_is_there_and_warns_once_who_asks_for_it(
    home: Any, way: str, old: str, new: str
) -> None:
    code = f"from {home.__name__} import {old}" if way == "import" else f"{old} = home.{old}"
    names: dict[str, Any] = {"home": home}
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        exec(compile(code, "their_module.py", "exec"), names)
    assert [(each.category, each.filename) for each in told] == [
        (DeprecationWarning, "their_module.py")
    ]
    assert str(told[0].message) == f"{home.__name__}.{old} is called {new} now"
    assert names[old] is getattr(outcomes, old)


def test_importing_everything_warns_nobody() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        exec("from reliable_mq import *", {})


@pytest.mark.parametrize("home", [reliable_mq, subscription])
def test_a_name_that_never_was_is_refused(home: Any) -> None:
    with pytest.raises(AttributeError, match="has no attribute 'Sooner'"):
        _ = home.Sooner


def test_objects_of_the_old_words_are_of_the_new_ones_and_the_other_way_round() -> None:
    later, dead = Later(86_400, counts=False, reason="r"), Dead("r")
    assert (later.after_seconds, later.after) == (86_400, 86_400)
    assert (later.counts, later.reason, dead.reason) == (False, "r", "r")
    assert Later(5) == Retry(5)
    assert Dead("r") == Reject("r")
    assert isinstance(Retry(), Later)
    assert isinstance(Reject("r"), Dead)
    assert isinstance(later, Retry)
    assert not isinstance(Reject("r"), Later)
    assert not isinstance(CONSUMED, Later)
    assert issubclass(Retry, Later)
    assert str(later) == "Later(after_seconds=86400, counts=False, reason='r')"
    assert (str(dead), repr(dead)) == ("Dead(reason='r')", "Dead(reason='r')")


def test_a_subclass_of_an_old_word_is_itself_alone() -> None:
    class Soon(Later):
        pass

    assert isinstance(Soon(1), Soon)
    assert isinstance(Soon(1), Later)
    assert not isinstance(Retry(), Soon)
    (said,) = checked_outcomes(Soon(2.0), 1)
    assert isinstance(said, Soon)
    assert said.after == 2.0


def test_patterns_match_old_and_new_words() -> None:
    def told(outcome: Any) -> Any:
        match outcome:
            case Later(after, counts, reason):
                return after, counts, reason
            case Dead(reason):
                return reason
            case _:
                return None

    assert told(Retry(5.0, "busy")) == (5.0, True, "busy")
    assert told(Reject("no")) == "no"
    assert told(CONSUMED) is None
    match Retry(5.0, "busy"):
        case Retry(after, reason):
            assert (after, reason) == (5.0, "busy")
