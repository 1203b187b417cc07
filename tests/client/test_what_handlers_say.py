"""What a handler of the bare client says, returned or raised: of tasks and threads, alone and in
batches, with and without order."""

import asyncio
import contextlib
import logging
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest
from tests.client.cluster import QUICK as OF_A_BROKER
from tests.client.cluster import Cluster, bundled, numbered
from tests.client.cluster import play as play_at_a_broker
from tests.client.script import World, says
from tests.client.scripted_consumer import ScriptedClient, play, reading
from tests.waiting import eventually

from reliable_mq import AsyncClient, Client, Consumed, Reject, Retry, Subscription
from reliable_mq.client.observing.asyncio_hooks import Hooks
from reliable_mq.client.observing.middleware import ClientIdentity, Delivery, Middleware, Skip
from reliable_mq.errors import NoRoute
from reliable_mq.message import ReceivedMessage
from reliable_mq.outcomes import CONSUMED
from reliable_mq.wire.codes import RequestCode
from reliable_mq.wire.headers import SendBackHeader, SendMessageHeaderV2
from reliable_mq.wire.properties import decode_properties

BACK, SEND = RequestCode.CONSUMER_SEND_MSG_BACK, RequestCode.SEND_MESSAGE_V2
STORED = says(ext={"msgId": "X", "queueId": "0", "queueOffset": "0"})
KINDS = ["def", "async def", "a def that gives a coroutine"]


def raises(said: Any) -> Callable[[], Any]:
    def deed() -> Any:
        raise said

    return deed


def returns(said: Any) -> Callable[[], Any]:
    return lambda: said


class CardBusy(Retry):
    """A subclass with arguments of its own."""

    def __init__(self, card: str) -> None:
        super().__init__(after=30, reason=f"card {card} is busy")


class Saying:
    """A handler of one kind that does one thing after the other, and then consumes."""

    def __init__(self, *deeds: Callable[[], Any]) -> None:
        self.deeds = list(deeds)
        self.seen: list[list[tuple[int, int]]] = []

    def __call__(self, messages: Sequence[ReceivedMessage]) -> Any:
        self.seen.append([(each.queue_offset, each.reconsume_times) for each in messages])
        return self.deeds.pop(0)() if self.deeds else [CONSUMED] * len(messages)

    def of_kind(self, kind: str) -> Any:
        async def handle(messages: Sequence[ReceivedMessage]) -> Any:
            return self(messages)

        def give(messages: Sequence[ReceivedMessage]) -> Any:
            return handle(messages)

        return dict(zip(KINDS, (self, handle, give), strict=True))[kind]


class Noted(Middleware):
    """Keeps what became of deliveries."""

    def __init__(self) -> None:
        self.ends: list[Any] = []

    def after_consume(self, delivery: Delivery) -> None:
        self.ends.append(delivery.error or delivery.outcomes)


def handled(
    saying: Saying, kind: str, *middleware: Middleware, fails: bool = False, **wishes: Any
) -> World:
    """Have one handler call after the other until nothing is left; return what was asked for."""
    world = World({SEND: STORED})

    async def scene() -> None:
        hooks = Hooks(middleware, ClientIdentity())
        handler = hooks.around_handler(saying.of_kind(kind), "g")
        consumer, assigned = reading(ScriptedClient(world), handler, **wishes)
        consumer.pool.pump()
        await eventually(lambda: not assigned.unfinished)
        await consumer.pool.close()

    play(scene())
    return world


def letters(world: World) -> list[str]:
    """The reasons of the dead letters that were sent."""
    headers = [SendMessageHeaderV2.decode(c.command.ext_fields) for c in world.calls_of(SEND)]
    assert {each.topic for each in headers} <= {"%DLQ%g"}
    said = [decode_properties((each.properties or "").encode()) for each in headers]
    return [each["DEAD_LETTER_REASON"] for each in said]


def levels(world: World) -> list[int]:
    """The delay levels of what was sent back."""
    called = world.calls_of(BACK)
    return [SendBackHeader.decode(each.command.ext_fields).delay_level for each in called]


@pytest.mark.parametrize("middleware", [(), (Noted(),)], ids=["", "observed"])
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    ("way", "level"),
    [
        (returns([Retry(30)]), 4),
        (returns(Retry(30)), 4),
        (raises(Retry(30)), 4),
        (raises(CardBusy("1")), 4),
        (returns(CardBusy("1")), 4),
        (returns([Retry]), 0),
        (returns(Retry), 0),
        (raises(Retry), 0),
    ],
)
def test_a_retry_is_sent_back_for_its_time_returned_or_raised(
    caplog: pytest.LogCaptureFixture, way: Any, level: int, kind: str, middleware: Any
) -> None:
    saying = Saying(way)
    world = handled(saying, kind, *middleware)
    assert levels(world) == [level]
    assert letters(world) == []
    assert caplog.messages == []


@pytest.mark.parametrize("middleware", [(), (Noted(),)], ids=["", "observed"])
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    "way", [returns([Reject("no")]), returns(Reject("no")), raises(Reject("no"))]
)
def test_a_reject_is_a_dead_letter_returned_or_raised(way: Any, kind: str, middleware: Any) -> None:
    world = handled(Saying(way), kind, *middleware)
    assert letters(world) == ["no"]
    assert levels(world) == []


@pytest.mark.parametrize("kind", KINDS)
def test_what_is_raised_and_what_is_returned_alone_counts_for_all_messages_of_a_call(
    kind: str,
) -> None:
    for way in (raises(Reject("no")), returns(Reject("no"))):
        assert letters(handled(Saying(way), kind, keys=[""] * 3, batch=3)) == ["no"] * 3
    saying = Saying(returns(Consumed()))
    world = handled(saying, kind, keys=[""] * 3, batch=3)
    assert (letters(world), levels(world)) == ([], [])
    assert saying.seen == [[(0, 0), (1, 0), (2, 0)]]


@pytest.mark.parametrize("kind", KINDS)
def test_each_message_of_a_batch_has_a_word_of_its_own(kind: str) -> None:
    saying = Saying(returns([Retry(30), Consumed, Reject("no"), Retry]))
    world = handled(saying, kind, keys=[""] * 4, batch=4)
    assert (letters(world), levels(world)) == (["no"], [4, 0])


@pytest.mark.parametrize("kind", KINDS)
def test_a_key_waits_for_a_retry_and_one_that_does_not_count_is_no_attempt(kind: str) -> None:
    saying = Saying(raises(Retry(0.001)), returns(Retry(0.001, counts=False)), returns([Retry(0)]))
    handled(saying, kind, ordered=True, keys=["k", "k"])
    assert saying.seen == [[(0, 0)], [(0, 1)], [(0, 1)], [(0, 2)], [(1, 0)]]


def test_the_last_attempts_dead_letter_says_why_and_from_which_error() -> None:
    def deed() -> Any:
        raise Retry(reason="the bank is away") from OSError("no route")

    world = handled(Saying(deed), "def", max_attempts=1)
    assert letters(world) == [
        "attempt 1 of 1 failed: the bank is away; OSError: no route",
    ]
    assert letters(handled(Saying(returns([Retry()])), "def", max_attempts=1)) == [
        "attempt 1 of 1 failed"
    ]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    ("way", "says"),
    [
        (returns([Reject]), "reason is missing"),
        (raises(Reject), "reason is missing"),
        (raises(Consumed), "exceptions must derive from BaseException"),
        (returns(None), "returned None: return one outcome for each, or one for all"),
        (returns([None]), "which is not an outcome"),
        (lambda: (each for each in [Retry(30)]), "returned <generator"),
        (raises(ExceptionGroup("all", [Retry(30)])), "all"),
    ],
)
def test_what_is_no_outcome_is_a_failed_attempt_and_told(
    caplog: pytest.LogCaptureFixture, way: Any, says: str, kind: str
) -> None:
    caplog.set_level(logging.ERROR)
    assert levels(handled(Saying(way), kind)) == [0]
    (record,) = caplog.records
    assert record.exc_info is not None
    assert says in str(record.exc_info[1])


def test_a_subclass_that_says_what_cannot_be_is_a_failed_attempt_and_told(
    caplog: pytest.LogCaptureFixture,
) -> None:
    class Odd(Retry):
        after = "soon"  # type: ignore[assignment]

        def __init__(self) -> None:
            pass

    for way in (raises(Odd()), returns([Odd()]), returns(Odd)):
        caplog.clear()
        assert levels(handled(Saying(way), "def")) == [0]
        assert (
            "after of Odd is of type str: give a number of seconds, a timedelta or None"
            in caplog.text
        )


@pytest.mark.parametrize("kind", KINDS)
def test_hooks_see_the_same_outcome_however_it_was_said(kind: str) -> None:
    for way in (returns([Retry(30)]), returns(Retry(30)), raises(Retry(30))):
        noted = Noted()
        handled(Saying(way), kind, noted)
        assert noted.ends == [[Retry(30)]]


@pytest.mark.parametrize("said", [Retry, Retry()])
def test_a_hook_may_say_a_class_too(said: Any) -> None:
    class Skips(Middleware):
        def before_consume(self, delivery: Delivery) -> None:
            raise Skip(said)

    noted, saying = Noted(), Saying()
    assert levels(handled(saying, "def", noted, Skips())) == [0]
    assert (saying.seen, noted.ends) == ([], [[Retry()]])


def test_one_object_that_is_said_by_many_calls_at_once_keeps_no_frame_alive() -> None:
    again = Retry(30)
    assert levels(handled(Saying(*[raises(again)] * 50), "def", keys=[""] * 50)) == [4] * 50
    assert again.__traceback__ is None


# Both faces, at a broker


@pytest.fixture(scope="module")
def broker() -> Iterator[Cluster]:
    with bundled() as broker:
        yield broker


@pytest.mark.processes
@pytest.mark.parametrize("ordered", [True, False])
def test_a_client_for_threads_hears_what_its_handler_raises(
    broker: Cluster, topic: str, ordered: bool
) -> None:
    saying = Saying(raises(Retry(0.01)), raises(Reject("no")))
    with Client(broker.name_server_address, settings=OF_A_BROKER) as client:
        client.create_topic(topic, 1)
        client.send_many(numbered(topic, 1, keys=1))
        wanted = Subscription(group=f"g-{topic}", topics={topic: "*"}, ordered=ordered)
        client.consume(wanted, saying.of_kind("def"))
        assert reasons(client, wanted, 1) == {"no"}
    assert [attempt for ((_, attempt),) in saying.seen] == [0, 1]


def reasons(client: Client, wanted: Subscription, count: int) -> set[str]:
    """Wait for so many dead letters of a group; return what they say."""
    found: list[ReceivedMessage] = []

    def look() -> None:
        with contextlib.suppress(NoRoute):  # the topic is made with the first one
            found[:] = client.admin.dead_letters.of_group(wanted.group)

    async def are_there() -> bool:
        await asyncio.to_thread(look)
        return len(found) >= count

    play_at_a_broker(eventually(are_there))
    return {each.properties["DEAD_LETTER_REASON"] for each in found}


@pytest.mark.processes
@pytest.mark.parametrize("ordered", [True, False])
def test_a_client_on_the_loop_hears_what_its_handler_raises(
    broker: Cluster, topic: str, ordered: bool
) -> None:
    saying = Saying(raises(Retry(0.01)), returns(Retry(0.01)), returns(Consumed))

    async def scene() -> None:
        async with AsyncClient(broker.name_server_address, settings=OF_A_BROKER) as client:
            await client.create_topic(topic, 1)
            await client.send_many(numbered(topic, 1, keys=1))
            wanted = Subscription(group=f"g-{topic}", topics={topic: "*"}, ordered=ordered)
            await client.consume(wanted, saying.of_kind("async def"))
            await eventually(lambda: not saying.deeds)

    play_at_a_broker(scene())
    assert [attempt for ((_, attempt),) in saying.seen] == [0, 1, 2]


@pytest.mark.processes
def test_give_up_is_the_old_name_of_reject_and_says_so(broker: Cluster, topic: str) -> None:
    with Client(broker.name_server_address, settings=OF_A_BROKER) as client:
        client.create_topic(topic, 1)
        client.send_many(numbered(topic, 2))
        wanted = Subscription(group=f"g-{topic}", topics={topic: "*"})
        with client.simple_consumer(wanted) as simple:
            received: list[ReceivedMessage] = []
            while len(received) < 2:
                received += simple.receive(timeout=5.0)
            with pytest.warns(DeprecationWarning, match="is called reject now") as told:
                simple.give_up(received[0], "cannot be read")
            assert [each.filename for each in told] == [__file__]
            simple.reject(received[1], reason="nor can this")
        assert reasons(client, wanted, 2) == {"cannot be read", "nor can this"}


@pytest.mark.processes
def test_give_up_on_the_loop_says_so_too(broker: Cluster, topic: str) -> None:
    async def scene() -> None:
        async with AsyncClient(broker.name_server_address, settings=OF_A_BROKER) as client:
            await client.create_topic(topic, 1)
            await client.send_many(numbered(topic, 1))
            wanted = Subscription(group=f"g-{topic}", topics={topic: "*"})
            async with await client.simple_consumer(wanted) as simple:
                received: list[ReceivedMessage] = []
                while not received:
                    received += await simple.receive(timeout=5.0)
                with pytest.warns(DeprecationWarning, match="is called reject now") as told:
                    await asyncio.create_task(simple.give_up(received[0], "cannot be read"))
                assert [each.filename for each in told] == [__file__]

    play_at_a_broker(scene())
