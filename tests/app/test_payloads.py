"""What a handler is given: a payload by content type and schema, and a trace context."""

import asyncio
from typing import Any

import pytest
from opentelemetry import baggage, context, propagate
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator
from pydantic import BaseModel
from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncSession
from sqlalchemy.orm import Session
from tests.app.lives import LONG, A, B, C, Ledger, Life, delivery

from reliable_mq.message import CONTENT_TYPE, ReceivedMessage
from reliable_mq.outbox.schema import schema
from reliable_mq.outcomes import CONSUMED, Reject, Retry
from reliable_mq.trace_context import trace_properties

PARENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


@schema("order.placed", version=2, upgrades={1: lambda old: {"order": old["id"]}})
class Placed(BaseModel):
    order: str


def write_order(placed: Placed, session: Session) -> None:
    session.execute(text("INSERT INTO effects VALUES (:id)"), {"id": placed.order})


def version(number: int) -> dict[str, str]:
    return {CONTENT_TYPE: f"application/json; schema=order.placed; version={number}"}


def test_versions_are_read_as_the_newest_and_newer_ones_wait_for_newer_code(
    database_url: str, ledger: Ledger, redis: str | None
) -> None:
    async def scenario() -> None:
        async with Life(database_url, redis, handler=write_order, lease=LONG) as life:
            newest = delivery(A, b'{"order": "a"}', properties=version(2))
            older = delivery(B, b'{"id": "b"}', properties=version(1))
            newer = delivery(C, b'{"anything": 1}', properties=version(3))
            assert await life.handle(newest) == [CONSUMED]
            assert await life.handle(older) == [CONSUMED]
            (outcome,) = await life.handle(newer)
            assert isinstance(outcome, Retry)
            assert outcome.counts  # a failed attempt: it ends as a dead letter, not never

    asyncio.run(scenario())

    assert ledger.effects() == ["a", "b"]
    assert ledger.logs()["payments", C] == (0, 1)
    assert ledger.stubs()[C].status == 0


def test_a_newer_message_is_a_dead_letter_when_no_newer_worker_came(
    database_url: str, ledger: Ledger, redis: str | None
) -> None:
    async def scenario() -> None:
        async with Life(
            database_url, redis, handler=write_order, lease=LONG, max_attempts=2
        ) as life:
            newer = delivery(C, b"{}", properties=version(3))
            (outcome,) = await life.until_settled(newer)
            assert isinstance(outcome, Reject)
            assert "version 3 of schema order.placed: this code knows 2" in outcome.reason

    asyncio.run(scenario())

    assert ledger.stubs()[C].given_up


@pytest.mark.parametrize(
    "content_type", ["application/x-protobuf", "nonsense", "text/x; charset=?"]
)
def test_a_content_type_that_cannot_be_decoded_is_a_dead_letter_and_not_lost(
    database_url: str, ledger: Ledger, redis: str | None, content_type: str
) -> None:
    async def scenario() -> None:
        async with Life(database_url, redis, handler=write_order, lease=LONG) as life:
            odd = delivery(A, b"{}", properties={CONTENT_TYPE: content_type})
            (outcome,) = await life.handle(odd)
            assert isinstance(outcome, Reject)
            assert "the payload does not validate" in outcome.reason

    asyncio.run(scenario())

    assert ledger.effects() == []
    assert ledger.stubs()[A].given_up


def test_a_handler_runs_in_the_trace_context_of_its_message(
    database_url: str, ledger: Ledger, redis: str | None
) -> None:
    seen: list[str] = []

    def handler(message: ReceivedMessage) -> None:
        seen.append(trace_properties()["traceparent"])

    async def async_handler(session: AsyncSession, message: ReceivedMessage) -> None:
        seen.append(trace_properties()["traceparent"])

    async def scenario(handler: Any, name: str) -> None:
        async with Life(database_url, redis, handler=handler, lease=LONG) as life:
            came = delivery(name, properties={"traceparent": PARENT})
            assert await life.handle(came) == [CONSUMED]

    asyncio.run(scenario(handler, A))
    asyncio.run(scenario(async_handler, B))

    trace_id = PARENT.split("-")[1]
    assert [each.split("-")[1] for each in seen] == [trace_id, trace_id]


@pytest.mark.usefixtures("ledger")
def test_the_handler_of_a_message_without_a_trace_context_has_none_of_the_task_that_calls_it(
    database_url: str, redis: str | None
) -> None:
    seen: list[object] = []

    async def handler(session: AsyncSession, message: ReceivedMessage) -> None:
        seen.append(dict(baggage.get_all()))

    async def scenario() -> None:
        async with Life(database_url, redis, handler=handler, lease=LONG) as life:
            token = context.attach(baggage.set_baggage("tenant", "of the task"))
            assert await life.handle(delivery(A)) == [CONSUMED]
            assert await life.handle(delivery(B, properties={"baggage": "tenant=t1"})) == [CONSUMED]
            context.detach(token)

    asyncio.run(scenario())

    assert seen == [{}, {"tenant": "t1"}]


class Trails(TraceContextTextMapPropagator):
    """A propagator that reads a property which it does not name as its field."""

    def extract(self, carrier: Any, context: Any = None, getter: Any = None) -> Any:
        return baggage.set_baggage("trail", carrier.get("trail"), context)


@pytest.mark.usefixtures("ledger")
def test_an_application_s_own_propagator_reads_every_message(
    database_url: str, redis: str | None
) -> None:
    seen: list[object] = []

    async def handler(session: AsyncSession, message: ReceivedMessage) -> None:
        seen.append(baggage.get_baggage("trail"))

    async def scenario() -> None:
        async with Life(database_url, redis, handler=handler, lease=LONG) as life:
            assert await life.handle(delivery(A, properties={"trail": "t1"})) == [CONSUMED]

    usual = propagate.get_global_textmap()
    propagate.set_global_textmap(Trails())
    try:
        asyncio.run(scenario())
    finally:
        propagate.set_global_textmap(usual)

    assert seen == ["t1"]


def test_who_asks_for_no_payload_gets_messages_of_any_content_type(
    database_url: str, ledger: Ledger, redis: str | None
) -> None:
    async def scenario() -> None:
        async with Life(database_url, redis, lease=LONG) as life:  # its handler takes the message
            odd = delivery(A, b"\x08\x01", properties={CONTENT_TYPE: "application/x-protobuf"})
            assert await life.handle(odd) == [CONSUMED]

    asyncio.run(scenario())

    assert ledger.effects() == [A]
