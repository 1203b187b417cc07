"""Trace records in Apache's form; Apache's own decoder reads them in tests/interop."""

import asyncio
import threading
from collections import deque
from collections.abc import Iterable
from functools import partial
from typing import Any

import msgspec
import pytest
from tests.client.observing.seen import QUEUE, received, stored
from tests.waiting import eventually, run_scene

from reliable_mq.client.asyncio_client import AsyncClient
from reliable_mq.client.connecting.name_servers import NameServers
from reliable_mq.client.connecting.routes import RouteCache
from reliable_mq.client.observing.asyncio_hooks import Hooks
from reliable_mq.client.observing.asyncio_message_trace import MessageTraceMiddleware
from reliable_mq.client.observing.message_trace import (
    BODY_SIZE_MAX,
    KEYS_SIZE_MAX,
    TraceRecord,
    begun_records,
    ended_records,
    recall_record,
    sent_records,
    trace_message,
    transaction_record,
)
from reliable_mq.client.observing.middleware import (
    ClientIdentity,
    Delivery,
    Ending,
    Middleware,
    Recall,
    Sending,
)
from reliable_mq.client.settings import ClientSettings
from reliable_mq.errors import (
    ConfigurationError,
    ConnectionLost,
    NoRoute,
    Refused,
    RequestTimeout,
    UsageError,
)
from reliable_mq.message import Decision, Half, Message, SendStatus
from reliable_mq.outcomes import CONSUMED, Retry
from reliable_mq.wire.recall_handle import RecallHandle, encode_recall_handle

ORIGIN = ClientIdentity(client_id="me", address_of=lambda _: "10.0.0.1:10911")
ORDER = Message(topic="orders", body=b"12345", tag="paid", keys=("o1", "o2"), message_id="A" * 32)


def sending(**more: Any) -> Sending:
    fields: dict[str, Any] = {
        "verb": "send",
        "messages": [ORDER],
        "group": "shop",
        "origin": ORIGIN,
        "begun": 0.0,
        "begun_ms": 1_700_000_000_000,
        "seconds": 0.0125,
        "results": [stored()],
    }
    return Sending(**{**fields, **more})


def delivery(**more: Any) -> Delivery:
    fields: dict[str, Any] = {
        "verb": "process",
        "group": "payments",
        "messages": [received(MSG_REGION="eu", TRACE_ON="true")],
        "origin": ORIGIN,
        "begun": 0.0,
        "begun_ms": 1_700_000_000_000,
        "seconds": 0.05,
        "outcomes": [CONSUMED],
    }
    return Delivery(**{**fields, **more})


def fields_of(record: TraceRecord) -> list[str]:
    assert record.text.endswith("\x02")
    return record.text[:-1].split("\x01")


def test_a_message_that_is_stored_leaves_a_record_that_its_id_and_keys_find() -> None:
    (record,) = sent_records(sending())

    place = stored().offset_message_id
    assert fields_of(record) == [
        *("Pub", "1700000000000", "eu", "shop", "orders", "A" * 32, "paid", "o1 o2"),
        *("10.0.0.1:10911", "5", "12", "0", place, "true"),
    ]
    assert record.keys == ("A" * 32, "o1", "o2")


@pytest.mark.parametrize(
    ("more", "kind"),
    [
        ({"delay_level": 3}, "3"),
        ({"ordering_key": "c1"}, "4"),
        ({"ordering_key": "c1", "delay_level": 3}, "3"),
    ],
)
def test_a_record_says_what_kind_of_message_it_was(more: dict[str, Any], kind: str) -> None:
    message = msgspec.structs.replace(ORDER, **more)

    (record,) = sent_records(sending(messages=[message]))
    assert fields_of(record)[11] == kind
    (half,) = sent_records(sending(verb="send_half", messages=[message]))
    assert fields_of(half)[11] == "1"


def test_what_is_not_stored_or_shall_not_be_traced_leaves_none() -> None:
    results = [RequestTimeout("no answer"), None, stored(trace_on=False)]

    assert list(sent_records(sending(messages=[ORDER] * 3, results=results))) == []


def test_a_message_without_tag_and_keys_has_the_word_that_java_writes_there() -> None:
    plain = Message(topic="orders", body=b"1", message_id="A" * 32)
    slow = msgspec.structs.replace(stored(), status=SendStatus.FLUSH_DISK_TIMEOUT, region="")
    (record,) = sent_records(sending(messages=[plain], results=[slow]))

    assert fields_of(record)[2] == "DefaultRegion"
    assert fields_of(record)[6:8] == ["null", "null"]
    assert fields_of(record)[-1] == "false"
    (begun,) = begun_records(delivery(), "R")
    assert begun.text.endswith("\x01null\x02"), "Java's reader loses an empty field at the end"


def test_a_handlers_call_leaves_a_record_before_and_after_with_one_request_id() -> None:
    message = msgspec.structs.replace(received(MSG_REGION="eu"), keys=("o1",), reconsume_times=2)
    seen = delivery(messages=[message])
    (begun,), (ended,) = begun_records(seen, "R"), ended_records(seen, "R")

    assert fields_of(begun) == [
        *("SubBefore", "1700000000000", "eu", "payments", "R", "A" * 32, "2", "o1"),
    ]
    assert fields_of(ended) == [
        *("SubAfter", "R", "A" * 32, "50", "true", "o1", "0", "1700000000050", "payments"),
    ]
    assert begun.keys == ended.keys == ("A" * 32, "o1")


@pytest.mark.parametrize(
    ("more", "success", "code"),
    [
        ({"outcomes": [Retry()]}, "false", "4"),
        ({"outcomes": None, "error": ZeroDivisionError()}, "false", "2"),
        ({"outcomes": None, "error": UsageError("no outcome")}, "false", "3"),
        ({"outcomes": None, "verb": "receive"}, "true", "0"),
    ],
)
def test_a_record_says_how_the_handler_ended(more: dict[str, Any], success: str, code: str) -> None:
    (record,) = ended_records(delivery(**more), "R")

    assert (fields_of(record)[4], fields_of(record)[6]) == (success, code)


def test_each_message_of_a_batch_has_its_own_end_and_its_share_of_the_time() -> None:
    wanted, other = received(message_id="A"), received(message_id="C")
    messages = [wanted, received(message_id="B", TRACE_ON="false"), other]
    seen = delivery(messages=messages, outcomes=[CONSUMED, CONSUMED, Retry()])

    assert [fields_of(each)[2:5] for each in ended_records(seen, "R")] == [
        ["A", "16", "true"],
        ["C", "16", "false"],
    ]


@pytest.mark.parametrize("asked_by", ["", "10.0.0.2:10911"])
def test_the_end_of_a_half_message_leaves_a_record(asked_by: str) -> None:
    half = Half(
        message_id="A", group="shop", queue=QUEUE, half_offset=1, commit_log_offset=2,
        asked_by=asked_by,
    )  # fmt: skip
    record = transaction_record(
        Ending(half=half, decision=Decision.ROLLBACK, origin=ORIGIN, begun_ms=17)
    )

    assert fields_of(record) == [
        *("EndTransaction", "17", "DefaultRegion", "shop", "orders", "A", "null", "null"),
        *(asked_by or "10.0.0.1:10911", "2", "A", "ROLLBACK_MESSAGE"),
        "true" if asked_by else "false",
    ]


@pytest.mark.parametrize(("error", "success"), [(None, "true"), (Refused(1, "late"), "false")])
def test_a_recall_leaves_a_record(error: Exception | None, success: str) -> None:
    recall = Recall(
        topic="orders", message_id="A", group="shop", origin=ORIGIN, begun_ms=17, error=error
    )
    record = recall_record(recall)
    assert fields_of(record) == ["Recall", "17", "DefaultRegion", "shop", "orders", "A", success]
    assert record.keys == ("A",)


@pytest.mark.parametrize(
    ("failure", "traced"), [(None, 1), (Refused(1, "late"), 1), (RequestTimeout("who knows"), 0)]
)
def test_a_recall_is_told_to_hooks_however_it_ends_and_traced_when_a_broker_answered(
    failure: Exception | None, traced: int
) -> None:
    told: list[Recall] = []
    written: list[TraceRecord] = []

    class Sees(MessageTraceMiddleware):
        def after_recall(self, recall: Recall) -> None:
            told.append(recall)
            super().after_recall(recall)

        def _write(self, client_id: str, records: Iterable[TraceRecord]) -> None:
            written.extend(records)

    async def broker() -> str:
        if failure is not None:
            raise failure
        return "A"

    async def scene() -> None:
        recalling = Hooks([Sees()], ORIGIN).around_recall("orders", "A", broker())
        if failure is None:
            assert await recalling == "A"
        else:
            with pytest.raises(type(failure)):
                await recalling

    run_scene(scene())
    assert [(each.topic, each.message_id, each.error) for each in told] == [
        ("orders", "A", failure)
    ]
    assert len(written) == traced


def test_a_client_tells_its_hooks_of_its_recalls() -> None:
    told: list[Recall] = []

    class Sees(Middleware):
        def after_recall(self, recall: Recall) -> None:
            told.append(recall)

    async def scene() -> None:
        handle = encode_recall_handle(RecallHandle("shop%orders", "a", "17", "A"))
        settings = ClientSettings(namespace="shop", request_timeout_seconds=0.1)
        async with AsyncClient("127.0.0.1:1", settings=settings, middleware=[Sees()]) as client:
            with pytest.raises(ConnectionLost):
                await client.recall(handle)
            with pytest.raises(UsageError):
                await client.recall("none")

    run_scene(scene())
    assert [(each.topic, each.message_id, type(each.error)) for each in told] == [
        ("orders", "A", ConnectionLost)
    ]


def test_records_go_together_until_their_bytes_or_their_keys_are_too_many() -> None:
    small = TraceRecord("x\x02", ("A", "k"))
    message, count = trace_message("T", deque([small, small]))
    assert (message.topic, message.body, message.keys, count) == ("T", b"x\x02x\x02", ("A", "k"), 2)

    large = TraceRecord("x" * (BODY_SIZE_MAX // 2), ("A",))
    waiting = deque([large, large, large])
    assert trace_message("T", waiting)[1] == 2
    assert len(waiting) == 1

    many = [TraceRecord("x", (f"{at}" + "k" * (KEYS_SIZE_MAX // 2),)) for at in range(3)]
    assert trace_message("T", deque(many))[1] == 1


def test_keys_that_no_record_can_hold_are_left_out_but_not_the_id() -> None:
    message, _ = trace_message("T", deque([TraceRecord("x", ("A", "k" * 2 * KEYS_SIZE_MAX))]))

    assert message.keys == ("A",)


class Client:
    """A client whose brokers take nothing, or wait to be let."""

    def __init__(self, error: Exception | None = None) -> None:
        self.settings = ClientSettings(producer_group="shop")
        self.client_id = "me"
        self.routes = RouteCache(NameServers((("127.0.0.1:1"),), 1.0), 4, 30.0)
        self.members: list[Any] = []
        self.let = asyncio.Event()
        self.flows = 0
        self._error = error

    async def run(self, flow: Any) -> Any:
        flow.close()
        self.flows += 1
        await self.let.wait()
        if self._error is not None:
            raise self._error
        return None


def test_records_that_find_no_room_are_dropped_and_counted() -> None:
    async def scene() -> None:
        trace = MessageTraceMiddleware(held_count_max=5, batch_count=3)
        client = Client()
        await trace.after_start(client)
        for _ in range(3):
            trace.after_send(sending())
        await eventually(lambda: client.flows)  # the first three are on their way, and stay there
        threads = [threading.Thread(target=trace.after_send, args=(sending(),)) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert trace.dropped == 3
        client.let.set()
        await trace.before_close(client)
        assert (client.flows, trace.dropped) == (2, 3)

    run_scene(scene())


def _has_dropped(trace: MessageTraceMiddleware, count: int) -> bool:
    return trace.dropped >= count


def test_what_no_broker_takes_is_dropped_counted_and_told_of_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def scene() -> None:
        trace = MessageTraceMiddleware(batch_count=1)
        client = Client(NoRoute("nobody knows RMQ_SYS_TRACE_TOPIC"))
        client.let.set()
        await trace.after_start(client)
        for at in range(1, 4):
            trace.after_send(sending())
            await eventually(partial(_has_dropped, trace, at))
        await trace.before_close(client)

    run_scene(scene())
    (record,) = caplog.records
    assert "message traces were not sent, 1 are lost so far: nobody knows" in record.message


def test_a_close_that_takes_too_long_drops_what_is_left() -> None:
    async def scene() -> None:
        trace = MessageTraceMiddleware()
        client = Client()
        await trace.after_start(client)
        trace.after_send(sending())
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.01):
                await trace.before_close(client)
        await eventually(lambda: trace.dropped >= 1)

    run_scene(scene())


def test_no_trace_is_traced() -> None:
    async def scene() -> None:
        trace = MessageTraceMiddleware(batch_count=1)
        client = Client()
        client.let.set()
        await trace.after_start(client)
        traces = msgspec.structs.replace(ORDER, topic=trace.topic)
        trace.after_send(sending(messages=[traces]))
        seen = delivery(messages=[msgspec.structs.replace(received(), topic=trace.topic)])
        trace.before_consume(seen)
        trace.after_consume(seen)
        await trace.before_close(client)
        assert client.flows == 0

    run_scene(scene())


@pytest.mark.parametrize("name", ["batch_count", "wait_seconds", "held_count_max"])
def test_a_number_that_is_not_positive_is_refused(name: str) -> None:
    with pytest.raises(ConfigurationError, match=name):
        MessageTraceMiddleware(**{name: 0})  # type: ignore[arg-type] # mypy thinks of `topic`
