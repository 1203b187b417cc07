"""Whoever makes a topic or a group, or sends to a topic that is new, is answered when it lasts."""

from functools import partial

import msgspec
import pytest
from tests.broker_core.broker_world import TOPIC, BrokerWorld, connection, send_header

from reliable_mq.broker_core.answers import Answer
from reliable_mq.broker_core.config_files import _MANY_ACTS, ConfigFiles
from reliable_mq.broker_core.store.commit_log import CommitLog
from reliable_mq.broker_core.store.disk import JoinedRows, RowsText
from reliable_mq.broker_core.topics import PATH, TopicConfig
from reliable_mq.wire import fastjson
from reliable_mq.wire.codes import RequestCode as Ask
from reliable_mq.wire.command import request

NEW = {
    "topic": TOPIC,
    "defaultTopic": "TBW102",
    "readQueueNums": "4",
    "writeQueueNums": "4",
    "perm": "6",
    "topicFilterType": "SINGLE_TAG",
    "topicSysFlag": "0",
    "order": "false",
}


def test_changes_that_come_while_files_are_written_share_the_next_write() -> None:
    files, saved, texts = ConfigFiles(), list[str](), {"a": "1"}
    files.change("a", lambda: texts["a"])
    files.when_saved(lambda: saved.append("first"))
    assert files.take_texts() == {"a": "1"}
    for number in range(2, 9):
        texts["a"] = str(number)
        files.change("a", lambda: texts["a"])
        files.when_saved(lambda: saved.append("later"))
    assert files.take_texts() == {}  # one write is under way

    files.saved()
    assert saved == ["first"]
    assert files.take_texts() == {"a": "8"}
    files.saved()
    assert saved == ["first", *["later"] * 7]


def table() -> RowsText:
    return RowsText("{", [JoinedRows(["1"], ",")], ",", "}")


@pytest.mark.parametrize(
    ("waiting", "seconds", "rest_ms"),
    [
        (_MANY_ACTS, 0.05, 450),
        (_MANY_ACTS, 0.001, 300),  # however fast the medium is: each write is a commit for all
        (_MANY_ACTS, 3.0, 1_000),  # no longer than that, however slow the medium is
        (_MANY_ACTS, 0.0, 0),  # nobody else is held up
        (_MANY_ACTS - 1, 0.05, 0),  # one creation after another: each waits for its own write
    ],
)
def test_after_a_write_for_very_many_changes_the_next_one_begins_later(
    waiting: int, seconds: float, rest_ms: int
) -> None:
    files, now_ms = ConfigFiles(), 5_000
    files.change("a", table)
    for _ in range(waiting):
        files.when_saved(lambda: None)
    files.take_texts(now_ms)
    files.saved(now_ms, seconds)
    files.change("a", lambda: "2")
    if rest_ms:
        assert files.take_texts(now_ms + rest_ms - 1) == {}
    assert files.take_texts(now_ms + rest_ms) == {"a": "2"}


def test_while_a_flood_keeps_its_pace_each_write_of_a_table_is_followed_by_a_rest() -> None:
    files = ConfigFiles()
    files.change("a", table)
    files.take_texts(5_000)
    files.saved(5_000, 0.001, is_flood=True)
    files.change("a", lambda: "2")
    assert files.take_texts(5_299) == {}
    assert files.take_texts(5_300) == {"a": "2"}


def test_no_rest_follows_a_write_without_a_table() -> None:
    files = ConfigFiles()
    files.change("a", lambda: "1")  # as acknowledgements in order need it
    for _ in range(_MANY_ACTS):
        files.when_saved(lambda: None)
    files.take_texts(5_000)
    files.saved(5_000, 0.1)
    files.change("a", lambda: "2")
    assert files.take_texts(5_000) == {"a": "2"}


def test_a_rest_ends_when_the_broker_stops_or_its_clock_goes_back() -> None:
    files = ConfigFiles()
    for take_ms in (5_000, 3_000):
        files.change("a", table)
        for _ in range(_MANY_ACTS):
            files.when_saved(lambda: None)
        assert str(files.take_texts(take_ms)["a"]) == str(table())
        files.saved(5_000, 0.1)
    files.change("a", lambda: "2")
    assert files.take_texts(5_000) == {}
    files.end_rest()
    assert files.take_texts(5_000) == {"a": "2"}


def test_who_asks_while_the_last_change_is_written_waits_for_it_and_then_for_nothing() -> None:
    files, saved = ConfigFiles(), list[str]()
    files.change("a", lambda: "1")
    files.take_texts()
    files.when_saved(lambda: saved.append("during"))
    assert saved == []
    files.saved()
    files.when_saved(lambda: saved.append("after"))
    assert saved == ["during", "after"]


def test_what_is_not_known_to_be_written_is_written_at_the_end() -> None:
    files = ConfigFiles()
    files.change("under way", lambda: "1")
    files.take_texts()
    files.change("waits", lambda: "2")
    assert files.take_rest() == {"under way": "1", "waits": "2"}
    assert files.take_rest() == {}


def test_thousands_who_wait_for_one_write_are_told_of_it_in_many_turns(world: BrokerWorld) -> None:
    """Together they would hold the loop up for milliseconds."""
    world.is_writing = False
    for number in range(1_000):
        ext = {**NEW, "topic": f"t-{number}"}
        assert world.begin(Ask.UPDATE_AND_CREATE_TOPIC, ext, of=number) is None
    world.core.saved()  # the first one
    world.core.take_turn()
    world.core.saved()  # the others
    told = []
    while world.state.is_turn_due:
        told.append(len(world.core.take_turn().registered_replies))
    assert (sum(told), max(told) <= 64) == (999, True), told


def test_the_topics_of_a_list_are_released_in_many_turns(world: BrokerWorld) -> None:
    """A flood of lists may wait for one write: to release each at once takes milliseconds."""
    world.is_writing = False
    rows = [{"topicName": f"t-{n}", "readQueueNums": 1, "writeQueueNums": 1} for n in range(2_000)]
    body = msgspec.json.encode({"topicConfigList": rows})
    assert world.begin(Ask.UPDATE_AND_CREATE_TOPIC_LIST, {}, body) is None
    assert len(world.state.new_topics) == 2_000
    world.core.saved()
    left = [len(world.state.new_topics)]
    told = 0
    while not told:
        told = len(world.core.take_turn().registered_replies)
        left.append(len(world.state.new_topics))
    assert max(a - b for a, b in zip([2_000, *left], left, strict=False)) <= 512, left
    assert (told, left[-1]) == (1, 0), "it comes behind all of its topics"


def test_each_step_of_a_list_is_about_few_of_its_topics(world: BrokerWorld) -> None:
    """All names at once take a millisecond in each of its phases."""
    state, rows = world.state, [{"topicName": f"t-{n}"} for n in range(1_000)]
    of_list = request(
        Ask.UPDATE_AND_CREATE_TOPIC_LIST, {}, msgspec.json.encode({"topicConfigList": rows})
    )
    world.core.receive(connection(1), of_list, world.now_ms)
    tables = state.new_topics, state.topics.by_name, state.unregistered
    grown, before = [0, 0, 0], [len(each) for each in tables]
    while state.works.busy:
        state.works.run(1)
        now = [len(each) for each in tables]
        grown = [max(a, b - c) for a, b, c in zip(grown, now, before, strict=True)]
        before = now

    assert len(state.new_topics) == len(state.unregistered) == 1_000
    assert max(grown) <= 100, grown


def test_who_asks_while_others_are_told_comes_after_them() -> None:
    files, told = ConfigFiles(), list[int]()
    files.change("a", lambda: "1")
    for number in range(100):
        files.when_saved(partial(told.append, number))
    files.take_texts()
    files.saved()
    assert len(told) < 100
    files.when_saved(partial(told.append, 100))
    while files.due:
        files.call_some()
    assert told == list(range(101))


def test_a_topic_is_answered_when_its_file_is_written(world: BrokerWorld) -> None:
    world.is_writing = False
    for of in (1, 2):  # the second asks for what is there already, but would not survive
        assert world.begin(Ask.UPDATE_AND_CREATE_TOPIC, NEW, of=of) is None

    world.write()
    world.finish_turn()
    assert TOPIC in world.file(PATH)["topicConfigTable"]
    assert [len(world.inbox[of]) for of in (1, 2)] == [1, 1]


def test_a_send_to_a_new_topic_is_answered_when_message_and_topic_last(world: BrokerWorld) -> None:
    world.is_writing = False
    for of in (1, 2):
        assert world.begin(Ask.SEND_MESSAGE_V2, send_header(TOPIC, 0), b"x", of=of) is None
    (turn,) = [turn for turn in world.waiting if turn.files]
    for waiting in world.waiting:
        if waiting.batch:
            CommitLog.write_batch(waiting.batch)
            CommitLog.sync(waiting.batch)

    world.core.stored(world.state.store.log.end, durable=True)
    world.finish_turn()
    assert [world.inbox.get(of, []) for of in (1, 2)] == [[], []]
    assert TOPIC in fastjson.loads(str(turn.files[PATH]))["topicConfigTable"]
    world.core.saved()
    world.finish_turn()
    assert [len(world.inbox[of]) for of in (1, 2)] == [1, 1]


def test_the_rows_of_the_file_are_what_the_topics_are(world: BrokerWorld) -> None:
    topics = world.state.topics
    for number in range(100):
        topics.set_topic(TopicConfig(topic_name=f"t-{number}", perm=2), world.now_ms)
    for number in range(50):
        topics.set_topic(TopicConfig(topic_name=f"t-{number}", perm=4), world.now_ms)
        topics.remove(f"t-{number + 50}", world.now_ms)
    topics.invariants()

    table = fastjson.loads(str(topics.dump()))["topicConfigTable"]
    assert {name: row["perm"] for name, row in table.items() if name[:2] == "t-"} == {
        f"t-{number}": 4 for number in range(50)
    }
    some = fastjson.loads(topics.wrapped(["t-3", "t-77", "gone"]))["topicConfigTable"]
    assert list(some) == ["t-3"]


def test_the_text_of_many_topics_is_joined_by_whoever_writes_it_in_short_pieces(
    world: BrokerWorld,
) -> None:
    """To join them all would stop everybody else, at each new topic."""
    topics = world.state.topics
    for number in range(5_000):
        topics.set_topic(TopicConfig(topic_name=f"t-{number}"), world.now_ms)
    text = topics.dump()
    topics.set_topic(TopicConfig(topic_name="later"), world.now_ms)
    pieces = list(text)
    assert max(map(len, pieces)) < 100_000 < sum(map(len, pieces))
    table = fastjson.loads(b"".join(pieces))["topicConfigTable"]
    assert "t-4999" in table
    assert "later" not in table


def test_rows_that_have_not_changed_are_joined_once(world: BrokerWorld) -> None:
    """One new topic of 100,000 would else cost as much as all of them, ten times a second."""
    topics = world.state.topics
    for number in range(1_000):
        topics.set_topic(TopicConfig(topic_name=f"t-{number}"), world.now_ms)
    before = [piece for piece in topics.dump() if len(piece) > 10_000]
    topics.set_topic(TopicConfig(topic_name="t-300", perm=2), world.now_ms)
    topics.set_topic(TopicConfig(topic_name="later"), world.now_ms)
    topics.remove("t-999", world.now_ms)
    topics.invariants()
    after = [piece for piece in topics.dump() if len(piece) > 10_000]
    assert [old is new for old, new in zip(before, after, strict=True)] == [
        True,
        False,  # of t-300
        True,
        False,  # of the newest
    ]
    table = fastjson.loads(str(topics.dump()))["topicConfigTable"]
    assert (table["t-300"]["perm"], "later" in table, "t-999" in table) == (2, True, False)


def test_a_removed_bundle_of_rows_leaves_no_gap(world: BrokerWorld) -> None:
    topics = world.state.topics
    for number in range(1_000):
        topics.set_topic(TopicConfig(topic_name=f"t-{number}"), world.now_ms)
    for number in range(100, 900):
        topics.remove(f"t-{number}", world.now_ms)
        topics.invariants()
    table = fastjson.loads(str(topics.dump()))["topicConfigTable"]
    assert sum(name.startswith("t-") for name in table) == 200


@pytest.mark.parametrize("count", [0, 1, 256, 257])
def test_a_text_of_rows_has_head_rows_and_tail(count: int) -> None:
    rows = [str(number) for number in range(count)]
    parts = [JoinedRows(rows[at : at + 256], ",") for at in range(0, count, 256)]
    text = RowsText("<", parts, ",", ">")
    assert str(text) == b"".join(text).decode() == "<" + ",".join(rows) + ">"


def test_a_send_to_a_topic_of_a_list_that_is_being_made_is_answered_when_the_file_has_it() -> None:
    """Given a list that takes several turns, its first topics get messages before the last."""
    world = BrokerWorld()
    core, rows = world.core, [{"topicName": f"t{n}", "perm": 6} for n in range(100)]
    of_list = request(
        Ask.UPDATE_AND_CREATE_TOPIC_LIST, {}, msgspec.json.encode({"topicConfigList": rows})
    )
    core.receive(connection(2), of_list, world.now_ms)
    while "t0" not in world.state.topics.by_name:
        core.take_turn(work_us_max=1)
    assert "t99" not in world.state.topics.by_name
    fields = {name: str(value) for name, value in send_header("t0").items()}
    core.receive(connection(1), request(Ask.SEND_MESSAGE_V2, fields, b"x"), world.now_ms)
    turn = core.take_turn(work_us_max=0)
    assert turn.batch is not None
    CommitLog.write_batch(turn.batch)
    answered = list[Answer]()
    core.stored(turn.batch.end, durable=True, answer=answered.extend)
    assert not answered, "after a crash now, the topic would be missing"
    answered += core.take_turn().replies
    assert not answered
    core.saved()
    assert [of for of, _ in core.take_turn().replies] == [1]
