"""Users at the endpoint: their quotas, the groups that they create, their state and their clocks.

At the endpoint of a broker, and at a proxy before it.
"""

from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import grpc
import msgspec
import pytest
import trustme
from bench.reliable_mq_broker import ReliableMQBroker, ReliableMQProxy
from tests.gateway.grpc_client import GrpcClient, client_at
from tests.gateway.test_endpoint_security import ROOT, SETTINGS, signed

from reliable_mq.gateway.codes import Code
from reliable_mq.runtime.blocking_link import BlockingLink
from reliable_mq.wire.codes import RequestCode as Ask
from reliable_mq.wire.command import request
from reliable_mq.wire.request_signature import add_signature

pytestmark = pytest.mark.processes

FORMS = ("broker", "proxy")
SECRET = "usual-secret-1"
LONG = b"x" * 5_000
QUOTAS = ";".join(f"slow-{form}:0:1" for form in FORMS)  # a byte a second
LIMITS = {"quotasOfUsers": QUOTAS, "maxGroupsOfUser": "1"}
USERS = ("quick", "off", *(f"{name}-{form}" for form in FORMS for name in ("slow", "maker")))


def make_users(link: BlockingLink) -> None:
    """Create users who may use all topics and groups; `off` is disabled."""
    for name in USERS:
        state = "disable" if name == "off" else "enable"
        user = {"password": SECRET, "userType": "Normal", "userStatus": state}
        entry = {"resource": "Topic:*", "actions": ["Pub", "Sub"], "decision": "Allow"}
        entries = [entry, {**entry, "resource": "Group:*", "actions": ["Sub"]}]
        policy = {"policies": [{"policyType": "Custom", "entries": entries}]}
        for code, fields, body in (
            (Ask.AUTH_CREATE_USER, {"username": name}, user),
            (Ask.AUTH_CREATE_ACL, {"subject": f"User:{name}"}, policy),
        ):
            made = link.call(request(code, fields, msgspec.json.encode(body)))
            assert made.code == 0, made.remark


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ReliableMQBroker]:
    directory = tmp_path_factory.mktemp("limited")
    settings = {**SETTINGS, **LIMITS}
    with ReliableMQBroker(directory, "ASYNC_FLUSH", settings=settings, has_grpc=True) as running:
        sign = partial(add_signature, access_key="root", secret=ROOT)
        link = BlockingLink(running.address, 10, prepare=sign)
        for topic in ("orders-broker", "orders-proxy", "empty"):
            fields = {"topic": topic, "readQueueNums": "1", "writeQueueNums": "1", "perm": "6"}
            assert link.call(request(Ask.UPDATE_AND_CREATE_TOPIC, fields)).code == 0
        make_users(link)
        link.close()
        yield running


@pytest.fixture(scope="module")
def proxy(
    broker: ReliableMQBroker, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[ReliableMQProxy]:
    names = ("authenticationEnabled", "innerClientAuthenticationCredentials")
    settings = {name: SETTINGS[name] for name in names}
    directory = tmp_path_factory.mktemp("proxy")
    with ReliableMQProxy(directory, broker.name_server_address, settings) as running:
        yield running


@pytest.fixture(params=FORMS)
def form(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def come(
    form: str, broker: ReliableMQBroker, proxy: ReliableMQProxy
) -> Callable[[str], GrpcClient]:
    """Return what makes the client of a user."""
    address = broker.grpc_address if form == "broker" else proxy.address
    return lambda user: GrpcClient(address, f"of-{user}", more=signed(user, SECRET))


def test_a_user_sends_and_reads_as_much_as_its_quota_and_others_go_on(
    come: Callable[[str], GrpcClient], form: str
) -> None:
    slow, quick = come(f"slow-{form}"), come("quick")
    group, topic = f"readers-{form}", f"orders-{form}"
    slow.consumer(group, topic)
    assert slow.receive(group, topic)[0] == Code.MESSAGE_NOT_FOUND  # it begins here
    assert slow.send(topic, LONG).status.code == Code.OK, "once more than is left"
    refused = slow.send(topic, LONG).status
    assert refused.code == Code.TOO_MANY_REQUESTS
    assert f"user slow-{form}" in refused.message
    assert quick.send(topic, LONG).status.code == Code.OK

    code, text, messages = slow.receive(group, topic)
    assert (code, bool(messages)) == (Code.OK, True), text
    code, text, messages = slow.receive(group, topic)
    assert (code, messages) == (Code.TOO_MANY_REQUESTS, []), text
    assert f"user slow-{form}" in text
    slow.close()
    quick.close()


def test_a_user_creates_so_many_groups_by_receiving(
    come: Callable[[str], GrpcClient], form: str
) -> None:
    for name, code in (
        (f"first-{form}", Code.MESSAGE_NOT_FOUND),
        (f"second-{form}", Code.CONSUMER_GROUP_NOT_FOUND),
        (f"first-{form}", Code.MESSAGE_NOT_FOUND),
    ):
        maker = come(f"maker-{form}")
        maker.consumer(name, "empty")
        found, text, messages = maker.receive(name, "empty")
        assert (found, messages) == (code, []), text
        maker.close()


def test_a_disabled_user_is_refused(come: Callable[[str], GrpcClient]) -> None:
    off = come("off")
    for status in (off.send("orders-broker").status, off.call("Heartbeat", client_type=1).status):
        assert (status.code, status.message) == (Code.UNAUTHORIZED, "User:off is disabled.")
    off.close()


@pytest.mark.parametrize("time", ["19700101T000000Z", "29991231T235959Z", "now", "\u0661"])
def test_the_clock_of_a_client_may_be_as_wrong_as_it_likes(
    form: str, broker: ReliableMQBroker, proxy: ReliableMQProxy, time: str
) -> None:
    """What is signed is a text; Apache's proxy reads no time of it either."""
    address = broker.grpc_address if form == "broker" else proxy.address
    headers: Any = signed("quick", SECRET, time)
    if not time.isascii():
        headers = {**headers, "x-mq-date-time": "1"}  # another time than the signed one
    with client_at(address, more=headers) as client:
        assert client.send("orders-broker").status.code == (
            Code.OK if time.isascii() else Code.UNAUTHORIZED
        )


def test_an_enforcing_endpoint_takes_no_plain_client(tmp_path: Path) -> None:
    authority = trustme.CA()
    issued = authority.issue_cert("localhost", "127.0.0.1")
    files = {"certPath": issued.cert_chain_pems[0], "keyPath": issued.private_key_pem}
    settings = {"tls.server.mode": "enforcing"}
    for name, blob in files.items():
        blob.write_to_path(str(tmp_path / name))
        (tmp_path / name).chmod(0o600)
        settings[f"tls.server.{name}"] = str(tmp_path / name)
    authority.cert_pem.write_to_path(str(tmp_path / "ca"))
    settings["tls.client.trustCertPath"] = str(tmp_path / "ca")
    running = ReliableMQBroker(tmp_path / "b", "ASYNC_FLUSH", settings=settings, has_grpc=True)
    with running:
        with client_at(running.grpc_address) as plain, pytest.raises(grpc.RpcError) as caught:
            plain.send("nowhere")
        assert caught.value.code() == grpc.StatusCode.UNAVAILABLE
        with client_at(running.grpc_address, tls=authority.cert_pem.bytes()) as secured:
            assert secured.send("nowhere").status.code == Code.TOPIC_NOT_FOUND
        lines = (running.directory / "broker-1.log").read_text()
        assert "it does not speak TLS, and tls.server.mode is enforcing" in lines
