"""The index of a log: what the quick ways through it list is what the format says, byte by byte."""

import struct
from collections.abc import Iterable
from datetime import datetime
from itertools import chain
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from reliable_mq.broker_core.store.commit_log import CommitLog
from reliable_mq.broker_core.store.message_index import FOLDER, IndexSizes, MessageIndex
from reliable_mq.testing.memory_disk import MemoryDisk
from reliable_mq.wire.java_hash import index_hash
from reliable_mq.wire.properties import decode_properties
from reliable_mq.wire.record import TRANSACTION_ROLLBACK, Record, pack_host
from reliable_mq.wire.record_encode import encode_record

SLOTS, ENTRIES = 50, 300
NOW_MS = 1_763_715_000_000
IPV4, IPV6 = pack_host("127.0.0.1", 1), pack_host("::1", 1)

TIMERS = "rmq_sys_wheel_timer"
TOPIC = st.sampled_from(["bench", "other", "order-ü", "x" * 127, "y" * 150, TIMERS, TIMERS])
# Of one client, of many, short, long, no ASCII, and two that look like something else.
KEY = (
    st.integers(0, 2**32 - 1).map(lambda number: f"7F0000010A2C18B4AAC25B8B{number:08X}")
    | st.text("0123456789abcdef", min_size=32, max_size=32)
    | st.text("kü€𝄞 ", max_size=12)
    | st.integers(-1, 2**63).map(lambda number: f"shop@3@{number}@g@1763715000000@b@ack")
    | st.text("0a@ü\x02", max_size=8).map(lambda text: f"shop@3@{text}@g@17@b@ack")
    | st.sampled_from(["order-1", "k" * 9, "k" * 255, "k" * 300, "TAGS", "a\x01TAGS\x01b"])
)
KEYS = st.lists(KEY, max_size=5).map(lambda keys: f"KEYS\x01{' '.join(keys)}\x02")
ANY = st.sampled_from(
    [
        *("WAIT\x01true\x02", "TAGS\x01red\x02", "TAGS\x01blü\x02", "MY_KEYS\x01k\x02", "\x02"),
        *("TAGS\x01\x02", "KEYS\x01\x02", "XUNIQ_KEY\x01not-this-one\x02", "a\x01KEYS\x01b\x02"),
    ]
)
AROUND = st.lists(ANY | KEYS, max_size=3).map("".join)


@st.composite
def alike(draw: st.DrawFn) -> list[Record]:
    """Draw messages that differ in little more than their unique key, as those of a client do."""
    before, behind = draw(AROUND), draw(AROUND)
    topic, flag = draw(TOPIC), draw(st.sampled_from([0, 0, 1, 4, 8, TRANSACTION_ROLLBACK]))
    host = draw(st.sampled_from([IPV4, IPV4, IPV6]))
    end = draw(st.sampled_from(["\x02", "\x02", ""])) if not behind else "\x02"
    return [
        Record(
            topic=topic,
            body=b"b" * draw(st.integers(0, 300)),
            properties=f"{before}UNIQ_KEY\x01{key}{end}{behind}".encode(),
            sys_flag=flag,
            born_host=host,
            store_host=IPV4,
            store_time_ms=NOW_MS + draw(st.integers(-2000, 5000)),
        )
        for key in draw(st.lists(KEY, min_size=1, max_size=6))
    ]


MESSAGES = st.lists(alike(), min_size=1, max_size=4).map(lambda runs: list(chain(*runs)))


def log_of(messages: Iterable[Record], disk: MemoryDisk, segment_size: int = 16_384) -> CommitLog:
    """Return a log that holds these messages; each of them learns its place."""
    log = CommitLog(disk, segment_size)
    for message in messages:
        size = len(encode_record(message))
        message.commit_log_offset = log.room_for(size)
        log.add(encode_record(message))
    batch = log.take_batch()
    assert batch is not None
    CommitLog.write_batch(batch)
    log.mark_durable(batch.end)
    return log


def index_of(log: CommitLog, disk: MemoryDisk, *, is_short: bool = False) -> list[bytes]:
    """Return the files of the index, made in as many slices as it takes."""
    index = MessageIndex(disk, log, IndexSizes(SLOTS, ENTRIES))
    while index.indexed < log.end:
        index.advance(log.end, NOW_MS, is_short=is_short)
    return [disk.files()[f"{FOLDER}/{name}"] for name in disk.names(FOLDER)]


def entries_of(message: Record) -> list[int]:
    """Return the hashes under which the format lists a message."""
    if message.sys_flag & TRANSACTION_ROLLBACK == TRANSACTION_ROLLBACK:
        return []
    properties = decode_properties(message.properties)
    unique, tag = properties.get("UNIQ_KEY"), properties.get("TAGS")
    keys = [unique, *properties.get("KEYS", "").split(" "), f"T#{tag}" if tag else None]
    return [index_hash(message.topic, key) for key in keys if key]


def files_as_the_format_says(messages: Iterable[Record]) -> list[bytes]:
    """Return the index files of these messages, made entry by entry."""
    rows = [(key_hash, message) for message in messages for key_hash in entries_of(message)]
    return [
        file_of(rows[begin : begin + ENTRIES - 1]) for begin in range(0, len(rows), ENTRIES - 1)
    ]


def file_of(rows: list[tuple[int, Record]]) -> bytes:
    first, last = rows[0][1], rows[-1][1]
    slots = dict.fromkeys(range(SLOTS), 0)
    entries = bytes(20)
    for number, (key_hash, message) in enumerate(rows, 1):
        seconds = max(message.store_time_ms - first.store_time_ms, 0) // 1000
        before = slots[key_hash % SLOTS]
        entries += struct.pack(">iqii", key_hash, message.commit_log_offset, seconds, before)
        slots[key_hash % SLOTS] = number
    times = first.store_time_ms, last.store_time_ms
    offsets = first.commit_log_offset, last.commit_log_offset
    in_use = sum(number > 0 for number in slots.values())
    head = struct.pack(">qqqqii", *times, *offsets, in_use, len(rows) + 1)
    return (head + struct.pack(f">{SLOTS}i", *slots.values()) + entries).ljust(
        40 + SLOTS * 4 + ENTRIES * 20, b"\0"
    )


@settings(max_examples=50, deadline=None)  # an example is a whole log
@given(MESSAGES)
def test_an_index_is_byte_by_byte_what_the_format_says(messages: list[Record]) -> None:
    disk = MemoryDisk()
    log = log_of(messages, disk)
    assert index_of(log, disk) == files_as_the_format_says(messages)


@settings(max_examples=50, deadline=None)  # an example is a whole log
@given(MESSAGES, st.randoms(use_true_random=False))
def test_behind_a_damaged_record_the_index_goes_on_with_the_next_valid_one(
    messages: list[Record], random: Random
) -> None:
    disk = MemoryDisk()
    log = log_of(messages, disk)
    damaged = random.choice(messages)
    first, segment = log.segment_at(damaged.commit_log_offset)
    place = random.choice([0, 4, 28])  # its size, its magic, its own place
    segment.write(damaged.commit_log_offset - first + place, [b"\x7f\xff\xff\xf0"])
    rest = [message for message in messages if message is not damaged]
    assert index_of(log, disk) == files_as_the_format_says(rest)


def many_alike(count: int, properties: str) -> list[Record]:
    return [
        Record("bench", b"b" * 500, properties.format(number).encode(), store_time_ms=NOW_MS)
        for number in range(count)
    ]


@pytest.mark.parametrize(
    "properties",
    [
        "UNIQ_KEY\x017F0000010A2C18B4AAC2{0:012X}\x02WAIT\x01true\x02TAGS\x01red\x02",
        "KEYS\x01order-{0}\x02UNIQ_KEY\x017F0000010A2C18B4AAC2{0:012X}\x02WAIT\x01true\x02",
        "UNIQ_KEY\x01{0:032d}\x02u\x01{0}\x02",
        "WAIT\x01true\x02",
    ],
)
@pytest.mark.parametrize("is_short", [False, True])
def test_slices_of_a_long_log_lack_nothing_between_them(properties: str, is_short: bool) -> None:
    messages = many_alike(2000, properties)
    disk = MemoryDisk()
    log = log_of(messages, disk, segment_size=400_000)
    assert index_of(log, disk, is_short=is_short) == files_as_the_format_says(messages)


@pytest.mark.parametrize("topics", [1, 200])
def test_a_short_slice_lists_an_eighth_of_the_records(topics: int) -> None:
    disk = MemoryDisk()
    messages = many_alike(200, "UNIQ_KEY\x01{0:032d}\x02")
    for number, message in enumerate(messages):
        message.topic = f"t-{number % topics:03d}"
    log = log_of(messages, disk, segment_size=400_000)
    seen = []
    for is_short in (True, False):
        index = MessageIndex(disk, log, IndexSizes(SLOTS, ENTRIES))
        index.advance(log.end, NOW_MS, is_short=is_short)
        seen.append(index.indexed)
        disk = MemoryDisk()
    assert seen[1] == 8 * seen[0]
    assert (seen[1] > log.end // 2) == (topics == 1), "a new topic takes as long as five records"


def test_a_key_that_seems_as_long_as_the_last_one_is_cut_where_it_ends() -> None:
    shape = "UNIQ_KEY\x01{}\x02WAIT\x01true\x02"
    keys = ["7F0000010A2C18B4AAC2000000000001", "7F0000010A2C18B4AAC20000\x02KEYS\x01xy"]
    messages = [Record("t", b"", shape.format(key).encode()) for key in [keys[0], *keys, keys[1]]]
    assert len({len(message.properties) for message in messages}) == 1
    disk = MemoryDisk()
    log = log_of(messages, disk)
    assert index_of(log, disk) == files_as_the_format_says(messages)


@pytest.mark.parametrize("odd", ["or er-0003", "order 0004", "ordér0005", "order 1", "ordér 1"])
def test_a_key_as_long_as_the_last_one_that_is_two_or_no_ascii_is_listed_right(odd: str) -> None:
    shape = "KEYS\x01{}\x02UNIQ_KEY\x017F0000010A2C18B4AAC2000000000001\x02TAGS\x01red\x02"
    plain = ["order-0001", "order-1", "orders-1"] * 4
    messages = [Record("t", b"", shape.format(key).encode()) for key in [*plain, odd, *plain, odd]]
    disk = MemoryDisk()
    log = log_of(messages, disk)
    assert index_of(log, disk) == files_as_the_format_says(messages)


def test_a_message_with_very_many_keys_is_listed_whole() -> None:
    keys = " ".join(f"k{number}" for number in range(5000))
    messages = [Record("t", b"", f"KEYS\x01{keys}\x02".encode())]
    disk = MemoryDisk()
    log = log_of(messages, disk, segment_size=100_000)
    assert index_of(log, disk) == files_as_the_format_says(messages)


def test_a_slice_that_found_no_room_for_its_second_file_lists_nothing_twice() -> None:
    messages = many_alike(200, "UNIQ_KEY\x01{:032X}\x02TAGS\x01red\x02")
    intact, disk = MemoryDisk(), MemoryDisk()
    expected = index_of(log_of(messages, intact, segment_size=200_000), intact)
    assert expected == files_as_the_format_says(messages)
    assert len(expected) == 2

    log = log_of(messages, disk, segment_size=200_000)
    operations = [operation.path for operation in intact.operations]
    disk.fail_at = operations.index(f"{FOLDER}/{intact.names(FOLDER)[1]}")
    index = MessageIndex(disk, log, IndexSizes(SLOTS, ENTRIES))
    with pytest.raises(OSError, match="Input/output"):
        index.advance(log.end, NOW_MS)
    assert index.indexed == 0
    while index.indexed < log.end:
        index.advance(log.end, NOW_MS)
    assert [disk.files()[f"{FOLDER}/{name}"] for name in disk.names(FOLDER)] == expected


class Listed:
    """An index of three files, for messages that have a key each and are a second apart."""

    def __init__(self, count: int, entries: int, *, apart_ms: int = 1000) -> None:
        self.disk = MemoryDisk()
        self.messages = [
            Record("t", b"", f"KEYS\x01{number % 2}\x02".encode(), store_time_ms=NOW_MS)
            for number in range(count)
        ]
        for number, each in enumerate(self.messages):
            each.store_time_ms += apart_ms * number
        self.log = log_of(self.messages, self.disk)
        self.index = MessageIndex(self.disk, self.log, IndexSizes(7, entries))
        while self.index.indexed < self.log.end:
            self.index.advance(self.log.end, NOW_MS)

    def found(self, begin: int, end: int, count_max: int = 64, key: str = "1") -> list[int]:
        """Return the numbers of the messages that are found, by seconds."""
        span = (NOW_MS + 1000 * begin, NOW_MS + 1000 * end)
        selection = self.index.select("t", key, count_max, *span)
        places = [each.commit_log_offset for each in self.messages]
        return [places.index(offset) for offset in selection.offsets]


def test_the_newest_messages_of_a_key_are_selected_oldest_first() -> None:
    listed = Listed(12, 5)
    assert len(listed.disk.names(FOLDER)) == 3
    assert listed.found(0, 99) == [1, 3, 5, 7, 9, 11]
    assert listed.found(0, 99, 2) == [9, 11]
    assert listed.found(0, 99, 4) == [5, 7, 9, 11]
    assert listed.found(3, 7) == [3, 5, 7]
    assert listed.found(4, 4) == []
    assert listed.found(0, 99, key="none") == []
    selection = listed.index.select("t", "none", 9, 0, 1)
    last = listed.messages[-1]
    assert tuple(selection) == ([], last.commit_log_offset, last.store_time_ms)


def test_messages_of_one_time_are_selected_from_all_files_that_have_it() -> None:
    listed = Listed(12, 5, apart_ms=0)
    assert listed.found(0, 0) == [1, 3, 5, 7, 9, 11]
    assert listed.found(-1, 99) == [1, 3, 5, 7, 9, 11]


def test_no_more_is_selected_than_apaches_broker_gives_at_once() -> None:
    listed = Listed(200, 1000)
    assert listed.found(0, 999, 500) == list(range(73, 200, 2))


def test_an_index_without_files_selects_nothing() -> None:
    disk = MemoryDisk()
    index = MessageIndex(disk, CommitLog(disk, 1024), IndexSizes(5, 9))
    assert tuple(index.select("t", "k", 9, 0, 2**62)) == ([], 0, 0)
    assert index.take_full() == []
    assert index.take_expired(10**9) == []


def test_a_tag_is_selected_as_its_own_kind_of_key() -> None:
    disk = MemoryDisk()
    messages = [Record("t", b"", b"TAGS\x01red\x02", store_time_ms=NOW_MS)]
    log = log_of(messages, disk)
    index = MessageIndex(disk, log, IndexSizes(5, 9))
    index.advance(log.end, NOW_MS)
    assert index.select("t", "red", 9, 0, 2**62, "T").offsets == [0]
    for kind in ("", "U", "K"):
        assert index.select("t", "red", 9, 0, 2**62, kind).offsets == []


def test_files_expire_with_their_messages_but_never_the_newest() -> None:
    listed = Listed(12, 5)
    names = listed.disk.names(FOLDER)
    last = listed.messages[3].commit_log_offset
    assert listed.index.take_expired(last) == []
    ((file, path),) = listed.index.take_expired(last + 1)
    assert (file.end_offset, path) == (last, f"{FOLDER}/{names[0]}")
    assert listed.found(0, 99) == [5, 7, 9, 11]
    assert [path for _, path in listed.index.take_expired(10**9)] == [f"{FOLDER}/{names[1]}"]


def test_full_files_are_named_until_they_are_synced() -> None:
    listed = Listed(10, 5)
    full = listed.index.take_full()
    assert [file.end_offset for file in full] == [
        listed.messages[number].commit_log_offset for number in (3, 7)
    ]
    full[0].sync()
    assert listed.index.take_full() == full[1:]
    listed.index.close()
    assert listed.index.take_full() == []
    assert not any(path.startswith(FOLDER) for path in +listed.disk.opened)


def test_names_of_files_are_local_times_and_increase() -> None:
    disk = MemoryDisk()
    listed = Listed(12, 5)
    name = f"{datetime.fromtimestamp(NOW_MS // 1000):%Y%m%d%H%M%S}{NOW_MS % 1000:03d}"  # noqa: DTZ006
    assert listed.disk.names(FOLDER) == [f"{int(name) + more:017d}" for more in range(3)]
    disk.place_file(f"{FOLDER}/{name}", b"?")  # of another size: left alone
    log = log_of(listed.messages, disk)
    index = MessageIndex(disk, log, IndexSizes(7, 50))
    index.advance(log.end, NOW_MS)
    assert disk.names(FOLDER) == [name, f"{int(name) + 1:017d}"]
    assert disk.files()[f"{FOLDER}/{name}"] == b"?"


@pytest.mark.parametrize(
    ("is_whole", "safe", "kept"), [(True, -1, 3), (False, 3, 1), (False, 2, 0), (False, 11, 3)]
)
def test_files_that_may_not_be_on_the_medium_are_made_again(
    is_whole: bool, safe: int, kept: int
) -> None:
    """Only files that end up to the time of the checkpoint are safe after a power loss."""
    listed = Listed(12, 5)
    before = {name: listed.disk.files()[f"{FOLDER}/{name}"] for name in listed.disk.names(FOLDER)}
    again = MessageIndex(listed.disk, listed.log, IndexSizes(7, 5))
    again.open(is_whole=is_whole, was_killed=True, safe_time_ms=NOW_MS + 1000 * safe)
    assert listed.disk.names(FOLDER) == list(before)[:kept]
    places = [each.commit_log_offset for each in listed.messages]
    assert again.indexed == [0, places[4], places[8], listed.log.end][kept]
    while again.indexed < listed.log.end:
        again.advance(listed.log.end, NOW_MS)
    listed.index = again
    assert listed.found(0, 99) == [1, 3, 5, 7, 9, 11]


def test_a_file_that_lists_what_the_log_has_not_is_made_again() -> None:
    listed = Listed(12, 5)
    listed.log.cut(listed.messages[9].commit_log_offset)
    again = MessageIndex(listed.disk, listed.log, IndexSizes(7, 5))
    again.open(is_whole=True, was_killed=True, safe_time_ms=0)
    assert len(listed.disk.names(FOLDER)) == 2
    assert again.indexed == listed.messages[8].commit_log_offset
