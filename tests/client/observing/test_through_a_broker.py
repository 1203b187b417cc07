"""Middleware over the bundled broker: every verb of both faces, spans over retries, traces."""

import asyncio
from collections.abc import Sequence
from typing import Any

import msgspec
import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from prometheus_client import CollectorRegistry, generate_latest
from tests.client.cluster import QUICK, Seen, play
from tests.client.observing.seen import Noted, broker_here
from tests.waiting import eventually, until

from reliable_mq import (
    AsyncClient,
    Client,
    Decision,
    LoggingMiddleware,
    Message,
    MessageTraceMiddleware,
    Middleware,
    OpenTelemetryMiddleware,
    PrometheusMiddleware,
    ReceivedMessage,
    Reject,
    Retry,
    Subscription,
)
from reliable_mq.client.flow import Flow
from reliable_mq.client.observing.message_trace import TRACE_TOPIC
from reliable_mq.client.observing.middleware import Sending
from reliable_mq.client.sending.producer import SendFlows
from reliable_mq.errors import MessageRefused, NoRoute
from reliable_mq.message import CheckBack
from reliable_mq.outcomes import CONSUMED, Outcome

pytestmark = pytest.mark.processes


async def knows_nothing(check: CheckBack) -> Decision:
    return Decision.UNKNOWN


def message(body: bytes = b"{}", topic: str = "orders", **more: Any) -> Message:
    return Message(topic=topic, body=body, **more)


def test_every_way_of_sending_and_handling_is_seen_once_for_each_call() -> None:
    async def scene() -> None:
        noted = Noted()
        async with (
            broker_here() as broker,
            AsyncClient(broker.name_server_address, settings=QUICK, middleware=[noted]) as client,
        ):
            await client.create_topic("orders", 2)
            one = await client.send(message())
            await client.send_oneway(message())
            batch = await client.send_batch([message(), message()])
            many = await client.send_many([message(), message(), message(topic="not/legal")])
            await client.transactions.join("halves", knows_nothing)
            half = await client.transactions.send(message(), "halves")
            await client.transactions.end(half, Decision.COMMIT)
            other = await client.transactions.send(message(), "halves")
            await client.transactions.post(other, Decision.ROLLBACK)
            third = await client.transactions.send(message(), "halves")
            await client.transactions.commit_many([third])
            with pytest.raises(MessageRefused):
                await client.send(message(b""))
            seen = Seen()
            subscription = Subscription(group="payments", topics={"orders": "*"})
            await client.consume(subscription, seen)
            await eventually(lambda: len(noted.deliveries) == len(seen.messages) == 8)

        results = {each.verb: list(each.results) for each in noted.sendings}
        assert [each.verb for each in noted.sendings] == [
            *("send", "send_oneway", "send_batch", "send_many"),
            *("send_half", "send_half", "send_half", "send"),
        ]
        assert noted.sendings[0].results == (one,)
        assert results["send_oneway"] == [None]
        ids = [each.message_id for each in results["send_batch"]]  # type: ignore[union-attr]
        assert ",".join(ids) == batch.message_id
        assert results["send_many"] == many
        assert isinstance(many[2], MessageRefused)
        assert results["send_half"] == [third.stored]
        assert isinstance(results["send"][0], MessageRefused)
        assert [each.group for each in noted.sendings][3:5] == [QUICK.producer_group, "halves"]
        ends = [(each.half.message_id, each.decision, each.error) for each in noted.endings]
        assert ends == [
            (half.message_id, Decision.COMMIT, None),
            (other.message_id, Decision.ROLLBACK, None),
            (third.message_id, Decision.COMMIT, None),
        ]
        assert all(each.outcomes == [CONSUMED] for each in noted.deliveries)
        sent = {each.message_id for sending in noted.sendings for each in sending.messages}
        assert {each.messages[0].message_id for each in noted.deliveries} < sent

    play(scene())


def test_of_a_one_way_message_the_hooks_are_told_how_often_it_was_tried(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    leaves = SendFlows.send_oneway

    def leaves_at_the_third_try(producer: SendFlows, message: Message) -> Flow[int]:
        return 2 + (yield from leaves(producer, message))

    monkeypatch.setattr(SendFlows, "send_oneway", leaves_at_the_third_try)

    async def scene() -> None:
        noted = Noted()
        async with (
            broker_here() as broker,
            AsyncClient(broker.name_server_address, settings=QUICK, middleware=[noted]) as client,
        ):
            await client.create_topic("orders", 1)
            await client.send_oneway(message())
        assert [each.tries for each in noted.sendings] == [3]

    play(scene())


def test_the_other_face_calls_the_same_hooks_in_the_context_of_the_thread_that_sends() -> None:
    noted = Noted()
    exporter, provider = spans()

    def consumes(messages: Sequence[ReceivedMessage]) -> Sequence[Outcome]:
        return [CONSUMED] * len(messages)

    async def scene() -> None:
        async with broker_here() as broker:
            await asyncio.to_thread(uses_it, broker.name_server_address)

    def uses_it(address: str) -> None:
        watched = [noted, OpenTelemetryMiddleware(provider)]
        with Client(address, settings=QUICK, middleware=watched) as client:
            client.create_topic("orders", 1)
            with provider.get_tracer("test").start_as_current_span("place order") as placing:
                client.send(message())
                client.send_async(message()).result()
            client.join_transactions("halves", lambda _: Decision.UNKNOWN)
            client.end_half(client.send_half(message(), "halves"), Decision.COMMIT)
            subscription = Subscription(group="payments", topics={"orders": "*"}, ordered=False)
            client.consume(subscription, consumes)
            until(lambda: client.send(message(), timeout=10) and len(noted.deliveries) >= 3)
        placed = placing.get_span_context()
        sends = [each for each in exporter.get_finished_spans() if each.name == "send orders"]
        assert [each.parent for each in sends[:2]] == [placed, placed]

    play(scene())
    assert [each.verb for each in noted.sendings][:3] == ["send", "send", "send_half"]
    assert len(noted.endings) == 1


def spans() -> tuple[InMemorySpanExporter, TracerProvider]:
    exporter, provider = InMemorySpanExporter(), TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    return exporter, provider


def test_a_trace_goes_on_through_a_send_back_and_a_message_held_to_the_dead_letters() -> None:
    async def scene() -> None:
        exporter, provider = spans()
        tracing = [OpenTelemetryMiddleware(provider)]
        async with (
            broker_here() as broker,
            AsyncClient(broker.name_server_address, settings=QUICK, middleware=tracing) as client,
        ):
            await client.create_topic("orders", 1)
            await client.send(message(b"sent back"))
            await client.send(message(b"held", ordering_key="c1"))
            handled = Seen(Retry(1.0), Retry(0.01), Reject("no payer"), Reject("no payer"))
            await client.consume(Subscription(group="g", topics={"orders": "*"}), handled)
            dead = Seen()
            letters = Subscription(group="people", topics={"%DLQ%g": "*"}, ordered=False)
            await client.consume(letters, dead)
            await eventually(lambda: len(dead.messages) == 2)
        finished = exporter.get_finished_spans()
        for body in (b"sent back", b"held"):
            ids = {each.message_id for each in dead.messages if each.body == body}
            (of_one,) = [
                [s for s in finished if (s.attributes or {})["messaging.message.id"] == found]
                for found in ids
            ]
            names = [each.name for each in of_one]
            assert names == ["send orders", *["process orders"] * 2, "process %DLQ%g"]
            sent, *processed = of_one
            assert {each.parent.span_id for each in processed if each.parent} == {
                sent.context.span_id if sent.context else 0
            }
            attempts = [(each.attributes or {})["reliable_mq.attempt"] for each in processed]
            assert attempts[:2] == [1, 2]
            assert [each.status.status_code for each in processed] == [
                *(trace.StatusCode.ERROR, trace.StatusCode.ERROR, trace.StatusCode.UNSET),
            ]

    play(scene())


async def traces_in(client: AsyncClient, group: str, count: int) -> list[list[str]]:
    """Return the fields of so many trace records, read by a consumer of their topic."""
    seen = Seen()
    consumer = await client.consume(Subscription(group=group, topics={TRACE_TOPIC: "*"}), seen)

    def records() -> list[list[str]]:
        text = b"".join(seen.bodies).decode()
        return [line.split("\x01") for line in text.split("\x02") if line]

    await eventually(lambda: len(records()) >= count)
    await consumer.close()
    return records()


def test_what_happens_to_messages_is_in_the_trace_topic_and_found_by_their_ids() -> None:
    async def scene() -> None:
        tracing = MessageTraceMiddleware(wait_seconds=0.05)
        async with (
            broker_here(traceTopicEnable="true") as broker,
            AsyncClient(broker.name_server_address, settings=QUICK, middleware=[tracing]) as client,
        ):
            assert len((await client.topic_route(TRACE_TOPIC)).writable) == 1
            await client.create_topic("orders", 1)
            sent = await client.send(message(keys=("o1",)))
            await client.transactions.join("halves", knows_nothing)
            half = await client.transactions.send(message(), "halves")
            await client.transactions.end(half, Decision.ROLLBACK)
            seen = Seen()
            await client.consume(Subscription(group="payments", topics={"orders": "*"}), seen)
            records = await traces_in(client, "people", 5)
            assert tracing.dropped == 0

        by_kind = {each[0]: each for each in records}
        assert [each[0] for each in records].count("Pub") == 2
        assert by_kind.keys() == {"Pub", "SubBefore", "SubAfter", "EndTransaction"}
        assert [each[11] for each in records if each[0] == "Pub"] == ["0", "1"]
        assert by_kind["SubBefore"][4] == by_kind["SubAfter"][1]
        assert by_kind["SubBefore"][5] == by_kind["SubAfter"][2] == sent.message_id
        assert by_kind["SubBefore"][2] == "DefaultRegion"
        assert by_kind["EndTransaction"][11] == "ROLLBACK_MESSAGE"
        assert by_kind["Pub"][8] == broker.address

    play(scene())


def test_a_broker_that_wants_no_traces_gets_none() -> None:
    async def scene() -> None:
        tracing, seen = MessageTraceMiddleware(batch_count=1), Seen()
        async with broker_here(traceOn="false") as broker:
            address = broker.name_server_address
            async with AsyncClient(address, settings=QUICK, middleware=[tracing]) as client:
                await client.create_topic("orders", 1)
                result = await client.send(message())
                assert not result.trace_on
                await client.transactions.join("halves", knows_nothing)
                half = await client.transactions.send(message(), "halves")
                await client.transactions.end(half, Decision.COMMIT)
                await client.consume(Subscription(group="payments", topics={"orders": "*"}), seen)
                await eventually(lambda: len(seen.messages) == 2)
            async with AsyncClient(address, settings=QUICK) as client:
                with pytest.raises(NoRoute):
                    await client.topic_route(TRACE_TOPIC)
            assert tracing.dropped == 0

    play(scene())


def test_the_first_trace_makes_the_topic_of_traces() -> None:
    async def scene() -> None:
        tracing = MessageTraceMiddleware(batch_count=1)
        async with broker_here() as broker:
            address = broker.name_server_address
            async with AsyncClient(address, settings=QUICK, middleware=[tracing]) as client:
                await client.create_topic("orders", 1)
                await client.send(message())
            async with AsyncClient(address, settings=QUICK) as client:
                assert [each[0] for each in await traces_in(client, "people", 1)] == ["Pub"]
            assert tracing.dropped == 0

    play(scene())


def test_who_asks_for_messages_is_seen_and_so_is_the_lag_of_every_kind_of_consumer() -> None:
    async def scene() -> None:
        registry, noted = CollectorRegistry(), Noted()
        watched = [noted, PrometheusMiddleware(registry, lag_seconds=0.02)]
        namespaced = msgspec.structs.replace(QUICK, namespace="shop")

        def lag(group: str) -> float | None:
            labels = {"group": group, "topic": "orders"}
            return registry.get_sample_value("reliable_mq_lag_messages", labels)

        async with (
            broker_here() as broker,
            AsyncClient(
                broker.name_server_address, settings=namespaced, middleware=watched
            ) as client,
        ):
            await client.create_topic("orders", 1)
            async with client.batcher() as batcher:
                await asyncio.gather(*(batcher.send(message()) for _ in range(3)))
                with pytest.raises(MessageRefused):
                    await batcher.send(message(b""))
            pulling = client.pull_consumer("pullers")
            await pulling.subscribe({"orders": "*"})
            polled = await pulling.poll(10)
            simple = await client.simple_consumer(
                Subscription(group="receivers", topics={"orders": "*"}, ordered=False)
            )
            received = await simple.receive(timeout=10)
            await eventually(lambda: lag("receivers") == 3)
            await simple.ack(*received)
            await eventually(lambda: lag("receivers") == 0)
            await client.send(message())  # nobody receives it
            await eventually(lambda: lag("receivers") == 1)
            await eventually(lambda: lag("pullers") is not None)
        assert lag("receivers") == 0, "it is read here no more"
        seen = [(each.verb, each.group, list(each.messages)) for each in noted.deliveries]
        assert seen == [("receive", "pullers", polled), ("receive", "receivers", received)]
        outcomes = [type(each.results[0]).__name__ for each in noted.sendings]
        assert [each.verb for each in noted.sendings] == ["batcher"] * 4 + ["send"]
        assert sorted(outcomes) == ["MessageRefused", *["SendResult"] * 4]
        assert {each.messages[0].topic for each in noted.sendings} == {"orders"}
        assert {each.origin.namespace for each in noted.sendings} == {"shop"}

    play(scene())


class Breaks(Middleware):
    """A middleware with a bug in every hook."""

    def __getattribute__(self, name: str) -> Any:
        hook = object.__getattribute__(self, name)
        if not name.startswith(("before_", "after_")):
            return hook

        def broken(_: object) -> None:
            raise ZeroDivisionError(name)

        return broken


class Marks(Middleware):
    """Puts a property into what is sent."""

    def before_send(self, sending: Sending) -> None:
        for at, each in enumerate(sending.messages):
            marked = {**each.properties, "mark": "x"}
            sending.messages[at] = msgspec.structs.replace(each, properties=marked)


def test_all_at_once_and_one_that_breaks_lose_no_message() -> None:
    async def scene() -> None:
        registry = CollectorRegistry()
        exporter, provider = spans()
        every = [
            Breaks(),
            LoggingMiddleware(),
            PrometheusMiddleware(registry),
            OpenTelemetryMiddleware(provider),
            MessageTraceMiddleware(),
            Marks(),
        ]
        async with (
            broker_here() as broker,
            AsyncClient(broker.name_server_address, settings=QUICK, middleware=every) as client,
        ):
            await client.create_topic("orders", 4)
            orders = [message(b"%d" % at, ordering_key=f"c{at % 3}") for at in range(100)]
            many = await client.send_many(orders)
            assert not any(isinstance(each, Exception) for each in many)
            seen = Seen()
            subscription = Subscription(group="payments", topics={"orders": "*"}, batch=8)
            await client.consume(subscription, seen)
            await eventually(lambda: len(seen.messages) == 100)
            assert {each.properties["mark"] for each in seen.messages} == {"x"}
        metrics = generate_latest(registry).decode()
        stored = 'reliable_mq_sent_messages_total{result="stored",topic="orders"} 100.0'
        assert stored in metrics
        consumed = 'group="payments",outcome="consumed",topic="orders"} 100.0'
        assert consumed in metrics
        created = [each for each in exporter.get_finished_spans() if each.name == "create orders"]
        assert len(created) == 100

    play(scene())
