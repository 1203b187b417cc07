"""A misspelt topic or tag is stored and read by nobody: the doctor asks the brokers who reads."""

from collections.abc import Sequence
from contextlib import closing
from pathlib import Path

from tests.doctor.test_doctor import context
from tests.doctor.worlds import World, running_broker
from tests.waiting import until

from reliable_mq import ReliableMQ
from reliable_mq.client.administering.cluster_facts import ClusterFacts
from reliable_mq.doctor.finding import CheckFindings, Finding, Level
from reliable_mq.doctor.redis_examination import CHECKS, examine_all


class Cluster:
    """Says what a test gives it, and keeps which topics it was asked about."""

    def __init__(
        self,
        *,
        subscriptions: dict[str, dict[str, str | None]] | None = None,
        readers: dict[str, frozenset[str]] | None = None,
    ) -> None:
        self._subscriptions = subscriptions or {}
        self._readers = readers or {}
        self.topics: list[str] = []

    def cluster_facts(self, groups: Sequence[str], topics: Sequence[str]) -> ClusterFacts:
        assert "payments" in groups
        self.topics += topics
        return ClusterFacts(
            brokers=(),
            topics=frozenset({"orders"}),
            consumed=frozenset(self._subscriptions),
            subscriptions=self._subscriptions,
            readers=self._readers,
        )


def found(world: World, cluster: Cluster, unread: Sequence[str] = ()) -> list[Finding]:
    leases = {"main": {"payments": 10.0}}
    findings = examine_all(world.mq.databases, world.mq.settings, leases, cluster, unread)
    return [each for each in findings if each.check == "readers"]


def stub(world: World, message_id: str, topic: str, groups: str, tag: str = "") -> None:
    world.stub(
        message_id,
        topic=topic,
        required_groups=groups,
        tag=tag,
        broker_name="broker-a",
        queue_id=0,
        offset=1,
    )


def test_a_topic_that_nobody_reads_is_named_though_its_messages_count_as_delivered(
    tmp_path: Path,
) -> None:
    with (
        running_broker(tmp_path / "store") as address,
        closing(World(f"sqlite:///{tmp_path}/shop.db", broker=address)) as world,
    ):
        with world.mq.transaction() as tx:
            tx.send("ordres", {"id": 1})

        told = [each for each in world.mq.examine() if each.check == "readers"]
        world.mq.topic("ordres", groups=[])
        after = [each for each in world.mq.examine() if each.check == "readers"]

    assert [each.level for each in told] == [Level.WARNING]
    assert told[0].text.startswith("nobody reads topic ordres: of the newest messages 1 count as")
    assert "mq.topic('ordres', groups=[])" in told[0].remedy
    assert [each.level for each in after] == [Level.OK]


def test_a_topic_that_another_application_reads_is_none_that_nobody_reads(tmp_path: Path) -> None:
    with closing(World(f"sqlite:///{tmp_path}/shop.db")) as world:
        stub(world, "A" * 32, "receipts", "")
        stub(world, "B" * 32, "orders", "payments")
        cluster = Cluster(
            readers={"receipts": frozenset({"printing"})},
            subscriptions={"payments": {"orders": "*"}},
        )

        (finding,) = found(world, cluster)

    assert (finding.level, cluster.topics) == (Level.OK, ["receipts"])


def test_a_tag_or_topic_that_a_waiting_group_does_not_want_is_named(tmp_path: Path) -> None:
    with closing(World(f"sqlite:///{tmp_path}/shop.db")) as world:
        stub(world, "A" * 32, "orders", "payments", "palced")
        stub(world, "B" * 32, "orders", "payments", "placed")
        stub(world, "C" * 32, "ordres", "payments")
        cluster = Cluster(subscriptions={"payments": {"orders": "placed||paid"}})

        first, second = found(world, cluster)

    assert first.level is second.level is Level.ERROR
    assert "1 stub(s) of topic orders with tag 'palced' wait for group payments" in first.text
    assert "it wants 'placed||paid' only" in first.text
    assert "of topic ordres without a tag" in second.text
    assert "it does not subscribe to that topic" in second.text


def test_nobody_who_is_not_connected_is_said_to_want_something(tmp_path: Path) -> None:
    with closing(World(f"sqlite:///{tmp_path}/shop.db")) as world:
        stub(world, "A" * 32, "orders", "payments", "palced")
        filtered = Cluster(subscriptions={"payments": {"orders": None}})

        assert [each.level for each in found(world, Cluster())] == [Level.OK]
        assert [each.level for each in found(world, filtered)] == [Level.OK]


def test_two_applications_with_one_group_name_and_other_topics_are_named(tmp_path: Path) -> None:
    """At the broker, the one that sent the last heartbeat seems to be right."""
    with (
        running_broker(tmp_path / "store") as address,
        closing(World(f"sqlite:///{tmp_path}/shop.db", broker=address)) as shop,
        closing(World(f"sqlite:///{tmp_path}/other.db", broker=address)),
    ):
        returns = ReliableMQ("returns", broker=address, database=f"sqlite:///{tmp_path}/other.db")

        @returns.consumer("refunds", group="payments")
        def refund(order: dict[str, int]) -> None: ...

        shop.mq.start()
        returns.start()
        try:

            def told() -> list[str]:
                return [each.text for each in shop.findings("groups")]

            until(lambda: "group payments" in told()[0], seconds=60)
            (text,) = told()
            (finding,) = shop.findings("groups")
        finally:
            returns.close()
            shop.mq.close()

    assert finding.level is Level.ERROR
    assert " to orders; " in text
    assert " to refunds." in text
    assert "a group name of its own" in finding.remedy


def test_members_are_named_by_what_they_subscribe_to() -> None:
    members = {
        "payments": {
            "a@1": frozenset({"orders"}),
            "b@2": frozenset({"refunds"}),
            "c@3": frozenset({"orders"}),
        },
        "points": {"a@1": frozenset({"orders"}), "c@3": frozenset({"orders"})},
    }
    told = CheckFindings("groups")

    CHECKS["groups"](
        context(cluster=ClusterFacts((), frozenset(), frozenset(), members=members)), told
    )

    (finding,) = told.findings
    assert "group payments subscribe" in finding.text
    assert ": a@1 and 1 more to orders; b@2 to refunds." in finding.text
