"""A stream of rows is cut between messages, and a message that is too large is folded."""

import re

import pyarrow as pa
import pytest

from reliable_mq.reconcile.brokers.log_roles import DAMAGED
from reliable_mq.reconcile.judgement import unchecked
from reliable_mq.reconcile.judgement.event_rows import EVENT_ROWS, event_rows
from reliable_mq.reconcile.judgement.events import EVENTS, RECORD, ROLES
from reliable_mq.reconcile.judgement.fold import folded
from reliable_mq.reconcile.judgement.message_stream import whole_messages

SCHEMA = pa.schema([("id", pa.binary()), ("n", pa.int64())])


def batches(text: str, size: int) -> list[pa.RecordBatch]:
    """Return a row for each letter, which is its id, in batches of a size."""
    rows = {"id": [letter.encode() for letter in text], "n": list(range(len(text)))}
    return list(pa.table(rows, SCHEMA).to_batches(max_chunksize=size))


def cut(text: str, size: int, least: int) -> list[str]:
    return [
        b"".join(part["id"].to_pylist()).decode()
        for part in whole_messages(batches(text, size), least)
    ]


@pytest.mark.parametrize(
    ("text", "size", "least", "parts"),
    [
        ("aabbcc", 2, 2, ["aa", "bb", "cc"]),
        ("aabbcc", 2, 3, ["aabb", "cc"]),
        ("aabbcc", 2, 5, ["aabbcc"]),
        ("aabbcc", 3, 2, ["aa", "bb", "cc"]),
        ("abcdef", 6, 1, ["abcde", "f"]),
        ("aaaaaa", 2, 1, ["aaaaaa"]),
        ("aaab", 1, 1, ["aaa", "b"]),
        ("abbbbb", 2, 1, ["a", "bbbbb"]),
        ("abbbc", 1, 2, ["abbb", "c"]),
        ("a", 1, 9, ["a"]),
        ("", 1, 1, []),
    ],
)
def test_rows_of_a_message_stay_together(
    text: str, size: int, least: int, parts: list[str]
) -> None:
    """A table has at least so many rows, unless it is the last one."""
    assert cut(text, size, least) == parts


def test_empty_batches_are_passed_over() -> None:
    empty = pa.RecordBatch.from_pylist([], SCHEMA)
    stream = [empty, *batches("aab", 1), empty]
    stream.insert(2, empty)
    (first, second) = whole_messages(stream, 1)
    assert (first.num_rows, second.num_rows) == (2, 1)


def test_a_message_is_folded_when_it_has_twice_as_many_rows_as_a_table() -> None:
    """What lies before it is given out first. It is folded again at twice what was left of it."""
    sizes: list[int] = []

    def fold(rows: pa.Table) -> pa.Table:
        assert set(rows["id"].to_pylist()) == {b"b"}
        sizes.append(rows.num_rows)
        return rows.slice(0, 3)

    stream = batches("aa" + "b" * 20 + "c", 1)
    parts = list(whole_messages(stream, 2, fold))
    assert [part.num_rows for part in parts] == [2, 4, 1]
    assert sizes == [4, 6, 6, 6, 6, 6]


def test_a_message_below_that_is_not_folded() -> None:
    def fold(rows: pa.Table) -> pa.Table:
        raise AssertionError("it fits")

    assert [part.num_rows for part in whole_messages(batches("abbbc", 1), 2, fold)] == [4, 1]


def test_damage_is_no_message_and_is_not_folded() -> None:
    damage = dict.fromkeys(EVENTS.names) | {"kind": RECORD, "state": ROLES.index(DAMAGED)}
    damage |= {"tries": 0, "marks": 0, "size": 7}
    rows = [damage | {"log_offset": number} for number in range(20)]
    table = pa.Table.from_batches(
        [event_rows(pa.RecordBatch.from_pylist(rows, EVENTS))], EVENT_ROWS
    )
    kept, rest = folded(table)
    assert (kept.num_rows, len(rest)) == (20, 0)


@pytest.mark.parametrize(
    ("installed", "said"),
    [
        ((), "LZ4 (.+) and ZSTD (.+)$"),
        (("lz4",), "compressed by what is not installed here: ZSTD (.+)$"),
        (("lz4", "zstd"), "compressed by something unknown$"),
    ],
)
def test_messages_that_could_not_be_compared_are_told_with_what_is_missing(
    installed: tuple[str, ...], said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The text has no number, so that people are told once."""
    monkeypatch.setattr(unchecked, "is_installed", lambda kind: kind in (*installed, "zlib"))
    assert unchecked.flaw(0) is None
    told = unchecked.flaw(1)
    assert told == unchecked.flaw(700)
    assert told is not None
    assert told.startswith("some could not be compared with their stubs")
    assert re.search(said, told)
