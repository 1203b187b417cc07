"""Our client and Apache's Java client, through both brokers: each asks, answers and unpacks."""

import asyncio
import zlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import msgspec
import pytest
from bench.apache_rocketmq import ApacheRocketMQ
from bench.child_process import LoggedProcess
from bench.reliable_mq_broker import ReliableMQBroker
from tests.client.cluster import PATIENT, Seen, play
from tests.interop.java_shell import run_source, source_command
from tests.waiting import eventually
from tests.with_java import INTEROP, Broker, started

from reliable_mq.client.asyncio_client import AsyncClient
from reliable_mq.client.consuming.subscription import Subscription
from reliable_mq.errors import ReplyTimeout
from reliable_mq.message import Message, ReceivedMessage
from reliable_mq.outcomes import CONSUMED, Outcome
from reliable_mq.wire.compression import KINDS, flags_of

ASKED = "questions"
START_SECONDS = 120.0
BODY = " a long body " * 1000

pytestmark = INTEROP


def apache(directory: Path) -> ApacheRocketMQ:
    return ApacheRocketMQ(directory, "ASYNC_FLUSH")


@pytest.fixture(scope="module", params=[apache, ReliableMQBroker], ids=["apache", "ours"])
def broker(request: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    with started(request.param(tmp_path_factory.mktemp("sending"))) as broker:
        yield broker


def test_our_client_answers_what_javas_asks(broker: Broker, tmp_path: Path) -> None:
    topic = f"{ASKED}-of-java"
    printed: list[str] = []

    async def scene() -> None:
        settings = msgspec.structs.replace(PATIENT, compression="zlib")
        async with AsyncClient(broker.name_server_address, settings=settings) as client:
            await client.create_topic(topic, 1)

            async def handle(messages: Sequence[ReceivedMessage]) -> Sequence[Outcome]:
                (message,) = messages
                if message.body != b"silent":
                    await client.reply(message, b"re: " + message.body)
                return [CONSUMED]

            subscription = Subscription(group="responders", topics={topic: "*"}, from_where="first")
            await client.consume(subscription, handle)
            words = ("RequestReply", tmp_path, broker.name_server_address, topic)
            printed.extend(await asyncio.to_thread(run_source, *words, "DefaultCluster", "asks"))

    play(scene())
    assert printed == [
        "answer re: one 7 bytes topic=DefaultCluster_REPLY_TOPIC",
        "answer re: two 7 bytes topic=DefaultCluster_REPLY_TOPIC",
        "answer re: xxxxxxxx 8196 bytes topic=DefaultCluster_REPLY_TOPIC",
        "no answer, code 10006",
    ]


@pytest.fixture
def java_responder(broker: Broker, tmp_path: Path) -> Iterator[LoggedProcess]:
    """Give a running Java client that answers."""
    words = (broker.name_server_address, ASKED, "DefaultCluster", "answers")
    command = source_command("RequestReply", tmp_path, *words)
    responder = LoggedProcess(command, tmp_path / "responder.log")
    try:
        responder.wait_for("^ready", START_SECONDS)
        yield responder
    finally:
        responder.kill()


def test_javas_client_answers_what_ours_asks(broker: Broker, java_responder: LoggedProcess) -> None:
    async def scene() -> None:
        settings = msgspec.structs.replace(PATIENT, compression="zlib")
        async with AsyncClient(broker.name_server_address, settings=settings) as client:
            await client.create_topic(ASKED, 1)
            for body in (b"one", b"two", b"x" * 8192):
                answer = await client.request(Message(topic=ASKED, body=body), timeout=50.0)
                assert answer.body == b"re: " + body
                assert answer.topic == "DefaultCluster_REPLY_TOPIC"
            with pytest.raises(ReplyTimeout):
                await client.request(Message(topic=ASKED, body=b"silent"), timeout=0.5)

    play(scene())
    assert java_responder.output().count("sent answer SEND_OK") == 3


def test_what_one_client_compresses_the_other_one_unpacks(broker: Broker, tmp_path: Path) -> None:
    to_java, from_java = "packed-for-java", "packed-by-java"
    seen = Seen()
    printed: list[str] = []

    async def scene() -> None:
        names = broker.name_server_address
        async with AsyncClient(names, settings=PATIENT) as client:
            await client.create_topic(to_java, 1)
            await client.create_topic(from_java, 1)
            await client.consume(
                Subscription(group="unpackers", topics={from_java: "*"}, from_where="first"), seen
            )
            for kind in KINDS:
                settings = msgspec.structs.replace(PATIENT, compression=kind)
                async with AsyncClient(names, settings=settings) as packer:
                    body = (kind + BODY).encode()
                    await packer.send(Message(topic=to_java, body=body, tag=kind))
            words = ("Compressed", tmp_path, names, to_java, from_java, len(KINDS))
            printed.extend(await asyncio.to_thread(run_source, *words))
            await eventually(lambda: len(seen.messages) == len(KINDS))

    play(scene())
    assert sorted(printed) == sorted(
        f"{kind} {flags_of(kind) & 0x700:x} {len(kind + BODY)} {zlib.crc32((kind + BODY).encode())}"
        for kind in KINDS
    )
    assert sorted(seen.bodies) == sorted((kind.upper() + BODY).encode() for kind in KINDS)
