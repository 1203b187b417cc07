"""Signed requests and encrypted connections: what leaves, who is trusted, what is refused."""

import asyncio
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import trustme
from tests.client.script import World, says
from tests.client.test_asyncio_client import QUICK, Peer, message
from tests.client.test_producer import SEND, STORED, TWO_BROKERS, addresses, world_of
from tests.waiting import run_scene

from reliable_mq.client.asyncio_client import AsyncClient
from reliable_mq.client.connecting.security import TLS, Credentials
from reliable_mq.client.connecting.signature import Signing
from reliable_mq.client.sending.producer import SendFlows
from reliable_mq.client.settings import ClientSettings
from reliable_mq.errors import ConfigurationError, ConnectionLost, NotPermitted
from reliable_mq.message import Message
from reliable_mq.wire.codes import ResponseCode
from reliable_mq.wire.command import Command, request

ACCOUNT = Credentials(access_key="me", secret_key="secret")


def test_a_signature_is_over_the_values_in_the_order_of_their_names_and_the_body() -> None:
    """Golden: `printf '%s' me12body | openssl dgst -sha1 -hmac secret -binary | base64`."""
    command = request(310, {"b": "2", "a": "1"}, b"body")
    Signing(ACCOUNT)(command)
    assert command.ext_fields == {
        "a": "1",
        "b": "2",
        "AccessKey": "me",
        "Signature": "T3+1DX613vw4RkFGWJcEd0Ew1gM=",
    }


def test_a_request_that_is_tried_again_is_signed_anew() -> None:
    command = request(310, {"a": "1"})
    token = Credentials(access_key="me", secret_key="secret", security_token="t")
    Signing(token)(command)
    first = dict(command.ext_fields)
    Signing(token)(command)
    assert command.ext_fields == first
    assert first["SecurityToken"] == "t"
    command.ext_fields["a"] = "2"
    Signing(token)(command)
    assert command.ext_fields["Signature"] != first["Signature"]


def test_a_secret_is_never_shown() -> None:
    assert "secret'" not in repr(ClientSettings(credentials=ACCOUNT))


@pytest.mark.parametrize("keys", [("", "x"), ("x", "")])
def test_credentials_without_a_key_are_refused(keys: tuple[str, str]) -> None:
    with pytest.raises(ConfigurationError, match="access_key and a secret_key"):
        Credentials(access_key=keys[0], secret_key=keys[1])


class Listener(Peer):
    """A peer that keeps what it was asked."""

    def __init__(self, broker: str = "") -> None:
        super().__init__(broker)
        self.commands: list[Command] = []

    def _answer(self, command: Command) -> Command | None:
        self.commands.append(command)
        return super()._answer(command)


def test_everything_that_leaves_is_signed_heartbeats_and_questions_to_name_servers_too() -> None:
    async def scene() -> None:
        broker = Listener()
        async with broker.listening() as broker_address:
            name_server = Listener(broker_address)
            settings = ClientSettings(request_timeout_seconds=60.0, credentials=ACCOUNT)
            async with (
                name_server.listening() as address,
                AsyncClient(address, settings=settings) as client,
            ):
                await client.send(message())
                await client.send_oneway(message())
                await client._engine.heartbeat()
            sent = [*broker.commands, *name_server.commands]
            assert len({command.code for command in sent}) >= 3
            for command in sent:
                signature = command.ext_fields["Signature"]
                Signing(ACCOUNT)(command)
                assert command.ext_fields["Signature"] == signature

    run_scene(scene())


def secured() -> tuple[World, SendFlows]:
    return world_of(TWO_BROKERS, ClientSettings(credentials=ACCOUNT))


def test_a_wrong_secret_is_told_at_once() -> None:
    world, producer = secured()
    world.answers[SEND] = says(ResponseCode.NO_PERMISSION, remark="check signature failed.")
    with pytest.raises(NotPermitted, match="check signature failed"):
        world.play(producer.send(Message(topic="t", body=b"x")))
    assert len(addresses(world)) == 1
    assert not NotPermitted.retryable


def test_a_broker_that_may_not_be_written_is_left_for_another_one() -> None:
    world, producer = secured()
    refusal = says(ResponseCode.NO_PERMISSION, remark="the broker[a] sending message is forbidden")
    stored = says(ext=STORED)
    world.answers[SEND] = lambda call: (refusal if call.address[0] == "a" else stored)(call)
    for _ in range(4):
        world.play(producer.send(Message(topic="t", body=b"x")))
    assert set(addresses(world)) == {"a:10911", "b:10911"}


class Encrypted(Peer):
    """A peer with a certificate of `authority`, and the address it has once it listens."""

    def __init__(self, context: ssl.SSLContext, broker: str = "") -> None:
        super().__init__(broker)
        self._context = context

    @asynccontextmanager
    async def listening(self) -> AsyncIterator[str]:
        server = await asyncio.start_server(self._serve, "127.0.0.1", 0, ssl=self._context)
        host, port = server.sockets[0].getsockname()
        try:
            yield f"{host}:{port}"
        finally:
            server.close()


class Authority:
    """An authority with the files that a client is given."""

    def __init__(self, directory: Path) -> None:
        self.authority = trustme.CA()
        self.ca = str(directory / "ca.pem")
        self.authority.cert_pem.write_to_path(self.ca)

    def server(self, name: str = "127.0.0.1", *, asks: bool = False) -> ssl.SSLContext:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self.authority.issue_cert(name).configure_cert(context)
        if asks:
            context.verify_mode = ssl.CERT_REQUIRED
            self.authority.configure_trust(context)
        return context


def send_over(context: ssl.SSLContext, tls: TLS | None) -> None:
    async def scene() -> None:
        broker = Encrypted(context)
        async with broker.listening() as broker_address:
            settings = ClientSettings(
                request_timeout_seconds=60.0, connect_timeout_seconds=60.0, tls=tls, retries=0
            )
            async with (
                Encrypted(context, broker_address).listening() as address,
                AsyncClient(address, settings=settings) as client,
            ):
                await client.send(message())
                assert broker.asked

    run_scene(scene())


def test_connections_to_name_servers_and_brokers_are_encrypted(tmp_path: Path) -> None:
    home = Authority(tmp_path)
    send_over(home.server(), TLS(ca=home.ca))
    send_over(home.server("broker.example"), TLS(ca=home.ca, hostname="broker.example"))
    send_over(home.server("broker.example"), TLS(verify=False))


def test_a_client_shows_its_certificate_to_who_asks(tmp_path: Path) -> None:
    home = Authority(tmp_path)
    own = home.authority.issue_cert("me@example.org")
    cert, key, both = (str(tmp_path / name) for name in ("cert.pem", "key.pem", "both.pem"))
    own.cert_chain_pems[0].write_to_path(cert)
    own.private_key_pem.write_to_path(key)
    own.private_key_and_cert_chain_pem.write_to_path(both)
    send_over(home.server(asks=True), TLS(ca=home.ca, cert=cert, key=key))
    send_over(home.server(asks=True), TLS(ca=home.ca, cert=both))
    with pytest.raises(ConnectionLost):
        send_over(home.server(asks=True), TLS(ca=home.ca))


def test_nobody_is_trusted_whom_the_authority_does_not_vouch_for(tmp_path: Path) -> None:
    home = Authority(tmp_path)
    with pytest.raises(ConnectionLost, match="certificate is refused"):
        send_over(home.server("another.example"), TLS(ca=home.ca))
    with pytest.raises(ConnectionLost, match="certificate is refused"):
        send_over(home.server(), TLS())


def test_a_plain_client_and_an_encrypted_cluster_say_that_they_do_not_fit(tmp_path: Path) -> None:
    with pytest.raises(ConnectionLost):
        send_over(Authority(tmp_path).server(), None)


def test_files_that_are_no_certificates_are_named_before_anything_starts(tmp_path: Path) -> None:
    home = Authority(tmp_path)
    nothing, text = str(tmp_path / "nothing.pem"), tmp_path / "text.pem"
    text.write_text("no certificate")
    for tls, name in (
        (TLS(ca=nothing), "nothing.pem"),
        (TLS(ca=str(text)), "text.pem"),
        (TLS(ca=home.ca, cert=nothing), "nothing.pem"),
        (TLS(ca=home.ca, cert=str(text)), "text.pem"),
    ):
        with pytest.raises(ConfigurationError, match=name):
            AsyncClient("127.0.0.1:1", settings=ClientSettings(tls=tls))
    with pytest.raises(ConfigurationError, match="a key and no cert"):
        TLS(key="key.pem")
    assert QUICK.tls is None
