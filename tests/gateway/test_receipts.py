"""What consumers hold at the gateway: it is renewed, acknowledged, or given back."""

import asyncio
import time
from collections.abc import Iterator, Sequence
from typing import Any

import pytest
from tests.gateway.fake_cluster import FakeCluster, record_of
from tests.gateway.test_receiving_calls import Consumer

from reliable_mq.gateway import asyncio_consuming, asyncio_receipts, receiving, renewals
from reliable_mq.gateway.acting import ACTING, Acting
from reliable_mq.gateway.asyncio_consuming import OnLeft
from reliable_mq.gateway.codes import Code
from reliable_mq.gateway.handles import read_handle
from reliable_mq.gateway.message_types import TYPES
from reliable_mq.wire.codes import RequestCode as Ask
from reliable_mq.wire.command import Command, reply

FIFO = b'{"groupName":"g","consumeMessageOrderly":true,"retryMaxTimes":3}'


class Clock:
    """The gateway's time, ahead of the real one."""

    ahead_ms = 0

    def now_ms(self) -> int:
        return time.time_ns() // 1_000_000 + self.ahead_ms


class Gate:
    """Holds the answers to changes of the invisible time back until it is open."""

    def __init__(self, consumer: Consumer) -> None:
        self._ask, self.is_open = consumer.cluster.ask, asyncio.Event()
        consumer.gateway.upstream._ask = self.ask

    async def ask(self, address: str, command: Command, timeout: float) -> Command:
        answer = await self._ask(address, command, timeout)
        if command.code == Ask.CHANGE_MESSAGE_INVISIBLETIME:
            await self.is_open.wait()
        return answer


@pytest.fixture
def cluster() -> FakeCluster:
    made = FakeCluster()
    made.pops(record_of(b"one", 7), invisible_ms=60_000)
    made.changes()
    return made


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    made = Clock()
    monkeypatch.setattr(asyncio_receipts, "now_ms", made.now_ms)
    return made


def held_by(consumer: Consumer) -> dict[Any, Any]:
    (session,) = consumer.gateway.sessions
    return session.held


def entry_of(message: Any) -> dict[str, str]:
    system = message.system_properties
    return {"message_id": system.message_id, "receipt_handle": system.receipt_handle}


def test_what_a_push_consumer_has_is_renewed_until_it_is_acknowledged(cluster: FakeCluster) -> None:
    async def run() -> None:
        cluster.pops(record_of(b"one", 7), invisible_ms=9_000)  # soon over: it is due at once
        consumer = await Consumer(cluster).known()
        ACTING.set(Acting("", "shop"))
        await consumer.known()
        _, (message,) = await consumer.receive()
        assert consumer.gateway._receipts.renew_once() == 1
        await consumer.settled()
        (change,) = cluster.of(Ask.CHANGE_MESSAGE_INVISIBLETIME)
        assert change["invisibleTime"] == "60000"
        assert cluster.actings[-1] == Acting("", "shop")
        system = message.system_properties
        cluster.changes(str(int(time.time() * 1000)))
        assert consumer.gateway._receipts.renew_once() == 1  # its new handle is over, too
        await consumer.settled()
        assert cluster.of(Ask.CHANGE_MESSAGE_INVISIBLETIME)[-1]["invisibleTime"] == "180000"
        assert consumer.gateway._receipts.renew_once() == 0
        entries = [{"message_id": system.message_id, "receipt_handle": system.receipt_handle}]
        answer = await consumer.call("AckMessage", entries=entries)
        assert answer.status.code == Code.OK
        (ack,) = cluster.of(Ask.ACK_MESSAGE)
        assert ack["extraInfo"] != system.receipt_handle
        (session,) = consumer.gateway.sessions
        assert not session.held

    asyncio.run(run())


def test_a_renewal_that_fails_is_given_up_after_three_times(
    cluster: FakeCluster, clock: Clock
) -> None:
    async def run() -> None:
        cluster.pops(record_of(b"one", 7), invisible_ms=9_000)
        cluster.answers[Ask.CHANGE_MESSAGE_INVISIBLETIME] = lambda command: reply(command, 1, "no")
        consumer = await Consumer(cluster).known()
        await consumer.receive()
        for _ in range(5):
            consumer.gateway._receipts.renew_once()
            await consumer.settled()
            clock.ahead_ms += renewals.AGAIN_MS + 1_000
        assert cluster.counts[Ask.CHANGE_MESSAGE_INVISIBLETIME] == renewals.FAILURES_MAX

    asyncio.run(run())


def test_an_acknowledgement_during_a_renewal_acknowledges_the_message(
    cluster: FakeCluster, clock: Clock
) -> None:
    """The broker has changed the message already: the former handle acknowledges nothing."""

    async def run() -> None:
        consumer = await Consumer(cluster).known()
        _, (message,) = await consumer.receive()
        gate = Gate(consumer)
        clock.ahead_ms = 51_000
        cluster.changes(str(clock.now_ms()))
        assert consumer.gateway._receipts.renew_once() == 1
        await consumer.settled()
        acking = asyncio.ensure_future(consumer.call("AckMessage", entries=[entry_of(message)]))
        await consumer.settled()
        assert not cluster.of(Ask.ACK_MESSAGE)
        gate.is_open.set()
        assert (await acking).status.code == Code.OK
        (ack,) = cluster.of(Ask.ACK_MESSAGE)
        popped_at = read_handle(ack["extraInfo"]).popped.popped_ms
        assert popped_at > read_handle(entry_of(message)["receipt_handle"]).popped.popped_ms
        assert not held_by(consumer)
        consumer.gateway._receipts._due.invariants()
        assert consumer.gateway._receipts.renew_once() == 0

    asyncio.run(run())


@pytest.mark.parametrize("name", ["AckMessage", "ChangeInvisibleDuration"])
def test_who_fails_leaves_the_message_held_and_the_next_try_has_its_newest_handle(
    cluster: FakeCluster, clock: Clock, name: str
) -> None:
    async def run() -> None:
        consumer = await Consumer(cluster).known()
        _, (message,) = await consumer.receive()
        clock.ahead_ms = 51_000
        cluster.changes(str(clock.now_ms() + 500_000))
        consumer.gateway._receipts.renew_once()
        await consumer.settled()
        (held,) = held_by(consumer).values()
        entry = entry_of(message)
        fields: dict[str, Any] = {"entries": [entry]}
        code = Ask.ACK_MESSAGE
        if name == "ChangeInvisibleDuration":
            fields = {**entry, "invisible_duration": {"seconds": 20}}
            code = Ask.CHANGE_MESSAGE_INVISIBLETIME
        well = cluster.answers.get(code, reply)
        cluster.answers[code] = lambda command: reply(command, 2, "busy")
        assert (await consumer.call(name, **fields)).status.code == Code.TOO_MANY_REQUESTS
        assert list(held_by(consumer).values()) == [held]
        cluster.answers[code] = well
        newest = held.handle
        assert newest != entry["receipt_handle"]
        assert (await consumer.call(name, **fields)).status.code == Code.OK
        assert cluster.of(code)[-1]["extraInfo"] == newest
        assert not held_by(consumer)

    asyncio.run(run())


def test_a_cut_receive_gives_its_messages_back_and_renews_nothing(
    cluster: FakeCluster, clock: Clock
) -> None:
    async def run() -> None:
        consumer = await Consumer(cluster).known()
        consumer.is_there = False
        await consumer.receive()
        await consumer.settled()
        assert not held_by(consumer)
        clock.ahead_ms = 55_000
        assert consumer.gateway._receipts.renew_once() == 0
        assert cluster.counts[Ask.CHANGE_MESSAGE_INVISIBLETIME] == 1

    asyncio.run(run())


@pytest.mark.parametrize(("is_whole", "has_left"), [(False, False), (True, True), (True, False)])
def test_an_answer_that_nobody_reads_is_given_back_as_its_caller_and_never_renewed(
    cluster: FakeCluster, clock: Clock, is_whole: bool, has_left: bool
) -> None:
    """It is dropped with its stream, or the client has left when it goes out."""

    async def run() -> None:
        consumer = await Consumer(cluster).known()
        ends: list[Any] = []
        call = TYPES["ReceiveMessageRequest"](
            group={"name": "g"}, message_queue={"topic": {"name": "orders"}}, auto_renew=True
        )
        ACTING.set(Acting("", "shop"))

        def write(_answers: Sequence[Any], on_left: OnLeft) -> bool:
            ends.append(on_left)
            return True

        await consumer.gateway.streamed["ReceiveMessage"](consumer.caller(), call, write)
        ACTING.set(None)
        clock.ahead_ms = 55_000
        assert consumer.gateway._receipts.renew_once() == 0
        if has_left:
            leaving = TYPES["NotifyClientTerminationRequest"](group={"name": "g"})
            await consumer.gateway.unary["NotifyClientTermination"](consumer.caller(), leaving)
        (on_left,) = ends
        on_left(is_whole)
        await consumer.settled()
        if is_whole and not has_left:
            assert len(held_by(consumer)) == 1
            return
        (change,) = cluster.of(Ask.CHANGE_MESSAGE_INVISIBLETIME)
        assert change["invisibleTime"] == "1000"
        assert cluster.actings[-1] == Acting("", "shop")
        assert consumer.gateway._receipts.renew_once() == 0

    asyncio.run(run())


def test_a_client_that_leaves_during_a_renewal_gives_the_newest_handle_back(
    cluster: FakeCluster, clock: Clock
) -> None:
    async def run() -> None:
        consumer = await Consumer(cluster).known()
        await consumer.receive()
        gate = Gate(consumer)
        clock.ahead_ms = 51_000
        consumer.gateway._receipts.renew_once()
        await consumer.settled()
        (session,) = consumer.gateway.sessions
        consumer.gateway._receipts.release(session)
        await consumer.settled()
        gate.is_open.set()
        await consumer.settled()
        renewed, given_back = cluster.of(Ask.CHANGE_MESSAGE_INVISIBLETIME)
        assert read_handle(given_back["extraInfo"]).popped.popped_ms == 5
        assert given_back["extraInfo"] != renewed["extraInfo"]
        assert consumer.gateway._receipts.renew_once() == 0

    asyncio.run(run())


def test_a_message_that_cannot_be_converted_does_not_hold_the_others_up(
    cluster: FakeCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    def encode_message(popped: Any, topic: str) -> bytes:
        if popped.record.body == b"bad":
            raise ValueError("out of range")
        return well(popped, topic)

    well = receiving.encode_message
    monkeypatch.setattr(asyncio_consuming, "encode_message", encode_message)

    async def run() -> None:
        bodies = (b"one", b"bad", b"two")
        cluster.pops(*(record_of(body, at) for at, body in enumerate(bodies)))
        status, found = await (await Consumer(cluster).known()).receive()
        assert (status.code, [each.body for each in found]) == (Code.OK, [b"one", b"two"])
        cluster.answers[Ask.GET_SUBSCRIPTIONGROUP_CONFIG] = lambda command: reply(
            command, body=FIFO
        )
        orderly = await Consumer(cluster).known()
        _, found = await orderly.receive()
        await orderly.settled()
        assert [each.body for each in found] == [b"one"]  # nothing passes the bad one
        given_back = cluster.of(Ask.CHANGE_MESSAGE_INVISIBLETIME)
        assert [each["offset"] for each in given_back] == ["2"]

    asyncio.run(run())


def test_numbers_of_others_that_no_field_can_hold_are_cut(cluster: FakeCluster) -> None:
    async def run() -> None:
        due = ("9" * 30, "9" * 5_000, "9" * 18)
        records = [record_of(b"x", at, TIMER_DELIVER_MS=each) for at, each in enumerate(due)]
        cluster.pops(*records, count=f"0 0 {'9' * 5_000}")
        status, found = await (await Consumer(cluster).known()).receive()
        assert (status.code, len(found)) == (Code.OK, 3)
        assert found[2].system_properties.delivery_timestamp.ToJsonString().startswith("9999-")

    asyncio.run(run())


def test_a_bug_between_the_pop_and_the_answer_gives_the_messages_back(
    cluster: FakeCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    def popped_of(*more: Any) -> Iterator[Any]:
        yield from well(*more)
        raise ZeroDivisionError

    well = receiving.popped_of
    monkeypatch.setattr(asyncio_consuming, "popped_of", popped_of)

    async def run() -> None:
        consumer = await Consumer(cluster).known()
        with pytest.raises(ZeroDivisionError):
            await consumer.receive()
        await consumer.settled()
        (change,) = cluster.of(Ask.CHANGE_MESSAGE_INVISIBLETIME)
        assert change["invisibleTime"] == "1000"

    asyncio.run(run())


def test_a_handle_that_a_producer_wrote_into_its_message_is_not_its_receipt_handle(
    cluster: FakeCluster,
) -> None:
    async def run() -> None:
        cluster.pops(record_of(b"one", 7, POP_CK="0 1 1 999 0 other 3 99"))
        consumer = await Consumer(cluster).known()
        _, (message,) = await consumer.receive()
        popped = read_handle(entry_of(message)["receipt_handle"]).popped
        assert popped[3:] == (3, "0", "b", 0, 7)

    asyncio.run(run())


def test_a_receive_has_the_order_and_the_retries_of_its_own_group(cluster: FakeCluster) -> None:
    async def run() -> None:
        def group(command: Command) -> Command:
            is_fifo = command.ext_fields["group"] == "fifo"
            return reply(command, body=FIFO if is_fifo else b'{"retryMaxTimes":0}')

        cluster.answers[Ask.GET_SUBSCRIPTIONGROUP_CONFIG] = group
        cluster.pops(record_of(b"one", 7), count="0 0 2")
        consumer = await Consumer(cluster).known()  # its settings name the group g
        status, found = await consumer.receive(group={"name": "fifo"})
        assert (status.code, len(found)) == (Code.OK, 1)
        assert cluster.of(Ask.POP_MESSAGE)[-1]["order"] == "true"

    asyncio.run(run())


def test_looking_for_what_is_due_costs_nothing_for_what_is_not(
    cluster: FakeCluster, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def run() -> None:
        cluster.pops(*(record_of(b"x", at) for at in range(32)), invisible_ms=60_000)
        consumer = await Consumer(cluster).known()
        for _ in range(10):
            await consumer.receive()
        looked_at: list[Any] = []
        monkeypatch.setattr(renewals.Held, "is_kept", property(looked_at.append))
        monkeypatch.setattr(renewals, "read_handle", looked_at.append)
        assert consumer.gateway._receipts.renew_once() == 0
        assert not looked_at

    asyncio.run(run())


def test_so_many_renewals_are_under_way_at_a_time_and_the_others_follow(
    cluster: FakeCluster, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(renewals, "RENEWING_MAX", 20)

    async def run() -> None:
        cluster.pops(*(record_of(b"x", at) for at in range(32)), invisible_ms=60_000)
        consumer = await Consumer(cluster).known()
        await consumer.receive()
        gate = Gate(consumer)
        clock.ahead_ms = 55_000
        cluster.changes(str(clock.now_ms()))
        receipts = consumer.gateway._receipts
        assert [receipts.renew_once(), receipts.renew_once()] == [20, 0]
        gate.is_open.set()
        await consumer.settled()
        assert [receipts.renew_once(), receipts.renew_once()] == [12, 0]

    asyncio.run(run())


def test_a_client_that_holds_too_much_gets_no_more_instead_of_what_is_not_renewed(
    cluster: FakeCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(renewals, "HELD_MAX", 1)

    async def run() -> None:
        consumer = await Consumer(cluster).known()
        _, (message,) = await consumer.receive()
        status, found = await consumer.receive()
        assert (status.code, found) == (Code.TOO_MANY_REQUESTS, [])
        assert cluster.counts[Ask.POP_MESSAGE] == 1
        await consumer.call("AckMessage", entries=[entry_of(message)])
        status, found = await consumer.receive()
        assert (status.code, len(found)) == (Code.OK, 1)

    asyncio.run(run())
