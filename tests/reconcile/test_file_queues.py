"""Consume queues and offsets of a store, and what is said of one that is not whole."""

import json
import shutil
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from tests.reconcile.ledgers import QUEUE_FILE_UNITS, StoreWriter, TableWriter, message_id
from tests.reconcile.test_log_scan import all_rows, filled

from reliable_mq.errors import StoreError
from reliable_mq.reconcile.brokers import file_store
from reliable_mq.reconcile.brokers.file_queues import QueueFiles, queues_of, read_groups
from reliable_mq.reconcile.brokers.file_store import read_layout
from reliable_mq.reconcile.brokers.offset_table import committed_offsets, group_names
from reliable_mq.reconcile.runs.spark_run import RunOptions, reconcile

UNIT_SIZE = 20


def test_a_queue_lists_the_places_of_its_messages(tmp_path: Path) -> None:
    """Given queues of several files whose ends are pre-allocated, then every message is listed
    once, in the order of its queue."""
    store = filled(tmp_path, count=3 * QUEUE_FILE_UNITS + 30)
    path = store.write()

    listed = [
        row
        for queue in queues_of(Path(path))
        for batch in queue.batches()
        for row in batch.to_pylist()
    ]

    records = {(row.queue_id, row.queue_offset): row for row in all_rows(read_layout(path))}
    assert len(listed) == len(records) == 3 * QUEUE_FILE_UNITS + 30
    for row in listed:
        record = records[row["queue_id"], row["queue_offset"]]
        assert row["topic"] == record.queue_topic
        assert row["commit_log_offset"] == record.commit_log_offset
        assert (row["size"], row["tags_code"]) == (record.size, 0)


def test_a_whole_store_misses_nothing(tmp_path: Path) -> None:
    assert read_layout(filled(tmp_path).write()).missing == ()


def test_a_queue_file_that_was_cut_short_is_named(tmp_path: Path) -> None:
    path = filled(tmp_path, count=3 * QUEUE_FILE_UNITS + 30).write()
    first = tmp_path / "consumequeue" / "orders" / "1" / f"{0:020d}"
    first.write_bytes(first.read_bytes()[: 3 * UNIT_SIZE])

    (missing,) = read_layout(path).missing

    assert missing == f"consumequeue/orders/1/{0:020d} has 60 of 20,000 bytes"


def test_a_store_without_its_consumers_offsets_is_not_whole(tmp_path: Path) -> None:
    """Given no file of offsets, then no message is called unread without a word; the copy that a
    broker keeps stands in for it, and a broker that nobody consumes from never wrote one."""
    path = filled(tmp_path).write()
    config = tmp_path / "config"
    (config / "consumerOffset.json").rename(config / "consumerOffset.json.bak")
    assert read_layout(path).missing == ()

    (config / "consumerOffset.json.bak").unlink()

    (missing,) = read_layout(path).missing
    assert missing == (
        "it has no config/consumerOffset.json, which has the offsets of consumer groups"
    )
    (config / "topics.json").write_bytes(b"{}")
    assert read_layout(path).missing == ()


@pytest.mark.parametrize("topic", ["%RETRY%payments", "%DLQ%payments"])
def test_offsets_are_missed_where_a_topic_shows_that_there_are_consumers(
    tmp_path: Path, topic: str
) -> None:
    """Given a broker's topics but no file of offsets, when a message lies in a retry or dead-letter
    topic, then somebody has consumed, and how far is not known."""
    store = filled(tmp_path)
    store.add(topic, b"body", properties={"UNIQ_KEY": message_id(7)})
    path = store.write()
    (tmp_path / "config" / "topics.json").write_bytes(b"{}")
    assert read_layout(path).missing == ()
    (tmp_path / "config" / "consumerOffset.json").unlink()

    (missing,) = read_layout(path).missing

    assert missing.startswith("it has no config/consumerOffset.json, which has the offsets")


def test_a_store_without_consume_queues_is_not_whole(tmp_path: Path) -> None:
    path = filled(tmp_path).write()
    (tmp_path / "consumequeue").rename(tmp_path / "elsewhere")

    (missing,) = read_layout(path).missing

    assert missing.startswith("it has no consume queues, which show where the log must end; ")


def test_a_store_whose_log_is_elsewhere_is_not_whole(tmp_path: Path) -> None:
    """Given consume queues that list messages, but no log, or only files that are still empty, as
    where the broker's storePathCommitLog is another one; then nothing can be said to be lost."""
    store = StoreWriter(tmp_path)
    store.send(message_id(1), b"body")
    path = store.write()
    (segment, *empty) = sorted((tmp_path / "commitlog").iterdir())
    segment.unlink()

    assert "storePathCommitLog" in read_layout(path).missing[0]
    for each in empty:
        each.unlink()
    assert "storePathCommitLog" in read_layout(path).missing[0]
    (tmp_path / "commitlog").rmdir()
    assert "storePathCommitLog" in read_layout(path).missing[0]


def test_a_store_that_retention_is_at_work_on_is_looked_at_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Given a segment that goes between the list of files and their sizes, then it is not there."""
    store = StoreWriter(tmp_path, segment_size=8 * 1024)
    for number in range(40):
        store.send(message_id(number), bytes(400))
    path = store.write()
    first = tmp_path / "commitlog" / f"{0:020d}"

    def while_retention_works(root: Path) -> Iterator[QueueFiles]:
        first.unlink(missing_ok=True)
        return queues_of(root)

    monkeypatch.setattr(file_store, "queues_of", while_retention_works)
    layout = read_layout(path)

    assert layout.log_begin == 8 * 1024
    assert layout.queue_begins["orders", 0] > 0


def test_a_store_whose_log_is_still_empty_is_whole(tmp_path: Path) -> None:
    path = StoreWriter(tmp_path).write()
    shutil.rmtree(tmp_path / "config")

    assert read_layout(path).missing == ()


def test_a_segment_that_was_cut_short_is_damage_up_to_the_next(tmp_path: Path) -> None:
    path = filled(tmp_path).write()
    whole = all_rows(read_layout(path))
    first = tmp_path / "commitlog" / f"{0:020d}"
    first.write_bytes(first.read_bytes()[:10_000])

    rows = all_rows(read_layout(path))

    damage = [row for row in rows if row.role == "damaged"]
    kept = [row for row in rows if row.role == "first"]
    assert damage[0].commit_log_offset + damage[0].size == 10_000
    assert (damage[1].commit_log_offset, damage[1].size) == (10_000, 65_536 - 10_000)
    assert kept == [
        row for row in whole if not damage[0].commit_log_offset <= row.commit_log_offset < 65_536
    ]


def test_a_first_segment_that_the_broker_still_knows_is_damage_and_not_expired(
    tmp_path: Path,
) -> None:
    """Given a note of the bundled broker, when the first segment is removed by hand, then its bytes
    are missing; without the note, and behind another broker, retention may have removed it."""
    path = filled(tmp_path).write()
    note = {"format": 1, "logStart": 0, "logEnd": 70_000, "lastRecord": 69_000, "lastTimeMs": 500}
    config = tmp_path / "config" / "storeProgress.json"
    config.write_text(json.dumps(note))
    checkpoint = tmp_path / "checkpoint"
    checkpoint.write_bytes((500).to_bytes(8).ljust(4096, b"\0"))
    (tmp_path / "commitlog" / f"{0:020d}").unlink()

    layout = read_layout(path)

    damage = [row for row in all_rows(layout) if row.role == "damaged"]
    assert [(row.commit_log_offset, row.size) for row in damage] == [(0, 65_536)]
    assert set(layout.queue_begins.values()) == {0}
    checkpoint.write_bytes((501).to_bytes(8).ljust(4096, b"\0"))
    assert not [row for row in all_rows(read_layout(path)) if row.role == "damaged"]
    config.unlink()
    assert read_layout(path).log_begin == 65_536


def test_a_last_segment_that_was_cut_short_is_damage_up_to_what_the_queues_know(
    tmp_path: Path,
) -> None:
    store = StoreWriter(tmp_path, segment_size=1 << 20)
    for number in range(100):
        store.send(message_id(number), bytes(100))
    path = store.write()
    end = read_layout(path).sure_end
    segments = tmp_path / "commitlog"
    (segments / f"{1 << 20:020d}").unlink()
    only = segments / f"{0:020d}"
    only.write_bytes(only.read_bytes()[: end // 2])

    rows = all_rows(read_layout(path))

    assert rows[-1].role == "damaged"
    assert rows[-1].commit_log_offset + rows[-1].size == end
    assert sum(row.size for row in rows) == end


def test_a_store_that_is_not_whole_is_named_and_not_judged(tmp_path: Path) -> None:
    store = filled(tmp_path / "store")
    url = TableWriter(f"sqlite:///{tmp_path}/shop.db").write()
    path = store.write()
    shutil.rmtree(tmp_path / "store" / "config")
    options = RunOptions(url, path, tmp_path / "out", datetime.now(UTC), timedelta(0))

    with pytest.raises(StoreError, match=r"store is not whole: it has no config/consumerOffset"):
        reconcile(options)

    assert not (tmp_path / "out").exists()


def test_groups_are_those_that_the_settings_name(tmp_path: Path) -> None:
    assert read_groups(str(tmp_path)) == frozenset()
    (tmp_path / "config").mkdir()
    file = tmp_path / "config" / "subscriptionGroup.json"
    file.write_bytes(b"{broken")
    assert read_groups(str(tmp_path)) == frozenset()

    file.write_bytes(b'{"subscriptionGroupTable":{"payments":{},"ships":{}}}')

    assert read_groups(str(tmp_path)) == {"payments", "ships"}


def test_tables_of_another_shape_are_refused() -> None:
    for read in (committed_offsets, group_names):
        for text in (b"", b"[]", b"{}", b'{"offsetTable":[],"subscriptionGroupTable":3}'):
            with pytest.raises(ValueError, match=r"."):
                read(text)
