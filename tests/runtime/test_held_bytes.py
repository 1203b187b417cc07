"""How much connections may make a process keep together, and who goes first."""

from reliable_mq.runtime.held_bytes import HeldBytes, UnreadAnswers


def test_who_holds_the_most_goes_first_and_then_who_has_held_it_longest() -> None:
    held = {1: 10, 2: 40, 3: 40}
    bytes_ = HeldBytes(100, held.__getitem__)
    assert [bytes_.set_size(each, size) for each, size in held.items()] == [[], [], []]
    held[4] = 20
    assert bytes_.set_size(4, 20) == [2]
    held[5] = 80
    assert bytes_.set_size(5, 80) == [5]


def test_a_slow_reader_outlasts_those_who_read_nothing() -> None:
    mib = 1024 * 1024
    held = {0: mib // 5} | dict.fromkeys(range(1, 200), 8 * mib)
    bytes_ = HeldBytes(256 * mib, held.__getitem__)
    gone = [each for number, size in held.items() for each in bytes_.set_size(number, size)]
    assert 150 < len(gone) < 199
    assert 0 not in gone


def test_all_are_counted_anew_seldom() -> None:
    counted = []

    def count(number: int) -> int:
        counted.append(number)
        return 1_000

    bytes_ = HeldBytes(1_000_000, count)
    for number in range(5_000):
        bytes_.set_size(number, 1_000)
    assert len(counted) < 50 * 1_001


def test_who_let_go_of_it_meanwhile_is_not_closed() -> None:
    held = {1: 60, 2: 30}
    bytes_ = HeldBytes(100, held.__getitem__)
    bytes_.set_size(1, 60)
    bytes_.set_size(2, 30)
    held[1] = 0
    held[3] = 60
    assert bytes_.set_size(3, 60) == []


def test_who_lets_go_and_holds_again_comes_last() -> None:
    held = {1: 50, 2: 50}
    bytes_ = HeldBytes(100, held.__getitem__)
    bytes_.set_size(1, 50)
    bytes_.set_size(2, 50)
    bytes_.set_size(1, 0)
    bytes_.set_size(1, 50)
    held[3] = 10
    assert bytes_.set_size(3, 10) == [2]


def test_answers_count_whole_until_their_last_byte_has_left() -> None:
    unread = UnreadAnswers()
    unread.note_written(4_000_000)
    assert unread.held(1_000_000) == 4_000_000

    unread.note_written(2_000_000)
    assert unread.held(3_000_000) == 6_000_000
    assert unread.held(2_000_001) == 6_000_000
    assert unread.held(2_000_000) == 2_000_000
    assert unread.held(1) == 2_000_000
    assert unread.held(0) == 0


def test_answers_that_were_not_noted_count_by_what_is_left_of_them() -> None:
    unread = UnreadAnswers()
    assert unread.held(100) == 100

    unread.note_written(70_000)
    assert unread.held(70_100) == 70_100
