"""Strangers at a name server: they fill no table, and with access control they change nothing."""

import asyncio
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import uvloop
from tests.access.access_world import INIT_USER, ON, ROOT, SECRET
from tests.broker_core.raw_client import RawClient
from tests.name_server.test_routes import broker
from tests.waiting import eventually

from reliable_mq.cli.audit_lines import lines_of
from reliable_mq.errors import ConfigurationError
from reliable_mq.escalate.audit_filter import AuditFilter
from reliable_mq.name_server.name_server_limits import NameServerLimits
from reliable_mq.runtime.blocking_link import BlockingLink
from reliable_mq.runtime.broker_server import BrokerOptions, BrokerServer
from reliable_mq.runtime.connection_limits import taken
from reliable_mq.runtime.name_server import NameServer
from reliable_mq.runtime.name_server_guard import take_guard
from reliable_mq.telemetry.families import Sample
from reliable_mq.wire import fastjson
from reliable_mq.wire.codes import RequestCode as Ask
from reliable_mq.wire.codes import ResponseCode as Code
from reliable_mq.wire.command import Command, request
from reliable_mq.wire.request_signature import add_signature

EVERYTHING = AuditFilter()


def registration(number: int, topics: int = 2, counter: int = 1) -> Command:
    """Return the registration of a stranger's broker with so many topics of its own."""
    rows = {
        f"s{number}-{n}": {"topicName": f"s{number}-{n}", "readQueueNums": 1, "writeQueueNums": 1}
        for n in range(topics)
    }
    table = {"dataVersion": {"counter": counter}, "topicConfigTable": rows}
    body = fastjson.dumps({"topicConfigSerializeWrapper": table})
    header = broker(f"stranger-{number}", f"10.1.{number // 250}.{number % 250}:1")
    return request(Ask.REGISTER_BROKER, {k: str(v) for k, v in header.items()}, body)


def sample(server: NameServer, name: str) -> float:
    found: list[Sample] = [each for each in server._samples() if each.name.endswith(name)]
    return found[0].value


def test_a_flood_of_registrations_fills_no_table_and_who_is_known_stays() -> None:
    """Given many connections that register as many brokers with topics as they can."""

    async def scene() -> None:
        server = NameServer(tables=NameServerLimits(brokers=20, brokers_of_connection=5, topics=50))
        await server.start("127.0.0.1", 0)
        address = f"127.0.0.1:{server.port}"
        honest = registration(9_999, topics=3)

        def flood() -> list[int]:
            codes: list[int] = []
            with BlockingLink(address, 30) as own:
                assert own.call(honest).code == Code.SUCCESS
                links = [BlockingLink(address, 30) for _ in range(6)]
                codes += [
                    links[number % 6].call(registration(number, topics=4)).code
                    for number in range(60)
                ]
                assert own.call(honest).code == Code.SUCCESS
                route = request(Ask.GET_ROUTEINFO_BY_TOPIC, {"topic": "s9999-1"})
                assert own.call(route).code == Code.SUCCESS
                for link in links:
                    link.close()
            return codes

        codes = await asyncio.to_thread(flood)
        assert set(codes) == {Code.SUCCESS, Code.SYSTEM_ERROR}
        assert sample(server, "refused_registrations_total") == codes.count(Code.SYSTEM_ERROR) > 30
        assert server._core.routes.broker_count <= 20
        assert server._core.routes.topic_count <= 50
        await eventually(lambda: server._core.routes.broker_count == 0)
        await server.close()

    uvloop.run(scene())


@pytest.mark.parametrize("name", ["maxBrokers", "maxBrokersOfConnection", "maxRegisteredTopics"])
@pytest.mark.parametrize("value", ["0", "-1", "x", "1000001"])
def test_an_impossible_limit_is_an_error_that_names_it(name: str, value: str) -> None:
    with pytest.raises(ConfigurationError, match=name):
        taken({name: value}, NameServerLimits, "a limit of the name server")


def signed(command: Command, user: str, secret: str) -> Command:
    add_signature(command, user, secret)
    return command


def test_the_name_server_of_a_guarded_broker_believes_its_users_only(tmp_path: Path) -> None:
    async def scene() -> None:
        options = BrokerOptions(
            store=tmp_path,
            port=0,
            name_server_port=0,
            properties={**ON, "maxBrokers": "2"},
        )
        server = BrokerServer(options)
        await server.start()
        name_server = server.name_server
        assert name_server is not None
        assert name_server._core.routes.broker_count == 1, "its own broker is known"

        def strangers() -> None:
            with BlockingLink(server.name_server_address, 30) as link:
                assert link.call(registration(1)).code == Code.NO_PERMISSION
                assert link.call(signed(registration(1), ROOT, "wrong")).code == Code.NO_PERMISSION
                gone = request(
                    Ask.UNREGISTER_BROKER,
                    {
                        "clusterName": "DefaultCluster",
                        "brokerName": "broker-a",
                        "brokerAddr": server.address,
                        "brokerId": "0",
                    },
                )
                assert link.call(gone).code == Code.NO_PERMISSION
                assert link.call(signed(registration(1), ROOT, SECRET)).code == Code.SUCCESS
                over = link.call(signed(registration(2), ROOT, SECRET))
                assert "maxBrokers" in (over.remark or "")
                topics = request(Ask.GET_ALL_TOPIC_LIST_FROM_NAMESERVER)
                assert link.call(topics).code == Code.SUCCESS, "routes are for everybody"

        await asyncio.to_thread(strangers)
        assert sample(name_server, "refused_access_total") == 3
        await server.close()

    uvloop.run(scene())
    rows = lines_of(tmp_path, EVERYTHING, 50).rows
    seen = [(row["actor"], row["action"], row["changed"]) for row in reversed(rows)]
    assert seen == [
        ("-", "REGISTER_BROKER", 0),
        ("-", "REGISTER_BROKER", 0),
        ("-", "UNREGISTER_BROKER", 0),
        (ROOT, "REGISTER_BROKER", 1),
        (ROOT, "REGISTER_BROKER", 0),
        ("-", "AUTH_CREATE_USER", 1),  # the first user, of the broker's settings
    ]


def test_before_a_guarded_broker_knows_its_users_nobody_changes_its_name_server(
    tmp_path: Path,
) -> None:
    async def scene() -> None:
        options = BrokerOptions(store=tmp_path, port=0, name_server_port=0, properties=ON)
        server = BrokerServer(options)
        seen: list[int] = []
        limit = server._limit

        def between(config: object) -> None:
            """Look while the name server listens and the store is not open yet."""
            assert server.name_server is not None
            guard = server.name_server.guard
            assert guard is not None
            seen.append(len(guard._table.users))
            limit(config)  # type: ignore[arg-type]

        server._limit = between  # type: ignore[method-assign]
        await server.start()
        assert server.name_server is not None
        assert server.name_server.guard is server._core.state.guard
        await server.close()
        assert seen[0] == 0

    uvloop.run(scene())


@pytest.mark.parametrize(
    "properties",
    [
        {"authenticationEnabled": "true"},
        {"authenticationEnabled": "maybe"},
        {"authenticationEnabled": "true", "initAuthenticationUser": "no json"},
    ],
)
def test_a_name_server_that_nobody_could_change_does_not_start(properties: dict[str, str]) -> None:
    with pytest.raises(ConfigurationError):
        take_guard(properties)


def test_a_name_server_of_its_own_has_users_and_an_audit(tmp_path: Path) -> None:
    config, store = tmp_path / "namesrv.conf", tmp_path / "store"
    config.write_text(f"authenticationEnabled=true\ninitAuthenticationUser={INIT_USER}\n")
    arguments = ["namesrv", "--port", "0", "--store", str(store), "--config", str(config)]
    with subprocess.Popen(
        [sys.executable, "-m", "reliable_mq.cli.main", *arguments],
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        try:
            assert process.stdout is not None
            address = process.stdout.readline().split("namesrv=")[1].split()[0]
            put = {"namespace": "n", "key": "k", "value": "v"}
            with RawClient(address) as client:
                assert client.ask(Ask.PUT_KV_CONFIG, put).code == Code.NO_PERMISSION
            with BlockingLink(address, 30) as link:
                own = signed(request(Ask.PUT_KV_CONFIG, put), ROOT, SECRET)
                assert link.call(own).code == Code.SUCCESS
                assert link.call(signed(registration(1), ROOT, SECRET)).code == Code.SUCCESS
            assert (store / "config" / "kvConfig.json").exists()
        finally:
            process.send_signal(signal.SIGTERM)
            process.wait(30)
    rows = lines_of(store, EVERYTHING, 50).rows
    assert [(row["actor"], row["result"]) for row in reversed(rows)] == [
        ("-", "NO_PERMISSION"),
        (ROOT, "SUCCESS"),
        (ROOT, "SUCCESS"),
    ]
