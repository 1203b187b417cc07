"""Producers that are too many or too fast are told so, and one client cannot take all memory."""

import pytest
from tests.broker_core.broker_world import (
    START_MS,
    TOPIC,
    BrokerWorld,
    send_header,
    waiting_pull_header,
)

from reliable_mq.broker_core.pressure import Pressure, PressureLimits
from reliable_mq.broker_core.requests.refusal import RequestRefused
from reliable_mq.wire.codes import RequestCode, ResponseCode
from reliable_mq.wire.command import Command

BUSY = "broker busy, start flow control for a while"
LIMITS = PressureLimits(wait_ms=200, stuck_ms=1_000, waiting_max=500)


def remark_after(wait_ms: int, waiting: int) -> str | None:
    """Return how a send is refused when so many have waited so long, None when it is not."""
    pressure = Pressure(LIMITS)
    pressure.note_sends(waiting, 0, START_MS)
    pressure.note_sends(waiting, 0, START_MS + wait_ms)
    return pressure.refusal[1] if pressure.refusal else None


@pytest.mark.parametrize(
    ("wait_ms", "waiting", "remark"),
    [
        (199, 499, None),
        (
            200,
            65,
            f"[TIMEOUT_CLEAN_QUEUE]{BUSY}, period in queue: 200ms, size of queue: 65",
        ),
        (200, 64, None),  # so many share one write
        (
            1000,
            1,
            f"[PCBUSY_CLEAN_QUEUE]{BUSY}, period in queue: 1000ms, size of queue: 1",
        ),
        (0, 500, "[OVERLOAD]system busy, start flow control for a while"),
    ],
)
def test_sends_are_refused_in_apaches_words(wait_ms: int, waiting: int, remark: str | None) -> None:
    assert remark_after(wait_ms, waiting) == remark


def test_the_first_send_after_a_start_has_waited_no_longer_than_since_it_was_seen() -> None:
    pressure = Pressure(LIMITS)

    pressure.note_sends(1, 0, START_MS)

    assert pressure.wait_ms == 0
    pressure.check()


def test_a_log_that_does_not_move_while_a_send_waits_refuses_others_and_takes_them_again() -> None:
    pressure = Pressure(LIMITS)
    for elapsed in (0, 500, 1_000):
        pressure.note_sends(1, 0, START_MS + elapsed)

    with pytest.raises(RequestRefused, match="broker busy"):
        pressure.check()
    pressure.note_sends(1, 100, START_MS + 1_020)
    pressure.check()


def test_a_log_that_moves_is_not_stuck_however_many_wait() -> None:
    pressure = Pressure(LIMITS)
    for second in range(10):
        pressure.note_sends(100, second, START_MS + 1000 * second)
        pressure.check()


def test_a_clock_that_goes_back_refuses_nothing() -> None:
    pressure = Pressure(LIMITS)
    pressure.note_sends(100, 1, START_MS)
    pressure.note_sends(100, 1, START_MS - 3_600_000)
    pressure.check()


def send(world: BrokerWorld) -> Command | None:
    return world.begin(RequestCode.SEND_MESSAGE_V2, send_header(), b"x")


def test_a_disk_that_hangs_refuses_sends_after_a_while_and_takes_them_when_it_comes_back() -> None:
    world = BrokerWorld()
    world.create_topic()
    world.is_writing = False
    assert send(world) is None
    first = world.last_opaque
    world.pass_time(1_100, step=20)
    answer = send(world)
    assert answer is not None
    assert answer.code == ResponseCode.SYSTEM_BUSY
    world.is_writing = True
    world.finish_turn()
    held = world.reply_to(first)
    assert held is not None
    assert held.code == 0
    world.pass_time(20, step=20)
    world.send()


def test_many_pulls_that_wait_for_one_large_message_are_answered_a_few_at_a_time() -> None:
    world = BrokerWorld(None, maxMessageSize=str(128 * 1024), mappedFileSizeCommitLog="1000000")
    world.create_topic()
    for _ in range(300):
        assert world.begin(RequestCode.PULL_MESSAGE, waiting_pull_header(), of=2) is None
    world.send(bytes(128 * 1024), topic=TOPIC)
    assert 5 < len(world.inbox[2]) < 30
    world.pass_time(1_000, step=20)
    assert len(world.inbox[2]) == 300
    assert {command.code for command in world.inbox[2]} == {0}


def test_answers_that_wait_for_the_file_of_a_new_topic_count_as_sends_that_wait() -> None:
    world = BrokerWorld(sendThreadPoolQueueCapacity="5")
    world.is_writing = False
    for _ in range(5):
        world.begin(RequestCode.SEND_MESSAGE_V2, send_header("new"), b"x")
    world.pass_time(20)
    refused = world.begin(RequestCode.SEND_MESSAGE_V2, send_header("new"), b"x")
    assert refused is not None
    assert refused.code == ResponseCode.SYSTEM_BUSY

    world.is_writing = True
    world.pass_time(40, step=20)

    assert world.state.answers.waiting == world.state.answers.unsaved == 0
    world.send(b"x")


@pytest.mark.parametrize("capacity", ["70", "1000"])
def test_sends_to_other_topics_go_on_while_thousands_wait_for_the_file_of_new_topics(
    capacity: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A flood of new topics made the broker refuse all sends, as if its log were too slow."""
    world = BrokerWorld(sendThreadPoolQueueCapacity=capacity)
    world.create_topic()
    monkeypatch.setattr(world.core, "saved", lambda *_: None)  # the log is faster than its files
    told = [
        world.begin(RequestCode.SEND_MESSAGE_V2, send_header(f"new-{number}"), b"x", of=2)
        for number in range(100)
    ]
    waiting = min(int(capacity), 100)
    assert world.state.answers.unsaved == waiting
    world.pass_time(500, step=20)  # no message is stored meanwhile
    for _ in range(3):
        sent = world.begin(RequestCode.SEND_MESSAGE_V2, send_header(TOPIC), b"x")
        assert sent is not None
        assert sent.code == 0
    refused = [each.code for each in told if each is not None]
    assert refused == [ResponseCode.SYSTEM_BUSY] * (100 - waiting)
