"""The key by which the traces of a message find each other."""

import pyarrow as pa
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from tests.reconcile.ledgers import LONG_AGO, NOW, message_id

from reliable_mq.reconcile.judgement.events import (
    EVENTS,
    NO_TIME,
    id_times,
    packed_ids,
    unpacked_ids,
)

_DIGITS = st.text("0123456789ABCDEF", min_size=32, max_size=32)
_IDS = st.one_of(
    st.none(),
    _DIGITS,
    _DIGITS.map(lambda digits: "FF" + digits[2:]),
    _DIGITS.map(str.lower),
    st.text("\u00ff0A", max_size=40),
    st.text(st.characters(exclude_categories=["Cs"]), max_size=40),
)


@settings(deadline=None)  # the first call loads Arrow's functions
@given(st.lists(_IDS, max_size=30), st.integers(0, 5))
@example(["FF" + "41" * 15, "A" * 15], 0)
@example([], 0)
def test_every_id_is_packed_to_a_key_of_its_own_and_found_again(
    ids: list[str | None], skipped: int
) -> None:
    """Given any ids, also in the middle of an array, then none is lost or taken for another."""
    texts = pa.array(ids, pa.string()).slice(skipped)

    packed = packed_ids(texts)

    assert packed.type == EVENTS.field("id").type
    assert unpacked_ids(packed) == texts
    keys, values = packed.to_pylist(), texts.to_pylist()
    assert len(set(keys)) == len(set(values))
    assert [key is None for key in keys] == [value is None for value in values]


def test_an_id_of_ours_takes_sixteen_bytes_and_sorts_by_its_time() -> None:
    ids = [message_id(number, moment) for moment in (LONG_AGO, NOW) for number in (1, 2)]

    packed = packed_ids(pa.array(ids)).to_pylist()

    assert packed == [bytes.fromhex(each) for each in ids]
    assert packed == sorted(packed)


_DIGITS_OF_ALL = "0123456789ABCDEF"
_PACKED = {
    _DIGITS_OF_ALL * 2: bytes.fromhex(_DIGITS_OF_ALL * 2),
    "0" * 32: bytes(16),
    "FE" + "F" * 30: b"\xfe" + b"\xff" * 15,
    "FF" + "0" * 30: b"\xffFF" + b"0" * 30,
    _DIGITS_OF_ALL.lower() * 2: b"\xff" + _DIGITS_OF_ALL.lower().encode() * 2,
    "G" + "0" * 31: b"\xffG" + b"0" * 31,
    "0" * 31: b"\xff" + b"0" * 31,
    "0" * 33: b"\xff" + b"0" * 33,
    "A" * 15: b"\xff" + b"A" * 15,
    "": b"\xff",
    "é": b"\xff\xc3\xa9",
    None: None,
}


@pytest.mark.parametrize(("text", "key"), _PACKED.items())
def test_only_thirty_two_upper_case_digits_are_packed_as_a_number(
    text: str | None, key: bytes | None
) -> None:
    texts = pa.array([text], pa.string())
    assert packed_ids(texts).to_pylist() == [key]
    assert unpacked_ids(packed_ids(texts)).to_pylist() == [text]


@pytest.mark.parametrize("order", [1, -1])
@pytest.mark.parametrize("skipped", [0, 1, 5])
def test_ids_of_all_kinds_are_packed_side_by_side(order: int, skipped: int) -> None:
    texts = pa.array([*_PACKED][::order], pa.string()).slice(skipped)
    packed = packed_ids(texts)
    assert packed.to_pylist() == [_PACKED[text] for text in texts.to_pylist()]
    assert unpacked_ids(packed).equals(texts)
    assert unpacked_ids(packed.slice(1)).equals(texts.slice(1))


_OURS = f"{1_700_000_000_123:012X}7ABC9" + "D" * 15
_TIMES = {
    _OURS: 1_700_000_000_123_000,
    _OURS.lower(): 1_700_000_000_123_000,
    "0" * 12 + "70008" + "0" * 15: 0,
    "0" * 11 + "1" + "7000B" + "0" * 15: 1_000,
    f"{253_402_300_799_999:012X}70008" + "0" * 15: 253_402_300_799_999_000,
    f"{253_402_300_800_000:012X}70008" + "0" * 15: None,  # the year 10000
    _OURS.replace("7ABC9", "6ABC9"): None,  # another version of UUID
    _OURS.replace("7ABC9", "7ABC7"): None,  # another variant
    _OURS.replace("7ABC9", "7ABCC"): None,
    _OURS[:-1] + "G": None,
    "G" + _OURS[1:]: None,
    _OURS + "0": None,
    _OURS[:-1]: None,
    "a name": None,
    "": None,
}


@pytest.mark.parametrize("skipped", range(len(_TIMES)))
def test_the_time_of_an_id_is_read_from_our_own_ids_only(skipped: int) -> None:
    """An id is a UUID of version 7, in digits of either case. Any other id has no time."""
    ids, times = [*_TIMES][skipped:], [*_TIMES.values()][skipped:]
    found = id_times(packed_ids(pa.array(ids)))
    assert [None if each == NO_TIME else each for each in found.tolist()] == times
    assert id_times(packed_ids(pa.array(ids[:1]))).tolist() == found[:1].tolist()


def test_a_lost_id_has_no_time() -> None:
    lost = pa.array([None, packed_ids(pa.array([_OURS]))[0].as_py()], pa.binary())
    assert id_times(lost).tolist() == [NO_TIME, _TIMES[_OURS]]
    assert id_times(pa.array([], pa.binary())).tolist() == []
