"""A store's life on a simulated disk: turns, stops, and what must hold whenever it opens again."""

from collections import defaultdict
from random import Random
from typing import NamedTuple

from reliable_mq.broker_core.names import SCHEDULE_TOPIC
from reliable_mq.broker_core.store.appender import StoredMessage
from reliable_mq.broker_core.store.commit_log import CommitLog
from reliable_mq.broker_core.store.disk import Disk, sync_files
from reliable_mq.broker_core.store.message_store import MessageStore
from reliable_mq.testing.memory_disk import MemoryDisk
from reliable_mq.wire.java_hash import tags_code
from reliable_mq.wire.properties import DELAY, TAGS, encode_properties
from reliable_mq.wire.record import (
    TRANSACTION_PREPARED,
    Record,
    blank_size_at,
    decode_record,
    pack_host,
    record_size_at,
)

SEGMENT_SIZE = 2048
QUEUE_FILE_SIZE = 100  # five units
DELAYS_MS = {1: 1_000, 2: 5_000}
HOST = pack_host("127.0.0.1", 10911)
QUEUES = (("orders", 0), ("orders", 1), (SCHEDULE_TOPIC, 1), ("%RETRY%payments", 0))


class Sent(NamedTuple):
    """A message as it was appended: the place it was given, and its content."""

    topic: str
    queue_id: int
    queue_offset: int
    body: bytes
    properties: bytes


def new_store(disk: Disk, *, sync: bool = True, segment_size: int = SEGMENT_SIZE) -> MessageStore:
    return MessageStore(
        disk,
        segment_size=segment_size,
        queue_file_size=QUEUE_FILE_SIZE,
        store_host=HOST,
        delays_ms=DELAYS_MS,
        process_id=7,
        is_sync_flush=sync,
    )


def message(topic: str, queue_id: int, body: bytes, tag: str = "paid") -> StoredMessage:
    properties = {TAGS: tag}
    if topic == SCHEDULE_TOPIC:
        properties[DELAY] = str(queue_id + 1)
    return StoredMessage(
        topic=topic,
        queue_id=queue_id,
        body=body,
        properties=encode_properties(properties),
        flag=0,
        sys_flag=0,
        born_time_ms=1,
        born_host=HOST,
    )


def flush(store: MessageStore, *, sync: bool = True) -> None:
    """Do with what was appended what a writer does."""
    batch = store.take_batch()
    if batch is None:
        return
    CommitLog.write_batch(batch)
    if sync:
        CommitLog.sync(batch)
        store.log.mark_durable(batch.end)
    else:
        store.log.mark_written(batch.end)
    store.dispatch_up_to(batch.end)


class Life:
    """One store over many openings: what was appended, and how much of it was acknowledged."""

    def __init__(self, disk: MemoryDisk, seed: int, *, sync: bool = True) -> None:
        self.disk = disk
        self.sync = sync
        self.now_ms = 1_700_000_000_000
        self.appended: list[Sent] = []
        self.acknowledged = 0  # so many of them, from the first on
        self._random = Random(seed)

    def open(self) -> MessageStore:
        store = new_store(self.disk, sync=self.sync)
        store.open()
        return store

    def turn(self, store: MessageStore) -> None:
        """Append some messages, make them safe, dispatch and acknowledge them."""
        for _ in range(self._random.randint(1, 4)):
            topic, queue_id = self._random.choice(QUEUES)
            self.now_ms += self._random.randint(0, 900)
            body = b"%06d" % len(self.appended) * self._random.randint(1, 40)
            sent = message(topic, queue_id, body)
            place = store.append(sent, self.now_ms)
            self.appended.append(Sent(topic, queue_id, place.queue_offset, body, sent.properties))
        flush(store, sync=self.sync)
        self.acknowledged = len(self.appended)

    def run(self, turns: int) -> None:
        """Open, run some turns with a checkpoint now and then, close."""
        store = self.open()
        for number in range(turns):
            self.turn(store)
            if number % 6 == 5:
                self._note_a_mark(store)
            elif number % 3 == 2:
                store.checkpoint()
        store.close()

    def _note_a_mark(self, store: MessageStore) -> None:
        """Write a checkpoint as a running broker does: a few queues at a time, while others grow.

        Another thread makes new files.
        """
        mark = store.mark()
        self._grow(store)
        for _ in range(0, mark.waiting, 2):
            new = store.upkeep.begin_making(2)
            if new is not None:
                new.make()
                self._grow(store)
                store.upkeep.end_making(new)
            store.upkeep.flush_some(2)
        sync_files(store.upkeep.take_unsynced(1))
        self._grow(store)
        store.begin_checkpoint(mark)()

    def _grow(self, store: MessageStore) -> None:
        """Run a turn, and sync the log, as a broker does before it has two new segments."""
        self.turn(store)
        sync_files(store.log.segments_from(0))

    def check(self, *, keeps_acknowledged: bool = True) -> MessageStore:
        """Open the store and hold it to its promises. Returns it, open.

        What is gone is forgotten by this life too, and what can be read must stay.
        """
        store = self.open()
        records = log_records(store)
        stored = [Sent(r.topic, r.queue_id, r.queue_offset, r.body, r.properties) for r in records]
        assert stored == self.appended[: len(stored)], "the log is a prefix of what was appended"
        if keeps_acknowledged:
            assert len(stored) >= self.acknowledged, "everything acknowledged is there"
        self.appended = stored
        self.acknowledged = len(stored)
        assert_queues_follow(store, records)
        return store


def log_records(store: MessageStore) -> list[Record]:
    """Read the log by the format alone."""
    records = []
    at = store.log.start
    while at < store.log.end:
        head = store.log.read(at, 4096)
        blank = blank_size_at(head, 0)
        if blank:
            at += blank
            continue
        assert record_size_at(head, 0), f"no record at {at}, the log ends at {store.log.end}"
        record = decode_record(store.log.read(at, SEGMENT_SIZE), check_body=True)
        assert record.commit_log_offset == at
        records.append(record)
        at += record.size
    return records


def expected_tags_code(record: Record) -> int:
    """The naive rule, written a second time."""
    if record.topic == SCHEDULE_TOPIC:
        return record.store_time_ms + DELAYS_MS[record.queue_id + 1]
    return tags_code(record.property_map().get(TAGS, ""))


def assert_queues_follow(store: MessageStore, records: list[Record]) -> None:
    """The queues hold what the log says: gapless from 0, nothing twice, nothing else."""
    expected: dict[tuple[str, int], list[tuple[int, int, int]]] = defaultdict(list)
    for record in records:
        if record.sys_flag == TRANSACTION_PREPARED:
            continue
        units = expected[record.topic, record.queue_id]
        assert record.queue_offset == len(units)
        units.append((record.commit_log_offset, record.size, expected_tags_code(record)))
    for key in {*QUEUES, *expected}:
        queue = store.queue(*key)
        units = expected.get(key, [])
        assert (queue.first, queue.end) == (0, len(units)) if queue else not units
        for index, unit in enumerate(units):
            assert queue is not None
            assert tuple(queue.unit(index)) == unit
