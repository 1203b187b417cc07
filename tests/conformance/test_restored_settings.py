"""A lost store whose settings come from a copy, as `docs/how-to/backups.md` says."""

import re
import shutil
from pathlib import Path

import pytest
from bench.reliable_mq_broker import ReliableMQBroker
from tests.client.cluster import PATIENT

from reliable_mq.client.administering.groups import GroupChange
from reliable_mq.client.thread_client import Client
from reliable_mq.message import Message, MessageQueue

PAGE = Path(__file__).parents[2] / "docs" / "how-to" / "backups.md"

pytestmark = pytest.mark.processes


def test_an_empty_store_with_the_files_of_a_copy_has_its_topics_and_groups(tmp_path: Path) -> None:
    (names,) = re.findall(r"for name in ([\w ]+); do", PAGE.read_text())
    broker = ReliableMQBroker(tmp_path)
    with broker, Client(broker.name_server_address, settings=PATIENT) as client:
        client.admin.topics.create("orders", 8, attributes={"message.type": "FIFO"})
        client.admin.groups.create("payments", GroupChange(retries_max=3))
        client.send(Message(topic="orders", body=b"lost", ordering_key="a"))
        copy = tmp_path / "copy"  # while the broker runs
        shutil.copytree(broker.store / "config", copy)
    shutil.rmtree(broker.store)
    (broker.store / "config").mkdir(parents=True)
    for name in names.split():
        if (copy / f"{name}.json").exists():
            shutil.copy(copy / f"{name}.json", broker.store / "config")

    with broker, Client(broker.name_server_address, settings=PATIENT) as client:
        (settings,) = client.admin.topics.settings("orders").value.values()
        (group,) = client.admin.groups.settings("payments").value.values()
        queue = MessageQueue("orders", "broker-a", 6)
        sent = client.send(Message(topic="orders", body=b"new", ordering_key="a"), queue=queue)
    assert (settings.read_queues, settings.attributes) == (8, {"message.type": "FIFO"})
    assert group.retries_max == 3
    assert sent.queue == queue
