"""One store, our broker and Apache's by turns: an SQL92 subscription goes on at either."""

from pathlib import Path

from bench.apache_rocketmq import ApacheRocketMQ
from bench.child_process import port_beside
from bench.reliable_mq_broker import ReliableMQBroker
from tests.interop.admin_shell import AdminShell
from tests.waiting import SCENE_SECONDS_MAX, until
from tests.with_java import INTEROP, Broker

from reliable_mq.testing.local_servers import free_port

SETTINGS = {"enablePropertyFilter": "true", "brokerName": "both"}
WANTED = "number > 2 AND number <> 4"  # of 0 to 5: 3 and 5

pytestmark = INTEROP


def test_a_consumer_that_stays_gets_what_it_wants_whichever_broker_opens_the_store(
    tmp_path: Path, shell: AdminShell
) -> None:
    ours = ReliableMQBroker(tmp_path / "both", "ASYNC_FLUSH", settings=SETTINGS)
    ours.address = f"127.0.0.1:{port_beside(-2)}"
    ours.name_server_address = servers = f"127.0.0.1:{free_port()}"
    apache = ApacheRocketMQ(tmp_path / "both", "ASYNC_FLUSH", SETTINGS)
    apache.address, apache.name_server_address = ours.address, servers
    with ours:
        sent = shell.run("@send", servers, "producers", "filtered", 1)  # makes the topic
        assert "both" in sent
        shell.run("@produce", servers, "producers", "filtered", 1, 6)
        got = shell.run("@filter", servers, "choosers", "filtered", WANTED, 2)
        assert sorted(got.split("\n")) == ["body 3", "body 5"]
    brokers: list[Broker] = [apache, ours]
    for round_, broker in enumerate(brokers, start=2):
        with broker:
            produce(shell, servers)
            got = shell.run("@more", servers, "choosers", 2 * round_)
            assert sorted(got.split("\n")[-2:]) == ["body 3", "body 5"]
            assert set(got.split("\n")) == {"body 3", "body 5"}


def produce(shell: AdminShell, servers: str) -> None:
    """Send six messages as soon as the producer finds the broker again."""
    until(
        lambda: "SEND_OK 0" in shell.run("@produce", servers, "producers", "filtered", 1, 6),
        seconds=SCENE_SECONDS_MAX,
    )
