"""One pull: what is asked, and what each answer does to the queue."""

import zlib

import pytest
from tests.client.script import Answer, World, fails, group_of, in_turn, says
from tests.client.scripted_consumer import ext, found, record

from reliable_mq.client.consuming.assigned_queue import AssignedQueue
from reliable_mq.client.consuming.consumer_group import ConsumerGroup
from reliable_mq.client.consuming.pulling import pull_once, received
from reliable_mq.client.consuming.subscription import Subscription
from reliable_mq.client.consuming.unpacking import unpacked
from reliable_mq.client.flow import Call
from reliable_mq.client.settings import ClientSettings
from reliable_mq.errors import ConnectionLost, RecordError, RequestTimeout
from reliable_mq.message import MessageQueue
from reliable_mq.wire.codes import RequestCode, ResponseCode
from reliable_mq.wire.command import Command
from reliable_mq.wire.headers import PullMessageHeader
from reliable_mq.wire.properties import encode_properties
from reliable_mq.wire.record import (
    Record,
    pack_host,
)

PULL = RequestCode.PULL_MESSAGE
QUEUE = MessageQueue("t", "a", 0)


def reading(
    expression: str = "*",
    *,
    ordered: bool = False,
    takes_faulty: bool = False,
    polled: bool = False,
    settings: ClientSettings | None = None,
) -> tuple[World, ConsumerGroup, AssignedQueue]:
    world = World()
    subscription = Subscription(
        group="g", topics={"t": expression}, ordered=ordered, takes_faulty=takes_faulty
    )
    group = group_of(world, subscription, queues={"a": 1}, settings=settings, polled=polled)
    assigned = group.assign(QUEUE)
    assigned.start_at(3)
    return world, group, assigned


def asked(world: World) -> PullMessageHeader:
    return PullMessageHeader.decode(world.calls_of(PULL)[-1].command.ext_fields)


def test_a_pull_asks_for_32_messages_and_lets_the_broker_hold_it_for_15_seconds() -> None:
    world, group, assigned = reading()
    world.answers[PULL] = says(ResponseCode.PULL_NOT_FOUND, ext(3))
    world.play(pull_once(group, assigned))
    header = asked(world)
    assert (header.queue_offset, header.max_msg_nums, header.sys_flag) == (3, 32, 0b10)
    assert (header.commit_offset, header.suspend_timeout_millis) == (0, 15_000)
    assert header.sub_version == group.version
    assert world.calls_of(PULL)[0].timeout > 15


def test_what_is_found_is_kept_and_the_next_pull_goes_on_behind_it() -> None:
    world, group, assigned = reading()
    world.answers[PULL] = found(5, record(3), record(4))
    assert world.play(pull_once(group, assigned)) == 0
    taken = [*group.take_ready(world.seconds), *group.take_ready(world.seconds)]
    assert [message.message_id for message in taken] == ["ID3", "ID4"]
    assert assigned.next_offset == 5


def test_a_tag_whose_hash_collides_is_passed_over_but_its_offset_is_not_lost() -> None:
    """ "Aa" and "BB" have one Java hash, so the broker lets both through."""
    world, group, assigned = reading("Aa || C")
    world.answers[PULL] = found(6, record(3, "BB"), record(4, "Aa"), record(5, "BB"))
    world.play(pull_once(group, assigned))
    assert [message.tag for message in group.take_ready(world.seconds)] == ["Aa"]
    assigned.finish(4)
    assert assigned.commit_offset == 6


@pytest.mark.parametrize("code", [19, 20])
def test_an_answer_without_messages_moves_the_queue_on(code: int) -> None:
    world, group, assigned = reading()
    world.answers[PULL] = says(code, ext(40))
    assert world.play(pull_once(group, assigned)) == 0
    assert assigned.commit_offset == 40


def test_an_offset_that_does_not_exist_is_replaced(caplog: pytest.LogCaptureFixture) -> None:
    world, group, assigned = reading()
    for offset, told in ((3, 0), (1000, 1)):  # a reset to where the group is changes nothing
        world.answers[PULL] = says(ResponseCode.PULL_OFFSET_MOVED, ext(offset))
        world.play(pull_once(group, assigned))
        assert (assigned.next_offset, len(caplog.records)) == (offset, told)
    assert not assigned.leaving


def test_a_queue_that_is_polled_begins_anew_where_its_broker_wants_it() -> None:
    """What was handled is none of the group's offsets any more, though nothing is held."""
    world, group, assigned = reading(polled=True)
    world.answers[PULL] = says(ResponseCode.PULL_OFFSET_MOVED, ext(0))
    world.play(pull_once(group, assigned))
    assert assigned.leaving
    assert assigned.commit_offset == 0


def test_a_queue_that_holds_messages_is_given_up_when_its_offset_moves() -> None:
    world, group, assigned = reading()
    world.answers[PULL] = in_turn(
        found(4, record(3)),
        says(ResponseCode.PULL_OFFSET_MOVED, ext(1000)),
    )
    world.play(pull_once(group, assigned))
    world.play(pull_once(group, assigned))
    assert assigned.leaving
    assert assigned.commit_offset == 1000


def test_what_was_pulled_before_the_broker_deleted_it_is_handled_all_the_same() -> None:
    world, group, assigned = reading()
    world.answers[PULL] = in_turn(
        found(4, record(3)),
        says(ResponseCode.PULL_OFFSET_MOVED, ext(1000), remark="OFFSET_TOO_SMALL"),
    )
    world.play(pull_once(group, assigned))
    world.play(pull_once(group, assigned))
    assert (assigned.next_offset, assigned.commit_offset) == (1000, 3)
    assert [message.queue_offset for message in group.take_ready(world.seconds)] == [3]
    assigned.finish(3)
    assert assigned.commit_offset == 1000


@pytest.mark.parametrize(
    "answer",
    [
        fails(ConnectionLost("gone")),
        fails(RequestTimeout("slow")),
        says(ResponseCode.SYSTEM_ERROR, remark="on fire"),
        says(0, {"nextBeginOffset": "no number"}),
        says(0, ext(4), b"no record"),
    ],
)
def test_a_pull_that_fails_changes_nothing_and_pauses_longer_each_time(answer: Answer) -> None:
    world, group, assigned = reading()
    world.answers[PULL] = answer
    pauses = [world.play(pull_once(group, assigned)) for _ in range(6)]
    assert pauses == [0.1, 0.2, 0.4, 0.8, 1.0, 1.0]
    assert assigned.next_offset == 3
    world.answers[PULL] = says(ResponseCode.PULL_NOT_FOUND, ext(3))
    world.play(pull_once(group, assigned))
    assert assigned.failures == 0


def test_flow_control_of_the_broker_is_no_failure() -> None:
    world, group, assigned = reading()
    world.answers[PULL] = says(ResponseCode.FLOW_CONTROL)
    assert world.play(pull_once(group, assigned)) == 0.02
    assert assigned.failures == 0


@pytest.mark.parametrize("ordered", [False, True])
def test_a_pull_commits_nothing_because_a_broker_could_store_that_behind_a_commit(
    ordered: bool,
) -> None:
    world, group, assigned = reading(ordered=ordered)
    world.answers[PULL] = says(ResponseCode.PULL_NOT_FOUND, ext(3))
    assigned.lock_until(world.seconds + 30)
    world.play(pull_once(group, assigned))
    assert (asked(world).sys_flag, asked(world).commit_offset) == (0b10, 0)


def test_a_compressed_body_is_unpacked() -> None:
    world, group, assigned = reading()
    packed = record(3, sys_flag=0x301, body=zlib.compress(b"long" * 100))
    world.answers[PULL] = found(4, packed)
    world.play(pull_once(group, assigned))
    (message,) = group.take_ready(world.seconds)
    assert message.body == b"long" * 100


def test_a_body_that_cannot_be_unpacked_becomes_a_dead_letter_and_the_queue_goes_on() -> None:
    world, group, assigned = reading()
    world.answers[PULL] = found(5, record(3, sys_flag=0x101, body=b"lz4"), record(4))
    stored = {"msgId": "X", "queueId": "0", "queueOffset": "0"}
    world.answers[RequestCode.SEND_MESSAGE_V2] = says(ext=stored)
    world.play(pull_once(group, assigned))
    (letter,) = world.calls_of(RequestCode.SEND_MESSAGE_V2)
    assert letter.command.ext_fields["b"] == "%DLQ%g"
    assert "LZ4" in letter.command.ext_fields["i"]
    assert [message.queue_offset for message in group.take_ready(world.seconds)] == [4]
    assigned.finish(4)
    assert assigned.commit_offset == 5


def test_a_body_that_cannot_be_unpacked_waits_for_the_lock_of_its_queue() -> None:
    """Another owner may be at it, who makes the dead letter, or has made it."""
    world, group, assigned = reading(ordered=True)
    faulty = record(4, sys_flag=0x101, body=b"lz4")
    world.answers[PULL] = found(6, record(3), faulty, record(5))
    stored = {"msgId": "X", "queueId": "0", "queueOffset": "0"}
    world.answers[RequestCode.SEND_MESSAGE_V2] = says(ext=stored)
    assert world.play(pull_once(group, assigned)) == 0.0
    assert (assigned.unfinished, assigned.next_offset) == (1, 4), "what lies before it is kept"
    world.answers[PULL] = found(6, faulty, record(5))
    assert world.play(pull_once(group, assigned)) == group.settings.pull_retry_seconds_max
    assert not world.calls_of(RequestCode.SEND_MESSAGE_V2)
    assigned.lock_until(world.lease_seconds + 1.0)
    assert world.play(pull_once(group, assigned)) == 0.0
    assert len(world.calls_of(RequestCode.SEND_MESSAGE_V2)) == 1
    assert (assigned.unfinished, assigned.next_offset) == (2, 6)


def test_a_faulty_message_that_another_owner_has_finished_meanwhile_is_left_to_it() -> None:
    world, group, assigned = reading(ordered=True)
    assigned.lock_until(float("inf"))

    def late(call: Call) -> Command:
        assigned.forget_below(5)  # the lock has come back while the broker held the pull
        return found(6, record(3), record(4, sys_flag=0x101, body=b"lz4"), record(5))(call)

    world.answers[PULL] = late
    assert world.play(pull_once(group, assigned)) == 0.0
    assert not world.calls_of(RequestCode.SEND_MESSAGE_V2)
    assert [message.queue_offset for message in group.take_ready(world.seconds)] == [5]


def test_who_asks_for_faulty_messages_gets_them_with_what_is_wrong() -> None:
    world, group, assigned = reading(takes_faulty=True)
    world.answers[PULL] = found(5, record(3, sys_flag=0x101, body=b"lz4"), record(4))
    world.play(pull_once(group, assigned))
    messages = [*group.take_ready(world.seconds), *group.take_ready(world.seconds)]
    assert [(message.queue_offset, bool(message.fault)) for message in messages] == [
        (3, True),
        (4, False),
    ]
    assert "LZ4" in messages[0].fault
    assert messages[0].body == b"lz4"
    assert not world.calls_of(RequestCode.SEND_MESSAGE_V2)


@pytest.mark.parametrize(
    "bad",
    [
        record(0, sys_flag=0x201, body=b"zstd"),
        record(0, sys_flag=0x1, body=b"not zlib"),
        record(0, sys_flag=0x301, body=zlib.compress(bytes(5 * 1024 * 1024))),
    ],
)
def test_bodies_that_are_damaged_foreign_or_too_large_are_not_unpacked(bad: Record) -> None:
    with pytest.raises(RecordError):
        unpacked(bad)


def test_a_retried_message_gets_its_own_topic_back() -> None:
    retried = Record(
        topic="%RETRY%g",
        body=b"x",
        properties=encode_properties({"RETRY_TOPIC": "t", "__SHARDINGKEY": "k", "KEYS": "a b"}),
        reconsume_times=2,
        commit_log_offset=16,
        store_host=pack_host("127.0.0.1", 10911),
    )
    message = received(retried, MessageQueue("%RETRY%g", "a", 0))
    assert (message.topic, message.queue.topic) == ("t", "%RETRY%g")
    assert (message.ordering_key, message.keys, message.reconsume_times) == ("k", ("a", "b"), 2)
    assert message.offset_message_id == "7F00000100002A9F0000000000000010"
    assert message.message_id == message.offset_message_id, (
        "without UNIQ_KEY the broker's id serves"
    )


@pytest.mark.parametrize("origin", ["", "a\0b", "t" * 128])
def test_a_copy_whose_own_topic_could_be_none_stays_in_the_retry_topic(origin: str) -> None:
    stored = encode_properties({"RETRY_TOPIC": origin})
    retried = Record(
        topic="%RETRY%g", body=b"x", properties=stored, store_host=pack_host("127.0.0.1", 10911)
    )

    assert received(retried, MessageQueue("%RETRY%g", "a", 0)).topic == "%RETRY%g"


@pytest.mark.parametrize("topic", ["%RETRY%g", "%DLQ%g"])
def test_a_copy_of_a_message_without_an_id_is_known_by_the_place_of_the_first(topic: str) -> None:
    """Apache's broker copies what an old client sent; each copy has a place of its own."""
    origin = "7F00000100002A9F0000000000000010"
    properties = {"RETRY_TOPIC": "t", "ORIGIN_MESSAGE_ID": origin}
    host = pack_host("127.0.0.1", 10911)

    def delivery(more: dict[str, str], in_topic: str = topic) -> str:
        stored = encode_properties(properties | more)
        record = Record(
            topic=in_topic, body=b"x", properties=stored, commit_log_offset=64, store_host=host
        )
        return received(record, MessageQueue(in_topic, "a", 0)).message_id

    assert delivery({}) == origin
    assert delivery({"UNIQ_KEY": "A" * 32}) == "A" * 32
    # In a topic of its own the property is its sender's, and says nothing of this message.
    assert delivery({}, "t") == "7F00000100002A9F0000000000000040"


def with_slave(group: ConsumerGroup, *, master: bool = True) -> None:
    """Let the broker have a slave, and maybe no master."""
    addresses = group.routes.broker("a").addresses  # type: ignore[union-attr]
    addresses[1] = "slave:10911"
    if not master:
        del addresses[0]


def test_a_slave_that_lags_sends_nobody_back_over_what_was_handled() -> None:
    """It knows fewer offsets than we have read; only its master knows whether they are gone."""
    world, group, assigned = reading()
    with_slave(group)
    assigned.read_from = 1
    world.answers[PULL] = in_turn(
        says(ResponseCode.PULL_OFFSET_MOVED, ext(0)), says(ResponseCode.PULL_NOT_FOUND, ext(3))
    )
    assert world.play(pull_once(group, assigned)) == 0
    assert assigned.next_offset == 3
    world.play(pull_once(group, assigned))
    assert [call.address for call in world.calls_of(PULL)] == ["slave:10911", "a:10911"]


@pytest.mark.parametrize(("offset", "reads_on_at"), [(0, 3), (1000, 1000)])
def test_without_a_master_a_slave_is_believed_only_that_messages_are_deleted(
    offset: int, reads_on_at: int
) -> None:
    world, group, assigned = reading()
    with_slave(group, master=False)
    world.answers[PULL] = says(ResponseCode.PULL_OFFSET_MOVED, ext(offset))
    world.play(pull_once(group, assigned))
    assert assigned.next_offset == reads_on_at


def test_a_slave_that_cannot_be_reached_is_left_for_the_master_and_its_route_is_asked_again() -> (
    None
):
    world, group, assigned = reading()
    with_slave(group)
    assigned.read_from = 1
    world.dead.add("slave:10911")
    world.answers[PULL] = says(ResponseCode.PULL_NOT_FOUND, ext(3))
    world.play(pull_once(group, assigned))
    world.play(pull_once(group, assigned))
    assert [call.address for call in world.calls_of(PULL)] == ["slave:10911", "a:10911"]
    world.calls.clear()
    world.play(group.routes.of("t"))
    assert world.calls_of(RequestCode.GET_ROUTEINFO_BY_TOPIC), "the route was doubted"


@pytest.mark.parametrize(("from_slave", "end"), [(False, 100), (True, 200)])
def test_the_end_of_the_queue_is_noted_and_a_slave_that_lags_takes_none_of_it_away(
    from_slave: bool, end: int
) -> None:
    world, group, assigned = reading()
    assigned.note_end(200, world.seconds)
    world.seconds += 5
    if from_slave:
        with_slave(group)
        assigned.read_from = 1
    world.answers[PULL] = says(ResponseCode.PULL_NOT_FOUND, ext(3))
    world.play(pull_once(group, assigned))
    assert (assigned.end_offset, assigned.told_at) == (end, world.seconds)


@pytest.mark.parametrize(
    "code", [ResponseCode.SUBSCRIPTION_NOT_EXIST, ResponseCode.SUBSCRIPTION_NOT_LATEST]
)
def test_a_broker_that_knows_the_group_otherwise_has_to_be_told(code: int) -> None:
    world, group, assigned = reading()
    world.answers[PULL] = says(code)
    assert world.play(pull_once(group, assigned)) == 0.1
    assert group.is_unheard


def test_a_pull_asks_for_no_more_bytes_than_the_client_has_room_for() -> None:
    settings = ClientSettings(held_total_bytes_max=100_000)
    world, group, assigned = reading(settings=settings)
    world.answers[PULL] = says(ResponseCode.PULL_NOT_FOUND, ext(3))
    world.play(pull_once(group, assigned))
    assert asked(world).max_msg_bytes == 50_000
    assigned.note_end(3, world.seconds)
    world.play(pull_once(group, assigned))
    assert asked(world).max_msg_bytes == settings.pull_bytes, "at the end nothing may come for long"
    assigned.budget.invariants()
    assert assigned.budget.ask(0, 100_000) == 50_000, "nothing is on its way any more"


def test_what_unpacks_to_more_than_was_asked_for_is_left_for_another_pull() -> None:
    world, group, assigned = reading(settings=ClientSettings(pull_bytes=1000))
    packed = [record(at, sys_flag=0x301, body=zlib.compress(bytes(600))) for at in (3, 4, 5)]
    world.answers[PULL] = found(6, *packed)
    world.play(pull_once(group, assigned))
    assert (assigned.unfinished, assigned.next_offset) == (2, 5)
    world.answers[PULL] = found(6, packed[2])
    world.play(pull_once(group, assigned))
    assert asked(world).queue_offset == 5
    assert (assigned.unfinished, assigned.next_offset) == (3, 6)
