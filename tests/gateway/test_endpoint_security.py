"""The endpoint of a broker with users and certificates: who may call, and over what."""

import hmac
import ssl
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import grpc
import pytest
import trustme
from bench.reliable_mq_broker import ReliableMQBroker, ReliableMQProxy
from tests.gateway.grpc_client import GrpcClient, client_at

from reliable_mq.gateway.codes import Code
from reliable_mq.runtime.blocking_link import BlockingLink
from reliable_mq.wire.codes import RequestCode
from reliable_mq.wire.command import request
from reliable_mq.wire.request_signature import add_signature

pytestmark = pytest.mark.processes

ROOT = "root-secret-1"
SETTINGS = {
    "authenticationEnabled": "true",
    "authorizationEnabled": "true",
    "initAuthenticationUser": f'{{"username":"root","password":"{ROOT}"}}',
    "innerClientAuthenticationCredentials": f'{{"accessKey":"root","secretKey":"{ROOT}"}}',
}
TIME = "20261128T120000Z"


def signed(user: str, secret: str, time: str = TIME) -> dict[str, str]:
    """Return the headers of a signed call."""
    signature = hmac.new(secret.encode(), time.encode(), "sha1").hexdigest().upper()
    return {
        "x-mq-date-time": time,
        "authorization": f"MQv2-HMAC-SHA1 Credential={user}, SignedHeaders=x-mq-date-time, "
        f"Signature={signature}",
    }


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ReliableMQBroker]:
    directory = tmp_path_factory.mktemp("secured")
    with ReliableMQBroker(directory, "ASYNC_FLUSH", settings=SETTINGS, has_grpc=True) as running:
        sign = partial(add_signature, access_key="root", secret=ROOT)
        link = BlockingLink(running.address, 10, prepare=sign)
        for name in ("orders", "secrets"):
            fields = {"topic": name, "defaultTopic": "TBW102", "readQueueNums": "4"}
            fields |= {"writeQueueNums": "4", "perm": "6", "topicFilterType": "SINGLE_TAG"}
            assert link.call(request(RequestCode.UPDATE_AND_CREATE_TOPIC, fields)).code == 0
        for name, ip in (("shop", "127.0.0.1"), ("away", "10.9.9.9")):
            user = f'{{"username":"{name}","password":"shop-secret-1","userType":"Normal"}}'
            fields = {"username": name}
            made = link.call(request(RequestCode.AUTH_CREATE_USER, fields, user.encode()))
            assert made.code == 0, made.remark
            policy = (
                f'{{"subject":"User:{name}","policies":[{{"policyType":"CUSTOM","entries":'
                '[{"resource":"Topic:orders","actions":["Pub"],'
                f'"sourceIps":["{ip}"],"decision":"Allow"}}]}}]}}'
            )
            fields = {"subject": f"User:{name}"}
            made = link.call(request(RequestCode.AUTH_CREATE_ACL, fields, policy.encode()))
            assert made.code == 0, made.remark
        link.close()
        yield running


@pytest.fixture(scope="module")
def proxy(
    broker: ReliableMQBroker, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[ReliableMQProxy]:
    directory = tmp_path_factory.mktemp("proxy")
    names = ("authenticationEnabled", "innerClientAuthenticationCredentials")
    settings = {name: SETTINGS[name] for name in names}
    with ReliableMQProxy(directory, broker.name_server_address, settings) as running:
        yield running


@pytest.fixture(params=["broker", "proxy"])
def address(
    request: pytest.FixtureRequest, broker: ReliableMQBroker, proxy: ReliableMQProxy
) -> str:
    """Both forms of the endpoint check the same."""
    return broker.grpc_address if request.param == "broker" else proxy.address


def test_a_user_may_do_what_policies_allow_and_nothing_else(address: str) -> None:
    with client_at(address, more=signed("shop", "shop-secret-1")) as client:
        assert client.send("orders").status.code == Code.OK
        refused = client.send("secrets").status
        assert refused.code != Code.OK
        assert "shop" in refused.message


def test_a_super_user_may_do_everything(address: str) -> None:
    with client_at(address, more=signed("root", ROOT)) as client:
        assert client.send("secrets").status.code == Code.OK


@pytest.mark.parametrize(
    "headers",
    [
        {},
        {"authorization": "Basic abc", "x-mq-date-time": TIME},
        signed("shop", "wrong-secret-1"),
        signed("nobody", "shop-secret-1"),
        {**signed("shop", "shop-secret-1"), "x-mq-date-time": "20261128T130000Z"},
        {**signed("shop", "shop-secret-1", ""), "x-mq-date-time": ""},
    ],
)
def test_who_has_not_signed_is_refused(address: str, headers: dict[str, str]) -> None:
    with client_at(address, more=headers) as client:
        for status in (
            client.send("orders").status,
            client.call("Heartbeat", client_type=1).status,
            client.call("QueryRoute", topic={"name": "orders"}).status,
        ):
            assert status.code == Code.UNAUTHORIZED
            assert status.message


def test_a_policy_for_another_address_allows_nothing(address: str) -> None:
    with client_at(address, more=signed("away", "shop-secret-1")) as client:
        refused = client.send("orders", number=5).status
        assert refused.code != Code.OK
        assert "User:away has no permission" in refused.message
        assert "from 127.0.0.1" in refused.message


@pytest.fixture(scope="module")
def authority() -> trustme.CA:
    return trustme.CA()


@pytest.fixture(scope="module")
def encrypted(
    authority: trustme.CA, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[ReliableMQBroker]:
    directory = tmp_path_factory.mktemp("encrypted")
    files = _certificate(authority, directory)
    with ReliableMQBroker(directory, "ASYNC_FLUSH", settings=files, has_grpc=True) as running:
        yield running


def _certificate(authority: trustme.CA, directory: Path) -> dict[str, str]:
    issued = authority.issue_cert("localhost")
    cert, key = directory / "cert.pem", directory / "key.pem"
    issued.cert_chain_pems[0].write_to_path(cert)
    issued.private_key_pem.write_to_path(key)
    key.chmod(0o600)
    return {"tls.server.certPath": str(cert), "tls.server.keyPath": str(key)}


def answers(client: GrpcClient) -> bool:
    """Whether the endpoint answers; the topic does not exist."""
    return bool(client.send("nowhere").status.code == Code.TOPIC_NOT_FOUND)


def test_encrypted_and_plain_clients_share_the_port(
    encrypted: ReliableMQBroker, authority: trustme.CA
) -> None:
    with client_at(encrypted.grpc_address) as plain:
        assert answers(plain)
    with client_at(encrypted.grpc_address, tls=authority.cert_pem.bytes()) as secured:
        assert answers(secured)
        assert secured.producer("nowhere")


def test_without_a_certificate_the_endpoint_makes_one(broker: ReliableMQBroker) -> None:
    host, _, port = broker.grpc_address.rpartition(":")
    found = ssl.get_server_certificate((host, int(port)))
    assert found.startswith("-----BEGIN CERTIFICATE-----")
    with client_at(broker.grpc_address, tls=found.encode()) as client:
        assert client.send("orders").status.code == Code.UNAUTHORIZED


def test_routes_and_assignments_are_told_to_those_who_may_use_them(address: str) -> None:
    assigned: dict[str, Any] = {"topic": {"name": "secrets"}, "group": {"name": "hidden"}}
    with client_at(address, more=signed("root", ROOT)) as root:
        assert root.call("QueryRoute", topic={"name": "secrets"}).status.code == Code.OK
        assert root.call("QueryAssignment", **assigned).status.code == Code.OK
        assert root.call("QueryRoute", topic={"name": "nowhere"}).status.code == (
            Code.TOPIC_NOT_FOUND
        )
    with client_at(address, more=signed("shop", "shop-secret-1")) as shop:
        assert shop.call("QueryRoute", topic={"name": "orders"}).status.code == Code.OK
        for name in ("secrets", "nowhere"):  # nor is it told which topics there are
            answer = shop.call("QueryRoute", topic={"name": name})
            assert answer.status.code == Code.FORBIDDEN
            assert "shop" in answer.status.message
            assert not answer.message_queues
            delayed = shop.send(name, message_type=3, delivery_timestamp={"seconds": 1})
            assert delayed.status.code == Code.FORBIDDEN
        refused = shop.call("QueryAssignment", **assigned)
        assert refused.status.code == Code.FORBIDDEN
        assert not refused.assignments


def test_the_settings_of_a_group_are_told_to_those_who_may_be_members(address: str) -> None:
    with client_at(address, more=signed("root", ROOT)) as root:
        assert root.consumer("hidden", "secrets")
    with client_at(address, more=signed("shop", "shop-secret-1")) as shop:
        with pytest.raises(grpc.RpcError, match="FORBIDDEN") as caught:
            shop.consumer("hidden", "secrets")
        assert "shop" in str(caught.value.details())


def test_nobody_ends_the_client_of_another_user_or_takes_its_place(address: str) -> None:
    with client_at(address, "c-1", more=signed("root", ROOT)) as root:
        stream = root.producer("secrets")
        with client_at(address, "c-1", more=signed("shop", "shop-secret-1")) as shop:
            ended = shop.call("NotifyClientTermination").status
            assert ended.code == Code.UNRECOGNIZED_CLIENT_TYPE
            assert root.call("Heartbeat", client_type=1).status.code == Code.OK
            shop.producer("orders")
            assert shop.call("NotifyClientTermination").status.code == Code.OK
        assert root.call("Heartbeat", client_type=1).status.code == Code.OK
        assert stream.is_active()


def test_a_wrong_signature_is_in_the_log_of_the_broker(broker: ReliableMQBroker) -> None:
    with client_at(broker.grpc_address, more=signed("intruder", "x")) as client:
        assert client.send("orders").status.code == Code.UNAUTHORIZED
    log = (broker.directory / f"broker-{broker.starts}.log").read_text()
    (line,) = [each for each in log.splitlines() if "intruder" in each]
    assert "40100" in line
    assert "127.0.0.1" in line
