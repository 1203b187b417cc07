"""Apache's official Java client (rocketmq-client 5.4.0) against our broker."""

from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from bench.java_programs import (
    SHORT_FLAGS,
    build_client,
    run_program,
)
from bench.positions import Position, read_positions
from bench.reliable_mq_broker import ReliableMQBroker
from tests.waiting import NEVER_BUSY, run_process
from tests.with_java import SERVERS, skipped_without_java

MESSAGES = 4_000
PROGRAM_SECONDS_MAX = 400
SEND_MS_MAX = 300_000
"""Of a send with all its tries. Java's own 3 s may pass on a busy machine: 16 threads begin."""

pytestmark = SERVERS


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    with skipped_without_java():
        build_client()
    return tmp_path_factory.mktemp("java-client")


@pytest.fixture(scope="module")
def broker(directory: Path) -> Iterator[ReliableMQBroker]:
    with ReliableMQBroker(directory, settings=NEVER_BUSY) as broker:
        yield broker


def run(name: str, directory: Path, broker: ReliableMQBroker, **options: object) -> dict[str, Any]:
    """Run a program at the broker, as long as a busy machine may need; return what it says."""
    return run_program(
        name,
        directory,
        timeout=PROGRAM_SECONDS_MAX,
        flags=SHORT_FLAGS,
        run=run_process,
        namesrv=broker.name_server_address,
        **options,
    )


@pytest.fixture(scope="module")
def sent(broker: ReliableMQBroker, directory: Path) -> list[Position]:
    """What the broker acknowledged to 16 threads that share one producer."""
    acknowledged = directory / "acknowledged"
    result = run(
        "Sender",
        directory,
        broker,
        send_timeout=SEND_MS_MAX,
        threads=16,
        count=MESSAGES,
        acknowledged=acknowledged,
    )
    assert result["errors"] == 0, result
    return list(read_positions(acknowledged))


def consume(broker: ReliableMQBroker, directory: Path, listener: str) -> list[Position]:
    """Give what a push consumer of a new group got, in the order of its listener's calls."""
    received = directory / f"received-{listener}"
    run(
        "PushConsumer",
        directory,
        broker,
        group=f"{listener}_listeners",
        listener=listener,
        count=MESSAGES,
        idle=PROGRAM_SECONDS_MAX,
        linger=1,
        received=received,
    )
    return list(read_positions(received))


def by_queue(positions: list[Position]) -> dict[int, list[Position]]:
    queues = defaultdict(list)
    for position in positions:
        queues[position.queue_id].append(position)
    return queues


def test_every_acknowledged_message_has_a_place_of_its_own(sent: list[Position]) -> None:
    assert len(sent) == MESSAGES
    assert len({position.number for position in sent}) == MESSAGES
    for positions in by_queue(sent).values():
        offsets = sorted(position.queue_offset for position in positions)
        assert offsets == list(range(len(positions)))


@pytest.mark.interop
def test_an_ordered_consumer_gets_each_message_once_and_in_queue_order(
    broker: ReliableMQBroker, directory: Path, sent: list[Position]
) -> None:
    received = consume(broker, directory, "ordered")
    assert sorted(received) == sorted(sent)
    for positions in by_queue(received).values():
        assert positions == sorted(positions)


def test_a_concurrent_consumer_gets_each_message_once(
    broker: ReliableMQBroker, directory: Path, sent: list[Position]
) -> None:
    assert sorted(consume(broker, directory, "concurrent")) == sorted(sent)


def test_explicit_pulls_read_what_was_acknowledged_in_queue_order(
    broker: ReliableMQBroker, directory: Path, sent: list[Position]
) -> None:
    found = directory / "found"
    run(
        "PullReader",
        directory,
        broker,
        found=found,
    )
    assert list(read_positions(found)) == sorted(sent)


def test_batches_keep_their_order_in_one_queue(broker: ReliableMQBroker, directory: Path) -> None:
    acknowledged = directory / "acknowledged-batches"
    found = directory / "found-batches"
    result = run(
        "Sender",
        directory,
        broker,
        send_timeout=SEND_MS_MAX,
        topic="batches",
        threads=4,
        batch=32,
        count=32 * 40,
        acknowledged=acknowledged,
    )
    assert result["errors"] == 0, result
    run(
        "PullReader",
        directory,
        broker,
        topic="batches",
        found=found,
    )
    assert list(read_positions(found)) == sorted(read_positions(acknowledged))
