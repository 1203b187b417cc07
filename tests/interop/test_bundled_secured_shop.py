"""The shop at the bundled broker with access control, as a user with no more than it needs."""

import json
import os
from collections.abc import Iterator, Mapping

import pytest
from bench.reliable_mq_broker import ReliableMQBroker
from tests.access.access_world import ON, ROOT, SECRET
from tests.interop.test_secured_shop import PLACE, command, done, running, settled
from tests.waiting import until

from reliable_mq.client.connecting.security import Credentials
from reliable_mq.client.settings import ClientSettings
from reliable_mq.client.thread_client import Client

pytestmark = [pytest.mark.processes]

USER, PASSWORD = "shop", "a secret of the shop"


def policy(actions: list[str], *resources: str) -> dict[str, object]:
    rows = [{"resource": each, "actions": actions, "decision": "Allow"} for each in resources]
    return {"policyType": "Custom", "entries": rows}


# docs/how-to/access_control.md has the same
POLICIES = [
    policy(["Pub", "Sub", "Get"], "Topic:orders", "Topic:rmq_*", "Topic:%DLQ%*"),
    policy(["Sub", "Get"], "Group:*"),
]

SEES_CLUSTER = policy(["Get"], "Cluster:*")
AS_ROOT = ClientSettings(credentials=Credentials(access_key=ROOT, secret_key=SECRET))


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ReliableMQBroker]:
    directory = tmp_path_factory.mktemp("broker")
    with ReliableMQBroker(directory, settings={**ON, "brokerName": "one"}) as running_broker:
        with Client(running_broker.name_server_address, settings=AS_ROOT) as client:
            client.create_topic("orders", 4)
            client.admin.accounts.add(USER, PASSWORD, policies=POLICIES)
        yield running_broker


@pytest.fixture(scope="module")
def variables(
    broker: ReliableMQBroker, tmp_path_factory: pytest.TempPathFactory
) -> Mapping[str, str]:
    folder = tmp_path_factory.mktemp("shop")
    return {
        **os.environ,
        "RELIABLE_MQ_BROKER": broker.name_server_address,
        "RELIABLE_MQ_DATABASE": f"sqlite:///{folder}/shop.db",
        "RELIABLE_MQ_ACCESS_KEY": USER,
        "RELIABLE_MQ_SECRET_KEY": PASSWORD,
    }


def test_the_shop_runs_as_a_user_with_few_policies(
    variables: Mapping[str, str],
    broker: ReliableMQBroker,
) -> None:
    app = ("--app", "examples.shop:mq")
    done(variables, "-m", "examples.shop.create_tables")
    with running(variables, "run", "examples.shop:mq"):
        done(variables, "-c", PLACE)
        until(lambda: settled(variables, *app) == 3, look_seconds=0.5)
    assert command(variables, "resend", "examples.shop:mq", "--once")["sent"] == 0
    log = broker.directory / "broker-1.log"
    assert "is refused" not in log.read_text(), "the user has all that an application needs"


def test_the_doctor_asks_for_settings_if_its_user_may_see_the_cluster(
    variables: Mapping[str, str], broker: ReliableMQBroker
) -> None:
    words = ("-m", "reliable_mq.cli.main", "doctor", "examples.shop:mq", "--json")
    done(variables, "-m", "examples.shop.create_tables")
    told = {each["check"]: each for each in json.loads(done(variables, *words))}
    assert told["broker"]["level"] == "skipped"
    assert "user shop has no right Get on Cluster:DefaultCluster" in told["broker"]["text"]

    with Client(broker.name_server_address, settings=AS_ROOT) as client:
        client.admin.accounts.add("doctor", PASSWORD, policies=[*POLICIES, SEES_CLUSTER])
    doctor = {**variables, "RELIABLE_MQ_ACCESS_KEY": "doctor"}
    told = {each["check"]: each for each in json.loads(done(doctor, *words))}
    assert told["broker"]["level"] in ("ok", "warning"), told["broker"]
    log = (broker.directory / "broker-1.log").read_text()
    assert "User:doctor" not in log, "nothing was refused"
