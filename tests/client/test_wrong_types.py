"""Values of wrong types, as callers without a type checker give them: each is one clear error."""

import math
import os
from datetime import timedelta
from typing import Any

import pytest
from tests.client.test_batcher import Shelf, message, play, shelf_and_names, with_threads
from tests.waiting import run_scene

from reliable_mq.client.asyncio_client import AsyncClient
from reliable_mq.client.connecting.name_servers import parse_addresses
from reliable_mq.client.consuming.subscription import Subscription
from reliable_mq.client.sending.outgoing import prepared_message
from reliable_mq.client.settings import ClientSettings
from reliable_mq.client.thread_client import Client
from reliable_mq.errors import ConfigurationError, MessageRefused, UsageError
from reliable_mq.message import Message, MessageQueue

Fields = dict[str, Any]


@pytest.mark.parametrize(
    ("fields", "why"),
    [
        ({"keys": "abc"}, r"keys is the text 'abc': pass a tuple, \('abc',\)"),
        ({"keys": (1,)}, r"expected `str`, got `int` - at `\$.keys"),
        ({"tag": 1}, r"at `\$.tag`"),
        ({"ordering_key": 1}, r"at `\$.ordering_key`"),
        ({"message_id": 1}, r"at `\$.message_id`"),
        ({"properties": None}, r"at `\$.properties`"),
        ({"delay_level": "3"}, r"at `\$.delay_level`"),
        ({"delay_level": True}, "delay level True is not in 0..18"),
        ({"delay_level": 2.5}, "delay level 2.5 is not in 0..18"),
        ({"flag": 0.5}, "flag 0.5 is not a 32-bit number"),
        ({"delay": 90}, r"at `\$.delay`"),
        ({"delay": timedelta.max}, "cannot be sent as it is"),
        ({"flag": 2**31}, "not a 32-bit number"),
    ],
)
def test_a_message_with_a_field_of_a_wrong_type_is_refused_by_the_name_of_it(
    fields: Fields, why: str
) -> None:
    whole: Fields = {"topic": "t", "body": b"1"} | fields
    wrong = Message(**whole)
    with pytest.raises(MessageRefused, match=f"(?i){why}"):
        prepared_message(wrong, 0, os.urandom)


@pytest.mark.parametrize("wrong", [None, "text", ("t", b"1")])
def test_what_is_no_message_is_refused(wrong: Any) -> None:
    async def scene(client: AsyncClient, shelf: Shelf) -> None:
        for refused in (client.send(wrong), client.send_oneway(wrong), client.send_batch([wrong])):
            with pytest.raises(MessageRefused, match="Message"):
                await refused
        stored, failed = await client.send_many([message(1), wrong])
        assert isinstance(failed, MessageRefused)
        assert not isinstance(stored, Exception)

    play(scene)


@pytest.mark.parametrize(
    ("settings", "why"),
    [
        (
            {"request_timeout_seconds": "3"},
            "request_timeout_seconds is of type str, it must be float",
        ),
        (
            {"request_timeout_seconds": math.nan},
            "request_timeout_seconds is nan: it must be positive",
        ),
        ({"retries": 2.5}, "retries is of type float"),
        ({"retries": True}, "retries is of type bool"),
        ({"namespace": None}, "namespace is of type NoneType"),
        ({"credentials": ("me", "secret")}, "credentials is of type tuple"),
        ({"tls": True}, "tls is of type bool"),
    ],
)
def test_a_setting_of_a_wrong_type_is_refused_without_showing_it(
    settings: Fields, why: str
) -> None:
    with pytest.raises(ConfigurationError, match=why) as refused:
        ClientSettings(**settings)
    assert "secret" not in str(refused.value)


@pytest.mark.parametrize(
    ("fields", "why"),
    [
        (
            {"topics": ["t"]},
            'the topics are of type list: give a dict of topics and tags, such as {"',
        ),
        ({"topics": "t"}, "the topics are of type str"),
        ({"topics": {"t": ["paid"]}}, "the subscription to topic t is .*: give tags"),
        ({"topics": {"t": None}}, "the subscription to topic t is None"),
        ({"group": None}, "consumer group None is not a legal name"),
        ({"concurrency": "2"}, "concurrency is '2'"),
        ({"batch": True}, "batch is True"),
        ({"ordered": "no"}, "ordered is 'no': give True or False"),
        ({"broadcasting": 1}, "broadcasting is 1: give True or False"),
        ({"takes_faulty": None}, "takes_faulty is None: give True or False"),
        ({"from_time_ms": "5"}, "from_time_ms is '5': give milliseconds"),
        ({"retry_waits": 5}, "retry_waits is 5: give a tuple"),
        ({"retry_waits": ("5",)}, "or handling_seconds: a time is '5' s"),
        ({"handling_seconds": None}, "or handling_seconds: a time is None s"),
        ({"allocation": "average"}, "allocation is 'average': give a function"),
    ],
)
def test_a_subscription_of_wrong_types_is_refused(fields: Fields, why: str) -> None:
    whole: Fields = {"group": "g", "topics": {"t": "*"}} | fields
    with pytest.raises(ConfigurationError, match=why):
        Subscription(**whole)


@pytest.mark.parametrize("wrong", [None, 9876, ["a:1"], "http://a:1", b"a:1"])
def test_name_servers_that_are_no_text_or_a_url_are_refused(wrong: Any) -> None:
    with pytest.raises(ConfigurationError, match="name server"):
        parse_addresses(wrong)


def test_verbs_that_are_given_nonsense_say_so_before_anybody_is_asked() -> None:
    async def scene(client: AsyncClient, shelf: Shelf) -> None:
        nonsense: Any = None
        reading = Subscription(group="g", topics={"t": "*"}, ordered=False)
        with pytest.raises(UsageError, match="the handler is of type NoneType"):
            await client.consume(reading, nonsense)
        pull = client.pull_consumer("pulling")
        with pytest.raises(ConfigurationError, match="of type list"):
            await pull.subscribe(["t"])  # type: ignore[arg-type]
        simple = await client.simple_consumer(reading)
        for wrong in ({"max_messages": 0}, {"handling": 0.0}):
            with pytest.raises(UsageError, match="must be positive"):
                await simple.receive(**wrong)
        for settled in (simple.ack(nonsense), simple.extend(nonsense, 1.0)):
            with pytest.raises(UsageError, match="a received message is needed"):
                await settled
        for queue in ("t", ("t", 0)):
            with pytest.raises(UsageError, match="is not a MessageQueue"):
                await pull.assign([queue])  # type: ignore[list-item]
        with pytest.raises(UsageError, match="only a received message can be answered"):
            await client.reply(nonsense, b"")
        with pytest.raises(MessageRefused, match="a request is of type NoneType"):
            await client.request(nonsense)
        with pytest.raises(UsageError, match="is not a recall handle"):
            await client.recall(nonsense)
        for queues in (0, "8"):
            with pytest.raises(ConfigurationError, match="is not a number of queues"):
                await client.create_topic("t", queues)  # type: ignore[arg-type]

    play(scene)


@pytest.mark.parametrize(
    "wrong", [{"count": 0}, {"size": 0}, {"linger": -0.1}, {"size": 5 * 1024 * 1024}]
)
def test_a_batcher_that_cannot_work_is_refused(wrong: dict[str, Any]) -> None:
    async def scene(client: AsyncClient, shelf: Shelf) -> None:
        with pytest.raises(ConfigurationError, match="count and size must be positive"):
            client.batcher(**wrong)

    play(scene)


def test_who_puts_what_cannot_be_sent_is_told_and_does_not_wait_for_ever() -> None:
    def scene(client: Client, shelf: Shelf) -> None:
        batcher = client.batcher(linger=0.0)
        no_key: Any = 5
        nothing: Any = None
        for wrong in (Message(topic="t", body=b"1", ordering_key=no_key), nothing):
            with pytest.raises(MessageRefused, match="type"):
                batcher.put(wrong).result(60)
        assert client._engine.in_flight.count == 0
        for linger in (math.nan, math.inf):
            with pytest.raises(UsageError, match=f"linger is {linger}"):
                client.batcher(linger=linger)

    with_threads(scene)


def test_a_message_is_not_put_into_a_queue_of_another_topic() -> None:
    async def scene(client: AsyncClient, shelf: Shelf) -> None:
        elsewhere = MessageQueue("other", "a", 0)
        one = message(1)
        for sending in (
            client.send(one, queue=elsewhere),
            client.send_batch([one], queue=elsewhere),
        ):
            with pytest.raises(MessageRefused, match="cannot go to a queue of other"):
                await sending
        assert shelf.batches == []

    play(scene)


def test_a_closed_client_says_that_it_is_closed_and_not_that_a_peer_went_away() -> None:
    async def scene() -> None:
        async with shelf_and_names() as (_, _, address):
            async with AsyncClient(address) as client:
                await client.send(message(1))
            reading = Subscription(group="g", topics={"t": "*"})
            for refused in (
                client.send(message(2)),
                client.send_many([message(2)]),
                client.simple_consumer(reading),
            ):
                with pytest.raises(UsageError, match="this client is closed: make a new one"):
                    await refused
            with pytest.raises(UsageError, match="this client is closed"):
                client.pull_consumer("g")

    run_scene(scene())


def test_a_closed_client_of_threads_says_the_same() -> None:
    def scene(client: Client, shelf: Shelf) -> None:
        client.close()
        with pytest.raises(UsageError, match="this client is closed: make a new one"):
            client.send(message(1))

    with_threads(scene)
