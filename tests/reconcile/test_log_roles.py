"""What copies of a message are, and when those that wait are due."""

from pathlib import Path

import pytest
from tests.reconcile import plain_scan
from tests.reconcile.ledgers import LONG_AGO, StoreWriter, message_id, milliseconds

from reliable_mq.errors import ConfigurationError
from reliable_mq.reconcile.brokers.file_store import read_layout
from reliable_mq.reconcile.brokers.log_roles import (
    USUAL,
    RecordContext,
    RecordPlace,
    delay_levels,
    pop_retries,
    retry_names,
    role_of,
)
from reliable_mq.reconcile.brokers.log_scan import LogRow
from reliable_mq.wire import fastjson

STORED = milliseconds(LONG_AGO)
IDENTITY = {"UNIQ_KEY": message_id(1)}


def rows_of(path: str) -> list[LogRow]:
    return [
        row
        for partition in read_layout(path).partitions
        for row in plain_scan.rows_of(partition, check_body=False)
    ]


@pytest.mark.parametrize(
    ("name", "group", "topic"),
    [
        ("%RETRY%payments", "payments", None),
        ("%RETRY%payments+orders", "payments", "orders"),
        ("%RETRY%payments_orders", "payments_orders", None),
    ],
)
def test_a_retry_topic_says_its_group_and_perhaps_its_topic(
    name: str, group: str, topic: str | None
) -> None:
    assert retry_names(name, USUAL) == (group, topic)


def test_what_recalls_a_timed_message_is_no_copy_of_it() -> None:
    """Given the record by which a timed message is recalled, which has its id and another body;
    then it is the system's: the message is not delayed by it, nor does its content differ."""
    timed = {**IDENTITY, "REAL_TOPIC": "orders", "TIMER_OUT_MS": "1"}
    place = RecordPlace("rmq_sys_wheel_timer", 0, 0, 0, STORED)

    assert role_of(place, timed, USUAL).role == "delayed"
    recall = {**timed, "TIMER_DEL_UNIQKEY": "orders+" + message_id(1)}
    assert role_of(place, recall, USUAL).role == "system"


def test_the_old_retry_topics_of_groups_that_pop_are_told_by_the_names_that_there_are() -> None:
    """Given group and topic joined by a letter that both may contain, then the longest group that
    the broker knows has it, and a group that is called so itself keeps its own retry topic."""
    topics = [
        *("orders", "new_orders", "%RETRY%pay_new_orders", "%RETRY%pay", "%RETRY%pay_new"),
        *("%RETRY%bill_orders", "%RETRY%bill+orders", "%RETRY%nobody_orders", "%DLQ%pay_orders"),
    ]

    assert pop_retries(topics, {"pay", "pay_new", "bill", "bill_orders"}) == {
        "%RETRY%pay_new_orders": ("pay_new", "orders")
    }
    assert pop_retries(topics, {"pay"}) == {"%RETRY%pay_new_orders": ("pay", "new_orders")}


def test_a_store_knows_its_groups_that_pop(tmp_path: Path) -> None:
    """Given an attempt in the retry topic of a group and a topic, as Apache's POP mode makes it,
    then the copy is of that group and topic."""
    store = StoreWriter(tmp_path)
    store.send(message_id(1), b"1")
    store.add("%RETRY%pay_ments_orders", b"1", properties=IDENTITY, reconsume_times=1)
    store.add("%RETRY%ship+orders", b"1", properties=IDENTITY, reconsume_times=1)
    path = store.write()
    groups = {"subscriptionGroupTable": {"pay_ments": {"groupName": "pay_ments"}}}
    (tmp_path / "config" / "subscriptionGroup.json").write_bytes(fastjson.dumps(groups))

    copies = [(row.role, row.topic, row.consumer_group) for row in rows_of(path)[1:]]

    assert copies == [("retry", "orders", "pay_ments"), ("retry", "orders", "ship")]


def test_a_delay_is_due_when_the_consume_queue_says_so(tmp_path: Path) -> None:
    """Given a broker whose delay levels are its own, then what its delay queue has instead of a
    tag's hash counts, and where it has none, the levels that brokers usually have."""
    delayed = {**IDENTITY, "REAL_TOPIC": "orders", "REAL_QID": "0", "DELAY": "2"}
    retried = {**IDENTITY, "REAL_TOPIC": "%RETRY%payments", "RETRY_TOPIC": "orders", "DELAY": "2"}
    store = StoreWriter(tmp_path)
    for tags_code in (STORED + 7_000, 0, STORED - 1):
        store.add("SCHEDULE_TOPIC_XXXX", b"", properties=delayed, queue_id=1, tags_code=tags_code)
    store.add("SCHEDULE_TOPIC_XXXX", b"", properties=retried, queue_id=3, tags_code=STORED + 11_000)
    store.add("SCHEDULE_TOPIC_XXXX", b"", properties=delayed, queue_id=9)

    rows = rows_of(store.write())

    assert [(row.due_time or 0) - STORED for row in rows] == [7_000, 5_000, 5_000, 11_000, 5_000]
    assert [row.role for row in rows[-2:]] == ["retry delayed", "delayed"]

    queue = tmp_path / "consumequeue" / "SCHEDULE_TOPIC_XXXX" / "3" / f"{0:020d}"
    queue.write_bytes(bytes(7) + b"\1" + queue.read_bytes()[8:])  # the unit of another record
    assert (rows_of(str(tmp_path))[3].due_time or 0) - STORED == 5_000


@pytest.mark.parametrize(
    ("out", "due"), [(str(STORED + 60_000), 61_000), ("", 0), ("9" * 30, 0), ("-1", 0)]
)
def test_a_timed_message_is_due_at_the_end_of_its_second(out: str, due: int) -> None:
    properties = {"REAL_TOPIC": "orders", "TIMER_OUT_MS": out}

    role = role_of(RecordPlace("rmq_sys_wheel_timer", 0, 5, 0, STORED), properties, USUAL)

    assert (role.role, role.topic, role.delay_level) == ("delayed", "orders", None)
    assert (role.due_ms or 0) - STORED == due


def test_without_a_level_of_its_own_a_delay_has_that_of_its_queue() -> None:
    customs = RecordContext(delay_ms=delay_levels("1s 2m 3h"))

    dues = [
        role_of(RecordPlace("SCHEDULE_TOPIC_XXXX", queue_id, 0, 0, 0), {}, customs).due_ms
        for queue_id in (0, 1, 2, 17)
    ]

    assert dues == [1_000, 120_000, 10_800_000, 10_800_000]


@pytest.mark.parametrize("text", ["1x", "s", "1s, 2s"])
def test_delay_levels_that_are_none_are_named(text: str) -> None:
    with pytest.raises(ConfigurationError, match="is not a list of delay levels"):
        delay_levels(text)
