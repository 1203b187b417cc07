"""P3 as a client sees it: what was answered with success is there after the lights went out."""

from random import Random
from typing import NamedTuple

import pytest
from tests.broker_core.broker_world import TOPIC, BrokerWorld

from reliable_mq.testing.memory_disk import MachineStopped, MemoryDisk
from reliable_mq.wire.codes import RequestCode, ResponseCode

MESSAGES = 12
SEEDS = range(3)


class Acknowledged(NamedTuple):
    queue_id: int
    queue_offset: int
    body: bytes


def send_until_stopped(disk: MemoryDisk, acknowledged: list[Acknowledged]) -> None:
    """Run a broker, stop it cleanly in the middle and start it again; note what it answered."""
    for life in range(2):
        world = BrokerWorld(disk)
        for number in range(MESSAGES):
            body = b"%d-%03d" % (life, number) * 60
            reply = world.ask(
                RequestCode.SEND_MESSAGE,
                {
                    "producerGroup": "shop",
                    "topic": TOPIC,
                    "defaultTopic": "TBW102",
                    "defaultTopicQueueNums": 2,
                    "queueId": number % 2,
                    "sysFlag": 0,
                    "bornTimestamp": 1,
                    "flag": 0,
                    "properties": "TAGS\x01paid\x02",
                    "reconsumeTimes": 0,
                },
                body,
            )
            assert reply.code == ResponseCode.SUCCESS
            place = int(reply.ext_fields["queueOffset"])
            acknowledged.append(Acknowledged(number % 2, place, body))
            world.now_ms += 400
            world.core.tick(world.now_ms)
            world.finish_turn()
            if number % 5 == 4:
                world.core.state.store.checkpoint()
        world.stop()


def assert_kept(disk: MemoryDisk, acknowledged: list[Acknowledged]) -> None:
    store = BrokerWorld(disk).core.state.store
    for queue_id, queue_offset, body in acknowledged:
        queue = store.queue(TOPIC, queue_id)
        assert queue is not None
        assert queue.end > queue_offset
        record = store.read_record(queue.unit(queue_offset).commit_log_offset)
        assert record is not None
        assert (record.queue_offset, record.body) == (queue_offset, body)


@pytest.mark.parametrize("seed", SEEDS)
def test_every_message_that_was_answered_survives_a_power_loss_at_any_operation(seed: int) -> None:
    whole = MemoryDisk()
    send_until_stopped(whole, [])
    random = Random(seed)
    for number in random.sample(range(len(whole.operations)), 40):
        disk, acknowledged = MemoryDisk(), list[Acknowledged]()
        disk.stop_before, disk.torn = number, random.choice((0, random.randint(1, 700)))
        with pytest.raises(MachineStopped):
            send_until_stopped(disk, acknowledged)
        disk.lose_power(random)
        assert_kept(disk, acknowledged)
