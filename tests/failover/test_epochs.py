"""Epochs of a log: where two histories part, and the file that Apache's broker reads, too."""

import pytest

from reliable_mq.errors import ReplicationError, StoreError
from reliable_mq.failover.epochs import COUNT_MAX, Epoch, EpochHistory, agreed_offset, load_epochs

HISTORY = (Epoch(1, 0), Epoch(2, 1_000), Epoch(3, 1_000), Epoch(5, 4_000))


def history(*epochs: tuple[int, int]) -> EpochHistory:
    return EpochHistory(Epoch(*each) for each in epochs)


def test_the_file_is_read_as_it_was_written() -> None:
    assert load_epochs(EpochHistory(HISTORY).dump()).all == HISTORY
    assert load_epochs("").all == ()


def test_the_file_is_the_one_of_apaches_broker() -> None:
    """The example in Apache's `CheckpointFile`: size, CRC32 as a positive int, a line for each."""
    assert history((7, 7_000), (8, 8_000)).dump() == "2\n773307083\n7-7000\n8-8000\n"


@pytest.mark.parametrize(
    "text",
    [
        *("x", "1\n", "1\n0\n", "2\n0\n1-0\n", "1\n5\n1-0\n", "1\n0\n1-0-0\n", "1\n0\n1\n"),
        *("1\n0\n-1-0\n", "2\n0\n2-0\n1-5\n", "2\n0\n1-5\n2-0\n", "1\n0\n1-99999999999999999999\n"),
    ],
)
def test_a_damaged_file_is_refused_with_what_to_do(text: str) -> None:
    with pytest.raises(StoreError, match=r"epochFileCheckpoint is damaged: restore it from"):
        load_epochs(text)


def test_a_byte_belongs_to_the_newest_epoch_that_begins_before_it() -> None:
    epochs = EpochHistory(HISTORY)

    assert [epochs.at(offset) for offset in (0, 999, 1_000, 3_999, 4_000, 9_000)] == [
        *(Epoch(1, 0), Epoch(1, 0), Epoch(3, 1_000), Epoch(3, 1_000)),
        *(Epoch(5, 4_000), Epoch(5, 4_000)),
    ]
    assert history((1, 10)).at(9) is None
    assert epochs.room(990) == 10
    assert epochs.room(4_000) > 10**15


def test_an_epoch_that_is_known_begins_once() -> None:
    epochs = history((1, 0))

    assert epochs.begin(Epoch(2, 100))
    assert not epochs.begin(Epoch(2, 100))
    assert epochs.all == (Epoch(1, 0), Epoch(2, 100))


@pytest.mark.parametrize("wrong", [Epoch(2, 101), Epoch(1, 100), Epoch(3, 99), Epoch(0, 200)])
def test_an_epoch_that_does_not_follow_is_refused_and_changes_nothing(wrong: Epoch) -> None:
    epochs = history((1, 0), (2, 100))

    with pytest.raises(ReplicationError, match="does not follow epoch 2 from 100 on"):
        epochs.begin(wrong)
    assert epochs.all == (Epoch(1, 0), Epoch(2, 100))


def test_no_more_epochs_are_kept_than_apaches_master_can_send() -> None:
    epochs = EpochHistory()
    for number in range(COUNT_MAX + 5):
        epochs.begin(Epoch(number, number))

    assert len(epochs.all) == COUNT_MAX
    assert epochs.last == COUNT_MAX + 4


def test_a_cut_forgets_what_begins_behind_it_and_retention_what_ends_before() -> None:
    epochs = EpochHistory(HISTORY)

    assert epochs.cut(1_000)
    assert list(epochs.all) == [*HISTORY[:3]]
    assert not epochs.cut(1_000)
    epochs.forget_before(1_500)
    assert list(epochs.all) == [Epoch(3, 1_000)]


@pytest.mark.parametrize(
    ("own", "own_end", "other", "other_end", "agreed"),
    [
        # The same history: as far as the shorter log goes.
        ([(1, 0)], 500, [(1, 0)], 700, 500),
        ([(1, 0)], 700, [(1, 0)], 500, 500),
        # A former master that wrote on: its surplus begins where its successor's epoch begins.
        ([(1, 0)], 700, [(1, 0), (2, 500)], 900, 500),
        # A slave that missed an epoch has everything of the one before.
        ([(1, 0)], 400, [(1, 0), (2, 500)], 900, 400),
        # Two masters of one number began at other places: the epoch before counts.
        ([(1, 0), (2, 300)], 700, [(1, 0), (2, 500)], 900, 300),
        ([(1, 0), (2, 500)], 700, [(1, 0), (3, 300)], 900, 300),
        # An epoch without messages ends where it begins.
        ([(1, 0), (2, 1_000)], 1_100, [(1, 0), (2, 1_000), (3, 1_000)], 1_500, 1_000),
        ([(1, 0)], 0, [(1, 0), (2, 0)], 0, 0),
        # Nothing in common.
        ([(1, 0)], 500, [(2, 0)], 500, -1),
        ([(2, 100)], 500, [(3, 300)], 500, -1),
    ],
)
def test_two_logs_are_the_same_up_to_the_end_of_the_newest_common_epoch(
    own: list[tuple[int, int]],
    own_end: int,
    other: list[tuple[int, int]],
    other_end: int,
    agreed: int,
) -> None:
    found = agreed_offset(history(*own).all, own_end, history(*other).all, other_end)

    assert found == agreed
