"""The store is stopped before every operation of its disk, and keeps what it acknowledged (P3).

By default a sample of the stops, chosen by seed; with RELIABLE_MQ_SIM=20 every one of them, in 20
different lives.
"""

import os
from collections.abc import Iterator
from random import Random

import pytest
from tests.broker_core.store.store_life import Life

from reliable_mq.testing.memory_disk import MachineStopped, MemoryDisk, Operation

TURNS = 9
LIVES = int(os.environ.get("RELIABLE_MQ_SIM", "0"))
IS_FULL = LIVES > 0
SEEDS = range(LIVES or 3)
STEP = 1 if IS_FULL else 7


def uninterrupted(seed: int, *, sync: bool) -> list[Operation]:
    disk = MemoryDisk()
    Life(disk, seed, sync=sync).run(TURNS)
    return disk.operations


def stopped_life(
    seed: int, stop_before: int, torn: int = 0, *, sync: bool = True
) -> tuple[MemoryDisk, Life]:
    """Run a life up to an operation, of which a write leaves its first `torn` bytes."""
    disk = MemoryDisk()
    life = Life(disk, seed, sync=sync)
    disk.stop_before, disk.torn = stop_before, torn
    with pytest.raises(MachineStopped):
        life.run(TURNS)
    return disk, life


def stops(seed: int, *, sync: bool) -> Iterator[tuple[int, int]]:
    """Yield (operation, torn bytes): every boundary, and writes torn in many places."""
    for number, operation in enumerate(uninterrupted(seed, sync=sync)):
        yield number, 0
        if operation.verb == "write":
            random = Random(seed + number)
            full = range(1, operation.size)
            yield from ((number, n) for n in (full if IS_FULL else random.sample(full, 3)))


def go_on(life: Life) -> None:
    """Let the store live on after a crash, close it, and look again: nothing stale came back."""
    store = life.check()
    life.turn(store)
    life.turn(store)
    store.close()
    life.check().close()


@pytest.mark.parametrize("sync", [True, False], ids=["SYNC_FLUSH", "ASYNC_FLUSH"])
@pytest.mark.parametrize("seed", SEEDS)
def test_a_kill_at_any_byte_takes_nothing_that_was_acknowledged(seed: int, sync: bool) -> None:
    for number, torn in stops(seed, sync=sync):
        disk, life = stopped_life(seed, number, torn, sync=sync)
        disk.kill()
        go_on(life)


def test_a_write_of_the_log_torn_at_every_byte_leaves_whole_records_only() -> None:
    """Also within the properties, which no checksum covers."""
    operations = uninterrupted(0, sync=True)
    is_log = [o.verb == "write" and o.path.startswith("commitlog") for o in operations]
    number = max(
        (n for n, is_write in enumerate(is_log) if is_write and operations[n].size < 500),
        key=lambda n: operations[n].size,
    )
    for torn in range(operations[number].size):
        disk, life = stopped_life(0, number, torn)
        disk.kill()
        life.check().close()


@pytest.mark.parametrize("seed", SEEDS)
def test_power_loss_takes_nothing_that_was_acknowledged_with_sync_flush(seed: int) -> None:
    for number in range(len(uninterrupted(seed, sync=True))):
        disk, life = stopped_life(seed, number)
        disk.lose_power(Random(number))
        go_on(life)


@pytest.mark.parametrize("seed", SEEDS)
def test_power_loss_with_async_flush_leaves_a_beginning_of_what_was_appended(seed: int) -> None:
    for number in range(len(uninterrupted(seed, sync=False))):
        disk, life = stopped_life(seed, number, sync=False)
        disk.lose_power(Random(number))
        life.check(keeps_acknowledged=False).close()
        go_on(life)


@pytest.mark.parametrize("seed", SEEDS)
def test_a_recovery_that_is_stopped_itself_is_done_again(seed: int) -> None:
    for number in range(seed, len(uninterrupted(seed, sync=True)), STEP):
        for stop_after in range(0, 60, 1 if IS_FULL else 3):
            disk, life = stopped_life(seed, number)
            disk.lose_power(Random(number))
            disk.stop_before = len(disk.operations) + stop_after
            try:
                life.open().close()
            except MachineStopped:
                disk.lose_power(Random(number + stop_after))
                go_on(life)
            else:
                assert stop_after, "no recovery was stopped"
                break


@pytest.mark.parametrize("seed", SEEDS)
def test_many_crashes_in_a_row_add_up_to_no_loss(seed: int) -> None:
    disk = MemoryDisk()
    life = Life(disk, seed)
    random = Random(seed)
    for _ in range(25):
        disk.stop_before = len(disk.operations) + random.randint(1, 60)
        disk.torn = random.choice((0, random.randint(1, 900)))
        try:
            life.run(TURNS)
        except MachineStopped:
            if random.random() < 0.5:
                disk.kill()
            else:
                disk.lose_power(random)
        disk.stop_before = None
        life.check().close()


def test_a_disk_that_fails_stops_the_store_and_takes_nothing() -> None:
    for number in range(len(uninterrupted(1, sync=True))):
        disk = MemoryDisk()
        life = Life(disk, 1)
        disk.fail_at = number
        with pytest.raises(OSError, match="Input/output error"):
            life.run(TURNS)
        disk.fail_at = None
        go_on(life)
