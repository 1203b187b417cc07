"""The index lists messages of every layout of properties, also when many of one layout follow.

The quick ways through a log learn a layout when it repeats. So each is repeated here, alone and
in turns with another one.
"""

from itertools import chain

import pytest
from tests.broker_core.store.test_message_index import (
    IPV4,
    NOW_MS,
    files_as_the_format_says,
    index_of,
    log_of,
)

from reliable_mq.testing.memory_disk import MemoryDisk
from reliable_mq.wire.record import TRANSACTION_ROLLBACK, Record, pack_host

COUNT = 70
UNIQUE = "7F0000010A2C18B4AAC2{0:012X}"
LAYOUTS = {
    "unique": f"UNIQ_KEY\x01{UNIQUE}\x02",
    "unique, tag": f"UNIQ_KEY\x01{UNIQUE}\x02WAIT\x01true\x02TAGS\x01red\x02",
    "tag, unique": f"TAGS\x01red\x02UNIQ_KEY\x01{UNIQUE}\x02",
    "other, unique": f"WAIT\x01true\x02UNIQ_KEY\x01{UNIQUE}\x02TAGS\x01red\x02",
    "no end": f"WAIT\x01true\x02UNIQ_KEY\x01{UNIQUE}",
    "name that ends so": f"XUNIQ_KEY\x01{UNIQUE}\x02TAGS\x01red\x02",
    "value that ends so": f"a\x01b UNIQ_KEY\x01{UNIQUE}\x02",
    "names that end so": f"XKEYS\x01k{{0}}\x02UNIQ_KEY\x01{UNIQUE}\x02XTAGS\x01red\x02",
    "twice": f"UNIQ_KEY\x01{UNIQUE}\x02UNIQ_KEY\x01{{0:032d}}\x02",
    "keys, unique": f"KEYS\x01order-{{0}}\x02UNIQ_KEY\x01{UNIQUE}\x02",
    "keys, unique, tag": f"KEYS\x01order-{{0}}\x02UNIQ_KEY\x01{UNIQUE}\x02TAGS\x01red\x02",
    "long key, unique": f"KEYS\x01order-{{0:030d}}\x02UNIQ_KEY\x01{UNIQUE}\x02WAIT\x01true\x02",
    "two keys, unique": f"KEYS\x01a{{0}} b{{0}}\x02UNIQ_KEY\x01{UNIQUE}\x02",
    "no key, unique": f"KEYS\x01\x02UNIQ_KEY\x01{UNIQUE}\x02TAGS\x01red\x02",
    "space, unique": f"KEYS\x01 \x02UNIQ_KEY\x01{UNIQUE}\x02",
    "other, keys, unique": f"WAIT\x01true\x02KEYS\x01k{{0}}\x02UNIQ_KEY\x01{UNIQUE}\x02",
    "unique, keys": f"UNIQ_KEY\x01{UNIQUE}\x02KEYS\x01order-{{0:06d}}\x02",
    "keys alone": "KEYS\x01order-{0:06d}\x02",
    "keys, key that has no ASCII": f"KEYS\x01ördér-{{0:06d}}\x02UNIQ_KEY\x01{UNIQUE}\x02",
    "unique that has no ASCII": "UNIQ_KEY\x01üüüüüüüüüüüüüüüü{0:012X}\x02TAGS\x01red\x02",
    "no unique": "UNIQ_KEY\x01\x02TAGS\x01red\x02a\x01{0}\x02",
    "tag alone": "TAGS\x01red\x02",
    "empty tag": f"UNIQ_KEY\x01{UNIQUE}\x02TAGS\x01\x02",
    "many tags": f"UNIQ_KEY\x01{UNIQUE}\x02TAGS\x01t{{0}}\x02",
    "many others": f"a\x01{{0:04d}}\x02UNIQ_KEY\x01{UNIQUE}\x02",
    "nothing": "",
}
OTHERS = {
    "rolled back": {"sys_flag": TRANSACTION_ROLLBACK},
    "IPv6": {"born_host": pack_host("::1", 1), "sys_flag": 0x10},
    "long topic": {"topic": "y" * 150},
}


def messages(layout: str, count: int = COUNT, topic: str = "bench") -> list[Record]:
    return [
        Record(
            topic,
            b"b" * (number % 7),
            layout.format(number).encode(),
            store_time_ms=NOW_MS + number,
            store_host=IPV4,
        )
        for number in range(count)
    ]


def check(listed: list[Record], segment_size: int = 400_000) -> None:
    disk = MemoryDisk()
    log = log_of(listed, disk, segment_size)
    assert index_of(log, disk) == files_as_the_format_says(listed)


@pytest.mark.parametrize("layout", LAYOUTS.values(), ids=LAYOUTS)
def test_messages_of_one_layout_are_listed_under_each_of_their_keys(layout: str) -> None:
    check(messages(layout))


@pytest.mark.parametrize("layout", LAYOUTS.values(), ids=LAYOUTS)
def test_messages_of_two_layouts_and_topics_in_turns_are_listed(layout: str) -> None:
    usual = LAYOUTS["unique, tag"]
    for other in (messages(usual), messages(usual, topic="other"), messages(layout, topic="other")):
        turns = zip(messages(layout), other, strict=True)
        check(list(chain(*turns)))


@pytest.mark.parametrize("size", range(1, 40))
def test_keys_of_any_length_are_listed(size: int) -> None:
    key = f"{{0:0{size}d}}"[-60:]
    check(messages(f"UNIQ_KEY\x01{key}\x02TAGS\x01red\x02"))
    check(messages(f"KEYS\x01{key}\x02UNIQ_KEY\x01{UNIQUE}\x02"))
    check(messages(f"KEYS\x01order-{{0}}\x02UNIQ_KEY\x01{key}\x02TAGS\x01red\x02"))


@pytest.mark.parametrize("fields", OTHERS.values(), ids=OTHERS)
@pytest.mark.parametrize("layout", ["unique, tag", "keys, unique", "keys alone"])
def test_records_of_other_forms_are_listed_among_usual_ones(
    fields: dict[str, object], layout: str
) -> None:
    usual = messages(LAYOUTS[layout])
    others = messages(LAYOUTS[layout])
    for other in others:
        for name, value in fields.items():
            setattr(other, name, value)
    check(list(chain(*zip(usual, others, strict=True))))
    check(others)


@pytest.mark.parametrize("place", [0, 1, 40, COUNT - 2])
@pytest.mark.parametrize("layout", ["unique, tag", "keys, unique, tag", "keys alone"])
@pytest.mark.parametrize("topic", ["bench", "y" * 150])
def test_a_record_whose_size_reaches_over_the_next_one_is_damaged_and_only_it(
    layout: str, place: int, topic: str
) -> None:
    listed = messages(LAYOUTS[layout], topic=topic)
    disk = MemoryDisk()
    log = log_of(listed, disk, 400_000)
    broken, following = listed[place : place + 2]
    end = following.commit_log_offset
    end += (listed[place + 2].commit_log_offset if place + 2 < COUNT else log.end) - end
    first, segment = log.segment_at(broken.commit_log_offset)
    size = end - broken.commit_log_offset
    segment.write(broken.commit_log_offset - first, (size.to_bytes(4),))
    listed.remove(broken)
    assert index_of(log, disk) == files_as_the_format_says(listed)
    assert [tuple(each) for each in log.damage.stretches] == [
        (broken.commit_log_offset, following.commit_log_offset)
    ]


def test_entries_of_one_message_may_lie_in_two_files() -> None:
    layout = "KEYS\x01" + " ".join(f"k{number}" for number in range(40)) + "\x02"
    check(messages(layout, 20))
