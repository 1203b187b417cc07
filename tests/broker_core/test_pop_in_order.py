"""Pops in order: a queue waits for its messages, and a lost reply may be asked for again."""

from collections.abc import Iterator

import pytest
from tests.broker_core.broker_world import GROUP, TOPIC, there
from tests.broker_core.pop_world import (
    INVISIBLE_MS,
    ManyQueues,
    PopWorld,
    Taken,
    ack_header,
    taken,
)

from reliable_mq.wire.codes import RequestCode as Ask
from reliable_mq.wire.codes import ResponseCode as Answer


@pytest.fixture
def world() -> Iterator[PopWorld]:
    world = PopWorld()
    yield world
    world.check()


def pop(world: PopWorld, **changes: object) -> list[Taken]:
    return world.pop(order="true", **changes)


def send_some(world: PopWorld, count: int) -> None:
    for number in range(count):
        world.send(b"%d" % number)


def bodies(messages: list[Taken]) -> list[bytes]:
    return [message.body for message in messages]


def test_a_queue_hands_out_nothing_until_all_is_acknowledged(world: PopWorld) -> None:
    send_some(world, 4)
    first, second = pop(world, maxMsgNums=2)
    assert pop(world) == []

    world.ack(first)
    assert pop(world) == []
    world.ack(second)

    assert bodies(pop(world)) == [b"2", b"3"]


def test_the_handles_say_that_order_is_kept(world: PopWorld) -> None:
    send_some(world, 1)

    (message,) = pop(world)

    assert message.handle.revive_queue == 999


def test_progress_stays_at_the_first_message_that_is_not_acknowledged(world: PopWorld) -> None:
    send_some(world, 3)
    first, second, third = pop(world)
    assert world.state.offsets.get(GROUP, TOPIC, 0) == 0

    world.ack(second)
    assert world.state.offsets.get(GROUP, TOPIC, 0) == 0
    world.ack(first)
    assert world.state.offsets.get(GROUP, TOPIC, 0) == 2
    world.ack(third)
    assert world.state.offsets.get(GROUP, TOPIC, 0) == 3


def test_messages_come_again_in_order_and_say_how_often(world: PopWorld) -> None:
    send_some(world, 3)
    first, *_ = pop(world)
    world.ack(first)
    world.pass_time(INVISIBLE_MS)

    answer = world.ask(Ask.POP_MESSAGE, world.pop_header(order="true"))

    assert bodies(taken(answer)) == [b"1", b"2"]
    assert answer.ext_fields["orderCountInfo"] == "0 qo0%1 1;0 qo0%2 1;0 0 1"


def test_the_first_pop_says_that_nothing_came_back(world: PopWorld) -> None:
    send_some(world, 2)

    answer = world.ask(Ask.POP_MESSAGE, world.pop_header(order="true"))

    assert answer.ext_fields["orderCountInfo"] == "0 0 0"


def test_the_same_attempt_gets_the_same_messages_again(world: PopWorld) -> None:
    send_some(world, 2)
    assert bodies(pop(world, attemptId="one")) == [b"0", b"1"]

    again = pop(world, attemptId="one")

    assert bodies(again) == [b"0", b"1"]
    assert pop(world, attemptId="two") == []
    for message in again:
        world.ack(message)
    assert world.state.offsets.get(GROUP, TOPIC, 0) == 2


def test_an_older_pop_acknowledges_nothing(world: PopWorld) -> None:
    send_some(world, 1)
    (old,) = pop(world)
    world.pass_time(INVISIBLE_MS)
    (new,) = pop(world)

    assert world.ack(old).code == Answer.SUCCESS
    assert world.state.offsets.get(GROUP, TOPIC, 0) == 0
    world.ack(new)
    assert world.state.offsets.get(GROUP, TOPIC, 0) == 1


def test_a_message_that_the_pop_did_not_get_is_refused(world: PopWorld) -> None:
    send_some(world, 3)
    first, _ = pop(world, maxMsgNums=2)

    answer = world.ack(first, offset=2)

    assert answer.code == Answer.MESSAGE_ILLEGAL
    assert "offset is illegal" in there(answer.remark)


def test_another_invisible_time_holds_the_queue_longer(world: PopWorld) -> None:
    send_some(world, 2)
    first, second = pop(world)
    world.ack(second)
    world.pass_time(5_000)
    answer = world.extend(first, 20_000)
    assert answer.ext_fields["invisibleTime"] == str(5_000 + 20_000)

    world.pass_time(INVISIBLE_MS)
    assert pop(world) == []
    world.pass_time(10_000)

    assert bodies(pop(world)) == [b"0", b"1"]


def test_a_shorter_invisible_time_frees_the_queue_and_wakes_a_pop(world: PopWorld) -> None:
    send_some(world, 1)
    (message,) = pop(world)
    header = world.pop_header(order="true", pollTime=15_000)
    assert world.begin(Ask.POP_MESSAGE, header, of=2) is None
    opaque = world.last_opaque

    world.extend(message, 1_000)
    world.pass_time(900)
    assert world.reply_to(opaque, of=2) is None
    world.pass_time(200)

    assert bodies(taken(there(world.reply_to(opaque, of=2)))) == [b"0"]


def test_an_acknowledgement_wakes_a_pop_that_waits_for_the_queue(world: PopWorld) -> None:
    send_some(world, 2)
    (message,) = pop(world, maxMsgNums=1)
    header = world.pop_header(order="true", pollTime=15_000)
    assert world.begin(Ask.POP_MESSAGE, header, of=2) is None
    opaque = world.last_opaque

    world.ack(message)
    world.pass_time(20, step=20)

    assert bodies(taken(there(world.reply_to(opaque, of=2)))) == [b"1"]


def test_one_queue_does_not_hold_up_another() -> None:
    world = ManyQueues()
    world.send(b"a", queue_id=0)
    pop(world)
    world.send(b"b", queue_id=1)

    assert bodies(pop(world)) == [b"b"]


@pytest.mark.parametrize("passed_ms", [0, 5_000])  # offsets are saved every five seconds
@pytest.mark.parametrize("is_killed", [False, True])
def test_a_restart_keeps_the_queue_blocked(passed_ms: int, *, is_killed: bool) -> None:
    world = PopWorld()
    send_some(world, 2)
    first, second = pop(world)
    world.ack(first)
    world.pass_time(passed_ms)
    world.restart(is_killed=is_killed)

    assert pop(world) == []
    world.ack(second)

    world.send(b"next")
    assert bodies(pop(world)) == [b"next"]


def test_what_was_acknowledged_in_order_before_a_kill_does_not_come_again(world: PopWorld) -> None:
    send_some(world, 5)
    for message in pop(world)[:3]:
        world.ack(message)
    world.restart(is_killed=True)

    world.pass_time(INVISIBLE_MS)

    assert bodies(pop(world)) == [b"3", b"4"]


def test_an_acknowledgement_after_a_kill_takes_no_earlier_message_along(world: PopWorld) -> None:
    send_some(world, 5)
    *_, last = pop(world)
    world.restart(is_killed=True)
    world.ack(last)

    world.pass_time(INVISIBLE_MS)

    assert bodies(pop(world)) == [b"0", b"1", b"2", b"3", b"4"]


def test_an_acknowledgement_in_order_for_what_nobody_popped_in_order_changes_nothing(
    world: PopWorld,
) -> None:
    send_some(world, 5)
    (message,) = world.pop(maxMsgNums=1)
    forged = message.handle._replace(revive_queue=999, offset=4).text()

    assert world.ack(message, extraInfo=forged, offset=4).code == Answer.SUCCESS

    assert world.bodies() == [b"1", b"2", b"3", b"4"]


def test_answers_about_pops_in_order_leave_when_the_file_has_them(world: PopWorld) -> None:
    send_some(world, 2)
    (message,) = pop(world, maxMsgNums=1)
    world.is_writing = False

    assert world.begin(Ask.ACK_MESSAGE, ack_header(message)) is None
    assert world.begin(Ask.POP_MESSAGE, world.pop_header(order="true"), of=2) is None
    opaque = world.last_opaque
    world.is_writing = True
    world.finish_turn()

    assert bodies(taken(there(world.reply_to(opaque, of=2)))) == [b"1"]


@pytest.mark.parametrize("is_killed", [False, True])
def test_a_reset_is_not_undone_by_what_was_popped_in_order(*, is_killed: bool) -> None:
    world = PopWorld()
    send_some(world, 3)
    for message in pop(world):
        world.ack(message)
    world.pass_time(6_000)
    reset = {"topic": TOPIC, "group": GROUP, "timestamp": 0, "isForce": "true"}
    world.ask(Ask.INVOKE_BROKER_TO_RESET_OFFSET, reset)
    world.pass_time(6_000)
    world.restart(is_killed=is_killed)

    assert bodies(pop(world)) == [b"0", b"1", b"2"]


HOUR_MS = 3600 * 1_000


def test_what_is_done_is_forgotten_after_hours(world: PopWorld) -> None:
    send_some(world, 2)
    for message in pop(world):
        world.ack(message)

    world.pass_time(2 * HOUR_MS + 1_000, step=60_000)

    assert len(world.state.orders) == 0
    assert world.file("config/consumerOrderInfo.json")["table"] == {}


def test_a_queue_is_blocked_as_long_as_its_messages_are_hidden(world: PopWorld) -> None:
    send_some(world, 2)
    _, second = pop(world, invisibleTime=48 * HOUR_MS)

    world.pass_time(47 * HOUR_MS, step=600_000)
    assert pop(world) == []
    world.ack(second)

    assert world.state.offsets.get(GROUP, TOPIC, 0) == 0


def test_a_file_of_apache_moves_no_offset(world: PopWorld) -> None:
    send_some(world, 3)
    for message in pop(world):
        world.ack(message)
    world.stop()
    path = "config/consumerOrderInfo.json"
    content = world.disk.read_text(path)
    world.disk.write_text(path, content.replace('"raisesOffsets":true,', ""))
    offsets = "config/consumerOffset.json"
    world.disk.write_text(offsets, world.disk.read_text(offsets).replace("0:3", "0:1"))
    world.start()

    assert bodies(pop(world)) == [b"1", b"2"]


def test_the_file_is_in_apaches_format(world: PopWorld) -> None:
    send_some(world, 3)
    first, _, third = pop(world, attemptId="try")
    world.ack(third)
    world.extend(first, 7_000)
    popped_ms = first.handle.popped_ms
    world.stop()

    (order,) = world.file("config/consumerOrderInfo.json")["table"][f"{TOPIC}@{GROUP}"].values()
    assert order == {
        "popTime": popped_ms,
        "i": INVISIBLE_MS,
        "o": [0, 1, 2],
        "ot": {0: popped_ms + 7_000},
        "l": popped_ms,
        "cm": 4,
        "a": "try",
    }


def test_a_reset_frees_the_queue(world: PopWorld) -> None:
    send_some(world, 2)
    pop(world)
    reset = {"topic": TOPIC, "group": GROUP, "timestamp": 0, "isForce": "true"}
    assert world.ask(Ask.INVOKE_BROKER_TO_RESET_OFFSET, reset).code == Answer.SUCCESS

    assert bodies(pop(world)) == [b"0", b"1"]
