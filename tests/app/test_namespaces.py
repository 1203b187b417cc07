"""Applications that share a cluster by namespaces, each as if it were alone there."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.doctor.worlds import call, running_broker
from tests.waiting import until

from reliable_mq import ClientSettings, ReceivedMessage, Reject, ReliableMQ
from reliable_mq.client.thread_client import Client

APPLICATION = """
from reliable_mq import ReliableMQ

mq = ReliableMQ("shop", broker={broker!r}, database={database!r}, namespace={namespace!r})
mq.topic("orders", groups=["payments"])
"""


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with running_broker(tmp_path_factory.mktemp("shared")) as name_server:
        yield name_server


class Tenant:
    """A shop that takes payments; those of bad orders are dead letters until it is `forgiving`."""

    def __init__(self, directory: Path, broker: str, namespace: str) -> None:
        self.names = namespace
        database = f"sqlite:///{directory}/{namespace}.db"
        self.application = f"{namespace}_shop:mq"
        module = APPLICATION.format(broker=broker, database=database, namespace=namespace)
        (directory / f"{namespace}_shop.py").write_text(module)
        self.mq = ReliableMQ(
            "shop",
            broker=broker,
            database=database,
            client=ClientSettings(namespace=namespace),
        )
        self.paid: list[tuple[str, int]] = []
        self.forgiving = False
        self.mq.create_tables()

        @self.mq.consumer("orders", group="payments")
        def pay(order: dict[str, Any], message: ReceivedMessage) -> None:
            if order["bad"] and not self.forgiving:
                raise Reject("no money")
            self.paid.append((message.topic, order["id"]))

    def place(self, number: int, *, bad: bool = False, half: bool = False) -> str:
        with self.mq.transaction(half=half) as tx:
            sent = tx.send("orders", {"id": number, "bad": bad})
        return str(sent)


@pytest.fixture
def tenants(tmp_path: Path, broker: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Tenant]]:
    monkeypatch.chdir(tmp_path)
    made = [Tenant(tmp_path, broker, name) for name in ("east", "west")]
    for each in made:
        each.mq.start()
    yield made
    for each in made:
        each.mq.close()


def test_two_applications_of_one_name_share_a_broker_and_never_meet(
    tenants: list[Tenant], broker: str
) -> None:
    east, west = tenants
    east.place(1)
    east.place(2, half=True)
    west.place(3)

    until(lambda: len(east.paid) == 2 and len(west.paid) == 1, lambda: (east.paid, west.paid))
    assert sorted(east.paid) == [("orders", 1), ("orders", 2)]
    assert west.paid == [("orders", 3)]
    with Client(broker) as client:
        names = client.admin.topics.names().value
    assert {"east%orders", "west%orders"} <= set(names)
    assert "orders" not in names
    for each in tenants:
        facts = each.mq._connections.cluster_facts(["payments", "nobody"], ["orders"])
        assert facts.consumed == {"payments"}
        assert facts.subscriptions["payments"]["orders"] == "*"
        assert facts.readers == {"orders": {"payments"}}
        assert "orders" in facts.topics
        told = {finding.check: finding for finding in each.mq.examine()}
        assert told["broker"].level.value == "ok", told["broker"]
        assert told["orphans"].level.value == "ok", told["orphans"]


def test_a_dead_letter_is_found_shown_and_retried_by_the_names_of_the_application(
    tenants: list[Tenant], capfd: pytest.CaptureFixture[str]
) -> None:
    east, west = tenants
    message_id = east.place(7, bad=True)

    def listed(tenant: Tenant) -> list[dict[str, Any]]:
        assert call("dlq", "list", "--app", tenant.application, "--json") == 0
        return list(json.loads(capfd.readouterr().out))

    until(lambda: listed(east))
    (letter,) = listed(east)
    assert (letter["message_id"], letter["consumer_group"], letter["topic"]) == (
        message_id,
        "payments",
        "orders",
    )
    assert listed(west) == []
    assert call("stub", "show", message_id, "--app", east.application, "--json") == 0
    moments = json.loads(capfd.readouterr().out)["timeline"]
    assert "dead" in str([each for each in moments if each["ledger"] == "broker"])
    east.forgiving = True
    assert call("dlq", "retry", message_id, "--app", east.application, "--yes") == 0
    until(lambda: ("orders", 7) in east.paid)
