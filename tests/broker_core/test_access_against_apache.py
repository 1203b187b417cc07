"""Apache's broker and ours with access control, asked the same by known and unknown senders."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from bench.apache_rocketmq import AUTH_PROVIDERS, SMALL_BROKER_FLAGS, ApacheRocketMQ
from bench.java_programs import SERVER_JARS
from bench.reliable_mq_broker import ReliableMQBroker
from tests.access.access_world import INIT_USER, ON
from tests.broker_core.probes.access import SIGNED, SignedProbe
from tests.broker_core.probes.asking import seen
from tests.broker_core.raw_client import RawClient
from tests.interop.java_shell import run_source
from tests.with_java import SERVERS, started

from reliable_mq.access.resources import Kind
from reliable_mq.access.rules import OF_APACHE, OWN, STRICTER, CodeRule
from reliable_mq.wire.codes import RequestCode as Ask

SAME = {"brokerName": "apache", "initAuthenticationUser": INIT_USER}
# The source has rules of its own for these; their annotations do not count.
IN_CODE = frozenset(
    {
        *(Ask.GET_ROUTEINFO_BY_TOPIC, Ask.SEND_MESSAGE, Ask.SEND_MESSAGE_V2, Ask.RECALL_MESSAGE),
        *(Ask.SEND_BATCH_MESSAGE, Ask.END_TRANSACTION, Ask.CONSUMER_SEND_MSG_BACK),
        *(Ask.PULL_MESSAGE, Ask.QUERY_MESSAGE, Ask.HEART_BEAT, Ask.UNREGISTER_CLIENT),
        *(Ask.GET_CONSUMER_LIST_BY_GROUP, Ask.QUERY_CONSUMER_OFFSET, Ask.UPDATE_CONSUMER_OFFSET),
        *(Ask.LOCK_BATCH_MQ, Ask.UNLOCK_BATCH_MQ),
    }
)

pytestmark = SERVERS

Answers = dict[str, tuple[dict[str, object], dict[str, object]]]


@pytest.fixture(scope="module")
def answers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Answers]:
    """Give what each broker answers to each probe, Apache's first."""
    directory = tmp_path_factory.mktemp("access-against-apache")
    apache = ApacheRocketMQ(
        directory / "apache",
        "ASYNC_FLUSH",
        {**ON, **AUTH_PROVIDERS, **SAME},
        flags=SMALL_BROKER_FLAGS,
    )
    with (
        started(apache) as theirs,
        ReliableMQBroker(directory / "ours", settings={**ON, **SAME}) as ours,
        RawClient(theirs.address) as to_them,
        RawClient(ours.address) as to_us,
    ):
        yield {
            each.probe.name: (
                _answer(each, to_them, theirs.address),
                _answer(each, to_us, ours.address),
            )
            for each in SIGNED
        }


def _answer(each: SignedProbe, client: RawClient, address: str) -> dict[str, Any]:
    command = each.command()
    return seen(each.probe, client.ask(command.code, command.ext_fields, command.body), address)


@pytest.mark.parametrize("each", SIGNED, ids=lambda each: each.probe.name)
def test_both_brokers_answer_alike(each: SignedProbe, answers: Answers) -> None:
    theirs, ours = answers[each.probe.name]
    if each.probe.differs:
        assert ours != theirs, f"no difference any more: {each.probe.differs}"
    else:
        assert ours == theirs


def test_the_table_of_rules_is_apaches(tmp_path: Path) -> None:
    """Apache's own classes are asked what they need, each code."""
    lines = [line.split(" ") for line in run_source("AccessRules", tmp_path, jars=SERVER_JARS)]
    said = {int(code): words for code, _, *words in lines}

    annotated = {code for code, words in said.items() if words[0] != "-"}
    nameless = {code for code, words in said.items() if len(words) == 2 and words[0] != "Cluster"}
    assert annotated - nameless - IN_CODE <= OF_APACHE.keys() | STRICTER.keys()
    assert OWN.keys() & (annotated - nameless | IN_CODE) == set()
    for code in OF_APACHE.keys() - IN_CODE:
        assert _told(OF_APACHE[code]) == _said(said[code]), Ask(code).name


def _said(words: list[str]) -> list[tuple[str, ...]]:
    """Return what Apache's annotations say: kind, field, separator, necessity and actions."""
    kind, actions, *fields = words
    if kind == Kind.CLUSTER or fields[0].startswith(Kind.CLUSTER):
        return [(Kind.CLUSTER, "", "", "", actions)]
    return sorted((*field.split(":"), actions) for field in fields)


def _told(rule: CodeRule) -> list[tuple[str, ...]]:
    if not rule.needs:
        return [(Kind.CLUSTER, "", "", "", ",".join(rule.actions))]
    return sorted(
        (
            *(need.kind, need.place, need.separator),
            "optional" if need.is_optional else "required",
            ",".join(need.actions),
        )
        for need in rule.needs
    )
