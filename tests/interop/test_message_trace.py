"""Apache's tools read our message traces, wherever they lie: at Apache's broker and at ours."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from bench.apache_rocketmq import ApacheRocketMQ
from bench.reliable_mq_broker import ReliableMQBroker
from tests.client.cluster import PATIENT
from tests.client.observing.seen import QUEUE, received, stored
from tests.interop.admin_shell import AdminShell
from tests.interop.java_shell import run_source
from tests.waiting import until
from tests.with_java import INTEROP, Broker, started

from reliable_mq import Client, Decision, Message, MessageTraceMiddleware, Subscription
from reliable_mq.client.observing.message_trace import (
    TraceRecord,
    begun_records,
    ended_records,
    recall_record,
    sent_records,
    transaction_record,
)
from reliable_mq.client.observing.middleware import (
    ClientIdentity,
    Delivery,
    Ending,
    Recall,
    Sending,
)
from reliable_mq.errors import Refused
from reliable_mq.message import Half
from reliable_mq.outcomes import CONSUMED, Outcome, Retry

SECONDS_MAX = 60.0
ORIGIN = ClientIdentity(client_id="me", address_of=lambda _: "10.0.0.1:10911")
WITH_TOPIC: Mapping[str, str] = {"traceTopicEnable": "true"}

pytestmark = INTEROP


def apache(directory: Path, settings: Mapping[str, str]) -> ApacheRocketMQ:
    return ApacheRocketMQ(directory, "ASYNC_FLUSH", settings=settings)


def ours(directory: Path, settings: Mapping[str, str]) -> ReliableMQBroker:
    return ReliableMQBroker(directory, settings=settings)


@pytest.fixture(
    scope="module",
    params=[(ours, WITH_TOPIC), (ours, {}), (apache, WITH_TOPIC), (apache, {})],
    ids=["ours", "ours by the first trace", "apache", "apache by the first trace"],
)
def broker(request: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    make, settings = request.param
    with started(make(tmp_path_factory.mktemp("traces"), settings)) as broker:
        yield broker


def traced(broker: Broker) -> tuple[str, str, str]:
    """Send, fail and handle, and roll back; return the ids of the first, and of the half."""
    tracing = MessageTraceMiddleware(wait_seconds=0.2)
    answers: list[Outcome] = [Retry(0.1), CONSUMED]

    def handle(messages: Any) -> list[Outcome]:
        return [answers.pop(0)]

    with Client(broker.name_server_address, settings=PATIENT, middleware=[tracing]) as client:
        client.create_topic("orders", 1)
        order = Message(topic="orders", body=b"{}", keys=("o1",), tag="paid", ordering_key="ada")
        sent = client.send(order)
        client.join_transactions("halves", lambda _: Decision.UNKNOWN)
        half = client.send_half(Message(topic="orders", body=b"{}"), "halves")
        client.end_half(half, Decision.ROLLBACK)
        client.consume(Subscription(group="payments", topics={"orders": "*"}), handle)
        until(lambda: not answers, lambda: f"{len(answers)} answers are left", seconds=SECONDS_MAX)
    assert tracing.dropped == 0
    return sent.message_id, half.message_id, PATIENT.producer_group


def test_mqadmin_shows_who_sent_a_message_and_what_each_group_did_with_it(
    broker: Broker, shell: AdminShell
) -> None:
    order, half, producers = traced(broker)

    def shown(message_id: str) -> list[list[str]]:
        """Return the lines that are no heads: type, group, host, date, time, cost, status."""
        words = ("queryMsgTraceById", "-n", broker.name_server_address, "-i", message_id)
        lines = (line.split() for line in shell.run(*words).splitlines())
        return [line for line in lines if line and line[0] in {"Pub", "Sub"}]

    rows: list[list[str]] = []

    def is_shown() -> bool:  # the index follows the log by a moment
        rows[:] = shown(order)
        return len(rows) >= 3

    until(is_shown, lambda: f"mqadmin shows {rows}", seconds=SECONDS_MAX)
    assert sorted((row[0], row[1], row[-1]) for row in rows) == [
        ("Pub", producers, "success"),
        ("Sub", "payments", "failed"),
        ("Sub", "payments", "success"),
    ]
    assert [row[:2] for row in shown(half)] == [["Pub", "halves"]]


def records() -> list[TraceRecord]:
    """Return records of every kind."""
    message = Message(topic="orders", body=b"1", message_id="A" * 32, tag="t", keys=("a", "b"))
    plain = Message(topic="orders", body=b"1", message_id="B" * 32, delay_level=3)
    sending = Sending(
        verb="send_many",
        messages=[message, plain],
        group="shop",
        origin=ORIGIN,
        begun=0.0,
        begun_ms=17,
        seconds=1.25,
        results=[stored("A" * 32), stored("B" * 32)],
    )
    delivery = Delivery(
        verb="process",
        group="payments",
        messages=[received(MSG_REGION="eu"), received()],
        origin=ORIGIN,
        begun=0.0,
        begun_ms=17,
        seconds=1.25,
        outcomes=[CONSUMED, Retry()],
    )
    half = Half(message_id="A", group="shop", queue=QUEUE, half_offset=1, commit_log_offset=2)
    ends = [
        transaction_record(Ending(half=half, decision=each, origin=ORIGIN, begun_ms=17))
        for each in Decision
    ]
    begun = begun_records(delivery, "R")
    recalls = [
        recall_record(
            Recall(
                topic="orders",
                message_id="A",
                group="shop",
                origin=ORIGIN,
                begun_ms=17,
                error=error,
            )
        )
        for error in (None, Refused(1, "late"))
    ]
    return [*sent_records(sending), *begun, *ended_records(delivery, "R"), *ends, *recalls]


def test_apaches_encoder_writes_what_its_decoder_read_of_ours(tmp_path: Path) -> None:
    body = tmp_path / "body"
    body.write_text("".join(each.text for each in records()))
    printed = run_source("TraceRecords", tmp_path, body)

    assert printed == [each.text.rstrip("\x02").replace("\x01", "|") for each in records()]
    assert len({line.partition("|")[0] for line in printed}) == 5
