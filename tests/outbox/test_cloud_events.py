"""CloudEvents 1.0 as an envelope: what is sent, what is understood, and what is refused."""

import json
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel
from sqlalchemy import select
from sqlalchemy.orm import Session
from tests.waiting import until

from reliable_mq import CloudEvent, ReceivedMessage, ReliableMQ, schema
from reliable_mq.errors import MessageRefused, UsageError
from reliable_mq.message import CONTENT_TYPE, Message, MessageQueue
from reliable_mq.outbox.cloud_events import JSON_EVENT, Envelope, contents_of_event
from reliable_mq.outbox.schema import PayloadInvalid

NOW = datetime(2026, 11, 28, 6, 17, 30, 250_000, UTC).timestamp()
MESSAGE_ID = "A" * 32


@schema("order.placed", version=2, upgrades={1: lambda old: {**old, "total": 0}})
class OrderPlaced(BaseModel):
    id: int
    total: int


def received(body: bytes, **properties: str) -> ReceivedMessage:
    """Return a delivery of a message."""
    queue = MessageQueue("orders", "broker-a", 0)
    return ReceivedMessage(
        topic="orders", body=body, properties=properties, queue=queue, queue_offset=1
    )


def event_of(body: bytes, **properties: str) -> CloudEvent:
    event = CloudEvent.of(received(body, **properties))
    assert event is not None
    return event


@pytest.mark.parametrize("mode", ["cloudevents", "cloudevents-structured"])
@pytest.mark.parametrize(
    ("body", "content_type"),
    [
        (b'{"id":1}', "application/json; schema=order.placed; version=2"),
        (b'[1, "\xc3\xbc"]', "application/json"),
        (b"plain", "text/plain; charset=utf-8"),
        (b"\0\xff", "application/octet-stream"),
    ],
)
def test_what_is_sent_in_an_envelope_is_read_out_of_it(
    mode: str, body: bytes, content_type: str
) -> None:
    envelope = Envelope(mode, "shop")

    sent, outer, properties = envelope.wrap(body, content_type, MESSAGE_ID, NOW, "orders", "4711")
    message = received(sent, **properties, **{CONTENT_TYPE: outer})

    event = CloudEvent.of(message)
    assert event is not None
    assert (event.id, event.source, event.subject) == (MESSAGE_ID, "shop", "4711")
    assert event.type == ("order.placed" if "schema" in content_type else "orders")
    assert event.time == datetime.fromtimestamp(NOW, UTC)
    assert contents_of_event(message) == (body, content_type)
    if mode == "cloudevents":
        assert (sent, outer) == (body, content_type)
        assert properties["CE_time"] == "2026-11-28T06:17:30.250Z"
    else:
        assert outer == properties["CE_contenttype"] == JSON_EVENT
        assert json.loads(sent)["specversion"] == "1.0"


def test_an_event_of_the_java_library_is_understood() -> None:
    event = event_of(
        b'{"id": 1}',
        CE_specversion="1.0",
        CE_id="7",
        CE_source="/mycontext",
        CE_type="order",
        CE_contenttype="application/json",
        CE_time="2018-04-05T17:31:00+02:00",
        CE_traceparent="00-x",
        CE_dataschema="http://a/b",
        KEYS="k",
    )

    assert (event.id, event.source, event.type) == ("7", "/mycontext", "order")
    assert event.time == datetime(2018, 4, 5, 15, 31, tzinfo=UTC)
    assert (event.dataschema, event.extensions) == ("http://a/b", {"traceparent": "00-x"})
    assert (event.data, event.datacontenttype) == (b'{"id": 1}', "application/json")


def test_an_event_of_the_java_library_without_data_has_none() -> None:
    event = event_of(b"\0", CE_specversion="1.0", CE_id="7", CE_source="/a", CE_type="order")

    assert event.data == b""


def test_a_structured_event_keeps_an_extension_whose_name_begins_like_data() -> None:
    """`dataref` is an extension of the specification: a link to the data."""
    event = event_of(structured(dataref="http://a/b"), **{CONTENT_TYPE: JSON_EVENT})

    assert event.extensions == {"dataref": "http://a/b"}


def structured(**changes: Any) -> bytes:
    """Return a structured event with these attributes; None removes one."""
    event = {"specversion": "1.0", "id": "7", "source": "/a", "type": "order", **changes}
    return json.dumps({name: value for name, value in event.items() if value is not ...}).encode()


@pytest.mark.parametrize(
    ("event", "data"),
    [
        ({"data": {"a": 1}}, b'{"a": 1}'),
        ({"data": "text", "datacontenttype": "text/plain"}, b"text"),
        ({"data": "text"}, b'"text"'),
        ({"data_base64": "AP8="}, b"\0\xff"),
        ({}, b""),
        ({"data": None}, b"null"),
        ({"count": 3, "isnew": True, "subject": None}, b""),
    ],
)
def test_a_structured_event_of_any_sender_is_understood(event: Any, data: bytes) -> None:
    content_type = "application/cloudevents+json; charset=utf-8"

    assert event_of(structured(**event), **{CONTENT_TYPE: content_type}).data == data


BAD: list[tuple[bytes, str]] = [
    (b"", "a CloudEvent that cannot be read: "),
    (b"{", "a CloudEvent that cannot be read: "),
    (b"[]", "a CloudEvent that cannot be read: "),
    (b"\xff", "a CloudEvent that cannot be read: "),
    (b"[" * 100_000, "a CloudEvent that cannot be read: "),
    (structured(id=...), "a CloudEvent without id"),
    (structured(source=""), "a CloudEvent without source"),
    (structured(type=None), "a CloudEvent without type"),
    (structured(specversion=...), "a CloudEvent without specversion"),
    (structured(specversion="0.3"), "a CloudEvent of version 0.3: 1.0 is understood"),
    (structured(id=7), "a CloudEvent whose id is no text: 7"),
    (structured(Odd_Name="x"), "a CloudEvent with the attribute 'Odd_Name'"),
    (structured(more={"a": 1}), "a CloudEvent whose more is no text"),
    (structured(time="yesterday"), "a CloudEvent whose time cannot be read: 'yesterday'"),
    (structured(time="2026-11-28T06:17:30"), "a CloudEvent whose time has no time zone"),
    (structured(data=1, data_base64="AA=="), "a CloudEvent has data or data_base64, not both"),
    (structured(data_base64="?"), "a CloudEvent that cannot be read: "),
    (structured(data_base64=1), "a CloudEvent that cannot be read: "),
    (structured(data="a", datacontenttype="bad"), "a CloudEvent whose datacontenttype is wrong"),
]


@pytest.mark.parametrize(("body", "said"), BAD, ids=[text[:40] for _, text in BAD])
def test_a_bad_event_is_refused_in_one_line(body: bytes, said: str) -> None:
    with pytest.raises(PayloadInvalid) as refused:
        CloudEvent.of(received(body, **{CONTENT_TYPE: JSON_EVENT}))

    assert str(refused.value).startswith(said)
    assert "\n" not in str(refused.value)


@given(
    st.binary(max_size=80),
    st.dictionaries(st.sampled_from(["CE_specversion", "CE_id", "CE_time", "CE_Ä"]), st.text()),
)
def test_no_bytes_and_no_properties_raise_anything_else(
    body: bytes, properties: dict[str, str]
) -> None:
    for content_type in ("", JSON_EVENT, "application/cloudevents-batch+json"):
        try:
            CloudEvent.of(received(body, **{**properties, CONTENT_TYPE: content_type}))
        except PayloadInvalid as refused:
            assert str(refused)  # noqa: PT017 - any other error fails


def test_a_batch_of_events_is_refused() -> None:
    with pytest.raises(PayloadInvalid, match=r"only application/cloudevents\+json is understood"):
        CloudEvent.of(received(b"[]", CONTENT_TYPE="application/cloudevents-batch+json"))


def test_a_message_without_attributes_is_no_event() -> None:
    message = received(b"{}", CONTENT_TYPE="application/json")

    assert CloudEvent.of(message) is None
    assert contents_of_event(message) == (b"{}", "application/json")


@pytest.fixture
def mq(tmp_path: Path, database_url: str) -> Iterator[ReliableMQ]:
    made = ReliableMQ("shop", broker=f"embedded:{tmp_path / 'store'}", database=database_url)
    made.create_tables()
    yield made
    made.close()


@pytest.mark.parametrize("envelope", ["cloudevents", "cloudevents-structured"])
def test_consumers_get_the_payload_as_before_and_can_read_the_attributes(
    mq: ReliableMQ, envelope: str
) -> None:
    got: list[tuple[OrderPlaced, CloudEvent | None, str]] = []

    @mq.consumer("orders", group="stock", idempotent_by="id")
    def reserve(order: OrderPlaced, message: ReceivedMessage) -> None:
        got.append((order, CloudEvent.of(message), message.message_id))

    mq.topic("orders", envelope=envelope)
    with mq:
        with mq.transaction() as tx:
            message_id = tx.send("orders", OrderPlaced(id=1, total=9), key="4711")
        until(lambda: len(got) == 1)

    order, event, received_id = got[0]
    assert order == OrderPlaced(id=1, total=9)
    assert event is not None
    assert event.id == received_id == message_id
    assert (event.source, event.type, event.subject) == ("shop", "order.placed", "4711")
    assert event.datacontenttype == "application/json; schema=order.placed; version=2"


def test_foreign_events_plain_messages_and_bad_ones_of_one_topic(
    mq: ReliableMQ,
) -> None:
    """Given consumers of events, when another program sends, each message has its own end."""
    got: list[int] = []
    mq.topic("orders", envelope="cloudevents")

    @mq.consumer("orders", group="stock", ordered=False)
    def reserve(order: OrderPlaced, session: Session) -> None:
        got.append(order.id)

    with mq:
        version_1 = {"CE_specversion": "1.0", "CE_id": "1", "CE_source": "/a", "CE_type": "t"}
        versioned = "application/json; schema=order.placed; version=1"
        mq._connections.send_many(
            [
                Message(
                    "orders",
                    structured(data={"id": 1, "total": 1}),
                    properties={CONTENT_TYPE: JSON_EVENT},
                ),
                Message(
                    "orders", b'{"id": 2}', properties={**version_1, "CE_contenttype": versioned}
                ),
                Message("orders", b'{"id": 3, "total": 3}'),
                Message(
                    "orders", structured(id=..., data={}), properties={CONTENT_TYPE: JSON_EVENT}
                ),
            ]
        )
        until(lambda: sorted(got) == [1, 2, 3] and notes(mq))
        (note,) = notes(mq)

    assert note == "the payload does not validate: a CloudEvent without id"


def notes(mq: ReliableMQ) -> list[str]:
    """Return why messages became dead letters."""
    log = mq.database.logs.c
    with mq.database.engine.connect() as connection:
        return list(connection.execute(select(log.note).where(log.note.is_not(None))).scalars())


def test_an_unknown_envelope_is_refused(mq: ReliableMQ) -> None:
    with pytest.raises(UsageError, match="write 'cloudevents' or 'cloudevents-structured'"):
        mq.topic("orders", envelope="xml")


def test_a_payload_that_is_too_large_in_its_envelope_is_refused(mq: ReliableMQ) -> None:
    mq.topic("orders", groups=[], envelope="cloudevents-structured")

    with pytest.raises(MessageRefused, match="bytes"), mq.transaction() as tx:
        tx.send("orders", b"x" * (4 * 1024 * 1024 - 10))
