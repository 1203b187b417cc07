"""Apache's own access control and encryption, met by our client."""

import asyncio
from collections.abc import Iterator

import msgspec
import pytest
from bench.apache_rocketmq import ApacheRocketMQ
from tests.client.cluster import PATIENT, Seen, play
from tests.waiting import eventually
from tests.with_java import INTEROP, started

from reliable_mq.client.asyncio_client import AsyncClient
from reliable_mq.client.connecting.routes import masters
from reliable_mq.client.connecting.security import TLS, Credentials
from reliable_mq.client.consuming.subscription import Subscription
from reliable_mq.errors import NotPermitted, RemoteError
from reliable_mq.message import Message

AUTH = "org.apache.rocketmq.auth"
SETTINGS = {
    "authenticationEnabled": "true",
    "authenticationProvider": f"{AUTH}.authentication.provider.DefaultAuthenticationProvider",
    "authenticationMetadataProvider": (
        f"{AUTH}.authentication.provider.LocalAuthenticationMetadataProvider"
    ),
    "initAuthenticationUser": '{"username":"root","password":"a secret"}',
    "innerClientAuthenticationCredentials": '{"accessKey":"root","secretKey":"a secret"}',
    "authorizationEnabled": "true",
    "authorizationProvider": f"{AUTH}.authorization.provider.DefaultAuthorizationProvider",
    "authorizationMetadataProvider": (
        f"{AUTH}.authorization.provider.LocalAuthorizationMetadataProvider"
    ),
}
ROOT = Credentials(access_key="root", secret_key="a secret")
WRONG = Credentials(access_key="root", secret_key="another")
ANYBODY = TLS(verify=False)  # Apache's servers make a certificate for themselves when given none

pytestmark = INTEROP


@pytest.fixture(scope="module")
def apache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ApacheRocketMQ]:
    directory = tmp_path_factory.mktemp("secured")
    with started(ApacheRocketMQ(directory, "ASYNC_FLUSH", SETTINGS)) as apache:
        play(registered(apache))
        yield apache


async def registered(apache: ApacheRocketMQ) -> None:
    """Wait until the name server knows the broker: with accounts to load that is not at once."""
    async with client_of(apache, ROOT, None) as client:
        await eventually(lambda: client._engine.run(masters(client._engine.name_servers)))


def client_of(apache: ApacheRocketMQ, who: Credentials | None, tls: TLS | None) -> AsyncClient:
    settings = msgspec.structs.replace(PATIENT, credentials=who, tls=tls)
    return AsyncClient(apache.name_server_address, settings=settings)


@pytest.mark.parametrize("tls", [None, ANYBODY], ids=["plain", "encrypted"])
def test_an_account_with_its_secret_does_everything(
    apache: ApacheRocketMQ, tls: TLS | None
) -> None:
    topic = "plain" if tls is None else "encrypted"

    async def scene() -> None:
        async with client_of(apache, ROOT, tls) as client:
            await client.create_topic(topic, 2)
            seen = Seen()
            await client.consume(Subscription(group=f"{topic}-group", topics={topic: "*"}), seen)
            await client.send(Message(topic=topic, body=b"one"))
            await client.send_batch([Message(topic=topic, body=body) for body in (b"2", b"3")])
            await client.send_oneway(Message(topic=topic, body=b"4"))
            await eventually(lambda: sorted(seen.bodies) == [b"2", b"3", b"4", b"one"])

    play(scene())


@pytest.mark.parametrize("who", [WRONG, None], ids=["wrong secret", "nobody"])
def test_others_are_refused_at_once(apache: ApacheRocketMQ, who: Credentials | None) -> None:
    async def scene() -> None:
        async with client_of(apache, ROOT, None) as root:
            await root.create_topic("closed", 1)
        async with client_of(apache, who, None) as client:
            begun = asyncio.get_running_loop().time()
            kind = NotPermitted if who else RemoteError
            with pytest.raises(kind):
                await client.send(Message(topic="closed", body=b"x"))
            assert asyncio.get_running_loop().time() - begun < 3.0

    play(scene())
