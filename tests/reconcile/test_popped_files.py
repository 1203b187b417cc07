"""What is in flight by the message, read from the files of a store."""

from pathlib import Path
from typing import Any

import pytest
from tests.broker_core.broker_world import GROUP, TOPIC
from tests.broker_core.pop_world import PopWorld

from reliable_mq.reconcile.brokers.file_popped import read_in_flight, read_pops
from reliable_mq.wire.properties import UNIQ_KEY


def written(world: PopWorld, folder: Path) -> str:
    """Write the store of a broker into a folder; return its path."""
    for name, data in world.disk.files().items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
    return str(folder)


@pytest.fixture
def world() -> PopWorld:
    """A broker with nine messages in flight, and one that is acknowledged."""
    world = PopWorld()
    for number in range(10):
        world.send(b"%d" % number)
    first, *_ = [message for _ in range(10) for message in world.pop(maxMsgNums=1)]
    world.ack(first)
    world.pass_time(2_000)
    world.stop()
    return world


def test_the_files_say_what_is_in_flight(world: PopWorld, tmp_path: Path) -> None:
    found = read_in_flight(written(world, tmp_path), world.now_ms, world.now_ms)

    assert found == {(GROUP, TOPIC): {0: 1}}


def test_the_hand_outs_of_a_message_are_found_by_its_records(
    world: PopWorld, tmp_path: Path
) -> None:
    """Nine messages came back: each lies in the retry topic, at the same offsets as others do."""
    world.start()
    world.pass_time(12_000)
    again = world.pop()
    world.pass_time(1_000)
    world.stop()
    chosen = again[3]
    message_id = chosen.record.property_map()[UNIQ_KEY]
    store = written(world, tmp_path)

    def is_likely(topic: str, queue_id: int, offset: int) -> bool:
        return topic == chosen.topic or (topic, queue_id, offset) == (TOPIC, 0, 4)

    found = read_pops(store, message_id, is_likely, 0)
    assert [(pop.topic, pop.is_ended, failed) for pop, failed in found] == [
        (TOPIC, False, 0),
        (chosen.topic, False, 1),
    ]
    assert read_pops(store, "another", is_likely, 0) == []


def test_a_file_of_the_log_is_opened_once(
    world: PopWorld, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = written(world, tmp_path)
    opened = []
    really_open = Path.open

    def counted(path: Path, *given: Any, **named: Any) -> Any:
        if path.parent.name == "commitlog":
            opened.append(path)
        return really_open(path, *given, **named)

    monkeypatch.setattr(Path, "open", counted)
    read_in_flight(store, world.now_ms, world.now_ms)

    assert len(opened) == len(set(opened)) > 0


def test_a_file_of_the_log_that_is_gone_says_nothing(world: PopWorld, tmp_path: Path) -> None:
    store = written(world, tmp_path)
    for path in (tmp_path / "commitlog").iterdir():
        path.unlink()

    assert read_in_flight(store, world.now_ms, world.now_ms) == {}
