"""mqadmin asks a consumer of ours, at our broker and at Apache's, as it asks Apache's own."""

import re
from collections.abc import Iterator, Sequence

import pytest
from bench.apache_rocketmq import ApacheRocketMQ
from bench.reliable_mq_broker import ReliableMQBroker
from tests.interop.admin_shell import AdminShell
from tests.waiting import until
from tests.with_java import INTEROP, Broker, started

from reliable_mq.client.consuming.subscription import Subscription
from reliable_mq.client.thread_client import Client, PushConsumer
from reliable_mq.message import Message, ReceivedMessage, SendResult
from reliable_mq.outcomes import CONSUMED, Outcome

DEADLINE_SECONDS = 60.0
TOPIC, GROUP = "orders", "payments"

pytestmark = INTEROP


class Payments:
    """A consumer with one message of its topic, and the shell that asks about it."""

    def __init__(self, name_server: str, shell: AdminShell, client: Client) -> None:
        self.name_server = name_server
        self.shell = shell
        self.client = client
        self.seen: list[ReceivedMessage] = []
        client.create_topic(TOPIC, 2)
        self.consumer: PushConsumer = client.consume(
            Subscription(group=GROUP, topics={TOPIC: "*"}), self.take
        )
        self.sent: SendResult = client.send(Message(topic=TOPIC, body=b"1"))
        self.wait_for(1)

    def take(self, messages: Sequence[ReceivedMessage]) -> Sequence[Outcome]:
        self.seen += messages
        return [CONSUMED] * len(messages)

    def wait_for(self, count: int) -> None:
        until(
            lambda: len(self.seen) >= count,
            lambda: f"{len(self.seen)} of {count} messages came",
            seconds=DEADLINE_SECONDS,
        )

    def ask(self, command: str, *words: str) -> str:
        return self.shell.run(command, "-n", self.name_server, *words)


@pytest.fixture(scope="module", params=["ours", "apache"])
def payments(
    request: pytest.FixtureRequest,
    tmp_path_factory: pytest.TempPathFactory,
    shell: AdminShell,
) -> Iterator[Payments]:
    kind = ApacheRocketMQ if request.param == "apache" else ReliableMQBroker
    servers: Broker = kind(tmp_path_factory.mktemp("consumer-admin"), "ASYNC_FLUSH")
    with started(servers), Client(servers.name_server_address) as client:
        yield Payments(servers.name_server_address, shell, client)


def test_consumer_status_lists_our_members_and_finds_nothing_wrong(payments: Payments) -> None:
    printed = payments.ask("consumerStatus", "-g", GROUP)
    assert re.search(rf"^1 +{re.escape(payments.client.client_id)}", printed, re.MULTILINE), printed
    assert "Same subscription in the same group of consumer" in printed
    assert "can't lock" not in printed
    assert "can't consume" not in printed


def test_consumer_status_of_one_member_tells_its_queues_and_what_its_threads_do(
    payments: Payments,
) -> None:
    printed = payments.ask("consumerStatus", "-g", GROUP, "-i", payments.client.client_id, "-s")
    assert "PROP_CONSUMEORDERLY" in printed
    lines = [line.split() for line in printed.splitlines() if line.startswith(TOPIC)]
    offsets = {int(words[2]): int(words[3]) for words in lines if len(words) == 4}
    assert sorted(offsets) == [0, 1]
    assert sum(offsets.values()) == 1, printed
    assert "locked=true" in printed
    rates = re.search(rf"^{TOPIC} +(?:[\d.]+ +){{5}}(\d+) *$", printed, re.MULTILINE)
    assert rates, printed
    assert re.search(r"Topic: +orders .*SubExpression: \*", printed)
    assert "thread rmq-payments_0" in printed


@pytest.mark.parametrize("command", ["queryMsgById", "queryMsgByUniqueKey"])
def test_a_message_is_handled_once_more_because_mqadmin_asks_for_it(
    payments: Payments, command: str
) -> None:
    before = len(payments.seen)
    sent = payments.sent
    name = sent.offset_message_id if command == "queryMsgById" else sent.message_id
    who = ("-g", GROUP, "-d", payments.client.client_id)
    printed = payments.ask(command, "-t", TOPIC, "-i", name, *who)
    assert "CR_SUCCESS" in printed, printed
    payments.wait_for(before + 1)
    assert payments.seen[-1].message_id == sent.message_id
