"""A broker and its name server that demand TLS, and one that joins such a name server."""

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import pytest
import uvloop
from tests.runtime.tls_world import Certificates
from tests.waiting import eventually, run_scene

from reliable_mq.cli import log_options, namesrv
from reliable_mq.client.asyncio_client import AsyncClient
from reliable_mq.client.connecting.security import TLS
from reliable_mq.client.settings import ClientSettings
from reliable_mq.client.thread_client import Client
from reliable_mq.errors import ConfigurationError, ConnectionLost, Unavailable
from reliable_mq.message import Message
from reliable_mq.runtime import broker_server
from reliable_mq.runtime.broker_server import BrokerOptions, BrokerServer
from reliable_mq.runtime.name_server import NameServer
from reliable_mq.runtime.server_tls import ServerTls
from reliable_mq.runtime.tls_settings import TlsSettings, is_exposed, take_tls


@asynccontextmanager
async def serving(
    store: Path, tls: TlsSettings, name_servers: str = ""
) -> AsyncIterator[BrokerServer]:
    options = BrokerOptions(
        store=store, port=0, name_server_port=0, name_servers=name_servers, tls=tls
    )
    server = BrokerServer(options)
    await server.start()
    try:
        yield server
    finally:
        await server.close()


def settings_of(made: Certificates, cert: str = "") -> ClientSettings:
    return ClientSettings(
        tls=TLS(ca=made.ca, cert=cert), connect_timeout_seconds=30, request_timeout_seconds=30
    )


async def sends(address: str, settings: ClientSettings) -> None:
    async with AsyncClient(address, settings=settings) as client:
        await client.create_topic("t", 1)
        await client.send(Message(topic="t", body=b"x" * 100_000))


def test_our_client_sends_to_a_broker_that_demands_tls(made: Certificates) -> None:
    async def scene() -> None:
        async with serving(made.folder / "store", made.settings()) as server:
            address = server.name_server_address
            await sends(address, settings_of(made))
            with pytest.raises(Unavailable):
                await sends(address, ClientSettings(request_timeout_seconds=1.0, retries=0))

    uvloop.run(scene())


def test_the_broker_registers_at_its_own_name_server_though_that_demands_certificates(
    made: Certificates,
) -> None:
    async def scene() -> None:
        needed = {"server_need_client_auth": "require", "server_trustCertPath": made.ca}
        async with serving(made.folder / "store", made.settings(**needed)) as server:
            address = server.name_server_address
            await sends(address, settings_of(made, made.issue("me", "me")))
            with pytest.raises(Unavailable):
                await sends(address, settings_of(made))

    run_scene(scene())


def test_a_broker_registers_at_a_name_server_elsewhere_that_demands_a_certificate(
    made: Certificates, caplog: pytest.LogCaptureFixture
) -> None:
    needed = {"server_need_client_auth": "require", "server_trustCertPath": made.ca}
    own = {"enable": "true", "client_trustCertPath": made.ca}
    caplog.set_level(logging.WARNING, "reliable_mq")

    async def scene() -> None:
        name_server = NameServer(tls=ServerTls(made.settings(**needed)))
        await name_server.start("127.0.0.1", 0)
        address = f"127.0.0.1:{name_server.port}"
        me = {"client_certPath": made.issue("me", "me")}
        mine = settings_of(made, me["client_certPath"])
        async with serving(made.folder / "store", made.settings(**own, **me), address):
            await sends(address, mine)
            assert not caplog.records
        async with serving(made.folder / "other", made.settings(**own), address):
            assert "registration_failed" in [getattr(each, "event", "") for each in caplog.records]
        await name_server.close()

    run_scene(scene())


def test_a_broker_and_an_application_use_their_new_certificates_without_a_restart(
    made: Certificates,
) -> None:
    needed = {"server_need_client_auth": "require", "server_trustCertPath": made.ca}
    me = made.expired("me")
    own = {"enable": "true", "client_trustCertPath": made.ca, "client_certPath": me}

    async def scene() -> None:
        name_server = NameServer(tls=ServerTls(made.settings(**needed)))
        await name_server.start("127.0.0.1", 0)
        address = f"127.0.0.1:{name_server.port}"
        async with (
            serving(made.folder / "store", made.settings(**own), address) as server,
            AsyncClient(address, settings=settings_of(made, me)) as client,
        ):
            with pytest.raises(Unavailable):
                await client.create_topic("t", 1)
            made.issue("me", "me")

            async def is_there() -> bool:  # when both pauses after the failed attempts are over
                await server._registrar.register()
                with suppress(Unavailable):
                    await client.create_topic("t", 1)
                    return True
                return False

            await eventually(is_there)
            await client.send(Message(topic="t", body=b"x"))
        await name_server.close()

    run_scene(scene())


def test_the_synchronous_client_sends_over_tls(made: Certificates) -> None:
    async def scene() -> None:
        async with serving(made.folder / "store", made.settings()) as server:

            def send() -> None:
                with Client(server.name_server_address, settings=settings_of(made)) as client:
                    client.create_topic("t", 1)
                    for _ in range(100):  # alone: a plain one would get a direct link
                        client.send(Message(topic="t", body=b"x"))

            await asyncio.to_thread(send)

    run_scene(scene())


def test_a_client_that_does_not_trust_the_broker_says_why(made: Certificates) -> None:
    elsewhere = made.folder / "elsewhere"
    elsewhere.mkdir()
    others = Certificates(elsewhere)

    async def scene() -> None:
        async with serving(made.folder / "store", made.settings()) as server:
            with pytest.raises(ConnectionLost, match="the peer's certificate is refused"):
                await sends(server.name_server_address, settings_of(others))

    run_scene(scene())


def test_a_broker_with_a_certificate_that_cannot_be_used_does_not_start(
    made: Certificates,
) -> None:
    with pytest.raises(ConfigurationError, match="nowhere"):
        BrokerServer(BrokerOptions(store=made.folder, tls=made.settings(server_certPath="nowhere")))


@pytest.mark.parametrize(("ip", "is_told"), [("127.0.0.1", False), ("192.0.2.1", True)])
def test_a_broker_that_strangers_reach_says_so_loudly_and_once(
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
    ip: str,
    is_told: bool,
) -> None:
    """And it tells the doctor."""
    monkeypatch.setattr(broker_server, "is_exposed", lambda _ips, tls: is_exposed([ip], tls))
    caplog.set_level(logging.INFO, "reliable_mq")

    async def scene() -> None:
        async with serving(tmp_path / "store", take_tls({})) as server:
            async with AsyncClient(server.name_server_address) as client:
                (broker,) = (await client.cluster_facts()).brokers
            assert broker.config["openToEverybody"] == str(is_told).lower()

    run_scene(scene())
    lines = [each for each in caplog.records if getattr(each, "event", "") == "broker_exposed"]
    assert len(lines) == is_told
    for line in lines:
        assert line.levelno == logging.ERROR
        assert "OPEN TO EVERYBODY" in line.getMessage()


@pytest.mark.parametrize(("ip", "is_told"), [("127.0.0.1", False), ("192.0.2.1", True)])
def test_a_name_server_that_strangers_reach_says_so_loudly_and_once(
    caplog: pytest.LogCaptureFixture,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    ip: str,
    is_told: bool,
) -> None:
    async def ended(_stop: asyncio.Event) -> None:
        """Let the command end when it is ready."""

    monkeypatch.setattr(namesrv, "is_exposed", lambda _ips, tls: is_exposed([ip], tls))
    monkeypatch.setattr(namesrv, "beat_until", ended)
    monkeypatch.setattr(log_options, "write_log", lambda *_choices: None)

    namesrv.command(port=0)

    assert capsys.readouterr().out.startswith("ready namesrv=127.0.0.1:")
    lines = [each for each in caplog.records if getattr(each, "event", "") == "name_server_exposed"]
    assert len(lines) == is_told
    for line in lines:
        assert line.levelno == logging.ERROR
        assert "OPEN TO EVERYBODY" in line.getMessage()
