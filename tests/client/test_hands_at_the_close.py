"""What becomes of a queue when its consumer closes and handlers do not end."""

import msgspec
import pytest
from tests.client.script import World
from tests.client.scripted_consumer import QUICK, Held, ScriptedClient, play, reading
from tests.client.test_asyncio_hands import BACK, LIMIT, Hanging
from tests.waiting import eventually

from reliable_mq.errors import UsageError
from reliable_mq.wire.codes import RequestCode

UNLOCK = RequestCode.UNLOCK_BATCH_MQ


def test_a_queue_whose_handler_was_cancelled_at_the_close_is_unlocked_for_the_next_owner() -> None:
    """Else that one waited until the lock ran out, a minute later."""

    async def scene() -> None:
        settings = msgspec.structs.replace(QUICK, close_timeout_seconds=LIMIT)
        client = ScriptedClient(World())
        handler = Held()
        consumer, assigned = reading(client, handler, settings, ordered=True, keys=["k", "k", ""])
        consumer.pool.pump()
        await handler.running.wait()
        await consumer.close()
        (last,) = client.world.calls_of(RequestCode.UPDATE_CONSUMER_OFFSET)
        assert last.command.ext_fields["commitOffset"] == "0", "it comes again"
        assert not client.world.calls_of(BACK), "which is no attempt"
        assert len(client.world.calls_of(UNLOCK)) == 1
        assigned.invariants()

    play(scene())


def test_what_a_hand_had_taken_and_not_begun_at_the_close_keeps_no_queue_locked() -> None:
    async def scene() -> None:
        client = ScriptedClient(World())
        consumer, _ = reading(client, Held(), ordered=True)
        consumer.pool.pump()
        await consumer.pool.close()
        await consumer.close()
        assert len(client.world.calls_of(UNLOCK)) == 1

    play(scene())


def test_a_queue_whose_thread_goes_on_after_the_close_stays_locked() -> None:
    """The next owner would begin with the key while the handler runs."""
    hanging = Hanging()

    async def scene() -> None:
        settings = msgspec.structs.replace(QUICK, close_timeout_seconds=LIMIT)
        client = ScriptedClient(World())
        consumer, _ = reading(client, hanging, settings, ordered=True, keys=["k"])
        consumer.pool.pump()
        try:
            await eventually(lambda: hanging.begun == [0])
            await consumer.close()
            assert not client.world.calls_of(UNLOCK)
        finally:
            hanging.may_end.set()

    play(scene())


@pytest.mark.parametrize("verb", ["pause", "resume", "lag"])
def test_a_closed_consumer_says_so_to_who_wants_something_of_it(verb: str) -> None:
    async def scene() -> None:
        consumer, _ = reading(ScriptedClient(World()), Held(), keys=[])
        await consumer.close()
        with pytest.raises(UsageError, match="this consumer is closed"):
            getattr(consumer, verb)()
        await consumer.close()

    play(scene())
