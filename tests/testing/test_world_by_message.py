"""Worlds in which a group consumes by the message: the same promises, by pops and leases."""

from collections.abc import Iterator
from typing import Any

import pytest
from tests.testing.test_message_world import Shop

from reliable_mq import ReceivedMessage, Reject, Retry
from reliable_mq.testing.message_world import MessageWorld
from reliable_mq.wire.codes import RequestCode

BY_MESSAGE = {"by": "message", "ordered": False}


@pytest.fixture
def shop(tmp_path: Any) -> Iterator[Shop]:
    made = Shop(f"sqlite:///{tmp_path / 'shop.db'}", packs=False, **BY_MESSAGE)
    yield made
    made.mq.close()


def test_an_effect_happens_once_by_the_message_whatever_goes_wrong(shop: Shop) -> None:
    with MessageWorld(shop.mq) as world:
        tried = world.assert_effect_once(shop.place, shop.payments)

    assert {"a duplicate", "a lost acknowledgement", "a lost reply", "no broker"} < set(tried)
    for step in ("sent ACK_MESSAGE", "answered ACK_MESSAGE", "answered POP_MESSAGE"):
        assert any(step in name for name in tried), f"a process is killed at {step}"
    assert any("ConsumeTransaction.complete: after COMMIT" in name for name in tried)


def test_a_message_that_fails_comes_back_after_its_wait_and_is_rejected_at_last(shop: Shop) -> None:
    seen: list[int] = []

    def handle(message: ReceivedMessage) -> None:
        seen.append(message.reconsume_times)
        if len(seen) == 1:
            raise Retry(after=4.0)
        if len(seen) == 2:
            raise Reject("it is refused")

    shop.handler = handle
    with MessageWorld(shop.mq) as world:
        order = shop.place()
        world.deliver()
        assert seen == [0]
        world.advance(seconds=2)
        assert seen == [0]
        world.advance(seconds=4)
        assert seen == [0, 1], "as the next attempt"
        (letter,) = world.dead_letters("payments")
        assert letter.keys == (str(order),)
    assert shop.payments(order) == 0


def test_what_a_process_had_comes_back_when_its_lease_is_over(shop: Shop) -> None:
    with MessageWorld(shop.mq) as world:
        order = shop.place()
        with world.crash(f"broker: sent {RequestCode.ACK_MESSAGE.name}"):
            world.deliver()
        world.restart()
        assert shop.payments(order) == 1
        world.advance(minutes=10)
        assert shop.payments(order) == 1, "the consume log knows it"
