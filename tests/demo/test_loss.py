"""A deleted message is gone, and everything around it is as it was."""

import struct
from pathlib import Path

import pytest

from examples.demo.loss import FILLER_TAG, AcknowledgedMessage, delete_message, filler_for
from examples.demo.processes import DemoFailed
from reliable_mq.wire.java_hash import tags_code
from reliable_mq.wire.properties import encode_properties
from reliable_mq.wire.record import (
    Record,
    decode_record,
    iter_records,
)
from reliable_mq.wire.record_encode import encode_record

UNIT = struct.Struct(">qiq")


def record(number: int, log_offset: int) -> Record:
    return Record(
        topic="orders",
        body=b"order %d" % number,
        properties=encode_properties({"UNIQ_KEY": f"{number:032X}", "TAGS": "placed"}),
        queue_id=3,
        queue_offset=number,
        commit_log_offset=log_offset,
        born_time_ms=1_700_000_000_000,
    )


def write_store(folder: Path, count: int) -> bytes:
    """Write a commit log and one consume queue of `count` messages; return the log."""
    log, units = b"", b""
    for number in range(count):
        stored = encode_record(record(number, len(log)))
        units += UNIT.pack(len(log), len(stored), tags_code("placed"))
        log += stored
    for name, content in (("commitlog", log), ("consumequeue/orders/3", units)):
        (folder / name).mkdir(parents=True)
        (folder / name / f"{0:020d}").write_bytes(content)
    return log


def test_the_log_stays_walkable_and_only_the_deleted_message_is_missing(tmp_path: Path) -> None:
    before = write_store(tmp_path, count=5)

    offset = delete_message(tmp_path, AcknowledgedMessage(f"{2:032X}", "orders", 3, 2))

    after = (tmp_path / "commitlog" / f"{0:020d}").read_bytes()
    records = list(iter_records(after))
    assert len(after) == len(before)
    assert [r.topic for r in records] == ["orders", "orders", "filler", "orders", "orders"]
    assert records[2].commit_log_offset == offset
    assert "UNIQ_KEY" not in records[2].property_map()
    assert decode_record(after, offset, check_body=True)
    assert after[:offset] == before[:offset]
    assert after[offset + records[2].size :] == before[offset + records[2].size :]


def test_the_queues_unit_has_the_tag_that_nobody_reads(tmp_path: Path) -> None:
    write_store(tmp_path, count=5)

    delete_message(tmp_path, AcknowledgedMessage(f"{2:032X}", "orders", 3, 2))

    units = list(UNIT.iter_unpack((tmp_path / f"consumequeue/orders/3/{0:020d}").read_bytes()))
    expected = [tags_code("placed")] * 5
    expected[2] = tags_code(FILLER_TAG)
    assert [unit[2] for unit in units] == expected


def test_a_message_that_is_not_where_it_was_said_to_be_is_left_alone(tmp_path: Path) -> None:
    before = write_store(tmp_path, count=5)

    with pytest.raises(DemoFailed, match="is not at"):
        delete_message(tmp_path, AcknowledgedMessage(f"{4:032X}", "orders", 3, 2))

    assert (tmp_path / "commitlog" / f"{0:020d}").read_bytes() == before


def test_a_filler_has_the_size_of_what_it_replaces() -> None:
    original = record(1, 4_096)

    assert len(filler_for(original)) == len(encode_record(original))
