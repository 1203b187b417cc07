"""Very many offsets are encoded for their file a little at a time, and none is lost by that."""

import pytest
from tests.broker_core.broker_world import TOPIC, BrokerWorld

from reliable_mq.broker_core import offsets
from reliable_mq.broker_core.names import HALF_TOPIC, OP_TOPIC, TRANSACTION_GROUP
from reliable_mq.broker_core.requests import tables
from reliable_mq.wire import fastjson
from reliable_mq.wire.codes import RequestCode as Ask
from reliable_mq.wire.codes import ResponseCode as Code


@pytest.fixture
def slices(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a tick encode one row of a table of offsets."""
    monkeypatch.setattr(offsets, "_ENCODED_AT_ONCE", 10)
    monkeypatch.setattr(tables, "OFFSETS_ASKED_MAX", 100)


NAMES = [f"group-{number}" for number in range(20)]


def commit_all(world: BrokerWorld, offset: int, names: list[str] = NAMES) -> None:
    """Let each group commit in each of eight queues, behind a message."""
    world.create_topic(queues=8)
    for queue_id in range(8):
        world.send(queue_id=queue_id)
    for name in names:
        world.subscribe(TOPIC, group=name)
        for queue_id in range(8):
            ext = {"consumerGroup": name, "topic": TOPIC, "queueId": queue_id}
            world.ask(Ask.UPDATE_CONSUMER_OFFSET, ext | {"commitOffset": offset})


def saved(world: BrokerWorld) -> dict[str, dict[int, int]]:
    text = world.disk.read_text(offsets.PATH)
    return of_topic(fastjson.loads(text)) if text else {}


def of_topic(table: dict[str, dict[str, dict[int, int]]]) -> dict[str, dict[int, int]]:
    """Return the offsets without those of the broker's own group."""
    rows = table["offsetTable"].items()
    return {name: queues for name, queues in rows if name.startswith(TOPIC)}


def asked(world: BrokerWorld) -> dict[str, dict[int, int]]:
    answer = world.ask(Ask.GET_ALL_CONSUMER_OFFSET)
    assert answer.code == Code.SUCCESS
    return of_topic(fastjson.loads(answer.body))


def each_at(offset: int, names: list[str]) -> dict[str, dict[int, int]]:
    return {f"{TOPIC}@{name}": dict.fromkeys(range(8), offset) for name in names}


@pytest.mark.usefixtures("slices")
def test_offsets_that_change_all_at_once_are_encoded_in_several_ticks(world: BrokerWorld) -> None:
    """Others are served in between. No file is written before all are encoded; then it has all,
    whatever was deleted meanwhile. Who asks for all gets those that were saved last."""
    commit_all(world, 1)
    assert world.ask(Ask.GET_ALL_CONSUMER_OFFSET).code == Code.SYSTEM_BUSY

    world.pass_time(6_000, step=6_000)
    first = saved(world)
    world.ask(Ask.DELETE_SUBSCRIPTIONGROUP, {"groupName": NAMES[0], "cleanOffset": "true"})
    world.pass_time(600, step=20)
    second = saved(world)
    commit_all(world, 2, NAMES[1:])

    assert (first, second) == ({}, each_at(1, NAMES[1:]))
    assert asked(world) == each_at(1, NAMES[1:])


@pytest.mark.usefixtures("slices")
@pytest.mark.parametrize("ends", ["is closed", "is asked"])
def test_who_needs_all_offsets_between_two_slices_gets_them(
    world: BrokerWorld, monkeypatch: pytest.MonkeyPatch, ends: str
) -> None:
    commit_all(world, 1)
    world.pass_time(6_000, step=6_000)
    if ends == "is closed":
        world.stop()
        found = saved(world)
        world.start()
    else:
        monkeypatch.setattr(tables, "OFFSETS_ASKED_MAX", 10_000)
        found = asked(world)

    assert found == each_at(1, NAMES)


@pytest.mark.usefixtures("slices")
def test_a_broker_that_was_started_again_tells_all_offsets_soon(world: BrokerWorld) -> None:
    commit_all(world, 1)
    world.stop()
    world.start()

    world.pass_time(7_000, step=20)

    assert asked(world) == each_at(1, NAMES)


def test_what_says_which_halves_are_settled_is_written_as_of_one_moment(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Given a row that was encoded before its partner moved, when the file is written, then it has
    both as they are: else a transaction that was rolled back would be asked for again."""
    monkeypatch.setattr(offsets, "_ENCODED_AT_ONCE", 1)
    table = offsets.OffsetTable()
    for topic in (HALF_TOPIC, OP_TOPIC):
        table.commit(TRANSACTION_GROUP, topic, 0, 1)
    table.begin_dump()
    assert table.encode_some()
    for topic in (HALF_TOPIC, OP_TOPIC):
        table.commit(TRANSACTION_GROUP, topic, 0, 2)
    assert not table.encode_some()

    written = fastjson.loads(table.dump_encoded())["offsetTable"]

    assert list(written.values()) == [{0: 2}, {0: 2}]
