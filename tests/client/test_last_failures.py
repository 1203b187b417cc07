"""A handler that fails for the last time: what the log says of the dead letter."""

import logging
from collections.abc import Sequence

import pytest
from tests.client.pop_broker import PopBroker
from tests.client.script import World
from tests.client.scripted_consumer import play
from tests.client.test_by_message import consuming
from tests.waiting import eventually

from reliable_mq.message import ReceivedMessage
from reliable_mq.outcomes import Outcome
from reliable_mq.telemetry import client_events


async def fail(_: Sequence[ReceivedMessage]) -> Sequence[Outcome]:
    raise ValueError("no such account")


def lines_of_one_failure(caplog: pytest.LogCaptureFixture, most: int) -> list[logging.LogRecord]:
    async def scene() -> None:
        broker = PopBroker(World(), "")
        consumer = consuming(broker.world, fail, max_attempts=most)
        await consumer.start()
        await eventually(lambda: bool(caplog.records))
        await consumer.close()

    play(scene())
    return caplog.records


def test_the_last_failure_is_one_line_that_has_the_dead_letter_and_the_traceback(
    caplog: pytest.LogCaptureFixture,
) -> None:
    (line,) = lines_of_one_failure(caplog, most=1)
    assert line.__dict__["event"] == client_events.DEAD_LETTER.name
    assert "a dead letter: attempt 1 of 1 failed: ValueError: no such account" in line.message
    assert line.exc_info is not None
    assert isinstance(line.exc_info[1], ValueError)


def test_an_earlier_failure_is_one_line_with_its_traceback(
    caplog: pytest.LogCaptureFixture,
) -> None:
    (line,) = lines_of_one_failure(caplog, most=2)
    assert line.__dict__["event"] == client_events.HANDLER_FAILED.name
    assert line.exc_info is not None
