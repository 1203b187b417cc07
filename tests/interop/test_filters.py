"""One store, our broker and Apache's by turns: an SQL92 subscription goes on at either."""

from pathlib import Path

import pytest
from bench.apache_rocketmq import ApacheRocketMQ, broker_port
from bench.java_programs import JarsUnreachable, build_server, missing_tools
from bench.reliable_mq_broker import ReliableMQBroker
from tests.interop.admin_shell import AdminShell

from reliable_mq.testing.local_servers import free_port

SETTINGS = {"enablePropertyFilter": "true", "brokerName": "both"}
WANTED = "number > 2 AND number <> 4"  # of 0 to 5: 3 and 5

pytestmark = [
    pytest.mark.interop,
    pytest.mark.java,
    pytest.mark.processes,
    pytest.mark.skipif(missing_tools() is not None, reason=str(missing_tools())),
]


def test_a_consumer_that_stays_gets_what_it_wants_whichever_broker_opens_the_store(
    tmp_path: Path,
) -> None:
    try:
        build_server()
    except JarsUnreachable as unreachable:
        pytest.skip(str(unreachable))
    ours = ReliableMQBroker(tmp_path / "both", "ASYNC_FLUSH", settings=SETTINGS)
    ours.address = f"127.0.0.1:{broker_port()}"
    ours.name_server_address = servers = f"127.0.0.1:{free_port()}"
    apache = ApacheRocketMQ(tmp_path / "both", "ASYNC_FLUSH", SETTINGS)
    apache.address, apache.name_server_address = ours.address, servers
    with AdminShell(tmp_path) as shell:
        with ours:
            sent = shell.run("@send", servers, "producers", "filtered", 1)  # makes the topic
            assert "both" in sent
            shell.run("@produce", servers, "producers", "filtered", 1, 6)
            got = shell.run("@filter", servers, "choosers", "filtered", WANTED, 2)
            assert got.split("\n") == ["body 3", "body 5"]
        brokers: list[ApacheRocketMQ | ReliableMQBroker] = [apache, ours]
        for round_, broker in enumerate(brokers, start=2):
            with broker:
                produce(shell, servers)
                got = shell.run("@more", servers, "choosers", 2 * round_)
                assert sorted(got.split("\n")[-2:]) == ["body 3", "body 5"]
                assert set(got.split("\n")) == {"body 3", "body 5"}


def produce(shell: AdminShell, servers: str) -> None:
    """Send six messages as soon as the producer finds the broker again."""
    while "SEND_OK 0" not in shell.run("@produce", servers, "producers", "filtered", 1, 6):
        pass
