"""The file of offsets of a group that broadcasts: Apache's form, whole whatever happens."""

import asyncio
import os
import stat
import threading
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest
from tests.client.scripted_consumer import consumed
from tests.waiting import eventually, run_scene

from reliable_mq.client.asyncio_client import AsyncClient
from reliable_mq.client.consuming.file_offsets import FileOffsets
from reliable_mq.client.consuming.local_offsets import (
    OFFSET_NOT_KNOWN,
    decode_offsets,
    encode_offsets,
)
from reliable_mq.client.consuming.subscription import Subscription
from reliable_mq.client.settings import ClientSettings
from reliable_mq.errors import ConfigurationError, StoreCorrupt, StoreError, StoreInUse, UsageError
from reliable_mq.message import MessageQueue

FIRST, SECOND = MessageQueue("orders", "broker-a", 0), MessageQueue("orders", "broker-a", 1)

OF_APACHE = b"""{
\t"offsetTable":{{
\t\t\t"brokerName":"broker-a",
\t\t\t"queueId":0,
\t\t\t"topic":"orders"
\t\t}:17,{
\t\t\t"brokerName":"broker-a",
\t\t\t"queueId":1,
\t\t\t"topic":"orders"
\t\t}:4
\t}
}"""


def kept(path: Path, offsets: dict[MessageQueue, int]) -> None:
    file = FileOffsets(path)
    file.remember_offsets(offsets)
    file.save()
    file.close()


def found(path: Path, *queues: MessageQueue) -> list[int]:
    file = FileOffsets(path)
    try:
        return [file.find(queue) for queue in queues]
    finally:
        file.close()


def test_what_apaches_client_wrote_is_read() -> None:
    assert decode_offsets(OF_APACHE) == {FIRST: 17, SECOND: 4}


def test_what_is_written_is_read_again() -> None:
    offsets = {FIRST: 17, SECOND: 0}
    assert decode_offsets(encode_offsets(offsets)) == offsets
    assert decode_offsets(encode_offsets({})) == {}


def test_offsets_outlive_the_process_and_those_of_other_queues_are_kept(tmp_path: Path) -> None:
    path = tmp_path / "me" / "group" / "offsets.json"
    kept(path, {FIRST: 3, SECOND: 9})
    kept(path, {FIRST: 5})
    assert found(path, FIRST, SECOND) == [5, 9]
    assert found(path, MessageQueue("orders", "broker-b", 0)) == [OFFSET_NOT_KNOWN]


@pytest.mark.parametrize("damage", [b"", b"{", b"[]", b'{"offsetTable":3}', b"\xff\xfe"])
def test_a_file_that_is_broken_is_replaced_by_its_copy(tmp_path: Path, damage: bytes) -> None:
    path = tmp_path / "offsets.json"
    kept(path, {FIRST: 3})
    kept(path, {FIRST: 5})
    path.write_bytes(damage)
    assert found(path, FIRST) == [3]


def test_a_file_that_is_gone_is_replaced_by_its_copy(tmp_path: Path) -> None:
    """A process that was killed between the two renames leaves it so."""
    path = tmp_path / "offsets.json"
    kept(path, {FIRST: 3})
    kept(path, {FIRST: 5})
    path.unlink()
    assert found(path, FIRST) == [3]


def test_without_a_copy_that_reads_nobody_begins_somewhere_else_unasked(tmp_path: Path) -> None:
    path = tmp_path / "offsets.json"
    path.write_bytes(b"{")
    with pytest.raises(StoreCorrupt, match="remove both"):
        FileOffsets(path)
    path.write_bytes(OF_APACHE)
    assert found(path, FIRST) == [17]  # the lock was let go


def test_two_clients_of_one_name_do_not_write_over_each_others_offsets(tmp_path: Path) -> None:
    settings = ClientSettings(offset_folder=str(tmp_path))
    first = FileOffsets.of_group("g", "host", settings)
    with pytest.raises(ConfigurationError, match="instance_name of its own"):
        FileOffsets.of_group("g", "host", settings)
    with pytest.raises(StoreInUse):
        FileOffsets(tmp_path / "host@DEFAULT" / "g" / "offsets.json")
    named = ClientSettings(offset_folder=str(tmp_path), instance_name="second")
    second = FileOffsets.of_group("g", "host", named)
    second.close()
    first.close()
    FileOffsets.of_group("g", "host", settings).close()


def test_a_folder_that_cannot_be_written_is_told_with_its_name(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(StoreError, match=r"file.*cannot be kept|cannot be kept.*file"):
        FileOffsets(tmp_path / "file" / "offsets.json")
    file = FileOffsets(tmp_path / "sub" / "offsets.json")
    (tmp_path / "sub" / "offsets.json.tmp").mkdir()
    with pytest.raises(StoreError, match="cannot be written"):
        file.save()
    file.close()


@pytest.mark.parametrize("name", ["..", "a/b", "a@b", ".hidden", "x" * 101, "a\n"])
def test_an_instance_name_is_part_of_a_path_and_of_a_client_id(name: str) -> None:
    with pytest.raises(ConfigurationError, match="instance_name"):
        ClientSettings(instance_name=name)


def test_what_is_saved_has_its_name_on_the_medium_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced: list[str] = []
    fsync = os.fsync

    def seen(descriptor: int) -> None:
        fsync(descriptor)
        synced.append("folder" if stat.S_ISDIR(os.fstat(descriptor).st_mode) else "file")

    monkeypatch.setattr(os, "fsync", seen)
    kept(tmp_path / "offsets.json", {FIRST: 3})
    assert synced == ["file", "folder"]


class SlowFile:
    """A client whose thread opens the offsets of a group, and takes its time."""

    def __init__(self, client: AsyncClient, folder: Path) -> None:
        self.path = folder / "g" / "offsets.json"
        self.opened = asyncio.Event()
        self.may_go_on = threading.Event()
        self._loop = asyncio.get_running_loop()
        client._engine._offsets_of = self._open  # type: ignore[method-assign]
        wanted = Subscription(group="g", topics={"orders": "*"}, broadcasting=True)
        self.consuming = asyncio.create_task(client.consume(wanted, consumed))

    def _open(self, group: str) -> FileOffsets:
        file = FileOffsets(self.path)
        self._loop.call_soon_threadsafe(self.opened.set)
        self.may_go_on.wait()
        return file

    def is_free(self) -> bool:
        try:
            FileOffsets(self.path).close()
        except StoreInUse:
            return False
        return True


def play_with(
    folder: Path, scene: Callable[[AsyncClient, SlowFile], Coroutine[Any, Any, None]]
) -> None:
    async def run() -> None:
        settings = ClientSettings(instance_name="me", offset_folder=str(folder))
        async with AsyncClient("127.0.0.1:1", settings=settings) as client:
            slow = SlowFile(client, folder)
            try:
                await slow.opened.wait()
                await scene(client, slow)
            finally:
                slow.may_go_on.set()
        await eventually(slow.is_free)

    run_scene(run())


def test_a_group_that_somebody_joins_meanwhile_does_not_keep_its_file(tmp_path: Path) -> None:
    async def scene(client: AsyncClient, slow: SlowFile) -> None:
        await client.simple_consumer(Subscription(group="g", topics={"orders": "*"}))
        slow.may_go_on.set()
        with pytest.raises(UsageError, match="consumes for group g already: close that consumer"):
            await slow.consuming

    play_with(tmp_path, scene)


def test_a_consumer_that_begins_while_its_client_is_closed_reads_nothing(tmp_path: Path) -> None:
    async def scene(client: AsyncClient, slow: SlowFile) -> None:
        await client.close()
        slow.may_go_on.set()
        with pytest.raises(UsageError, match="client is closed"):
            await slow.consuming
        assert not client._engine.members

    play_with(tmp_path, scene)


def test_who_is_cancelled_as_he_begins_to_consume_does_not_keep_the_file(tmp_path: Path) -> None:
    async def scene(_: AsyncClient, slow: SlowFile) -> None:
        slow.consuming.cancel()
        await asyncio.wait([slow.consuming])
        assert not slow.is_free()

    play_with(tmp_path, scene)
