"""Brokers of ours and of Apache's in one cluster, found through either's name server.

The first broker of ours has a name server inside. The second one and Apache's broker register there
and at Apache's name server.
"""

import re
from collections.abc import Iterator
from contextlib import ExitStack
from typing import NamedTuple

import pytest
from bench.apache_rocketmq import ApacheRocketMQ
from bench.reliable_mq_broker import ReliableMQBroker
from tests.interop.admin_shell import AdminShell
from tests.waiting import Budget
from tests.with_java import INTEROP, started

MESSAGES = 24
SETTLE_SECONDS = 60.0
AT_OURS = {"first", "second", "apache"}
AT_APACHES = {"second", "apache"}

pytestmark = INTEROP


class Cluster(NamedTuple):
    """The servers, and mqadmin to ask them with."""

    first: ReliableMQBroker
    second: ReliableMQBroker
    apache: ApacheRocketMQ
    apaches_name_server: str
    shell: AdminShell

    @property
    def name_servers(self) -> dict[str, set[str]]:
        """The brokers that each name server knows while all are alive."""
        return {self.first.name_server_address: AT_OURS, self.apaches_name_server: AT_APACHES}

    def brokers_of(self, name_server: str, topic: str) -> set[str]:
        route = self.shell.run("topicRoute", "-n", name_server, "-t", topic)
        queues = route.partition('"queueDatas"')[2]
        return set(re.findall(r'"brokerName":"(\w+)"', queues))

    def has_settled(self, name_server: str, topic: str, brokers: set[str]) -> bool:
        budget = Budget(SETTLE_SECONDS)
        while self.brokers_of(name_server, topic) != brokers:
            if not budget.is_left():
                return False
        return True


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory, shell: AdminShell) -> Iterator[Cluster]:
    directory = tmp_path_factory.mktemp("cluster")
    with ExitStack() as running:
        first = ReliableMQBroker(directory / "first", settings={"brokerName": "first"})
        running.enter_context(first)
        apache = ApacheRocketMQ(directory / "apache", "ASYNC_FLUSH")
        apaches_name_server = apache.name_server_address
        both = f"{apaches_name_server};{first.name_server_address}"
        apache.settings["namesrvAddr"] = both
        running.enter_context(started(apache))
        second = ReliableMQBroker(
            directory / "second", settings={"brokerName": "second"}, name_servers=both
        )
        running.enter_context(second)
        running.enter_context(shell.closing_clients())
        cluster = Cluster(first, second, apache, apaches_name_server, shell)
        for name_server, brokers in cluster.name_servers.items():
            # Apache's broker says that it has booted ten seconds before it registers.
            assert cluster.has_settled(name_server, "TBW102", brokers)
        yield cluster


def test_a_topic_made_for_the_cluster_is_on_every_broker_at_once(cluster: Cluster) -> None:
    for name_server, brokers in cluster.name_servers.items():
        topic = f"of_{len(brokers)}"
        made = cluster.shell.run(
            *("updateTopic", "-n", name_server, "-c", "DefaultCluster"),
            *("-t", topic, "-r", 2, "-w", 2),
        )
        assert made.count("success") == len(brokers)
        assert cluster.brokers_of(name_server, topic) == brokers


def test_the_cluster_lists_its_brokers(cluster: Cluster) -> None:
    for name_server, brokers in cluster.name_servers.items():
        listed = cluster.shell.run("clusterList", "-n", name_server)
        assert set(re.findall(r"DefaultCluster\s+(\w+)", listed)) == brokers


def test_a_java_client_sends_to_all_brokers_and_consumes_from_all(cluster: Cluster) -> None:
    for name_server, brokers in cluster.name_servers.items():
        topic = f"of_{len(brokers)}"
        sent = cluster.shell.run("@send", name_server, "producers", topic, MESSAGES)
        got = cluster.shell.run("@consume", name_server, f"from_{topic}", topic, MESSAGES)
        assert set(re.findall(r"(\w+)=", sent)) == brokers
        assert got == f"{MESSAGES} {sent}", "every broker's messages came, and nothing else"


def test_a_broker_that_dies_leaves_all_routes_and_comes_back(cluster: Cluster) -> None:
    cluster.second.kill()
    for name_server, brokers in cluster.name_servers.items():
        topic = f"of_{len(brokers)}"
        assert cluster.has_settled(name_server, topic, brokers - {"second"})
        sent = cluster.shell.run("@send", name_server, "others", topic, MESSAGES)
        assert set(re.findall(r"(\w+)=", sent)) == brokers - {"second"}
    cluster.second.start()
    for name_server, brokers in cluster.name_servers.items():
        assert cluster.has_settled(name_server, f"of_{len(brokers)}", brokers)


def test_apaches_broker_that_dies_leaves_all_routes(cluster: Cluster) -> None:
    cluster.apache.broker.kill()
    for name_server, brokers in cluster.name_servers.items():
        assert cluster.has_settled(name_server, f"of_{len(brokers)}", brokers - {"apache"})


def test_a_broker_that_is_stopped_leaves_the_routes(cluster: Cluster) -> None:
    cluster.second.stop()
    assert cluster.brokers_of(cluster.first.name_server_address, "of_3") == {"first"}
    assert cluster.has_settled(cluster.apaches_name_server, "of_2", set())
