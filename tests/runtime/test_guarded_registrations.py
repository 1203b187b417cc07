"""The name server in the process of a broker with access control: who may register there."""

import asyncio
import logging
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path

import msgspec
import pytest
from tests.access.access_world import ON, ROOT, SECRET, secret_of
from tests.patient_clients import PATIENT
from tests.waiting import run_scene

from reliable_mq.client.asyncio_client import AsyncClient
from reliable_mq.client.connecting.security import Credentials
from reliable_mq.client.settings import ClientSettings
from reliable_mq.message import Message
from reliable_mq.name_server.core import NameServerCore
from reliable_mq.runtime.blocking_link import BlockingLink
from reliable_mq.runtime.broker_server import BrokerOptions, BrokerServer
from reliable_mq.runtime.name_server_acts import CHANGES
from reliable_mq.wire import fastjson
from reliable_mq.wire.codes import RequestCode as Ask
from reliable_mq.wire.codes import ResponseCode as Code
from reliable_mq.wire.command import Command, request
from reliable_mq.wire.request_signature import add_signature

INNER = f'{{"accessKey":"{ROOT}","secretKey":"{SECRET}"}}'
READS = {
    *(Ask.GET_KV_CONFIG, Ask.GET_KVLIST_BY_NAMESPACE, Ask.GET_ROUTEINFO_BY_TOPIC),
    *(Ask.GET_BROKER_CLUSTER_INFO, Ask.GET_ALL_TOPIC_LIST_FROM_NAMESERVER),
    *(Ask.GET_TOPICS_BY_CLUSTER, Ask.GET_SYSTEM_TOPIC_LIST_FROM_NS, Ask.GET_UNIT_TOPIC_LIST),
    *(Ask.GET_HAS_UNIT_SUB_TOPIC_LIST, Ask.GET_HAS_UNIT_SUB_UNUNIT_TOPIC_LIST),
    *(Ask.GET_BROKER_MEMBER_GROUP, Ask.GET_NAMESRV_CONFIG),
}


@asynccontextmanager
async def serving(store: Path, name_servers: str = "", **more: str) -> AsyncIterator[BrokerServer]:
    options = BrokerOptions(
        store=store,
        port=0,
        name_server_port=0,
        name_servers=name_servers,
        properties={**ON, "brokerName": store.name, **more},
    )
    server = BrokerServer(options)
    await server.start()
    try:
        yield server
    finally:
        await server.close()


def as_root() -> ClientSettings:
    account = Credentials(access_key=ROOT, secret_key=SECRET)
    return msgspec.structs.replace(PATIENT, credentials=account)


async def asked(
    server: BrokerServer, code: int, ext: Mapping[str, str], user: str = "", secret: str = ""
) -> Command:
    """Ask the name server, as a user or as nobody."""
    sign = partial(add_signature, access_key=user, secret=secret) if user else lambda _command: None

    def ask() -> Command:
        with BlockingLink(server.name_server_address, 30, prepare=sign) as link:
            return link.call(request(code, ext))

    return await asyncio.to_thread(ask)


def test_each_code_of_the_name_server_changes_something_or_only_reads() -> None:
    assert set(NameServerCore().codes) == CHANGES.keys() | READS
    assert not CHANGES.keys() & READS


def test_strangers_change_nothing_and_everybody_may_ask_for_routes(tmp_path: Path) -> None:
    async def scene() -> None:
        async with serving(tmp_path / "one") as server:
            for code in sorted(CHANGES):
                for who in (("", ""), ("stranger", "x"), (ROOT, "wrong")):
                    answer = await asked(server, code, {"topic": "t"}, *who)
                    assert answer.code == Code.NO_PERMISSION, (code, who)
            put = {"namespace": "n", "key": "k", "value": "v"}
            assert (await asked(server, Ask.PUT_KV_CONFIG, put, ROOT, SECRET)).code == Code.SUCCESS
            got = await asked(server, Ask.GET_KV_CONFIG, put)
            assert got.ext_fields["value"] == "v"

    run_scene(scene())


def test_the_own_broker_registers_and_a_topic_is_made_used_and_deleted(tmp_path: Path) -> None:
    async def scene() -> None:
        async with (
            serving(tmp_path / "one") as server,
            AsyncClient(server.name_server_address, settings=as_root()) as client,
        ):
            await client.create_topic("t", 1)
            await client.send(Message(topic="t", body=b"x"))
            await client.admin.accounts.add("ann", secret_of("ann"))
            entry = {"resource": "Topic:t", "actions": ["Delete"], "decision": "Allow"}
            await client.admin.accounts.grant("ann", [{"entries": [entry]}])
            ann = ("ann", secret_of("ann"))
            for topic, code in (("other", Code.NO_PERMISSION), ("t", Code.SUCCESS)):
                answer = await asked(server, Ask.DELETE_TOPIC_IN_NAMESRV, {"topic": topic}, *ann)
                assert answer.code == code
            answer = await asked(server, Ask.GET_ROUTEINFO_BY_TOPIC, {"topic": "t"})
            assert answer.code == Code.TOPIC_NOT_EXIST

    run_scene(scene())


@pytest.mark.parametrize("knows", [True, False])
def test_another_broker_registers_if_it_knows_a_user(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, *, knows: bool
) -> None:
    caplog.set_level(logging.WARNING, "reliable_mq")
    inner = {"innerClientAuthenticationCredentials": INNER} if knows else {}

    async def scene() -> None:
        async with serving(tmp_path / "one") as first:
            address = first.name_server_address
            async with serving(tmp_path / "two", address, **inner):
                info = await asked(first, Ask.GET_BROKER_CLUSTER_INFO, {})
                names = set(fastjson.loads(info.body)["brokerAddrTable"])
                assert names == ({"one", "two"} if knows else {"one"})

    run_scene(scene())
    told = [each for each in caplog.records if getattr(each, "event", "") == "registration_refused"]
    assert bool(told) != knows
    assert all("innerClientAuthenticationCredentials" in each.getMessage() for each in told)
