"""Batches: whole or not at all, and none that keeps everybody else waiting."""

import pytest
from tests.broker_core.broker_world import TOPIC, BrokerWorld, send_header

from reliable_mq.broker_core.requests import send as sends
from reliable_mq.wire.batch_body import BatchItem, encode_batch
from reliable_mq.wire.codes import RequestCode as Ask
from reliable_mq.wire.codes import ResponseCode as Answer
from reliable_mq.wire.command import Command
from reliable_mq.wire.properties import decode_properties, encode_properties

SIZE_MAX = 65_536  # of a body in this world
ITEM = BatchItem(0, b"x" * (len(TOPIC) + 11), encode_properties({"UNIQ_KEY": "A" * 32}))


@pytest.fixture
def world(world: BrokerWorld) -> BrokerWorld:
    world.create_topic()
    return world


def send(world: BrokerWorld, items: list[BatchItem]) -> Command:
    header = {**send_header(TOPIC, 0), "m": "true"}
    return world.ask(Ask.SEND_BATCH_MESSAGE, header, encode_batch(items))


def filled(item: BatchItem) -> list[BatchItem]:
    return [item] * (SIZE_MAX // len(encode_batch([item])))


@pytest.mark.parametrize("items", [filled(BatchItem(0, b"", b"")), filled(BatchItem(0, b"1", b""))])
@pytest.mark.parametrize("last", [[], [BatchItem(0, b"of another length", b"")]])
def test_a_batch_of_next_to_nothing_is_refused_before_its_records_are_made(
    world: BrokerWorld,
    items: list[BatchItem],
    last: list[BatchItem],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    identified: list[bytes] = []
    monkeypatch.setattr(sends, "_identified", lambda own, _new_ids: identified.append(own))
    end = world.state.store.log.end

    answer = send(world, items[3:] + last)

    assert answer.code == Answer.MESSAGE_ILLEGAL
    assert (answer.remark or "").startswith("the message is illegal, maybe msg body or properties")
    assert identified == []
    assert world.state.store.log.end == end


def test_a_full_batch_of_small_messages_is_stored(world: BrokerWorld) -> None:
    items = filled(ITEM)

    assert send(world, items).code == Answer.SUCCESS

    assert len(world.records(TOPIC)) == len(items)


def test_messages_of_a_batch_without_ids_get_ids_of_their_own(world: BrokerWorld) -> None:
    items = [BatchItem(0, b"x" * 20, b""), BatchItem(0, b"x" * 20, b"TAGS\x01a")] * 3

    assert send(world, items).code == send(world, items).code == Answer.SUCCESS

    ids = [decode_properties(record.properties)["UNIQ_KEY"] for record in world.records(TOPIC)]
    assert len(ids) == len(set(ids)) == 2 * len(items)
    assert ids == sorted(ids)
    assert {(len(each), each[12]) for each in ids} == {(32, "7")}


def test_a_batch_that_no_file_of_the_log_can_hold_is_refused_whole() -> None:
    """Part of it would be there after a crash between two files."""
    sizes = {"maxMessageSize": str(2 * SIZE_MAX), "mappedFileSizeCommitLog": str(3 * SIZE_MAX)}
    world = BrokerWorld(None, **sizes)
    world.create_topic()
    items = filled(ITEM) * 2
    end = world.state.store.log.end

    answer = send(world, items)

    assert answer.code == Answer.MESSAGE_ILLEGAL
    assert "a file of the log holds" in (answer.remark or "")
    assert world.state.store.log.end == end
    assert send(world, items[1:100]).ext_fields["queueOffset"] == "0"


def test_a_message_without_a_queue_is_refused_where_the_topic_has_none_to_write_to(
    world: BrokerWorld,
) -> None:
    world.create_topic("closed", queues=0)

    answer = world.ask(Ask.SEND_MESSAGE_V2, send_header("closed", -1), b"x")

    assert (answer.code, answer.remark) == (
        Answer.SYSTEM_ERROR,
        "topic[closed] has no queue to write to",
    )
