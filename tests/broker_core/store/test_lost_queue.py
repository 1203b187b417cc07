"""The queues are built from the log again: all of them, one, or a file of one."""

import pytest
from tests.broker_core.store.store_life import (
    QUEUE_FILE_SIZE,
    QUEUES,
    Life,
    flush,
    log_records,
    message,
    new_store,
)

from reliable_mq.broker_core.names import SCHEDULE_TOPIC
from reliable_mq.broker_core.store.consume_queue import QueueUnit, pack_unit
from reliable_mq.broker_core.store.message_store import MessageStore
from reliable_mq.broker_core.store.progress import PATH as PROGRESS_PATH
from reliable_mq.testing.memory_disk import MemoryDisk

closed_and_killed = pytest.mark.parametrize("is_closed", [True, False], ids=["closed", "killed"])


def full_store(*, is_closed: bool) -> Life:
    life = Life(MemoryDisk(), seed=5)
    life.run(10)
    if not is_closed:
        store = life.open()
        life.turn(store)
        store.checkpoint()
        life.turn(store)
    return life


def remove(disk: MemoryDisk, prefix: str) -> int:
    paths = [path for path in disk.files() if path.startswith(prefix)]
    for path in paths:
        disk.remove(path)
    return len(paths)


@closed_and_killed
def test_all_queues_are_rebuilt(is_closed: bool) -> None:
    life = full_store(is_closed=is_closed)

    assert remove(life.disk, "consumequeue/")

    life.check().close()


@closed_and_killed
@pytest.mark.parametrize(("topic", "queue_id"), QUEUES)
def test_one_lost_queue_is_noticed_and_rebuilt(topic: str, queue_id: int, is_closed: bool) -> None:
    life = full_store(is_closed=is_closed)

    assert remove(life.disk, f"consumequeue/{topic}/{queue_id}/")

    store = life.check()
    life.turn(store)
    store.close()
    life.check().close()


@closed_and_killed
def test_any_lost_file_of_a_queue_is_noticed_and_rebuilt(is_closed: bool) -> None:
    paths = [
        p for p in full_store(is_closed=is_closed).disk.files() if p.startswith("consumequeue")
    ]
    for path in paths:
        life = full_store(is_closed=is_closed)
        life.disk.remove(path)
        life.check().close()


@closed_and_killed
def test_any_file_of_a_queue_that_was_emptied_is_noticed_and_rebuilt(is_closed: bool) -> None:
    for path, content in full_store(is_closed=is_closed).disk.files().items():
        if path.startswith("consumequeue"):
            life = full_store(is_closed=is_closed)
            life.disk.place_file(path, bytes(len(content)))
            life.check().close()


@closed_and_killed
def test_queues_are_rebuilt_without_note_and_checkpoint_too(is_closed: bool) -> None:
    life = full_store(is_closed=is_closed)
    for prefix in ("consumequeue/", PROGRESS_PATH, "checkpoint"):
        remove(life.disk, prefix)

    life.check().close()


def test_units_behind_a_hole_are_not_believed_after_a_power_loss() -> None:
    """Given that the first of two new units never reached the medium, the second did."""
    life = full_store(is_closed=True)
    store = life.open()
    queue = store.queue("orders", 0)
    assert queue is not None
    end = queue.end
    while queue.end < end + 3:
        life.turn(store)
    number, place = divmod(end, 5)
    path = f"consumequeue/orders/0/{number * 100:020d}"
    content = bytearray(life.disk.files()[path])
    content[place * 20 : place * 20 + 20] = bytes(20)
    life.disk.place_file(path, bytes(content))
    life.disk.boot += 1

    life.check().close()


def test_a_delayed_message_is_due_by_its_store_time_live_and_rebuilt() -> None:
    """D2, also when the clock went back: the store time does not follow it."""
    life = full_store(is_closed=True)
    store = life.open()
    life.now_ms -= 60_000
    for _ in range(6):
        life.turn(store)
    live = delayed_units(store)
    times = [record.store_time_ms for record in log_records(store)]
    assert times == sorted(times)
    store.close()
    remove(life.disk, "consumequeue/")

    assert delayed_units(life.check()) == live


def delayed_units(store: MessageStore) -> list[QueueUnit]:
    queue = store.queue(SCHEDULE_TOPIC, 1)
    assert queue is not None
    return [queue.unit(n) for n in range(queue.first, queue.end)]


def test_a_topic_that_was_made_anew_is_rebuilt_from_its_new_messages() -> None:
    """Given a log with an older queue of the same name, as deleting a topic leaves behind."""
    disk = MemoryDisk()
    for body in (b"old", b"new"):
        store = new_store(disk)
        store.open()
        for _ in range(7):
            store.append(message("orders", 0, body), 1_700_000_000_000)
        flush(store)
        live = store.queue("orders", 0)
        assert live is not None
        units = live.units(0, 5)
        store.close()
        remove(disk, "consumequeue/")
        remove(disk, PROGRESS_PATH)
        if body == b"old":
            disk.place_file(
                "consumequeue/other/0/00000000000000000000", last_unit_of(store.log.end)
            )

    store = new_store(disk)
    store.open()
    rebuilt = store.queue("orders", 0)

    assert rebuilt is not None
    assert (rebuilt.first, rebuilt.end) == (0, 7)
    assert rebuilt.units(0, 5) == units


def last_unit_of(log_end: int) -> bytes:
    """A queue that knows the log up to its end, so that nothing is dispatched again."""
    return pack_unit(log_end - 100, 100, 0) + bytes(QUEUE_FILE_SIZE - 20)


@pytest.mark.parametrize(("topic", "queue_id"), [*QUEUES, ("orders", 2)])
def test_a_unit_beyond_the_note_for_a_part_of_the_log_that_it_knows_is_not_believed(
    topic: str, queue_id: int
) -> None:
    """A log was cut and has grown again; that the queue was cut too was not on the medium yet."""
    life = full_store(is_closed=True)
    store = life.open()
    life.turn(store)
    store.checkpoint()
    queue = store.queue(topic, queue_id)
    file_number, at = divmod((queue.end if queue else 0) * 20, QUEUE_FILE_SIZE)
    path = f"consumequeue/{topic}/{queue_id}/{file_number * QUEUE_FILE_SIZE:020d}"
    stale = pack_unit(store.log.end - 100, 137, 100)
    life.disk.open(path, QUEUE_FILE_SIZE).write(at, (stale,))

    again = life.check().queue(topic, queue_id)

    assert (again.end if again else 0) == (queue.end if queue else 0)
