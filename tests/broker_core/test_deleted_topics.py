"""A topic that is deleted: nobody reads its messages again, also when it is made again."""

from collections.abc import Callable

import pytest
from tests.broker_core.broker_world import (
    GROUP,
    TOPIC,
    BrokerWorld,
    connection,
    send_header,
    there,
)
from tests.broker_core.cleaning import begin_cleaning
from tests.broker_core.probes.asking import pulling

from reliable_mq.broker_core.store.deletions import PATH
from reliable_mq.broker_core.topics import PATH as TOPICS_PATH
from reliable_mq.wire import fastjson
from reliable_mq.wire.codes import RequestCode as Ask
from reliable_mq.wire.codes import ResponseCode as Code
from reliable_mq.wire.command import decode_request, encode_command, request
from reliable_mq.wire.frame import FrameReader
from reliable_mq.wire.record import iter_records

QUEUE = {"topic": TOPIC, "queueId": 0}
PER_FILE = 20_000 // 20  # units of a file of `BrokerWorld`
KEY = "k"


def pull(world: BrokerWorld, offset: int) -> list[bytes]:
    """Return the bodies that a group reads from an offset on, as a client does."""
    for _ in range(2):
        header = pulling(consumerGroup=GROUP, topic=TOPIC, queueOffset=offset)
        answer = world.ask(Ask.PULL_MESSAGE, header)
        if answer.code == Code.SUCCESS:
            return [record.body for record in iter_records(answer.body)]
        offset = int(answer.ext_fields["nextBeginOffset"])
    return []


def bounds(world: BrokerWorld) -> tuple[int, int]:
    first = world.ask(Ask.GET_MIN_OFFSET, QUEUE).ext_fields["offset"]
    return int(first), int(world.ask(Ask.GET_MAX_OFFSET, QUEUE).ext_fields["offset"])


def by_time(world: BrokerWorld) -> int:
    header = {**QUEUE, "timestamp": 0}
    return int(world.ask(Ask.SEARCH_OFFSET_BY_TIMESTAMP, header).ext_fields["offset"])


def deleted(count: int = 5) -> BrokerWorld:
    """Return a broker whose topic had messages, was deleted and is made again."""
    world = BrokerWorld()
    world.create_topic()
    world.create_topic("other")
    world.send(topic="other")
    for number in range(count):
        world.send(b"old %d" % number, KEYS=KEY)
    delete(world)
    world.create_topic()
    return world


def delete(world: BrokerWorld) -> None:
    assert world.ask(Ask.DELETE_TOPIC_IN_BROKER, {"topic": TOPIC}).code == Code.SUCCESS


def clean(world: BrokerWorld) -> None:
    """Let a round of housekeeping remove what nobody needs."""
    job = begin_cleaning(world.core, world.core.housekeeping.survey_job()(), world.reading())
    if job:
        job()


def go_on(_world: BrokerWorld) -> None:
    pass


def restart(world: BrokerWorld) -> None:
    world.stop()
    world.start()


def kill(world: BrokerWorld) -> None:
    world.start()


def kill_when_files_are_gone(world: BrokerWorld) -> None:
    clean(world)
    assert world.disk.names(f"consumequeue/{TOPIC}/0") == []
    world.start()


def build_the_queues_again(world: BrokerWorld) -> None:
    world.stop()
    for topic in world.disk.names("consumequeue"):
        for name in world.disk.names(f"consumequeue/{topic}/0"):
            world.disk.remove(f"consumequeue/{topic}/0/{name}")
    world.start()


LIVES = [go_on, restart, kill, kill_when_files_are_gone, build_the_queues_again]


@pytest.mark.parametrize("live", LIVES)
def test_a_topic_that_is_made_again_is_empty(live: Callable[[BrokerWorld], None]) -> None:
    world = deleted()
    live(world)
    first, end = bounds(world)
    assert first == end == PER_FILE  # the numbers of old messages name no new one
    assert pull(world, 0) == pull(world, 3) == []
    assert world.ask(Ask.GET_EARLIEST_MSG_STORETIME, QUEUE).ext_fields["timestamp"] == "-1"
    assert by_time(world) == PER_FILE


@pytest.mark.parametrize(
    ("live", "again"), [*((go_on, life) for life in LIVES), *((life, kill) for life in LIVES)]
)
def test_it_holds_what_is_sent_to_it_since_and_nothing_else(
    live: Callable[[BrokerWorld], None], again: Callable[[BrokerWorld], None]
) -> None:
    world = deleted()
    live(world)
    assert world.send(b"new").ext_fields["queueOffset"] == str(PER_FILE)
    if again is not kill_when_files_are_gone:
        again(world)
    else:
        clean(world)
        kill(world)
    world.send(b"newer")
    assert pull(world, 0) == [b"new", b"newer"]
    assert bounds(world) == (PER_FILE, PER_FILE + 2)
    assert by_time(world) == PER_FILE
    assert pull_of_other(world) == [b"x"]


def pull_of_other(world: BrokerWorld) -> list[bytes]:
    return [record.body for record in world.records("other")]


def test_a_group_that_is_new_begins_with_the_first_message_since() -> None:
    world = deleted()
    world.send(b"new")
    header = {"consumerGroup": "young", **QUEUE}
    answer = world.ask(Ask.QUERY_CONSUMER_OFFSET, header)
    assert answer.ext_fields == {"offset": str(PER_FILE)}


def test_what_is_not_visible_yet_is_deleted_too() -> None:
    world = BrokerWorld()
    world.create_topic()
    world.send(b"old")
    world.is_writing = False
    send = {"a": "p", "b": TOPIC, "c": "TBW102", "d": 4, "e": 0, "f": 0, "g": 1, "h": 0}
    topic = {"topic": TOPIC, "readQueueNums": 1, "writeQueueNums": 1, "perm": 6}
    world.begin(Ask.SEND_MESSAGE_V2, send, b"handed out")
    for code, ext, body in (  # in one turn
        (Ask.SEND_MESSAGE_V2, send, b"not handed out"),
        (Ask.DELETE_TOPIC_IN_BROKER, {"topic": TOPIC}, b""),
        (Ask.UPDATE_AND_CREATE_TOPIC, topic, b""),
        (Ask.SEND_MESSAGE_V2, send, b"new"),
    ):
        command = request(code, {name: str(value) for name, value in ext.items()}, body)
        (frame,) = FrameReader().feed(encode_command(command))
        world.core.receive(connection(1), decode_request(frame), world.now_ms)
    world.is_writing = True
    world.finish_turn()
    world.core.state.take_unregistered()
    assert pull(world, 0) == [b"new"]
    kill(world)
    assert pull(world, 0) == [b"new"]


def test_what_comes_after_a_crash_cut_the_log_is_new() -> None:
    world = BrokerWorld()
    world.create_topic()
    world.send(b"old")
    world.is_writing = False
    world.begin(Ask.SEND_MESSAGE_V2, send_header(), b"never written" * 100)
    world.begin(Ask.DELETE_TOPIC_IN_BROKER, {"topic": TOPIC})
    for turn in world.waiting:
        for path, text in turn.files.items():
            world.disk.write_text(path, text)
    world.waiting = []
    world.is_writing = True
    kill(world)
    world.create_topic()
    world.send(b"new")
    (new,) = world.records(TOPIC)
    for live in (go_on, kill, restart, build_the_queues_again):
        live(world)
        assert pull(world, 0) == [b"new"]
        place = {"offset": new.commit_log_offset}
        assert world.ask(Ask.VIEW_MESSAGE_BY_ID, place).code == Code.SUCCESS


def test_the_messages_are_gone_before_the_topic_is() -> None:
    world = BrokerWorld()
    world.create_topic()
    world.send(b"old")
    world.is_writing = False
    for name in ("first", "second"):
        header = {"topic": name, "readQueueNums": 1, "writeQueueNums": 1, "perm": 6}
        world.begin(Ask.UPDATE_AND_CREATE_TOPIC, header)
    world.begin(Ask.DELETE_TOPIC_IN_BROKER, {"topic": TOPIC})
    world.write()
    world.finish_turn()
    assert [*world.waiting[-1].files] == [PATH, TOPICS_PATH]


def test_no_file_is_left_to_another_broker_that_opens_the_store_next() -> None:
    world = deleted()
    world.stop()
    assert world.disk.names(f"consumequeue/{TOPIC}/0") == []


def test_a_record_behind_the_deleted_ones_keeps_apache_from_showing_them_again() -> None:
    world = deleted()
    (event,) = world.records("OFFSET_MOVED_EVENT")
    assert event.body == b"the topic orders was deleted"


@pytest.mark.parametrize("is_there", [True, False])
def test_a_queue_that_apaches_broker_deleted_has_no_old_message(is_there: bool) -> None:
    world = BrokerWorld()
    world.create_topic()
    world.create_topic("other")
    world.send(b"old", KEYS=KEY)
    world.send(topic="other")
    place = {"offset": world.records(TOPIC)[0].commit_log_offset}
    world.stop()
    topics = world.file(TOPICS_PATH)
    del topics["writer"]
    if not is_there:
        del topics["topicConfigTable"][TOPIC]
    world.disk.write_text(TOPICS_PATH, fastjson.dumps(topics).decode())
    for name in world.disk.names(f"consumequeue/{TOPIC}/0"):
        world.disk.remove(f"consumequeue/{TOPIC}/0/{name}")
    world.start()
    world.create_topic()
    for live in (go_on, kill, build_the_queues_again):
        live(world)
        assert bounds(world) == (0, 0)
        assert pull(world, 0) == []
        assert world.ask(Ask.VIEW_MESSAGE_BY_ID, place).code == Code.SYSTEM_ERROR
    assert world.send(b"new").ext_fields["queueOffset"] == "0"
    build_the_queues_again(world)
    assert pull(world, 0) == [b"new"]
    assert pull_of_other(world) == [b"x"]


def as_an_older_release_left_it(world: BrokerWorld) -> None:
    """Leave out what a release before the `writer` did not write, and nothing else."""
    text = world.disk.read_text(TOPICS_PATH)
    older = text.replace('\n\t"writer":"reliable_mq",', "")
    assert older != text
    assert older.startswith('{\n\t"dataVersion":{"')
    world.disk.write_text(TOPICS_PATH, older)


@pytest.mark.parametrize("is_killed", [True, False])
def test_a_queue_removed_by_hand_is_built_again_after_an_upgrade(*, is_killed: bool) -> None:
    world = BrokerWorld()
    world.create_topic()
    world.create_topic("other")
    world.send(b"acknowledged")
    world.send(topic="other")
    world.core.state.store.checkpoint()
    if not is_killed:
        world.stop()
    as_an_older_release_left_it(world)
    for name in world.disk.names(f"consumequeue/{TOPIC}/0"):
        world.disk.remove(f"consumequeue/{TOPIC}/0/{name}")
    world.start()
    for live in (go_on, restart, kill):
        live(world)
        assert pull(world, 0) == [b"acknowledged"]


def test_nobody_finds_it_by_key_or_place() -> None:
    world = BrokerWorld()
    world.create_topic()
    world.send(b"old", KEYS=KEY)
    (stored,) = world.records(TOPIC)
    query = {"topic": TOPIC, "key": KEY, "maxNum": 9, "beginTimestamp": 0, "endTimestamp": 2**62}
    place = {"offset": stored.commit_log_offset}
    assert world.ask(Ask.QUERY_MESSAGE, query).code == Code.SUCCESS
    assert world.ask(Ask.VIEW_MESSAGE_BY_ID, place).code == Code.SUCCESS
    delete(world)
    world.create_topic()
    assert world.ask(Ask.QUERY_MESSAGE, query).code == Code.QUERY_NOT_FOUND
    assert world.ask(Ask.VIEW_MESSAGE_BY_ID, place).code == Code.SYSTEM_ERROR
    world.send(b"new", KEYS=KEY)
    found = world.ask(Ask.QUERY_MESSAGE, query)
    assert [record.body for record in iter_records(found.body)] == [b"new"]


def test_a_topic_can_be_deleted_as_often_as_it_is_made() -> None:
    world = deleted()
    for number in range(3):
        world.send(b"%d" % number)
        restart(world)
        delete(world)
        world.create_topic()
        assert bounds(world) == ((number + 2) * PER_FILE,) * 2
        assert pull(world, 0) == []


def test_it_can_be_deleted_twice_without_a_message_between() -> None:
    world = deleted()
    delete(world)
    world.create_topic()
    build_the_queues_again(world)
    assert bounds(world) == (PER_FILE, PER_FILE)
    assert pull(world, 0) == []


def test_a_topic_that_had_no_message_begins_at_0() -> None:
    world = BrokerWorld()
    world.create_topic()
    delete(world)
    world.create_topic()
    assert bounds(world) == (0, 0)
    assert world.send().ext_fields["queueOffset"] == "0"


def test_no_file_of_the_queue_holds_an_old_message_after_a_round_of_housekeeping() -> None:
    world = deleted()
    world.send(b"new")
    world.state.store.checkpoint()
    clean(world)
    (name,) = world.disk.names(f"consumequeue/{TOPIC}/0")
    assert int(name) == PER_FILE * 20
    assert there(world.state.store.queue(TOPIC, 0)).unit(PER_FILE).commit_log_offset > 0


def test_the_queues_can_be_built_again_when_the_file_of_deletions_is_lost() -> None:
    world = deleted()
    world.send(b"new")
    world.stop()
    for name in world.disk.names(f"consumequeue/{TOPIC}/0"):
        world.disk.remove(f"consumequeue/{TOPIC}/0/{name}")
    world.disk.remove(PATH)
    world.start()
    assert pull(world, PER_FILE) == [b"new"]
