"""The file of offsets of a group that broadcasts: Apache's form, whole whatever happens."""

from pathlib import Path

import pytest

from reliable_mq.client.consuming.file_offsets import FileOffsets
from reliable_mq.client.consuming.local_offsets import (
    OFFSET_NOT_KNOWN,
    decode_offsets,
    encode_offsets,
)
from reliable_mq.client.settings import ClientSettings
from reliable_mq.errors import ConfigurationError, StoreCorrupt, StoreError, StoreInUse
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
    file.note(offsets)
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
