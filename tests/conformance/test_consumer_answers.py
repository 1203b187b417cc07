"""What administrators ask of a consumer is answered through its broker, ours or Apache's."""

import asyncio
import threading
from collections.abc import Sequence

import pytest
from tests.client.cluster import QUICK, Seen, in_topic, numbered, play
from tests.conformance.clusters import Cluster
from tests.waiting import eventually

from reliable_mq.client.asyncio_client import AsyncClient
from reliable_mq.client.consuming.asyncio_answers import stacks
from reliable_mq.client.consuming.asyncio_push_consumer import AsyncPushConsumer
from reliable_mq.client.consuming.subscription import Subscription
from reliable_mq.client.flow import call
from reliable_mq.message import Message, ReceivedMessage
from reliable_mq.outcomes import Outcome, Reject, Retry
from reliable_mq.wire import fastjson
from reliable_mq.wire.codes import RequestCode, ResponseCode
from reliable_mq.wire.command import Command, request

CLUSTERS = ("bundled", "apache")
pytestmark = pytest.mark.processes


async def ask(client: AsyncClient, topic: str, code: RequestCode, ext: dict[str, str]) -> Command:
    route = await client.topic_route(topic)
    (broker,) = route.brokers.values()
    return await client._engine.run(call(broker.master or "", request(code, ext), 10))


async def consuming(
    client: AsyncClient, topic: str, group: str, handler: Seen
) -> AsyncPushConsumer:
    await client.create_topic(topic, 2)
    consumer = await client.consume(Subscription(group=group, topics={topic: "*"}), handler)
    await eventually(lambda: len(in_topic(consumer, topic)) == 2)
    return consumer


def test_a_consumer_tells_what_it_reads_and_how_far_it_is(
    cluster: Cluster, topic: str, group: str
) -> None:
    async def scene() -> None:
        async with AsyncClient(cluster.name_server_address, settings=QUICK) as client:
            seen = Seen()
            consumer = await consuming(client, topic, group, seen)
            await client.send_many(numbered(topic, 6, keys=1))
            await eventually(lambda: len(seen.messages) == 6)
            consumer.pause()
            ext = {"consumerGroup": group, "clientId": client.client_id, "jstackEnable": "true"}
            answer = await ask(client, topic, RequestCode.GET_CONSUMER_RUNNING_INFO, ext)
            assert answer.code == ResponseCode.SUCCESS, answer.remark
            info = fastjson.loads(answer.body)
            offsets = {
                dict(key)["queueId"]: told["commitOffset"]
                for key, told in info["mqTable"].items()
                if dict(key)["topic"] == topic
            }
            assert sorted(offsets.values()) == [0, 6]
            assert info["properties"]["PROP_CONSUMEORDERLY"] == "true"
            assert {each["topic"] for each in info["subscriptionSet"]} == {
                topic,
                f"%RETRY%{group}",
            }
            assert info["userConsumerInfo"]["paused queues"] == str(len(info["mqTable"]))
            assert "thread MainThread" in info["jstack"]

    play(scene())


@pytest.mark.parametrize(
    ("outcome", "result", "remark"),
    [
        (None, "CR_SUCCESS", None),
        (Retry(reason="the shop is closed"), "CR_LATER", "the shop is closed"),
        (Reject("no such order"), "CR_LATER", "a dead letter: no such order"),
        (ValueError("on fire"), "CR_THROW_EXCEPTION", "ValueError: on fire"),
    ],
)
def test_a_message_is_handled_because_somebody_asks_for_it(
    cluster: Cluster,
    topic: str,
    group: str,
    outcome: Outcome | ValueError | None,
    result: str,
    remark: str | None,
) -> None:
    class Second(Seen):
        """Says what it is told to from the second time on."""

        async def __call__(self, messages: Sequence[ReceivedMessage]) -> Sequence[Outcome]:
            outcomes = await super().__call__(messages)
            if len(self.messages) < 2 or outcome is None:
                return outcomes
            if isinstance(outcome, ValueError):
                raise outcome
            return [outcome]

    async def scene() -> None:
        async with AsyncClient(cluster.name_server_address, settings=QUICK) as client:
            seen = Second()
            await consuming(client, topic, group, seen)
            sent = await client.send(Message(topic=topic, body=b"x"))
            await eventually(lambda: len(seen.messages) == 1)
            ext = {
                "consumerGroup": group,
                "clientId": client.client_id,
                "msgId": sent.offset_message_id,
                "topic": topic,
            }
            answer = await ask(client, topic, RequestCode.CONSUME_MESSAGE_DIRECTLY, ext)
            assert answer.code == ResponseCode.SUCCESS, answer.remark
            told = fastjson.loads(answer.body)
            assert (told["consumeResult"], told.get("remark")) == (result, remark)
            assert seen.bodies == [b"x", b"x"]
            first, second = seen.messages
            assert (first.message_id, first.queue) == (second.message_id, second.queue)
            ext["clientId"] = "nobody"
            answer = await ask(client, topic, RequestCode.CONSUME_MESSAGE_DIRECTLY, ext)
            assert answer.code != ResponseCode.SUCCESS

    play(scene())


def test_stacks_show_where_a_thread_and_a_handler_wait() -> None:
    may_end = threading.Event()

    def waits_in_a_thread() -> None:
        may_end.wait(60)

    async def waits_for_the_bank() -> None:
        await asyncio.Event().wait()

    async def handles() -> None:
        await waits_for_the_bank()

    async def scene() -> str:
        task = asyncio.create_task(handles(), name="a hand")
        await asyncio.sleep(0)
        shown = stacks([task])
        task.cancel()
        return shown

    thread = threading.Thread(target=waits_in_a_thread, name="worker")
    thread.start()
    shown = asyncio.run(scene())
    may_end.set()
    thread.join()
    assert "thread worker" in shown
    assert "in waits_in_a_thread" in shown
    hand = shown[shown.index("task a hand") :]
    assert hand.index("in handles") < hand.index("in waits_for_the_bank")
