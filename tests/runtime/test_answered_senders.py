"""A synchronous master waits a moment for the senders that it has just answered."""

import pytest
from tests.runtime.test_gathered_batches import Master
from tests.waiting import eventually, run_scene

from reliable_mq.runtime import gathered_batches


def test_what_is_gathered_waits_for_most_senders_that_have_their_answers() -> None:
    """Else two groups of senders would take turns."""

    async def scene() -> None:
        master = Master()
        master.take_all(b"a", b"b", b"c", b"d", b"e")
        master.report(1)
        assert master.sent == [1, 5], "four of five are here"
        master.take_all(b"f")
        master.report(5)
        master.take_all(b"g", b"h")
        assert master.sent == [1, 5], "three of five are here"
        master.report(5)
        assert master.sent == [1, 5], "a report that is repeated brings nobody"
        master.take_all(b"i")
        assert master.sent == [1, 5, 9]
        master.writer.close()

    run_scene(scene())


def test_the_first_of_many_senders_waits_for_the_others_for_a_moment_only() -> None:
    async def scene() -> None:
        master = Master()
        master.take_all(b"a", b"b", b"c")
        master.report(1)
        master.take_all(b"d")
        assert master.sent == [1, 4]
        master.report(4)
        master.take_all(b"e", b"f")
        assert master.sent == [1, 4], "all were answered, and two of three are back"
        master.take_all(b"g")
        assert master.sent == [1, 4, 7]
        master.report(7)
        master.now += 2 * gathered_batches.BACK_SECONDS
        master.take_all(b"h")
        assert master.sent == [1, 4, 7, 8]
        master.writer.close()

    run_scene(scene())


def test_a_lone_sender_waits_for_nobody() -> None:
    async def scene() -> None:
        master = Master()
        for number in range(1, 6):
            master.take_all(b"x")
            assert master.sent[-1] == number
            master.report(number)
        master.writer.close()

    run_scene(scene())


def test_senders_that_do_not_come_back_are_waited_for_less_often(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(gathered_batches, "BACK_SECONDS", 0.0)

    async def scene() -> None:
        master = Master()
        held = 0
        for _ in range(50):
            master.take_all(b"x", b"y")
            master.report(master.end - 1)
            if master.sent[-1] != master.end:
                held += 1
                await eventually(lambda: master.sent[-1] == master.end)
            master.report(master.end)
        assert held == 5, "of each 2, 4, 8, 16, 32"
        master.writer.close()

    run_scene(scene())


def test_senders_that_come_back_are_waited_for_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def scene() -> None:
        master = Master()
        monkeypatch.setattr(gathered_batches, "BACK_SECONDS", 0.0)
        master.take_all(b"a", b"b")
        master.report(1)
        await eventually(lambda: master.sent == [1, 2])
        monkeypatch.setattr(gathered_batches, "BACK_SECONDS", 60.0)
        master.take_all(b"c")
        master.report(2)
        assert master.sent == [1, 2, 3], "not at once"
        master.take_all(b"d")
        for _ in range(3):
            master.report(master.end - 1)
            assert master.sent[-1] == master.end - 1, "now they are waited for"
            master.take_all(b"x")
            assert master.sent[-1] == master.end
            master.report(master.end)
            master.take_all(b"y")
        master.writer.close()

    run_scene(scene())


@pytest.mark.parametrize("is_stop", [False, True])
def test_what_waits_for_senders_goes_on_when_the_slave_is_lost_or_at_a_stop(
    monkeypatch: pytest.MonkeyPatch, is_stop: bool
) -> None:
    monkeypatch.setattr(gathered_batches, "BACK_SECONDS", 60.0)

    async def scene() -> None:
        master = Master()
        master.take_all(b"a", b"b")
        master.report(1)
        assert master.sent == [1]
        if is_stop:
            await master.writer.drain()
        else:
            master.report(1, has_slaves=False)
        assert master.log == b"ab"
        master.writer.close()

    run_scene(scene())
