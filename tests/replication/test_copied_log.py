"""A slave's log and queues become the master's, however the connection cuts the bytes."""

from random import Random

import msgspec
import pytest
from tests.broker_core.store.store_life import (
    SEGMENT_SIZE,
    Life,
    assert_queues_follow,
    flush,
    log_records,
    message,
    new_store,
)

from reliable_mq.broker_core.names import SCHEDULE_TOPIC
from reliable_mq.broker_core.store.copier import Copier
from reliable_mq.broker_core.store.message_store import MessageStore
from reliable_mq.errors import ReplicationError
from reliable_mq.replication.copied_log import CopiedLog
from reliable_mq.replication.ha_frames import Transfer
from reliable_mq.testing.memory_disk import MemoryDisk
from reliable_mq.wire.record import TRANSACTION_PREPARED
from reliable_mq.wire.record_scan import AlikeHeads, rows_of


class Slave:
    """A slave's store, and what it takes out of transfers."""

    def __init__(self, disk: MemoryDisk | None = None, begin: int = 0) -> None:
        self.disk = disk or MemoryDisk()
        self.store = new_store(self.disk)
        self.store.open()
        self.copier = Copier(self.store)
        if begin and not self.store.log.end:
            self.copier.begin_at(begin)
        self.copied = CopiedLog(self.store.log.end, SEGMENT_SIZE)

    def take(self, transfer: Transfer) -> None:
        for piece in self.copied.take(transfer):
            self.copier.append(*piece)
        self.copied.invariants()
        flush(self.store)

    def killed(self) -> "Slave":
        """Return the slave after SIGKILL and a new start."""
        self.disk.kill()
        return Slave(self.disk)


def log_bytes(store: MessageStore, begin: int, end: int) -> bytes:
    """Return the bytes of a log between two offsets."""
    found = b""
    while begin + len(found) < end:
        at = begin + len(found)
        found += store.log.read(at, min(end - at, SEGMENT_SIZE - at % SEGMENT_SIZE))
    return found


def transfers(master: MessageStore, begin: int, random: Random) -> list[Transfer]:
    """Return the rest of a log as transfers of random sizes, none beyond its segment."""
    found: list[Transfer] = []
    end = master.log.end
    while begin < end:
        rest = min(end - begin, SEGMENT_SIZE - begin % SEGMENT_SIZE)
        size = min(rest, random.choice((1, 3, 7, 50, 200, 1_000, SEGMENT_SIZE)))
        found.append(Transfer(begin, master.log.read(begin, size)))
        begin += size
        if random.random() < 0.1:
            found.append(Transfer(begin, b""))
    return found


def assert_same(slave: MessageStore, master: MessageStore) -> None:
    """Both logs have the same bytes, and the slave's queues follow."""
    assert (slave.log.start, slave.log.end) == (master.log.start, master.log.end)
    begin, end = master.log.start, master.log.end
    assert log_bytes(slave, begin, end) == log_bytes(master, begin, end)


@pytest.mark.parametrize("seed", range(30))
def test_a_copy_has_the_same_bytes_and_queues(seed: int) -> None:
    random = Random(seed)
    life = Life(MemoryDisk(), seed)
    master = life.open()
    slave = Slave()
    for _ in range(random.randint(1, 12)):
        for _turn in range(random.randint(1, 5)):
            life.turn(master)
        for transfer in transfers(master, slave.copied.end, random):
            slave.take(transfer)
            if random.random() < 0.05:
                slave = slave.killed()
                break
    slave = slave.killed()
    for transfer in transfers(master, slave.copied.end, random):
        slave.take(transfer)

    assert_same(slave.store, master)
    assert_queues_follow(slave.store, log_records(master))


def test_an_empty_slave_may_begin_at_a_later_segment() -> None:
    life = Life(MemoryDisk(), 1)
    master = life.open()
    while master.log.end < 3 * SEGMENT_SIZE:
        life.turn(master)
    slave = Slave(begin=2 * SEGMENT_SIZE)
    for transfer in transfers(master, 2 * SEGMENT_SIZE, Random(1)):
        slave.take(transfer)

    for opened in (slave, slave.killed()):
        log = opened.store.log
        assert (log.start, log.end) == (2 * SEGMENT_SIZE, master.log.end)
        assert log_bytes(opened.store, log.start, log.end) == log_bytes(master, log.start, log.end)
        for key, queue in opened.store.queues.items():
            own = master.queues[key]
            assert queue.end == own.end
            assert queue.units(queue.first, 100) == own.units(queue.first, 100)


def test_a_transfer_that_does_not_continue_the_log_is_refused_by_both_offsets() -> None:
    copied = CopiedLog(100, SEGMENT_SIZE)
    with pytest.raises(ReplicationError, match=r"sent offset 90; .* received up to 100"):
        copied.take(Transfer(90, b"x" * 20))
    with pytest.raises(ReplicationError, match=r"sent offset 101"):
        copied.take(Transfer(101, b""))


def test_bytes_that_are_no_record_are_refused_by_their_offset() -> None:
    copied = CopiedLog(0, SEGMENT_SIZE)
    with pytest.raises(ReplicationError, match=r"no valid record at offset 0"):
        copied.take(Transfer(0, b"HTTP/1.1 400 Bad Request" * 5))


@pytest.mark.parametrize("at", [30, 100])
def test_a_record_with_a_wrong_byte_is_not_stored(at: int) -> None:
    life = Life(MemoryDisk(), 1)
    master = life.open()
    life.turn(master)
    data = bytearray(log_bytes(master, 0, master.log.end))
    data[at] ^= 1
    slave = Slave()
    with pytest.raises(ReplicationError, match="no valid record"):
        slave.take(Transfer(0, bytes(data)))
    assert slave.store.log.end == 0


def test_another_size_of_segments_is_told() -> None:
    life = Life(MemoryDisk(), 1)
    master = life.open()
    while master.log.end < 2 * SEGMENT_SIZE:
        life.turn(master)
    data = log_bytes(master, 0, master.log.end)
    for size in (SEGMENT_SIZE // 2, SEGMENT_SIZE * 2):
        told = f"mappedFileSizeCommitLog differs; here it is {size}"
        with pytest.raises(ReplicationError, match=told):
            CopiedLog(0, size).take(Transfer(0, data))


def test_records_before_one_whose_queue_lacks_messages_are_copied() -> None:
    """And the next transfer continues there, when the slave has found its master again."""
    life = Life(MemoryDisk(), 1)
    master = life.open()
    for _ in range(3):
        life.turn(master)
    records = log_records(master)
    slave = Slave()
    lacking = next(each for each in records if each.queue_offset == 1)
    (run,) = slave.copied.take(Transfer(0, log_bytes(master, 0, master.log.end)))
    heads = [
        (*head[:3], 7, *head[4:]) if at == records.index(lacking) else head
        for at, head in enumerate(rows_of(run.heads))
    ]

    with pytest.raises(ReplicationError, match=f"at offset {lacking.commit_log_offset} is message"):
        slave.copier.append(run.offset, run.data, heads)
    flush(slave.store)

    end = slave.store.log.end
    assert end == lacking.commit_log_offset
    assert log_bytes(slave.store, 0, end) == log_bytes(master, 0, end)
    assert_queues_follow(slave.store, [each for each in records if each.commit_log_offset < end])


def sent_alike(master: MessageStore, random: Random) -> None:
    """Append messages of one size, topic and form to some queues of it."""
    topic = random.choice(("orders", SCHEDULE_TOPIC))
    queue_count = random.choice((1, 1, 2) if topic == SCHEDULE_TOPIC else (1, 3, 12))
    sys_flag = random.choice((0, 0, TRANSACTION_PREPARED))
    for number in range(random.randint(8, 14)):
        tag = random.choice(("paid", "free"))
        sent = message(topic, random.randrange(queue_count), b"%02d" % number, tag)
        master.append(msgspec.structs.replace(sent, sys_flag=sys_flag), 5 + number % 3)


@pytest.mark.parametrize("seed", range(20))
def test_many_messages_of_one_size_come_to_the_same_queues(seed: int) -> None:
    """They are read as columns."""
    random = Random(seed)
    master, slave = new_store(MemoryDisk()), Slave()
    master.open()
    for _ in range(8):
        sent_alike(master, random)
        flush(master)
        while (begin := slave.copied.end) < master.log.end:
            slave.take(Transfer(begin, master.log.read(begin, master.log.end - begin)))

    for opened in (slave, slave.killed()):
        assert_same(opened.store, master)
        assert_queues_follow(opened.store, log_records(master))
        assert opened.store.appender.last_time_ms == master.appender.last_time_ms


def test_many_messages_of_one_size_stop_before_the_first_one_whose_queue_lacks_messages() -> None:
    master, slave = new_store(MemoryDisk()), Slave()
    master.open()
    for number in range(10):
        master.append(message("orders", number % 2, b"body"), 5)
    flush(master)
    (run,) = slave.copied.take(Transfer(0, log_bytes(master, 0, master.log.end)))
    heads = run.heads
    assert isinstance(heads, AlikeHeads)
    heads.queue_offsets = (*heads.queue_offsets[:7], 7, *heads.queue_offsets[8:])

    with pytest.raises(ReplicationError, match=f"at offset {7 * heads.size} is message 7"):
        slave.copier.append(*run)
    flush(slave.store)

    assert slave.store.log.end == 7 * heads.size
    assert_queues_follow(slave.store, log_records(master)[:7])
