"""When a slave stands in for its master: only if nothing contradicts."""

import pytest

from reliable_mq.replication.standing_in import (
    ALONE_SECONDS,
    UNTOLD_SECONDS,
    Members,
    StandInDecision,
    is_first,
)

M, S1, S2 = "m:1", "s1:1", "s2:1"


@pytest.mark.parametrize(
    ("own_id", "answers", "expected"),
    [
        (1, [{0: M, 1: S1}], False),
        (1, [{1: S1}], True),
        (1, [{1: S1, 2: S2}], True),
        (2, [{1: S1, 2: S2}], False),
        (2, [{2: S2}], True),
        (1, [{1: S1}, {0: M}], False),
        (1, [{1: S1}, None], True),
        (1, [{1: S1}, {}], True),
        (1, [{2: S2}], None),
        (1, [{}], None),
        (1, [None], None),
        (1, [], None),
    ],
)
def test_a_slave_is_the_first_if_it_is_known_and_nobody_before_it(
    own_id: int, answers: list[Members | None], expected: bool | None
) -> None:
    assert is_first(own_id, answers) is expected


def looked(*looks: tuple[float, bool | None, bool]) -> list[bool]:
    """Return what a slave decides at each look: (seconds, first, is_copying)."""
    decision = StandInDecision()
    return [decision.look(at, first=first, is_copying=copying) for at, first, copying in looks]


def test_it_stands_in_after_a_while_without_a_master() -> None:
    later = ALONE_SECONDS
    assert looked((0, True, False), (later / 2, True, False), (later, True, False)) == [
        False,
        False,
        True,
    ]


def test_one_look_with_a_master_begins_the_wait_again() -> None:
    wait = ALONE_SECONDS
    looks = [
        (0, True, False),
        (wait / 2, False, False),
        (wait, True, False),
        (2 * wait, True, False),
    ]
    assert looked(*looks) == [False, False, False, True]


def test_while_the_master_sends_its_log_it_is_there_whatever_name_servers_say() -> None:
    assert looked((0, True, True), (99, True, True)) == [False, False]
    assert looked((0, True, False), (2, True, False), (3, True, True)) == [False, True, False]


def test_it_goes_on_for_a_moment_without_name_servers_and_then_gives_up() -> None:
    looks = [(0, True, False), (2, True, False), (3, None, False)]
    assert looked(*looks, (2.1 + UNTOLD_SECONDS, None, False)) == [False, True, True, False]


def test_nobody_is_the_first_before_a_name_server_says_it() -> None:
    assert looked((0, None, False), (99, None, False)) == [False, False]


def test_it_gives_way_to_a_master_that_comes_back_and_stands_in_again_if_it_does_not() -> None:
    decision = StandInDecision()
    decision.look(0, first=True, is_copying=False)
    assert decision.look(2, first=True, is_copying=False)
    decision.give_way(12)
    assert not decision.is_acting
    assert not decision.look(11, first=True, is_copying=False)
    assert not decision.look(12, first=True, is_copying=False)
    assert decision.look(12 + ALONE_SECONDS, first=True, is_copying=False)
