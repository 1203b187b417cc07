"""Access control by Apache's programs: mqadmin and the Java client, at Apache's broker and ours.

Clients ask the name server without credentials, as Apache's name server wants none.
"""

import difflib
import re
from collections.abc import Awaitable, Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import pytest
from bench.apache_rocketmq import AUTH_PROVIDERS, SMALL_BROKER_FLAGS, ApacheRocketMQ
from bench.reliable_mq_broker import ReliableMQBroker
from tests.access.access_world import (
    INIT_USER,
    ON,
    ROOT,
    SECRET,
    secret_of,
)
from tests.broker_core.probes.asking import topic
from tests.client.cluster import PATIENT, Seen, play
from tests.interop.admin_shell import AdminShell
from tests.interop.java_shell import run_source
from tests.waiting import eventually
from tests.with_java import INTEROP, Broker, started

from reliable_mq.client.asyncio_client import AsyncClient
from reliable_mq.client.connecting.security import Credentials
from reliable_mq.client.consuming.subscription import Subscription
from reliable_mq.errors import NotPermitted
from reliable_mq.message import Message
from reliable_mq.runtime.blocking_link import BlockingLink
from reliable_mq.wire.codes import RequestCode
from reliable_mq.wire.command import request
from reliable_mq.wire.request_signature import add_signature

INNER = f'{{"accessKey":"{ROOT}","secretKey":"{SECRET}"}}'
SETTINGS = {
    **ON,
    "initAuthenticationUser": INIT_USER,
    "innerClientAuthenticationCredentials": INNER,
    "brokerName": "same",
}
TOPIC, GROUP = "access_orders", "access_group"

pytestmark = INTEROP


class Both(NamedTuple):
    """Apache's servers and ours, both with access control."""

    theirs: ApacheRocketMQ
    ours: ReliableMQBroker


@pytest.fixture(scope="module")
def both(tmp_path_factory: pytest.TempPathFactory, shell: AdminShell) -> Iterator[Both]:
    directory = tmp_path_factory.mktemp("access")
    apache = ApacheRocketMQ(
        directory / "apache",
        "ASYNC_FLUSH",
        {**SETTINGS, **AUTH_PROVIDERS},
        flags=SMALL_BROKER_FLAGS,
    )
    with started(apache) as theirs, ReliableMQBroker(directory / "ours", settings=SETTINGS) as ours:
        shell.wait_for_broker(theirs.name_server_address, "same")
        yield Both(theirs, ours)


@pytest.fixture(scope="module")
def shell(tmp_path_factory: pytest.TempPathFactory) -> Iterator[AdminShell]:
    """Give a running mqadmin that signs as root."""
    directory = tmp_path_factory.mktemp("shell")
    (directory / "conf").mkdir()
    (directory / "conf" / "tools.yml").write_text(f"accessKey: {ROOT}\nsecretKey: {SECRET}\n")
    with AdminShell(directory) as running:
        yield running


def as_root(broker: Broker, code: int, ext: Mapping[str, object], row: Any) -> None:
    """Change users or policies of a broker."""
    fields = {name: str(value) for name, value in ext.items()}
    sign = partial(add_signature, access_key=ROOT, secret=SECRET)
    with BlockingLink(broker.address, 30, prepare=sign) as link:
        answer = link.call(request(code, fields, msgspec.json.encode(row)))
        assert answer.code == 0, answer.remark


STEPS = [
    line.split(" ")
    for line in """
listUser -b BROKER
createUser -b BROKER -u shop -p secret1
createUser -b BROKER -u shop -p secret1
createUser -b BROKER -u boss -p secret2 -t Super
createUser -b BROKER -u odd -p secret3
listUser -b BROKER
listUser -b BROKER -f o
listUser -b BROKER -f nobody
listUser -c DefaultCluster
getUser -b BROKER -u shop
getUser -b BROKER -u nobody
getUser -c DefaultCluster -u boss
getUser -b BROKER
updateUser -b BROKER -u shop -p secret4
updateUser -b BROKER -u shop -t Super
updateUser -b BROKER -u shop -t Normal
updateUser -b BROKER -u shop -s disable
updateUser -b BROKER -u nobody -p secret
getUser -b BROKER -u shop
updateUser -b BROKER -u shop -s enable
createAcl -b BROKER -s User:shop -r Topic:orders,Topic:ord* -a Pub,Sub -d Allow
createAcl -b BROKER -s User:shop -r Group:* -a Sub -i 10.0.0.0/8,192.0.2.7 -d Deny
createAcl -b BROKER -s User:nobody -r Topic:orders -a Pub -d Allow
createAcl -b BROKER -s User:shop -r orders -a Pub -d Allow
createAcl -b BROKER -s User:shop -r Topic:orders -a Fly -d Allow
createAcl -b BROKER -s User:shop -r Topic:orders -a Pub -d Perhaps
createAcl -b BROKER -s User:shop -r Topic:orders -a Pub -i nowhere -d Allow
createAcl -b BROKER -s User:boss -r Cluster:DefaultCluster -a Get -d Allow
updateAcl -b BROKER -s User:shop -r Topic:orders -a All -d Deny
updateAcl -b BROKER -s User:odd -r * -a All -d Allow
getAcl -b BROKER -s User:shop
getAcl -b BROKER -s User:nobody
getAcl -c DefaultCluster -s User:boss
listAcl -b BROKER
listAcl -c DefaultCluster
listAcl -b BROKER -s shop
listAcl -b BROKER -r Group
listAcl -b BROKER -s nobody
copyUser -f BROKER -t BROKER
copyUser -f BROKER -t BROKER -u shop,boss
copyAcl -f BROKER -t BROKER
copyAcl -f BROKER -t BROKER -s User:shop
deleteAcl -b BROKER -s User:shop -r Topic:ord*
deleteAcl -b BROKER -s User:shop -r Topic:nothing
getAcl -b BROKER -s User:shop
deleteAcl -b BROKER -s User:shop
deleteAcl -b BROKER -s User:shop
deleteAcl -c DefaultCluster -s User:boss
listAcl -b BROKER
deleteUser -b BROKER -u boss
deleteUser -b BROKER -u nobody
deleteUser -c DefaultCluster -u odd
deleteUser -b BROKER -u shop
listUser -b BROKER
listAcl -b BROKER
updateTopic -b BROKER -t made_by_root -r 1 -w 1
topicStatus -t made_by_root
""".strip().splitlines()
]


@pytest.fixture(scope="module")
def printed(both: Both, shell: AdminShell) -> list[tuple[list[str], list[str]]]:
    return [(_run(shell, step, both.theirs), _run(shell, step, both.ours)) for step in STEPS]


def _run(shell: AdminShell, step: list[str], broker: Broker) -> list[str]:
    words = [broker.address if word == "BROKER" else word for word in step]
    if "-f" not in words or words[0] in ("listUser", "listAcl"):
        words += ["-n", broker.name_server_address]
    text = shell.run(*words).replace(broker.address, "BROKER")
    text = re.sub(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d,\d{3}", "TIME", text)
    lines = (line.strip() for line in text.splitlines())
    return [line for line in lines if line and not re.match(r"at \S+\(|\.\.\. \d+ more", line)]


@pytest.mark.parametrize("number", range(len(STEPS)), ids=lambda n: "_".join(STEPS[n]))
def test_mqadmin_prints_the_same(number: int, printed: list[tuple[list[str], list[str]]]) -> None:
    theirs, ours = printed[number]
    assert ours == theirs, "\n".join(difflib.unified_diff(theirs, ours, "theirs", "ours", n=0))
    assert theirs or STEPS[number][0].startswith(("list", "get"))


def test_users_and_policies_are_copied_from_apaches_broker_to_ours(
    both: Both, shell: AdminShell
) -> None:
    there, here = both.theirs.address, both.ours.address
    make_user(both.theirs, "mover", "Topic:moved*", "Group:moved")

    shell.run("copyUser", "-f", there, "-t", here, "-u", "mover")
    shell.run("copyAcl", "-f", there, "-t", here, "-s", "User:mover")

    for command in (["getUser", "-u", "mover"], ["getAcl", "-s", "User:mover"]):
        theirs, ours = (shell.run(command[0], "-b", at, *command[1:]) for at in (there, here))
        assert theirs == ours
        assert "mover" in ours


class Case(NamedTuple):
    """One user and its policies: (resources, actions, decision, addresses)."""

    name: str
    policies: tuple[tuple[str, str, str, tuple[str, ...]], ...]
    status: str = "enable"
    secret: str = ""
    consumes: bool = False


ALLOW, DENY = "Allow", "Deny"
BOTH = f"Topic:{TOPIC},Group:{GROUP}"
CASES = [
    Case("allowed", ((BOTH, "Pub,Sub,Get", ALLOW, ()),), consumes=True),
    Case("everything", (("*", "All", ALLOW, ()),), consumes=True),
    Case("prefixes", (("Topic:access_*,Group:access_*", "All", ALLOW, ()),), consumes=True),
    Case("sender", ((f"Topic:{TOPIC}", "Pub", ALLOW, ()),)),
    Case("reader", ((BOTH, "Sub", ALLOW, ()),)),
    Case("no_policy", ()),
    Case("denied", ((BOTH, "All", DENY, ()),)),
    Case("denied_name", (("*", "All", ALLOW, ()), (f"Topic:{TOPIC}", "All", DENY, ()))),
    Case("denied_prefix", (("*", "All", ALLOW, ()), ("Topic:access*", "Pub", DENY, ()))),
    Case("allowed_name", (("*", "All", DENY, ()), (BOTH, "All", ALLOW, ())), consumes=True),
    Case("here", ((BOTH, "All", ALLOW, ("127.0.0.0/8",)),), consumes=True),
    Case("elsewhere", ((BOTH, "All", ALLOW, ("192.0.2.0/24",)),)),
    Case("disabled", ((BOTH, "All", ALLOW, ()),), status="disable"),
    Case("wrong_secret", ((BOTH, "All", ALLOW, ()),), secret="a wrong secret"),
    Case("other_topic", ((f"Topic:other,Group:{GROUP}", "All", ALLOW, ()),)),
]


def make_user(broker: Broker, name: str, *resources: str, status: str = "enable") -> None:
    row = {"password": secret_of(name), "userStatus": status}
    as_root(broker, RequestCode.AUTH_CREATE_USER, {"username": name}, row)
    if resources:
        put_policy(broker, name, ",".join(resources), "All", ALLOW, ())


def put_policy(
    broker: Broker, name: str, resources: str, actions: str, decision: str, ips: tuple[str, ...]
) -> None:
    rows = [
        {
            "resource": each,
            "actions": actions.split(","),
            "decision": decision,
            "sourceIps": list(ips) or None,
        }
        for each in resources.split(",")
    ]
    subject = {"subject": f"User:{name}"}
    row = {**subject, "policies": [{"entries": rows}]}
    as_root(broker, RequestCode.AUTH_CREATE_ACL, subject, row)


@pytest.fixture(scope="module")
def cases(both: Both) -> Both:
    """Give both brokers with the topic, the group and the users of all cases."""
    for broker in both:
        fields = topic(TOPIC, readQueueNums="1", writeQueueNums="1")
        as_root(broker, RequestCode.UPDATE_AND_CREATE_TOPIC, fields, {})
        group = {"groupName": GROUP}
        as_root(broker, RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, {}, group)
        for case in CASES:
            make_user(broker, case.name, status=case.status)
            for policy in case.policies:
                put_policy(broker, case.name, *policy)
    return both


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_apaches_client_gets_the_same_answers(case: Case, cases: Both, tmp_path: Path) -> None:
    secret = case.secret or secret_of(case.name)
    theirs, ours = (
        run_source(
            "Access",
            tmp_path,
            broker.name_server_address,
            case.name,
            secret,
            TOPIC,
            GROUP,
            str(case.consumes).lower(),
        )
        for broker in cases
    )
    assert ours == theirs
    if case.consumes:
        assert "consume: true" in ours
        assert "send: SEND_OK" in ours
    else:
        assert any(re.search(r": 16\b", line) for line in ours), "somebody is refused something"


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_our_client_gets_the_same_answers(case: Case, cases: Both) -> None:
    theirs, ours = (_answers(broker, case) for broker in cases)
    assert ours == theirs
    if case.consumes:
        assert ours["send"] == "done"


def _answers(broker: Broker, case: Case) -> dict[str, str]:
    found: dict[str, str] = {}
    who = Credentials(access_key=case.name, secret_key=case.secret or secret_of(case.name))
    settings = msgspec.structs.replace(PATIENT, credentials=who)

    async def scene() -> None:
        async with AsyncClient(broker.name_server_address, settings=settings) as client:
            messages = [Message(topic=TOPIC, body=body) for body in (b"2", b"3")]
            steps: dict[str, Callable[[], Awaitable[object]]] = {
                "send": lambda: client.send(Message(topic=TOPIC, body=b"one", keys=("key",))),
                "send a batch": lambda: client.send_batch(messages),
                "find": lambda: client.admin.messages.by_key(TOPIC, "key"),
            }
            for name, step in steps.items():
                try:
                    await step()
                    found[name] = "done"
                except NotPermitted as error:
                    found[name] = re.sub(r"\S*:\d+", "", str(error))
            if case.consumes:
                seen = Seen()
                group = f"{GROUP}_ours" if case.name in ("everything", "prefixes") else GROUP
                await client.consume(Subscription(group=group, topics={TOPIC: "*"}), seen)
                await client.send(Message(topic=TOPIC, body=b"wanted"))
                await eventually(lambda: b"wanted" in seen.bodies)

    play(scene())
    return found
