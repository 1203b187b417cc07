"""How much connections may make a process keep together, and who goes first."""

from reliable_mq.runtime.held_bytes import HeldBytes


def test_who_has_held_something_longest_goes_first_when_it_is_too_much() -> None:
    held = {1: 40, 2: 30, 3: 20}
    bytes_ = HeldBytes(100, held.__getitem__)
    assert [bytes_.note(each, size) for each, size in held.items()] == [[], [], []]
    held[4] = 50
    assert bytes_.note(4, 50) == [1]
    held[2] = 40
    assert bytes_.note(2, 40) == [2]


def test_who_let_go_of_it_meanwhile_is_not_closed() -> None:
    held = {1: 60, 2: 30}
    bytes_ = HeldBytes(100, held.__getitem__)
    bytes_.note(1, 60)
    bytes_.note(2, 30)
    held[1] = 0
    held[3] = 60
    assert bytes_.note(3, 60) == []


def test_who_lets_go_and_holds_again_comes_last() -> None:
    held = {1: 50, 2: 50}
    bytes_ = HeldBytes(100, held.__getitem__)
    bytes_.note(1, 50)
    bytes_.note(2, 50)
    bytes_.note(1, 0)
    bytes_.note(1, 50)
    held[3] = 10
    assert bytes_.note(3, 10) == [2]
