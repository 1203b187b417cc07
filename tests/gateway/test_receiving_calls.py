"""Consumers at the gateway of a fake cluster: what they get, acknowledge, keep and give back."""

import asyncio
import time
from collections.abc import Sequence
from typing import Any

import pytest
from tests.gateway.fake_cluster import BROKER, NAMES, FakeCluster, Told, record_of

from reliable_mq.gateway.acting import ACTING, Acting
from reliable_mq.gateway.asyncio_consuming import OnLeft
from reliable_mq.gateway.asyncio_gateway import Gateway
from reliable_mq.gateway.caller import Caller
from reliable_mq.gateway.codes import Code
from reliable_mq.gateway.http2_frames import Stream
from reliable_mq.gateway.message_types import TYPES
from reliable_mq.runtime.grpc_calls import Calls
from reliable_mq.wire.codes import RequestCode as Ask
from reliable_mq.wire.command import Command, reply

NOW_MS = 1_000_000_000_000


class Consumer:
    """One client at a gateway over a fake cluster."""

    def __init__(self, cluster: FakeCluster, kind: int = 2) -> None:
        self.cluster = cluster
        self.gateway = Gateway(cluster.ask, [NAMES], "test")
        self.stream, self.kind = Told(), kind
        self.is_there = True

    def caller(self, seconds: float = 30.0) -> Caller:
        deadline = asyncio.get_running_loop().time() + seconds
        return Caller("client-1", "10.0.0.1", {b"x-mq-client-version": b"5.2.0"}, deadline)

    async def known(self) -> "Consumer":
        """Tell the settings."""
        settings = {
            "client_type": self.kind,
            "subscription": {
                "group": {"name": "g"},
                "subscriptions": [{"topic": {"name": "orders"}}],
            },
        }
        command = TYPES["TelemetryCommand"](settings=settings)
        await self.gateway.told(self.caller(), command, self.stream)
        return self

    async def receive(self, seconds: float = 30.0, **more: Any) -> tuple[Any, list[Any]]:
        fields: dict[str, Any] = {
            "group": {"name": "g"},
            "message_queue": {"topic": {"name": "orders"}, "broker": {"name": "b"}},
            "batch_size": 100,
            "auto_renew": True,
            **more,
        }
        found: list[Any] = []

        def write(answers: Sequence[Any], on_left: OnLeft) -> bool:
            kind = TYPES["ReceiveMessageResponse"]
            found.extend(kind.FromString(each.SerializeToString()) for each in answers)
            if self.is_there and on_left is not None:
                on_left(True)
            return self.is_there

        call = TYPES["ReceiveMessageRequest"](**fields)
        await self.gateway.streamed["ReceiveMessage"](self.caller(seconds), call, write)
        assert found[0].HasField("status")
        assert found[-1].HasField("delivery_timestamp")
        return found[0].status, [each.message for each in found[1:-1]]

    async def call(self, name: str, **fields: Any) -> Any:
        names = {"group": {"name": "g"}, "topic": {"name": "orders"}}
        call = TYPES[f"{name}Request"](**names, **fields)
        return await self.gateway.unary[name](self.caller(), call)

    async def settled(self) -> None:
        """Let what nobody waits for be done."""
        for _ in range(20):
            await asyncio.sleep(0)


@pytest.fixture
def cluster() -> FakeCluster:
    made = FakeCluster()
    made.pops(record_of(b"one", 7, TAGS="red", KEYS="a b", size="5"))
    made.changes()
    return made


def test_a_message_comes_with_all_that_the_sender_said(cluster: FakeCluster) -> None:
    async def run() -> None:
        status, (message,) = await (await Consumer(cluster).known()).receive()
        assert status.code == Code.OK
        system = message.system_properties
        assert (message.topic.name, message.body) == ("orders", b"one")
        assert (system.message_id, system.tag, list(system.keys)) == ("ID7", "red", ["a", "b"])
        assert dict(message.user_properties) == {"size": "5"}
        assert system.body_digest.checksum == "F97C5D29941BFB1B2FDAB0874906AB82"
        assert (system.queue_offset, system.delivery_attempt) == (7, 1)
        handle = system.receipt_handle.split(" ")
        assert (handle[0], *handle[2:]) == ("7", "15000", "3", "0", "b", "0", "7", "1007")

    asyncio.run(run())


def test_a_receive_is_counted_once_whatever_it_brings(cluster: FakeCluster) -> None:
    came: list[Any] = []

    class Connection:
        def send_answers(self, stream: Any, answers: Sequence[Any], on_left: OnLeft) -> bool:
            came.extend(answers)
            if on_left is not None:
                on_left(True)
            return stream is not None

        def end(self, _stream: Any, status: int, text: str) -> None:
            came.append((status, text))

    async def run() -> None:
        ACTING.set(Acting("10.0.0.1"))
        consumer = await Consumer(cluster).known()
        calls = Calls(consumer.gateway)
        names: dict[str, Any] = {"group": {"name": "g"}, "batch_size": 100, "auto_renew": True}
        queue = {"topic": {"name": "orders"}, "broker": {"name": "b"}}
        call = TYPES["ReceiveMessageRequest"](**names, message_queue=queue)
        connection: Any = Connection()
        stream, caller = Stream(1, 0), consumer.caller()
        calls.answer_streamed(connection, stream, "ReceiveMessage", caller, call, None)
        await asyncio.wait(calls._running)
        assert len(came) == 4  # a code, a message, a time, and the end
        assert came[-1] == (0, "")
        assert calls.ended == {("ReceiveMessage", Code.OK): 1}

    asyncio.run(run())


def test_a_pop_asks_for_what_the_client_wants(cluster: FakeCluster) -> None:
    async def run() -> None:
        consumer = await Consumer(cluster).known()
        await consumer.receive(
            attempt_id="try-1", filter_expression={"type": 2, "expression": "a > 1"}
        )
        (fields,) = cluster.of(Ask.POP_MESSAGE)
        assert (fields["maxMsgNums"], fields["invisibleTime"]) == ("32", "60000")
        assert (fields["expType"], fields["exp"], fields["attemptId"]) == (
            "SQL92",
            "a > 1",
            "try-1",
        )
        assert (fields["order"], fields["initMode"], fields["queueId"]) == ("false", "1", "-1")
        assert 5_000 <= int(fields["pollTime"]) <= 20_000

    asyncio.run(run())


@pytest.mark.parametrize(
    ("seconds", "version", "poll"), [(8.0, "5.2.0", 8_000), (100.0, "", 20_000)]
)
def test_a_poll_ends_before_the_deadline(
    cluster: FakeCluster, seconds: float, version: str, poll: int
) -> None:
    async def run() -> None:
        consumer = await Consumer(cluster).known()
        await consumer.receive(seconds, long_polling_timeout={"seconds": 60})
        (fields,) = cluster.of(Ask.POP_MESSAGE)
        assert poll - 500 <= int(fields["pollTime"]) <= poll

    asyncio.run(run())


def test_messages_with_another_tag_are_acknowledged_and_not_given(cluster: FakeCluster) -> None:
    async def run() -> None:
        consumer = await Consumer(cluster).known()
        status, found = await consumer.receive(filter_expression={"type": 1, "expression": "blue"})
        assert (status.code, found) == (Code.MESSAGE_NOT_FOUND, [])
        await consumer.settled()
        (ack,) = cluster.of(Ask.ACK_MESSAGE)
        assert (ack["offset"], ack["queueId"], ack["topic"]) == ("7", "0", "orders")

    asyncio.run(run())


def test_a_message_that_has_failed_too_often_is_buried(cluster: FakeCluster) -> None:
    async def run() -> None:
        cluster.pops(record_of(b"one", 7), count="0 qo0%7 17")
        consumer = await Consumer(cluster).known()
        status, found = await consumer.receive()
        assert (status.code, found) == (Code.MESSAGE_NOT_FOUND, [])
        await consumer.settled()
        (buried,) = cluster.of(Ask.CONSUMER_SEND_MSG_BACK)
        assert (buried["offset"], buried["delayLevel"], buried["maxReconsumeTimes"]) == (
            *("1007", "-1"),
            "0",
        )
        assert len(cluster.of(Ask.ACK_MESSAGE)) == 1

    asyncio.run(run())


def test_a_message_whose_client_has_gone_comes_back_after_a_second(cluster: FakeCluster) -> None:
    async def run() -> None:
        consumer = await Consumer(cluster).known()
        consumer.is_there = False
        await consumer.receive()
        await consumer.settled()
        (change,) = cluster.of(Ask.CHANGE_MESSAGE_INVISIBLETIME)
        assert change["invisibleTime"] == "1000"

    asyncio.run(run())


@pytest.mark.parametrize(
    ("answer", "code"),
    [
        ((209, "full"), Code.TOO_MANY_REQUESTS),
        ((210, "timeout"), Code.MESSAGE_NOT_FOUND),
        ((19, None), Code.MESSAGE_NOT_FOUND),
        ((26, "no group"), Code.CONSUMER_GROUP_NOT_FOUND),
        ((2, "busy"), Code.TOO_MANY_REQUESTS),
        ((215, "a quota is used up"), Code.TOO_MANY_REQUESTS),
        ((1, "broken"), Code.INTERNAL_SERVER_ERROR),
    ],
)
def test_a_refusal_of_the_broker_is_told(
    cluster: FakeCluster, answer: tuple[int, str | None], code: Code
) -> None:
    async def run() -> None:
        cluster.answers[Ask.POP_MESSAGE] = lambda command: reply(command, *answer)
        status, found = await (await Consumer(cluster).known()).receive()
        assert (status.code, found) == (code, [])
        assert status.message

    asyncio.run(run())


def test_a_handle_is_acknowledged_and_changed(cluster: FakeCluster) -> None:
    async def run() -> None:
        consumer = await Consumer(cluster, kind=3).known()
        later = {"seconds": 15}
        _, (message,) = await consumer.receive(auto_renew=False, invisible_duration=later)
        system = message.system_properties
        changed = await consumer.call(
            "ChangeInvisibleDuration",
            message_id=system.message_id,
            receipt_handle=system.receipt_handle,
            invisible_duration={"seconds": 40},
        )
        assert changed.status.code == Code.OK
        assert changed.receipt_handle == "7 5 40000 4 0 b 0 7 1007"
        entries = [{"message_id": system.message_id, "receipt_handle": system.receipt_handle}]
        answer = await consumer.call("AckMessage", entries=entries)
        assert answer.status.code == Code.OK
        (ack,) = cluster.of(Ask.ACK_MESSAGE)
        assert ack["extraInfo"] == system.receipt_handle

    asyncio.run(run())


def test_acknowledgements_of_one_call_have_codes_of_their_own(cluster: FakeCluster) -> None:
    async def run() -> None:
        consumer = await Consumer(cluster, kind=3).known()
        good = f"1 {int(time.time() * 1000)} 60000 0 0 b 0 1 1"
        handles = (good, "1 2 3 0 0 b 0 1 1", "nonsense")
        entries = [{"message_id": "M", "receipt_handle": each} for each in handles]
        answer = await consumer.call("AckMessage", entries=entries)
        assert answer.status.code == Code.MULTIPLE_RESULTS
        assert [each.status.code for each in answer.entries] == [
            Code.OK,
            Code.INVALID_RECEIPT_HANDLE,
            Code.INTERNAL_SERVER_ERROR,
        ]
        assert (await consumer.call("AckMessage")).status.code == Code.BAD_REQUEST

    asyncio.run(run())


@pytest.mark.parametrize(("kind", "topic"), [("1", "%RETRY%g_orders"), ("2", "%RETRY%g+orders")])
def test_a_message_that_came_back_lies_in_a_retry_topic(
    cluster: FakeCluster, kind: str, topic: str
) -> None:
    async def run() -> None:
        consumer = await Consumer(cluster, kind=3).known()
        handle = f"1 {int(time.time() * 1000)} 60000 0 {kind} b 0 1 1"
        await consumer.call("AckMessage", entries=[{"message_id": "M", "receipt_handle": handle}])
        (ack,) = cluster.of(Ask.ACK_MESSAGE)
        assert ack["topic"] == topic

    asyncio.run(run())


def test_a_client_that_leaves_gives_everything_back(cluster: FakeCluster) -> None:
    async def run() -> None:
        consumer = await Consumer(cluster).known()
        await consumer.receive()
        call = TYPES["NotifyClientTerminationRequest"](group={"name": "g"})
        await consumer.gateway.unary["NotifyClientTermination"](consumer.caller(), call)
        await consumer.settled()
        (change,) = cluster.of(Ask.CHANGE_MESSAGE_INVISIBLETIME)
        assert change["invisibleTime"] == "1000"
        assert not len(consumer.gateway.sessions)

    asyncio.run(run())


def test_a_queue_is_assigned_for_each_broker_and_for_each_queue_to_orderly_groups(
    cluster: FakeCluster,
) -> None:
    async def run() -> None:
        consumer = await Consumer(cluster).known()
        answer = await consumer.call("QueryAssignment")
        assert [each.message_queue.id for each in answer.assignments] == [-1]
        cluster.answers[Ask.GET_SUBSCRIPTIONGROUP_CONFIG] = lambda command: reply(
            command, body=b'{"groupName":"g","consumeMessageOrderly":true,"retryMaxTimes":3}'
        )
        orderly = await Consumer(cluster).known()
        answer = await orderly.call("QueryAssignment")
        assert [each.message_queue.id for each in answer.assignments] == [0, 1]
        await orderly.receive()
        assert cluster.of(Ask.POP_MESSAGE)[-1]["order"] == "true"

    asyncio.run(run())


def test_routes_and_settings_are_asked_for_once(cluster: FakeCluster) -> None:
    async def run() -> None:
        consumer = await Consumer(cluster).known()
        await asyncio.gather(*(consumer.receive() for _ in range(10)))
        assert cluster.counts[Ask.GET_ROUTEINFO_BY_TOPIC] == 1
        assert cluster.counts[Ask.GET_SUBSCRIPTIONGROUP_CONFIG] == 1
        for _ in range(3):
            call = TYPES["QueryRouteRequest"](topic={"name": "nowhere"})
            with pytest.raises(Exception, match="No topic route"):
                await consumer.gateway.unary["QueryRoute"](consumer.caller(), call)
        asked = [
            each for each in cluster.of(Ask.GET_ROUTEINFO_BY_TOPIC) if each["topic"] == "nowhere"
        ]
        assert len(asked) == 1

    asyncio.run(run())


def test_a_receive_before_the_settings_waits_for_them(cluster: FakeCluster) -> None:
    async def run() -> None:
        consumer = Consumer(cluster)
        receiving = asyncio.ensure_future(consumer.receive())
        await consumer.settled()
        await consumer.known()
        status, found = await receiving
        assert (status.code, len(found)) == (Code.OK, 1)

    asyncio.run(run())


def test_a_producer_of_the_topic_is_asked_about_a_half_message(cluster: FakeCluster) -> None:
    async def run() -> None:
        producer = Consumer(cluster)
        settings = {"client_type": 1, "publishing": {"topics": [{"name": "orders"}]}}
        command = TYPES["TelemetryCommand"](settings=settings)
        await producer.gateway.told(producer.caller(), command, producer.stream)
        asked = Command(
            code=Ask.CHECK_TRANSACTION_STATE,
            ext_fields={"tranStateTableOffset": "4", "commitLogOffset": "99"},
            body=record_of(b"half", 4, REAL_TOPIC="orders", PGROUP="orders"),
        )
        assert producer.gateway.asked(BROKER, asked) is None
        await producer.settled()
        told = producer.stream.commands[-1].recover_orphaned_transaction_command
        assert told.message.body == b"half"
        assert told.transaction_id == "ID4@b@4@99"
        end = {"message_id": "ID4", "transaction_id": told.transaction_id, "resolution": 1}
        call = TYPES["EndTransactionRequest"](topic={"name": "orders"}, source=2, **end)
        await producer.gateway.unary["EndTransaction"](producer.caller(), call)
        (fields,) = cluster.of(Ask.END_TRANSACTION)
        assert (fields["commitOrRollback"], fields["fromTransactionCheck"]) == ("8", "true")
        assert (fields["tranStateTableOffset"], fields["commitLogOffset"]) == ("4", "99")

    asyncio.run(run())


def test_the_name_of_a_group_that_cannot_be_is_not_kept(cluster: FakeCluster) -> None:
    async def run() -> None:
        consumer = await Consumer(cluster).known()
        status, messages = await consumer.receive(group={"name": "x" * 100_000})
        assert (status.code, messages) == (Code.ILLEGAL_CONSUMER_GROUP, [])
        asked = cluster.of(Ask.GET_SUBSCRIPTIONGROUP_CONFIG)
        assert {each["group"] for each in asked} == {"g"}

    asyncio.run(run())
