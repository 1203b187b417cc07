"""The handles of popped messages, as Apache's client finds them in answers and sends them."""

import base64

import msgspec
import pytest

from reliable_mq.errors import ProtocolError
from reliable_mq.wire.pop_answer import batch_ack_body, handles_of
from reliable_mq.wire.pop_handle import PopHandle, stored_topic
from reliable_mq.wire.properties import POP_CK, encode_properties
from reliable_mq.wire.record import Record

HANDLE = PopHandle(100, 1_700_000_000_000, 60_000, 3, "0", "broker-a", 2, 107)
ANSWER = {
    "popTime": "1700000000000",
    "invisibleTime": "60000",
    "reviveQid": "3",
    "startOffsetInfo": "0 2 100;0 1 40;1 0 7",
    "msgOffsetInfo": "0 2 100,107;0 1 41;1 0 7",
}


def record(queue_id: int, offset: int, topic: str = "orders", handle: str = "") -> Record:
    properties = encode_properties({POP_CK: handle} if handle else {})
    return Record(topic, b"x", properties, queue_id=queue_id, queue_offset=offset)


def test_the_messages_of_a_pop_get_the_checkpoint_of_their_queue() -> None:
    records = [record(2, 100), record(2, 107), record(1, 41)]

    first, second, third = handles_of(ANSWER, records, "orders", "broker-a")
    assert second == HANDLE
    assert first.offset == 100
    assert (third.queue_id, third.start_offset, third.offset) == (1, 40, 41)


def test_a_copy_from_a_retry_topic_brings_its_handle() -> None:
    own = "7 1700000000000 60000 3 1 broker-a 0 7"

    (handle,) = handles_of(ANSWER, [record(0, 7, handle=own)], "orders", "broker-a")
    assert handle.text() == own
    assert stored_topic("orders", "payments", handle.kind) == "%RETRY%payments_orders"


FORGED = [
    "0 1 1 999 0 b 0 9",
    "x",
    "",
    "0 1 1 0 0 b 0 0",
    "107 1700000000000 60000 3 1 broker-a 2 107",
    "100 1700000000000 60000 3 0 broker-a 2 107",
    "0 1 1 0 0 b 0 " + "9" * 400,
]


@pytest.mark.parametrize("forged", FORGED)
@pytest.mark.parametrize("names_places", [True, False])
def test_a_handle_that_a_producer_wrote_is_not_taken_and_spoils_no_other(
    forged: str, names_places: bool
) -> None:
    names = ANSWER if names_places else {**ANSWER, "msgOffsetInfo": ""}
    records = [record(2, 107, handle=forged), record(1, 41), record(2, 100)]

    first, second, third = handles_of(names, records, "orders", "broker-a")
    if names_places or " 1 broker-a" not in forged:  # it would need the time of the pop
        assert first == HANDLE
    assert (second.queue_id, second.start_offset, second.offset) == (1, 40, 41)
    assert third == HANDLE._replace(offset=100)


@pytest.mark.parametrize("spoilt", ["", "x", "7 1 60000 3 1 broker-a 0 7", "7 1 1 999 0 b 0 7"])
def test_a_copy_without_a_handle_of_this_pop_gets_one_from_the_answer(spoilt: str) -> None:
    (handle,) = handles_of(ANSWER, [record(0, 7, handle=spoilt)], "orders", "broker-a")
    assert handle.text() == "7 1700000000000 60000 3 1 broker-a 0 7"


def test_a_copy_and_a_message_with_the_same_place_are_told_apart_by_the_handle() -> None:
    answer = ANSWER | {"startOffsetInfo": "0 0 7;1 0 7", "msgOffsetInfo": "0 0 7;1 0 7"}
    own = "7 1700000000000 60000 3 1 broker-a 0 7"
    forged = "7 1700000000001 60000 3 1 broker-a 0 7"
    records = [record(0, 7, handle=forged), record(0, 7, handle=own)]

    normal, copy = handles_of(answer, records, "orders", "broker-a")
    assert (normal.kind, copy.kind) == ("0", "1")


def test_copies_of_both_forms_of_a_retry_topic_have_their_own_starts() -> None:
    answer = ANSWER | {"startOffsetInfo": "1 0 3;2 0 5", "msgOffsetInfo": "1 0 7;2 0 8"}
    handles = handles_of(answer, [record(0, 7), record(0, 8)], "orders", "broker-a")
    assert [(each.kind, each.start_offset) for each in handles] == [("1", 3), ("2", 5)]


@pytest.mark.parametrize(
    ("topic", "kind"), [("%RETRY%payments_orders", "1"), ("%RETRY%payments+orders", "2")]
)
def test_a_copy_that_still_has_the_name_of_its_retry_topic_is_found_there(
    topic: str, kind: str
) -> None:
    (handle,) = handles_of(ANSWER, [record(0, 9, topic)], "orders", "broker-a")
    assert (handle.kind, handle.start_offset) == (kind, 7)
    assert stored_topic("orders", "payments", handle.kind) == topic


def test_in_a_popped_retry_topic_messages_are_stored_under_its_own_name() -> None:
    topic = "%RETRY%payments"

    (handle,) = handles_of(ANSWER, [record(0, 9, topic)], topic, "broker-a")
    assert (handle.kind, handle.start_offset) == ("0", 7)
    assert stored_topic(topic, "payments", handle.kind) == topic


def test_without_starts_each_queue_has_one_checkpoint_at_its_first_message() -> None:
    answer = {name: value for name, value in ANSWER.items() if not name.endswith("Info")}

    handles = handles_of(answer, [record(2, 5), record(2, 6), record(1, 9)], "orders", "b")
    assert [handle.start_offset for handle in handles] == [5, 5, 9]


@pytest.mark.parametrize("missing", ["popTime", "invisibleTime", "reviveQid"])
def test_an_answer_without_a_field_breaks_the_protocol(missing: str) -> None:
    answer = {name: value for name, value in ANSWER.items() if name != missing}
    with pytest.raises(ProtocolError, match=missing):
        handles_of(answer, [record(2, 100)], "orders", "broker-a")


@pytest.mark.parametrize("starts", ["x", "0 1", "0 a 5", "0 1 2 3", "0 1 ;"])
def test_starts_that_cannot_be_read_break_the_protocol(starts: str) -> None:
    with pytest.raises(ProtocolError, match="cannot be decoded"):
        handles_of(ANSWER | {"startOffsetInfo": starts}, [record(2, 1)], "orders", "broker-a")


def test_acknowledgements_of_one_checkpoint_are_one_set_of_bits_as_javas_bit_set_writes_it() -> (
    None
):
    near = HANDLE._replace(offset=100)
    copy = HANDLE._replace(kind="1", queue_id=0, start_offset=7, offset=7)
    body = batch_ack_body(
        "payments", "broker-a", [("orders", near), ("orders", HANDLE), ("orders", copy)]
    )

    read = msgspec.json.decode(body)
    assert read["brokerName"] == "broker-a"
    first, second = read["acks"]
    assert first == {
        "c": "payments",
        "t": "orders",
        "r": "0",
        "so": 100,
        "q": 2,
        "rq": 3,
        "pt": 1_700_000_000_000,
        "it": 60_000,
        "b": base64.b64encode(b"\x81").decode(),
    }
    assert (second["r"], second["b"]) == ("1", base64.b64encode(b"\x01").decode())


def test_an_offset_far_from_its_checkpoint_is_refused_before_it_takes_memory() -> None:
    far = HANDLE._replace(offset=2**60)
    with pytest.raises(ProtocolError, match="outside of its checkpoint"):
        batch_ack_body("payments", "broker-a", [("orders", far), ("orders", HANDLE)])
