"""The digest of a message: the same for a stub, a delivery and a record, and for nothing else."""

from datetime import timedelta
from hashlib import sha256

import pytest

from reliable_mq.message import Message
from reliable_mq.message_checks import properties_of
from reliable_mq.message_digest import (
    NOT_COVERED,
    RESERVED,
    TRACE_NAMES,
    body_hash_of,
    digest_of,
    digest_of_stored,
    sent_properties,
)
from reliable_mq.outbox.stub import Stub, message_of
from reliable_mq.wire.properties import decode_properties, encode_properties

ID = "0" * 32
FIELDS = {"KEYS", "TAGS", "UNIQ_KEY", "__SHARDINGKEY"}
SENDERS_NAMES = {
    *("CORRELATION_ID", "REPLY_TO_CLIENT", "TTL", "MSG_TYPE", "INSTANCE_ID", "BUYER_ID"),
    "_SYS_MSG_PRIORITY_",
}
NO_NAMES = {" ", "K", "U", "T", "E_T", "R", "F", "__RMQ.TRANSIENT."}
"""Constants of Apache's `MessageConst` that are no name of a property."""
MESSAGE_CONST = """
ORIGIN_GROUP KEYS TAGS WAIT DELAY RETRY_TOPIC REAL_TOPIC REAL_QID TRAN_MSG PGROUP MIN_OFFSET
MAX_OFFSET BUYER_ID ORIGIN_MESSAGE_ID TRANSFER_FLAG CORRECTION_FLAG MQ2_FLAG RECONSUME_TIME
MSG_REGION TRACE_ON UNIQ_KEY TRANS_OFFSET EXTEND_UNIQ_INFO MAX_RECONSUME_TIMES CONSUME_START_TIME
_SYS_MSG_PRIORITY_ INNER_NUM INNER_BASE DUP_INFO CHECK_IMMUNITY_TIME_IN_SECONDS
TRAN_PREPARED_QUEUE_OFFSET __transactionId__ TRANSACTION_CHECK_TIMES INSTANCE_ID CORRELATION_ID
REPLY_TO_CLIENT TTL ARRIVE_TIME PUSH_REPLY_TIME CLUSTER MSG_TYPE POP_CK POP_CK_OFFSET 1ST_POP_TIME
__SHARDINGKEY PROPERTY_FORWARD_QUEUE_ID REDIRECT INNER_MULTI_DISPATCH INNER_MULTI_QUEUE_OFFSET
TRACE_CONTEXT TIMER_DELAY_SEC TIMER_DELIVER_MS __BORNHOST BORN_TIMESTAMP __RMQ.TRANSIENT.
__RMQ.TRANSIENT.TOPIC_SYS_FLAG __RMQ.TRANSIENT.GROUP_SYS_FLAG K U T E_T R F TIMER_ENQUEUE_MS
TIMER_DEQUEUE_MS TIMER_ROLL_TIMES TIMER_OUT_MS TIMER_DEL_UNIQKEY TIMER_DELAY_LEVEL TIMER_ROLL_LABEL
TIMER_DELAY_MS __CRC32# DLQ_ORIGIN_TOPIC DLQ_ORIGIN_MESSAGE_ID
"""
"""The values of `MessageConst` in Apache RocketMQ 5.4.0 (`javap -constants`), but for the blank."""
SAID = {
    "topic": "orders",
    "tag": "paid",
    "message_key": "7",
    "ordering_key": "carol",
    "content_type": "application/json",
    "properties": {"region": "eu", "größe": "XL"},
    "content": b'{"id": 7}',
}


def stub(**changes: object) -> Stub:
    return Stub(seq=1, message_id=ID, **{**SAID, **changes})  # type: ignore[arg-type]


def of_stub(said: Stub) -> bytes:
    sent = sent_properties(
        *(said.message_id, said.tag, said.message_key, said.ordering_key, said.content_type),
        said.properties,
    )
    return digest_of(said.topic, sent, body_hash_of(said.content))


def of_record(message: Message, **added: str) -> bytes:
    stored = properties_of(message) + encode_properties(added)
    return digest_of_stored(message.topic, stored, body_hash_of(message.body))


def test_a_stub_and_its_record_and_its_delivery_have_one_digest() -> None:
    late = timedelta(seconds=3)
    message = message_of(
        stub(), late, is_missed=True, confirm_to="rmq_notices_0", consumed_by=["g"]
    )
    delivered = decode_properties(properties_of(message))

    assert of_record(message) == of_stub(stub())
    assert digest_of("orders", delivered, body_hash_of(message.body)) == of_stub(stub())


def test_what_brokers_clients_and_traces_add_does_not_count() -> None:
    added = dict.fromkeys(sorted(NOT_COVERED), "1")

    assert of_record(message_of(stub()), **added) == of_stub(stub())


def test_each_name_of_apaches_table_is_covered_or_left_out_by_decision() -> None:
    """Given a name that a broker writes, when it is missing here, then a message that is tried
    again fails its own signature for ever."""
    table = {*MESSAGE_CONST.split(), " "}
    decided = FIELDS | SENDERS_NAMES | NO_NAMES | NOT_COVERED

    assert len(table) == 75
    assert table - decided == set()
    assert not NOT_COVERED & (FIELDS | SENDERS_NAMES)
    assert not RESERVED & TRACE_NAMES


@pytest.mark.parametrize("name", sorted(SENDERS_NAMES))
def test_a_name_of_apaches_table_that_only_senders_write_counts(name: str) -> None:
    assert of_stub(stub(properties={name: "1"})) != of_stub(stub(properties={name: "2"}))
    assert of_record(message_of(stub(properties={name: "1"}))) == of_stub(
        stub(properties={name: "1"})
    )


@pytest.mark.parametrize(
    "change",
    [
        {"topic": "refunds"},
        {"tag": "refunded"},
        {"tag": ""},
        {"message_key": "8"},
        {"ordering_key": "dave"},
        {"content_type": "text/plain"},
        {"content": b'{"id": 8}'},
        {"properties": {"region": "us", "größe": "XL"}},
        {"properties": {"region": "eu"}},
        {"properties": {"region": "eu", "größe": "XL", "is_admin": "1"}},
    ],
)
def test_everything_that_the_transaction_wrote_counts(change: dict[str, object]) -> None:
    assert of_stub(stub(**change)) != of_stub(stub())
    assert of_record(message_of(stub(**change))) == of_stub(stub(**change))


def test_no_name_or_value_can_pass_for_another_one() -> None:
    one = {"a": "1", "b": "2"}
    others = ({"a": "1b", "": "2"}, {"ab": "12"}, {"a": "12"}, {"b": "1", "a": "2"})

    assert all(digest_of("t", other, b"") != digest_of("t", one, b"") for other in others)


def test_of_two_values_the_last_one_counts_and_an_empty_one_is_none() -> None:
    stored = b"a\x01old\x02b\x01\x02a\x01new\x02c\x02"

    assert digest_of_stored("t", stored, b"") == digest_of("t", {"a": "new"}, b"")
    assert digest_of("t", decode_properties(stored), b"") == digest_of("t", {"a": "new"}, b"")


def test_a_namespace_is_not_what_the_transaction_wrote() -> None:
    own = digest_of("orders", {}, b"")

    assert digest_of("shop%orders", {}, b"") == own
    assert digest_of("shop%eu%orders", {}, b"") == digest_of("eu%orders", {}, b"")
    assert digest_of_stored("shop%orders", b"", b"") == own
    assert digest_of("%RETRY%orders", {}, b"") != own


def test_the_digest_stays_what_it_is() -> None:
    """Given another release, when it reads old ledgers, then it must come to the same digests."""
    head = f"orders\x02KEYS\x017\x02TAGS\x01paid\x02UNIQ_KEY\x01{ID}\x02"
    said = stub(ordering_key="", content_type="", properties={})

    assert of_stub(said) == sha256(head.encode() + sha256(said.content).digest()).digest()
