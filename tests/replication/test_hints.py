"""A slave takes topics and groups over when they change, not only every five seconds."""

import asyncio
from functools import partial
from pathlib import Path

import pytest
from tests.replication.test_pair import MASTER, SLAVE, end_of, serving, slaves_of
from tests.replication.test_transfers import port_of
from tests.waiting import eventually, run_scene

from reliable_mq.broker_core.state import BrokerState
from reliable_mq.broker_core.topics import PATH as TOPICS_PATH
from reliable_mq.client.asyncio_client import AsyncClient
from reliable_mq.message import Message
from reliable_mq.replication.ha_frames import HINT_BEATS, Transfer, TransferReader, encode_report
from reliable_mq.replication.ha_status import MasterState
from reliable_mq.runtime import table_follower
from reliable_mq.runtime.ha_master import HaMaster
from reliable_mq.wire.codes import RequestCode as Ask
from reliable_mq.wire.command import request


@pytest.fixture(autouse=True)
def _never_by_the_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(table_follower, "TABLES_SECONDS", 3600.0)


def _has_queues(state: BrokerState, count: int) -> bool:
    topic = state.topics.get("t")
    return topic is not None and topic.queue_count == count


def test_a_new_topic_and_a_new_group_are_at_the_slave_at_once(tmp_path: Path) -> None:
    async def scene() -> None:
        async with serving(tmp_path / "m", **MASTER) as master:
            names = master.name_server_address
            async with serving(tmp_path / "s", names, **SLAVE) as slave, AsyncClient(names) as one:
                await eventually(lambda: bool(slaves_of(master)))
                state = slave._core.state
                for number in range(1, 6):
                    await one.create_topic("t", number)
                    await eventually(partial(_has_queues, state, number))
                master._core.state.find_group("g", 0)
                await eventually(lambda: "g" in state.groups.by_name)
                asked = request(Ask.DELETE_TOPIC_IN_BROKER, {"topic": "t"})
                links = slave._replication._links
                assert links is not None
                await links.call(master.address, asked, 5.0)
                await eventually(lambda: state.topics.get("t") is None)

    run_scene(scene())


def test_a_topic_that_the_slave_finds_in_the_log_is_asked_for_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Apache's masters give no hints."""
    monkeypatch.setattr(HaMaster, "hint", lambda _master: None)

    async def scene() -> None:
        async with serving(tmp_path / "m", **MASTER) as master:
            names = master.name_server_address
            async with serving(tmp_path / "s", names, **SLAVE) as slave, AsyncClient(names) as one:
                await eventually(lambda: bool(slaves_of(master)))
                await one.create_topic("t", 3)
                assert slave._core.state.topics.get("t") is None
                await one.send(Message(topic="t", body=b"x"))
                await eventually(lambda: slave._core.state.topics.get("t"))
                await eventually(lambda: end_of(slave) == end_of(master))

    run_scene(scene())


def test_many_changes_in_one_turn_are_one_hint(tmp_path: Path) -> None:
    async def scene() -> None:
        async with serving(tmp_path / "m", **MASTER) as master:
            reader, writer = await asyncio.open_connection("127.0.0.1", port_of(master))
            writer.write(encode_report(0))
            await eventually(lambda: bool(slaves_of(master)))
            state, end = master._core.state, master._core.state.store.log.end
            for _ in range(100):
                state.files.on_change(TOPICS_PATH)
            state.files.on_change("config/consumerOffset.json")
            frames, found = TransferReader(), list[Transfer]()
            while len(found) < 1 + HINT_BEATS:  # the first one says that the log is empty
                found += frames.feed(await reader.read(1 << 16))
            assert found == [Transfer(end, b"")] * (1 + HINT_BEATS)
            writer.close()

    run_scene(scene())


def test_heartbeats_are_a_hint_only_with_nothing_between_them() -> None:
    beat, part = Transfer(7, b""), Transfer(7, b"x")
    assert MasterState().take([beat, beat], 0.0, 0)
    assert not MasterState().take([beat, part, beat, part, beat], 0.0, 0)
    split = MasterState()
    assert [split.take([each], 0.0, 0) for each in (beat, beat, beat, part, beat, beat)] == [
        *(False, True),
        *(False, False, False, True),
    ]
