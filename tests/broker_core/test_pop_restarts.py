"""Popped messages over a stop and a kill: none is lost, none early, none twice."""

import pytest
from tests.broker_core.broker_world import GROUP, START_MS, TOPIC, connection, there
from tests.broker_core.pop_world import INVISIBLE_MS, RETRY, PopWorld, ack_header, taken

from reliable_mq.broker_core.names import TIMER_TOPIC
from reliable_mq.broker_core.requests.pop_records import append_checkpoint
from reliable_mq.broker_core.topics import PATH as TOPICS_PATH
from reliable_mq.wire.codes import RequestCode as Ask
from reliable_mq.wire.codes import ResponseCode
from reliable_mq.wire.command import encode_command, request
from reliable_mq.wire.frame import FrameReader
from reliable_mq.wire.pop_records import CheckpointKey, PopCheckpoint


def send_some(world: PopWorld, count: int) -> None:
    for number in range(count):
        world.send(b"%d" % number)


def note_timers(world: PopWorld) -> None:
    """Save what the timers have delivered, as the broker does every second."""
    work = world.core.begin_timer_checkpoint(world.now_ms)
    assert work is not None
    work()


@pytest.mark.parametrize("is_killed", [False, True])
def test_a_restart_loses_no_message_and_brings_none_back_early(*, is_killed: bool) -> None:
    world = PopWorld()
    send_some(world, 4)
    messages = world.pop()
    world.pass_time(2_000)
    world.ack(messages[1])
    world.restart(is_killed=is_killed)

    assert world.bodies() == []
    world.ack(messages[2])
    world.pass_time(INVISIBLE_MS - 2_001)
    assert world.bodies() == []
    world.pass_time(1)

    assert world.bodies() == [b"0", b"3"]


@pytest.mark.parametrize("passed_ms", [INVISIBLE_MS - 500, INVISIBLE_MS, INVISIBLE_MS + 500])
@pytest.mark.parametrize("is_noted", [False, True])
def test_a_kill_when_messages_come_back_brings_each_back_once(
    passed_ms: int, *, is_noted: bool
) -> None:
    world = PopWorld()
    send_some(world, 3)
    world.pop()
    world.pass_time(passed_ms, step=20)
    if is_noted:
        note_timers(world)
    world.restart(is_killed=True)

    world.pass_time(2_000, step=20)

    assert [record.body for record in world.records(RETRY)] == [b"0", b"1", b"2"]


def test_a_message_that_came_back_before_a_kill_does_not_come_back_after_its_ack() -> None:
    world = PopWorld()
    send_some(world, 1)
    world.pop()
    world.pass_time(INVISIBLE_MS, step=20)
    (again,) = world.pop()
    world.ack(again)
    world.restart(is_killed=True)

    world.pass_time(3 * INVISIBLE_MS)

    assert world.bodies() == []


@pytest.mark.parametrize("is_popped", [False, True])
def test_a_kill_before_a_new_retry_topic_is_saved_loses_nothing_that_came_back(
    *, is_popped: bool
) -> None:
    """And what was popped there already is handed out when its time is over only."""
    world = PopWorld()
    send_some(world, 1)
    world.pop()
    table = world.disk.read_text(TOPICS_PATH)
    world.pass_time(INVISIBLE_MS, step=20)
    if is_popped:
        assert world.bodies() == [b"0"]
    world.disk.write_text(TOPICS_PATH, table)
    world.restart(is_killed=True)

    assert RETRY in world.state.topics.by_name
    assert world.bodies() == ([] if is_popped else [b"0"])
    world.pass_time(INVISIBLE_MS)
    assert world.bodies() == [b"0"]


@pytest.mark.parametrize("back_ms", [None, 0, 50, 500, 1_000])
@pytest.mark.parametrize("is_killed", [False, True])
def test_a_message_does_not_come_back_while_its_acknowledgement_is_being_stored(
    back_ms: int | None, *, is_killed: bool
) -> None:
    """The disk is slow, and the checkpoint is handed over after the acknowledgement came.

    `back_ms`: how far the clock is set back before the write ends; 0: the next look at the timers
    comes in the same millisecond.
    """
    world = PopWorld()
    send_some(world, 2)
    messages = world.pop()
    world.pass_time(INVISIBLE_MS - (50 if is_killed else 1_500), step=10)
    if is_killed:
        world.restart(is_killed=True)
    world.is_writing = False
    assert world.begin(Ask.ACK_MESSAGE, ack_header(messages[0])) is None
    world.pass_time(2_000, step=20)
    world.now_ms -= back_ms or 0
    world.is_writing = True
    world.finish_turn()

    assert there(world.reply_to(world.last_opaque)).code == 0
    if back_ms is not None:
        world.core.tick(world.now_ms)
    world.pass_time(20 + 2 * (back_ms or 0), step=20)
    assert [record.body for record in world.records(RETRY)] == [b"1"]


@pytest.mark.parametrize("end", ["stop", "kill", "note and kill"])
@pytest.mark.parametrize("count", [1, 2])
@pytest.mark.parametrize("is_slow", [False, True])
def test_a_late_acknowledgement_counts_after_a_restart_before_its_turn(
    end: str, count: int, *, is_slow: bool
) -> None:
    """The clock is behind the timers, and they have taken the acknowledgement up.

    `is_slow`: it came before its checkpoint was handed over, and was being stored until now.
    """
    world = PopWorld()
    send_some(world, count)
    messages = world.pop()
    world.pass_time(INVISIBLE_MS - 1_500, step=10)
    if not is_slow:
        world.pass_time(1_400)
        world.state.timers.run(world.now_ms + 600)  # the clock was ahead for a moment
    world.is_writing = False
    world.begin(Ask.ACK_MESSAGE, ack_header(messages[0]))
    if is_slow:
        world.pass_time(2_000, step=20)
        world.now_ms -= 500
    world.is_writing = True
    world.finish_turn()
    world.state.timers.run(world.now_ms)
    if end == "note and kill":
        note_timers(world)
    world.restart(is_killed=end != "stop")
    world.pass_time(5_000, step=20)

    assert [record.body for record in world.records(RETRY)] == [b"1"][: count - 1]


def test_a_message_does_not_come_back_in_the_turn_of_its_acknowledgement() -> None:
    """The acknowledgement came before the time, and nothing is in the log yet."""
    world = PopWorld()
    send_some(world, 2)
    messages = world.pop()
    world.pass_time(INVISIBLE_MS - 5)
    world.restart(is_killed=True)
    fields = {name: str(value) for name, value in ack_header(messages[0]).items()}
    command = request(Ask.ACK_MESSAGE, fields)
    (frame,) = FrameReader().feed(encode_command(command))
    world.core.receive(connection(1), world.core.decode(frame), world.now_ms)
    world.pass_time(100, step=20)

    assert [record.body for record in world.records(RETRY)] == [b"1"]


def test_a_kill_after_a_pop_does_not_hand_its_messages_out_again() -> None:
    world = PopWorld()
    send_some(world, 5)
    world.pop(maxMsgNums=2)
    world.restart(is_killed=True)

    assert world.bodies() == [b"2", b"3", b"4"]


def test_offsets_that_were_saved_later_are_not_moved_by_older_checkpoints() -> None:
    world = PopWorld()
    send_some(world, 5)
    for message in world.pop():
        world.ack(message)
    world.pass_time(12_000)  # the offsets are saved, and what they are worth
    reset = {"topic": TOPIC, "group": GROUP, "timestamp": START_MS, "isForce": "true"}
    world.ask(Ask.INVOKE_BROKER_TO_RESET_OFFSET, reset)
    world.pass_time(12_000)
    world.restart(is_killed=True)

    assert world.bodies() == [b"0", b"1", b"2", b"3", b"4"]


def test_a_reset_wins_over_a_pop_that_is_being_stored() -> None:
    world = PopWorld()
    send_some(world, 2)
    world.pop(maxMsgNums=1)
    world.is_writing = False
    assert world.begin(Ask.POP_MESSAGE, world.pop_header()) is None
    reset = {"topic": TOPIC, "group": GROUP, "timestamp": START_MS, "isForce": "true"}
    world.begin(Ask.INVOKE_BROKER_TO_RESET_OFFSET, reset)
    world.is_writing = True
    world.finish_turn()

    assert world.state.offsets.all_of(GROUP, TOPIC) == {0: 0}
    assert world.bodies() == [b"0", b"1"]


def reset(world: PopWorld) -> None:
    """Let the group begin again with the first message."""
    header = {"topic": TOPIC, "group": GROUP, "timestamp": START_MS, "isForce": "true"}
    assert world.ask(Ask.INVOKE_BROKER_TO_RESET_OFFSET, header).code == 0


def test_an_extension_during_a_replay_skips_nothing_after_a_kill() -> None:
    world = PopWorld()
    send_some(world, 10)
    messages = world.pop(invisibleTime=60_000)
    world.pass_time(6_000)
    reset(world)
    assert world.bodies(maxMsgNums=2) == [b"0", b"1"]
    world.pass_time(6_000)  # the offsets are saved
    assert world.extend(messages[9], 60_000).code == 0
    world.restart(is_killed=True)

    assert world.bodies() == [b"%d" % number for number in range(2, 10)]


def test_an_extension_of_what_nobody_popped_skips_nothing_after_a_kill() -> None:
    world = PopWorld()
    send_some(world, 10)
    (message,) = world.pop(maxMsgNums=1)
    forged = message.handle._replace(start_offset=9, offset=9).text()
    world.extend(message, 60_000, extraInfo=forged, offset=9)
    world.restart(is_killed=True)

    assert world.bodies() == [b"%d" % number for number in range(1, 10)]


@pytest.mark.parametrize("popped", [0, 2])
def test_a_kill_at_once_does_not_undo_a_reset(popped: int) -> None:
    world = PopWorld()
    send_some(world, 5)
    for message in world.pop():
        world.ack(message)
    reset(world)
    world.pop(maxMsgNums=popped) if popped else None
    world.restart(is_killed=True)

    assert world.bodies() == [b"%d" % number for number in range(popped, 5)]


def test_a_reset_is_not_repeated_when_the_offsets_are_saved() -> None:
    world = PopWorld()
    send_some(world, 5)
    world.pop()
    reset(world)
    world.pop(maxMsgNums=2)
    world.pass_time(12_000)
    offset = {"consumerGroup": GROUP, "topic": TOPIC, "queueId": 0, "commitOffset": 4}
    world.ask(Ask.UPDATE_CONSUMER_OFFSET, offset)
    world.pass_time(12_000)
    world.restart(is_killed=True)

    assert "resets" not in world.file("config/popProgress.json")
    assert world.state.offsets.get(GROUP, TOPIC, 0) == 4


def test_a_kill_hands_nothing_out_again_also_if_offsets_are_saved_seldom() -> None:
    world = PopWorld(flushConsumerOffsetInterval="60000")
    send_some(world, 2)
    world.pass_time(61_000, step=500)
    send_some(world, 2)
    world.pop(invisibleTime=300_000)
    world.pass_time(45_000, step=500)
    world.send(b"next")
    world.restart(is_killed=True)

    assert world.bodies() == [b"next"]


@pytest.mark.parametrize(
    "note", ['"timerQueueOffset": 50', f'"resets": [["{TOPIC}", "{GROUP}", 0, 50, 0]]']
)
def test_a_note_of_checkpoints_that_a_loss_of_power_took_hides_no_later_one(note: str) -> None:
    world = PopWorld()
    send_some(world, 2)
    world.disk.write_text("config/popProgress.json", f"{{{note}}}")
    world.restart(is_killed=True)
    assert world.bodies() == [b"0", b"1"]
    world.restart(is_killed=True)

    assert world.bodies() == []


def test_a_kill_keeps_the_place_behind_messages_that_a_filter_left_out() -> None:
    world = PopWorld()
    for tag in "ABAB":
        world.send(tag.encode(), TAGS=tag)
    assert world.bodies(exp="A") == [b"A", b"A"]
    world.send(b"last", TAGS="A")
    world.restart(is_killed=True)

    assert world.bodies() == [b"last"]


@pytest.mark.parametrize(("start", "rest"), [(0, [b"3"]), (1, [b"0", b"1", b"2", b"3"])])
def test_a_checkpoint_of_apache_moves_the_offset_if_it_begins_there(
    start: int, rest: list[bytes]
) -> None:
    world = PopWorld()
    assert world.bodies() == []
    send_some(world, 4)
    key = CheckpointKey(TOPIC, GROUP, 0, start, world.now_ms, "b")
    checkpoint = PopCheckpoint(key, 60_000, tuple(range(start, 3)))
    append_checkpoint(world.state, checkpoint, 0, world.now_ms)
    world.finish_turn()
    world.pass_time(6_000)
    world.disk.write_text("config/popProgress.json", "{}")
    world.restart(is_killed=True)

    assert world.bodies() == rest


def test_a_pop_of_a_new_group_waits_until_the_group_is_saved() -> None:
    """Otherwise a kill between the two would hand the message out twice."""
    world = PopWorld()
    send_some(world, 1)
    world.is_writing = False
    assert world.begin(Ask.POP_MESSAGE, world.pop_header()) is None
    assert world.begin(Ask.POP_MESSAGE, world.pop_header(), of=2) is None

    assert world.state.store.queue(TIMER_TOPIC, 0) is None, "a checkpoint is stored"
    world.is_writing = True
    world.finish_turn()
    first, second = (world.reply_to(world.last_opaque - n, of=2 - n) for n in (1, 0))
    assert first is not None
    assert second is not None
    assert [message.body for message in taken(first)] == [b"0"]
    assert second.code == ResponseCode.POLLING_TIMEOUT


def test_a_pop_of_a_group_that_cannot_be_saved_gets_nothing_and_in_time() -> None:
    world = PopWorld()
    send_some(world, 1)
    world.is_writing = False
    assert world.begin(Ask.POP_MESSAGE, world.pop_header()) is None
    world.pass_time(5_100)

    answer = world.reply_to(world.last_opaque)
    assert answer is not None
    assert answer.code == ResponseCode.POLLING_TIMEOUT
