"""How fast messages are pulled and handled: of the last minute, failures of the last hour."""

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest
from tests.client.script import World, group_of
from tests.client.scripted_consumer import ScriptedClient, found, message, play, reading, record

from reliable_mq.client.consuming.consumer_group import ConsumerGroup, TopicRates
from reliable_mq.client.consuming.pulling import pull_once
from reliable_mq.client.consuming.running_info import running_info
from reliable_mq.client.consuming.subscription import Subscription
from reliable_mq.client.flow import Instant
from reliable_mq.message import MessageQueue, ReceivedMessage
from reliable_mq.outcomes import CONSUMED, Outcome, Retry
from reliable_mq.wire import fastjson
from reliable_mq.wire.codes import RequestCode

BEGAN = 1000.0
EPOCH_MS = 1_700_000_000_000


def test_rates_are_those_of_the_last_minute() -> None:
    rates = TopicRates(BEGAN)
    for second in range(600):
        now = BEGAN + second
        rates.pulled(32, 0.004, now)
        rates.handled(4, 1, 0.002, now)
    status = rates.status(BEGAN + 600)
    assert status["pullTPS"] == pytest.approx(32, rel=0.2)
    assert status["consumeOKTPS"] == pytest.approx(4, rel=0.2)
    assert status["consumeFailedTPS"] == pytest.approx(1, rel=0.2)
    assert status["pullRT"] == pytest.approx(4)
    assert status["consumeRT"] == pytest.approx(2)
    assert status["consumeFailedMsgs"] == 600


def test_who_has_just_begun_is_measured_by_the_time_that_there_was() -> None:
    rates = TopicRates(BEGAN)
    rates.handled(20, 0, 0.5, BEGAN + 10)
    assert rates.status(BEGAN + 10)["consumeOKTPS"] == 2.0


def test_what_is_a_minute_ago_has_no_rate_but_a_time_and_what_is_an_hour_ago_nothing() -> None:
    rates = TopicRates(BEGAN)
    rates.handled(1, 2, 0.5, BEGAN)
    later = rates.status(BEGAN + 120)
    assert (later["consumeOKTPS"], later["consumeRT"], later["consumeFailedMsgs"]) == (0, 500, 2)
    assert set(rates.status(BEGAN + 7300).values()) == {0}


def test_an_administrator_is_told_what_was_pulled_and_how_it_was_handled() -> None:
    async def scene() -> None:
        world = World({RequestCode.PULL_MESSAGE: found(5, record(3), record(4))})
        client = ScriptedClient(world)
        outcomes: list[Outcome] = [CONSUMED, Retry(), Retry(counts=False), CONSUMED, CONSUMED]

        async def handle(messages: Sequence[ReceivedMessage]) -> Sequence[Outcome]:
            return [outcomes.pop(0) for _ in messages]

        consumer, assigned = reading(client, handle, keys=("", "", ""))
        assigned.lock_until(client.lease_clock() + 30)
        await client.run(pull_once(consumer.group, assigned))
        consumer.pool.pump()
        await asyncio.gather(*consumer.pool.tasks)
        now = asyncio.get_running_loop().time()
        instant = Instant(now, 0, now)
        table = increment_summary(consumer.group, instant)["statusTable"]
        await consumer.close()
        assert table.keys() == {"t", "%RETRY%g"}
        told = {name: value for name, value in table["t"].items() if not name.endswith("RT")}
        assert told == {
            "pullTPS": 2.0,
            "consumeOKTPS": 3.0,
            "consumeFailedTPS": 1.0,
            "consumeFailedMsgs": 1,
        }

    play(scene())


def test_an_administrator_is_told_zero_of_what_a_queue_has_never_done() -> None:
    """It has pulled, started and locked nothing: Apache's tools print 0 as a dash."""
    group = group_of(World(), Subscription(group="g", topics={"t": "*"}), queues={"a": 1})
    assigned = group.assign(MessageQueue("t", "a", 0))
    assigned.start_at(7)
    row = of_the_queue(group)
    assert [row[f"last{each}Timestamp"] for each in ("Pull", "Consume", "Lock")] == [0, 0, 0]
    assert row["commitOffset"] == 7


def test_an_administrator_is_told_when_a_queue_was_pulled_started_and_locked() -> None:
    group = group_of(World(), Subscription(group="g", topics={"t": "*"}), queues={"a": 1})
    assigned = group.assign(MessageQueue("t", "a", 0))
    assigned.start_at(0)
    assigned.add_pulled([message(assigned.queue, 0)], 1)
    assigned.note_end(5, BEGAN - 3)
    assigned.lock_until(BEGAN - 1 + group.settings.lock_valid_seconds)
    assigned.take_ready(1, BEGAN - 2)
    row = of_the_queue(group)
    times = [row[f"last{each}Timestamp"] for each in ("Pull", "Consume", "Lock")]
    assert times == [EPOCH_MS - 3000, EPOCH_MS - 2000, EPOCH_MS - 1000]


def of_the_queue(group: ConsumerGroup) -> dict[str, Any]:
    """Return what an administrator is told of the only queue."""
    (row,) = increment_summary(group, Instant(BEGAN, EPOCH_MS, BEGAN))["mqTable"].values()
    return dict(row)


def increment_summary(group: ConsumerGroup, instant: Instant) -> dict[str, Any]:
    """Return what an administrator is told of a group."""
    body = running_info(group, instant, name_servers="", version="", calls=0, stacks=None)
    return dict(fastjson.loads(body))
