"""What a synchronous master has acknowledged is known after a kill, and not after a power loss."""

from random import Random

from reliable_mq.broker_core.replicated_answers import ReplicatedAnswers
from reliable_mq.broker_core.store.acknowledged import (
    AcknowledgedFile,
    acknowledged_until,
    forget_acknowledged,
)
from reliable_mq.testing.memory_disk import MemoryDisk
from reliable_mq.wire.answer import encode_answer
from reliable_mq.wire.command import Command, reply

END = 10_000


def running(begin: int = 1_000) -> tuple[MemoryDisk, AcknowledgedFile]:
    disk = MemoryDisk()
    return disk, AcknowledgedFile(disk, begin)


def test_without_a_file_all_of_the_log_counts_as_acknowledged() -> None:
    assert acknowledged_until(MemoryDisk(), END) == END


def test_after_a_kill_and_after_a_clean_stop_the_offset_is_exact() -> None:
    disk, file = running()
    file.note(2_000)
    file.note(1_500)
    disk.kill()
    assert acknowledged_until(disk, END) == 2_000

    file.close()
    disk.lose_power(Random(1))
    assert acknowledged_until(disk, END) == 2_000
    assert acknowledged_until(disk, 1_900) == 1_900, "never more than the log has"

    forget_acknowledged(disk)
    assert acknowledged_until(disk, END) == END


def test_after_a_power_loss_all_of_the_log_counts_as_acknowledged() -> None:
    """Also when the stop before it was clean: the start is synced."""
    for seed in range(20):
        disk, file = running()
        file.close()
        file = AcknowledgedFile(disk, 1_000)
        file.note(2_000)
        disk.lose_power(Random(seed))
        assert acknowledged_until(disk, END) == END


def test_the_offset_is_noted_before_a_reply_with_success_leaves() -> None:
    answers = ReplicatedAnswers(1_000)
    noted: list[tuple[int, int]] = []
    answers.on_acknowledged = lambda offset: noted.append((offset, len(answers.ready)))
    answers.acknowledge(0, has_slaves=True)
    for end in (100, 200):
        answers.when_stored(1, end, b"frame")
        answers.end_turn(end)
    answers.release(200)
    assert not [offset for offset, _ready in noted if offset > 0]
    answers.acknowledge(100, has_slaves=True)
    assert noted[-1] == (100, 0)
    assert len(answers.take_ready()) == 1


def test_the_offset_of_a_late_reply_is_noted_if_slaves_have_its_record_by_then() -> None:
    """Its turn was given up, so nothing was noted for the turn."""
    answers = ReplicatedAnswers(1_000)
    answers.release(200)
    answers.acknowledge(150, has_slaves=True)
    noted: list[int] = []
    answers.on_acknowledged = noted.append
    reply_to_stored = encode_answer(reply(Command(code=310), ext={"msgId": "A"}))
    answers.late(1, 120, reply_to_stored)
    assert noted == [120]
    answers.late(2, 180, reply_to_stored)
    assert noted == [120], "this one leaves with another status"
    assert len(answers.take_ready()) == 2
