"""Names and defaults of header fields are those of Apache's classes."""

import msgspec
import pytest

from reliable_mq.wire import headers
from reliable_mq.wire.headers import Header, fault_of

DEFAULTS: dict[str, dict[str, object]] = {
    "PullMessageHeader": {"sub_version": 0},
    "RecallMessageHeader": {"recall_handle": ""},
    "EndTransactionHeader": {"from_transaction_check": False},
    "TopicConfigHeader": {"default_topic": "TBW102", "topic_filter_type": "SINGLE_TAG"},
    "DeleteGroupHeader": {"clean_offset": False},
    "UnregisterClientHeader": {"client_id": ""},
    "RegisterBrokerHeader": {"compressed": False, "body_crc32": 0},
    "ResetOffsetHeader": {"timestamp": 0, "is_force": False, "queue_id": -1},
    "CloneGroupOffsetHeader": {"offline": False},
}
KINDS = [
    kind
    for kind in vars(headers).values()
    if isinstance(kind, type) and issubclass(kind, Header) and kind is not Header
]


@pytest.mark.parametrize("kind", KINDS)
def test_a_field_that_a_client_leaves_out_has_apaches_value(kind: type[Header]) -> None:
    """Java leaves an object null, a number 0 and a boolean false; a few classes set another."""
    fields = msgspec.structs.fields(kind)
    ext = {field.encode_name: "1" for field in fields if field.required}
    header = kind.decode(ext)
    left_out = {field.name: getattr(header, field.name) for field in fields if not field.required}
    known = DEFAULTS.get(kind.__name__, {})
    assert {name: value for name, value in left_out.items() if value is not None} == known
    assert kind.decode(header.to_ext()) == header


@pytest.mark.parametrize(
    ("kind", "names"),
    [
        (headers.UnregisterClientHeader, "clientID producerGroup consumerGroup"),
        (headers.TopicPageHeader, "dataVersion topicSeq maxTopicNum"),
        (headers.GroupPageHeader, "dataVersion groupSeq maxGroupNum"),
        (
            headers.CheckTransactionHeader,
            "topic tranStateTableOffset commitLogOffset msgId transactionId offsetMsgId bname",
        ),
        (
            headers.SendResultHeader,
            "msgId queueId queueOffset transactionId recallHandle MSG_REGION TRACE_ON",
        ),
        (headers.SendMessageHeaderV2, "a b c d e f g h i j k m l"),
    ],
)
def test_a_field_has_the_name_of_apaches_class(kind: type[Header], names: str) -> None:
    """Here where the name is not the one of the attribute in camel case."""
    assert {field.encode_name for field in msgspec.structs.fields(kind)} == set(names.split())


def test_a_page_is_asked_for_by_any_of_its_fields() -> None:
    assert headers.TopicPageHeader.decode({}).is_whole
    for name in ("dataVersion", "topicSeq", "maxTopicNum"):
        assert not headers.TopicPageHeader.decode({name: "1"}).is_whole


def test_the_remark_about_a_request_names_the_field_that_is_missing() -> None:
    assert fault_of(KeyError("topic")) == "HeaderInvalid: missing required field `topic`"
    assert fault_of(KeyError(5)) == "KeyError: 5"
    assert fault_of(ValueError("no")) == "ValueError: no"


def test_a_value_in_a_header_is_text_as_java_writes_it() -> None:
    ext = headers.ResetOffsetHeader(topic="t", group="g", is_force=True, offset=5).to_ext()
    assert ext == {
        "topic": "t",
        "group": "g",
        "timestamp": "0",
        "isForce": "true",
        "queueId": "-1",
        "offset": "5",
    }
