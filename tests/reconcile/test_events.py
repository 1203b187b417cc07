"""The key by which the traces of a message find each other."""

import pyarrow as pa
from hypothesis import example, given, settings
from hypothesis import strategies as st
from tests.reconcile.ledgers import LONG_AGO, NOW, message_id

from reliable_mq.reconcile.judgement.events import EVENTS, packed_ids, unpacked_ids

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
