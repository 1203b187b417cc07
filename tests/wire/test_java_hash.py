"""Java's String.hashCode; the values are what Java 17 printed."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from reliable_mq.wire.java_hash import (
    KeyHashes,
    index_hash,
    index_hashes,
    java_string_hash,
    tags_code,
)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("", 0),
        ("a", 97),
        ("\0", 0),
        ("TagA", 2_598_919),
        ("Ünï", 215_069),
        ("\uffff", 65_535),
        ("𝄞", 1_772_394),  # two UTF-16 units: 0xD834 * 31 + 0xDD1E
        ("orders#42", -390_725_412),  # overflows
        ("polygenelubricants", -(2**31)),
    ],
)
def test_a_text_has_the_hash_that_java_gives_it(text: str, value: int) -> None:
    assert java_string_hash(text) == tags_code(text) == value


def test_a_tag_longer_than_what_is_remembered_has_its_hash_too() -> None:
    assert tags_code("a" * 1000) == java_string_hash("a" * 1000)


@pytest.mark.parametrize(
    ("topic", "key", "value"),
    [
        ("bench", "k0", 1_684_050_008),
        ("bench", "k1", 1_684_050_009),
        ("bench", "T#TagA", 22_961_015),
        ("orders", "42", 390_725_412),
    ],
)
def test_the_index_hash_is_never_negative(topic: str, key: str, value: int) -> None:
    assert index_hash(topic, key) == value


def test_the_one_hash_without_a_positive_twin_is_zero_in_the_index() -> None:
    key = key_that_reaches(-(2**31), behind="t#")

    assert java_string_hash(f"t#{key}") == -(2**31)
    assert index_hash("t", key) == 0


KEYS = st.lists(st.text("\x7fzaA0", max_size=20) | st.text("a0", min_size=250, max_size=260))


@given(KEYS, st.sampled_from(["", "orders", "Ünï", "\uffff" * 9]))
def test_many_hashes_at_once_are_those_that_each_has(keys: list[str], topic: str) -> None:
    hashes = KeyHashes(f"{topic}#")
    cut = {key: hashes.cut(key.encode()) for key in keys}
    halves = [found for found in cut.values() if found]
    together = index_hashes([share for share, _ in halves], [tail for _, tail in halves])

    assert together == [index_hash(topic, key) for key, found in cut.items() if found]
    assert [hashes.whole(key.encode()) for key in keys] == [index_hash(topic, key) for key in keys]
    assert all(cut[key] for key in keys if len(key) < 256)


def test_more_hashes_than_one_number_holds_are_computed_in_groups() -> None:
    hashes = KeyHashes("orders#")
    keys = [f"{number:032X}" for number in range(1, 3000)]
    cut = [hashes.cut(key.encode()) or (b"", b"") for key in keys]

    assert index_hashes(*zip(*cut, strict=True)) == [index_hash("orders", key) for key in keys]


def test_the_hash_without_a_positive_twin_is_zero_among_many() -> None:
    head = "0123456789"
    tail = ascii_tail_that_reaches(2**31, behind=f"t#{head}")
    cut = KeyHashes("t#").cut((head + tail).encode())

    assert cut is not None
    assert java_string_hash(f"t#{head}{tail}") == -(2**31)
    assert index_hashes([cut[0]], [cut[1]]) == [0]


def ascii_tail_that_reaches(goal: int, *, behind: str) -> str:
    """Return eight ASCII characters behind which the hash is `goal`."""
    rest = (goal - java_string_hash(f"{behind}!!!!!!!!")) % 2**32
    digits = []
    for _ in range(7):
        rest, digit = divmod(rest, 31)
        digits.append(chr(ord("!") + digit))
    assert rest == 0  # 31**7 is more than 2**32
    return "!" + "".join(reversed(digits))


def key_that_reaches(goal: int, *, behind: str) -> str:
    """Return a key behind which the hash is `goal`: a first character, then six digits base 31."""
    for first in range(1, 0xD800):
        rest = (goal - java_string_hash(behind + chr(first) + "!" * 6)) % 2**32
        digits = []
        for _ in range(6):
            rest, digit = divmod(rest, 31)
            digits.append(chr(ord("!") + digit))
        if rest == 0:
            return chr(first) + "".join(reversed(digits))
    raise AssertionError("no such key")
