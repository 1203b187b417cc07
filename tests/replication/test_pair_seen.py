"""What the metrics and the doctor see of a pair over sockets."""

import asyncio
import logging
import time
from pathlib import Path

import pytest
from tests.replication.test_pair import MASTER, SLAVE, end_of, serving
from tests.waiting import eventually, run_scene

from reliable_mq.client.asyncio_client import AsyncClient
from reliable_mq.message import Message
from reliable_mq.runtime import replication
from reliable_mq.runtime.broker_server import BrokerServer
from reliable_mq.runtime.log_writer import LogWriter
from reliable_mq.runtime.tls_settings import is_exposed


@pytest.mark.parametrize(
    ("ip", "allowed", "is_told"),
    [("127.0.0.1", "", False), ("192.0.2.1", "", True), ("192.0.2.1", "192.0.2.0/24", False)],
)
def test_a_master_whose_log_everybody_can_have_says_so_loudly(
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
    ip: str,
    allowed: str,
    is_told: bool,
) -> None:
    """And it tells the doctor. Certificates of clients do not help: slaves show none."""
    monkeypatch.setattr(replication, "is_exposed", lambda _ips, tls: is_exposed([ip], tls))

    async def scene() -> None:
        own = {"haAllowedAddresses": allowed} if allowed else {}
        async with serving(tmp_path / "master", **MASTER, **own) as master:
            async with AsyncClient(master.name_server_address) as client:
                (broker,) = (await client.cluster_facts()).brokers
            assert broker.config["haOpenToEverybody"] == str(is_told).lower()
            assert broker.config["ownNameServer"] == "true"

    run_scene(scene())
    lines = [each for each in caplog.records if getattr(each, "event", "") == "log_exposed"]
    assert len(lines) == is_told
    for line in lines:
        assert line.levelno == logging.ERROR
        assert "GIVES EVERY MESSAGE TO EVERYBODY" in line.getMessage()


def figures_of(server: BrokerServer) -> dict[str, float]:
    state = server._core.state
    samples = state.ha_figures(time.time_ns() // 1_000_000)
    return {each.name.removeprefix("reliable_mq_broker_"): each.value for each in samples}


def test_a_slave_that_cannot_store_is_seen_to_lag_at_both_sides(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Given a slave whose disk has no room, when messages come, then both say what it lacks."""

    async def scene() -> None:
        async with (
            serving(tmp_path / "master", **MASTER) as master,
            serving(tmp_path / "slave", master.name_server_address, **SLAVE) as slave,
            AsyncClient(master.name_server_address) as client,
        ):
            await client.create_topic("t", 1)
            await client.send(Message(topic="t", body=b"1"))
            await eventually(lambda: figures_of(master).get("slave_lag_bytes") == 0)
            await eventually(lambda: figures_of(slave)["master_connected"] == 1)
            assert figures_of(slave)["behind_master_bytes"] == 0

            room = asyncio.Event()
            is_full = property(lambda writer: writer is slave._log_writer and not room.is_set())
            monkeypatch.setattr(LogWriter, "is_waiting_for_room", is_full)
            await client.send(Message(topic="t", body=b"2"))
            await eventually(lambda: end_of(slave) == end_of(master))
            for number in range(20):
                await client.send(Message(topic="t", body=b"%d" % number * 1_000))
            lacks = end_of(master) - end_of(slave)
            assert lacks > 0
            await eventually(lambda: figures_of(slave)["behind_master_bytes"] > 0)
            await eventually(lambda: figures_of(slave)["behind_master_seconds"] > 0.2)
            assert figures_of(master)["slave_lag_bytes"] > 0
            assert figures_of(master)["slave_lag_seconds"] > 0.2
            room.set()
            await eventually(lambda: figures_of(master)["slave_lag_bytes"] == 0)
            await eventually(lambda: figures_of(slave)["behind_master_bytes"] == 0)
            assert figures_of(master)["slave_lag_seconds"] == 0
            assert figures_of(slave)["behind_master_seconds"] == 0
            sent = figures_of(master)["slave_sent_bytes_total"]
            assert sent == figures_of(slave)["master_received_bytes_total"]

    run_scene(scene())
