"""Compressed bodies: which are, by what, what is refused, and that they hold up nobody else."""

import asyncio
import zlib
from importlib import import_module
from typing import Any

import pytest
from tests.client.script import World, random_bytes, route_table
from tests.client.test_producer import BATCH, SEND, stores_the_batch, world_of
from tests.waiting import run_scene

from reliable_mq.client.asyncio_client import AsyncClient
from reliable_mq.client.consuming.unpacking import unpack
from reliable_mq.client.flow import Flow, work
from reliable_mq.client.sending.batching import plan_many
from reliable_mq.client.sending.producer import SendFlows
from reliable_mq.client.settings import ClientSettings
from reliable_mq.errors import ConfigurationError, RecordError
from reliable_mq.message import Message
from reliable_mq.wire import compression
from reliable_mq.wire.compression import KINDS, compress, decompress, flags_of
from reliable_mq.wire.record import Record

LONG = b"a long body " * 1000
LIMIT = 4 * 1024 * 1024


def sent(message: Message, settings: ClientSettings) -> tuple[World, bytes, int]:
    """Return the world, the body and the flags with which a message is sent."""
    world, producer = world_of({"t": {"a": 1}}, settings)
    world.play(producer.send(message))
    command = world.calls_of(SEND)[0].command
    return world, command.body, int(command.ext_fields["f"])


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("body", [b"x", LONG, bytes(LIMIT)], ids=["one byte", "long", "4 MiB"])
def test_every_kind_gives_back_what_it_was_given(kind: str, body: bytes) -> None:
    assert decompress(compress(body, kind), flags_of(kind), LIMIT) == body


def test_a_body_of_before_there_was_a_choice_is_zlib() -> None:
    assert decompress(zlib.compress(LONG, 5), 0x001, LIMIT) == LONG


@pytest.mark.parametrize("kind", KINDS)
def test_what_is_damaged_cut_short_or_too_large_is_never_a_body(kind: str) -> None:
    packed = compress(LONG, kind)
    with pytest.raises(RecordError, match=f"{kind.upper()} is damaged"):
        decompress(b"?" + packed[1:], flags_of(kind), LIMIT)
    with pytest.raises(RecordError, match="its end is missing"):
        decompress(packed[:-3], flags_of(kind), LIMIT)
    with pytest.raises(RecordError, match="more than 11999 bytes"):
        decompress(packed, flags_of(kind), len(LONG) - 1)
    assert decompress(packed, flags_of(kind), len(LONG)) == LONG


def test_a_kind_that_nobody_knows_is_no_body() -> None:
    with pytest.raises(RecordError, match="unknown compression type"):
        decompress(b"x", 0x701, LIMIT)


@pytest.mark.parametrize("kind", ["lz4", "zstd"])
def test_an_extra_that_is_missing_is_named(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> Any:
        if kind in name:
            raise ImportError(name)
        return import_module(name)

    monkeypatch.setattr(compression, "import_module", missing)
    compression._codec.cache_clear()
    try:
        with pytest.raises(RecordError, match=rf"pip install 'reliable-mq\[{kind}\]'"):
            decompress(b"x", flags_of(kind), LIMIT)
        with pytest.raises(ConfigurationError, match=rf"pip install 'reliable-mq\[{kind}\]'"):
            ClientSettings(compression=kind)
    finally:
        compression._codec.cache_clear()


def test_a_compression_that_is_none_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="use one of none, zlib, lz4, zstd"):
        ClientSettings(compression="gzip")


@pytest.mark.parametrize("kind", KINDS)
def test_a_body_is_compressed_from_the_size_that_is_set(kind: str) -> None:
    settings = ClientSettings(compression=kind, compress_from_bytes=len(LONG))
    _, body, flags = sent(Message(topic="t", body=LONG), settings)
    assert flags == flags_of(kind)
    assert len(body) < len(LONG) / 10
    assert decompress(body, flags, LIMIT) == LONG
    _, body, flags = sent(Message(topic="t", body=LONG[:-1]), settings)
    assert (body, flags) == (LONG[:-1], 0)


def test_a_body_that_compression_makes_longer_is_sent_as_it_is() -> None:
    noise = random_noise(1)
    _, body, flags = sent(
        Message(topic="t", body=noise), ClientSettings(compression="zlib", compress_from_bytes=1)
    )
    assert (body, flags) == (noise, 0)


def test_nothing_is_compressed_unless_it_is_asked_for() -> None:
    _, body, flags = sent(Message(topic="t", body=LONG), ClientSettings())
    assert (body, flags) == (LONG, 0)


def test_only_large_bodies_are_worked_on_elsewhere() -> None:
    settings = ClientSettings(compression="zlib")
    assert sent(Message(topic="t", body=bytes(64 * 1024)), settings)[0].works == 0
    assert sent(Message(topic="t", body=bytes(64 * 1024 + 1)), settings)[0].works == 1


def test_in_many_messages_one_to_compress_leaves_alone() -> None:
    settings = ClientSettings(compression="zlib")
    world, producer = world_of({"t": {"a": 1}}, settings)
    messages = [Message(topic="t", body=body) for body in (b"1", b"2", LONG, b"3")]
    planned = world.play(plan_many(producer, route_table(), settings, messages))
    assert sorted(group.positions for group in planned.groups) == [(0, 1, 3), (2,)]
    for group in planned.groups:
        world.play(producer.send_in_order(group.batches, group.queue))
    (single,) = world.calls_of(SEND)
    assert single.command.ext_fields["f"] == str(flags_of("zlib"))
    assert len(world.calls_of(BATCH)) == 1


def test_a_batch_that_the_caller_put_together_is_not_compressed() -> None:
    world, producer = world_of({"t": {"a": 1}}, ClientSettings(compression="zlib"))
    world.answers[BATCH] = stores_the_batch
    world.play(producer.send_batch([Message(topic="t", body=LONG)] * 2))
    (call,) = world.calls_of(BATCH)
    assert call.command.ext_fields["f"] == "0"
    assert len(call.command.body) > 2 * len(LONG)


def packed_record(kind: str, body: bytes) -> Record:
    return Record(topic="t", body=compress(body, kind), properties=b"", sys_flag=flags_of(kind))


def test_a_pull_is_unpacked_in_one_piece_of_work_and_each_fault_is_its_own() -> None:
    records = [
        Record(topic="t", body=b"plain", properties=b""),
        packed_record("lz4", LONG),
        Record(topic="t", body=b"not zlib", properties=b"", sys_flag=0x301),
        packed_record("zstd", bytes(LIMIT + 1)),
        packed_record("zlib", LONG),
    ]
    world = World()
    count, faults = world.play(unpack(records, LIMIT, LIMIT))
    assert count == len(records)
    assert sorted(faults) == [2, 3]
    assert "damaged" in faults[2]
    assert "more than" in faults[3]
    assert [record.body for record in records[:3]] == [b"plain", LONG, b"not zlib"]
    assert records[4].body == LONG
    assert world.works == 0, "little is unpacked at once"
    noise = [packed_record("zlib", random_noise(at)) for at in range(3)]
    world.play(unpack(noise, LIMIT, LIMIT))
    assert world.works == 1


def test_no_more_is_unpacked_than_was_asked_for() -> None:
    records = [packed_record("zlib", LONG) for _ in range(4)]
    packed = records[3].body
    assert World().play(unpack(records, LIMIT, 2 * len(LONG) + 1)) == (3, {})
    assert [record.body for record in records] == [LONG, LONG, LONG, packed]


def random_noise(seed: int) -> bytes:
    return b"".join(zlib.crc32(b"%d %d" % (seed, at)).to_bytes(4) for at in range(4096))


def test_work_holds_up_no_other_task_of_the_loop() -> None:
    async def scene() -> None:
        async with AsyncClient("127.0.0.1:1") as client:
            released = asyncio.Event()
            loop = asyncio.get_running_loop()

            def compute() -> str:
                done = asyncio.run_coroutine_threadsafe(released.wait(), loop)
                return "done" if done.result(60) else ""

            def flow() -> Flow[str]:
                return (yield from work(compute))

            running = asyncio.create_task(client._engine.run(flow()))
            await asyncio.sleep(0)
            released.set()  # this loop would never get here if it computed by itself
            assert await running == "done"

    run_scene(scene())


def test_work_that_fails_raises_in_the_flow() -> None:
    async def scene() -> None:
        async with AsyncClient("127.0.0.1:1") as client:

            def fail() -> None:
                raise RecordError("damaged")

            def flow() -> Flow[str]:
                try:
                    yield from work(fail)
                except RecordError as error:
                    return str(error)
                return ""

            assert await client._engine.run(flow()) == "damaged"

    run_scene(scene())


def test_a_retry_that_this_client_sends_itself_is_compressed_like_any_other() -> None:
    settings = ClientSettings(compression="zlib")
    world, _ = world_of({"%RETRY%g": {"a": 1}}, settings)
    producer = SendFlows(settings, route_table(), random_bytes)
    message = Message(topic="%RETRY%g", body=LONG)
    world.play(producer.send_retry(message, reconsume_times=1, max_reconsume_times=16))
    assert world.calls_of(SEND)[0].command.ext_fields["f"] == str(flags_of("zlib"))
