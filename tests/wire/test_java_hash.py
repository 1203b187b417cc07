"""Java's String.hashCode; the values are what Java 17 printed."""

import pytest

from reliable_mq.wire.java_hash import index_hash, java_string_hash, tags_code


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
