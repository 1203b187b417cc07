"""Apache's broker and ours, asked the same: code, remark and what else clients read."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from bench.apache_rocketmq import SMALL_BROKER_FLAGS, ApacheRocketMQ
from bench.reliable_mq_broker import ReliableMQBroker
from tests.broker_core.probes.asking import Probe, seen
from tests.broker_core.probes.name_server import NAME_SERVER
from tests.broker_core.probes.places import PLACES
from tests.broker_core.probes.script import BEGINNING, GOING_ON, SCRIPT
from tests.broker_core.raw_client import RawClient
from tests.waiting import Budget, until
from tests.with_java import SERVERS, started

from reliable_mq.wire import fastjson
from reliable_mq.wire.codes import RequestCode

SETTLE_SECONDS = 30.0
REGISTRATION_SECONDS = 60.0
# A disk that others use, or a machine that stands still, must not make them refuse sends.
SAME_NAME = {"brokerName": "apache"}
PATIENT = {**SAME_NAME, "waitTimeMillsInSendQueue": "60000", "osPageCacheBusyTimeOutMills": "60000"}
RUNNING_STATE = "the running state"
PLACE = "at a place: "
NAME_SERVERS = "name server: "
READS = frozenset(
    {
        RequestCode.GET_MAX_OFFSET,
        RequestCode.GET_MIN_OFFSET,
        RequestCode.SEARCH_OFFSET_BY_TIMESTAMP,
        RequestCode.QUERY_MESSAGE,
        RequestCode.PULL_MESSAGE,
        RequestCode.LITE_PULL_MESSAGE,
    }
)

_JAVA = re.compile(r"(java|org\.apache)\.[\w.]+: ")  # an exception that nobody caught there

pytestmark = SERVERS

Answer = dict[str, object]
Answers = dict[str, tuple[Answer, Answer]]


@pytest.fixture(scope="module")
def answers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Answers]:
    """Give what each broker answers to each probe, Apache's first.

    Those about places come early, to brokers that nobody has used before, and have topics and
    groups of their own: the script goes on as if they had not been.
    """
    directory = tmp_path_factory.mktemp("against-apache")
    with (
        started(_apache(directory)) as theirs,
        ReliableMQBroker(directory / "ours", settings=PATIENT) as ours,
        RawClient(theirs.address) as to_them,
        RawClient(ours.address) as to_us,
        RawClient(theirs.name_server_address) as to_their_names,
        RawClient(ours.name_server_address) as to_our_names,
    ):
        found: Answers = {
            f"{at}{probe.name}": _both(probe, to_them, theirs.address, to_us, ours.address)
            for at, probes in (("", BEGINNING), (PLACE, PLACES), ("", GOING_ON))
            for probe in probes
        }
        _wait_for_registration(to_their_names)
        found |= {
            f"{NAME_SERVERS}{probe.name}": _both(
                probe, to_their_names, theirs.address, to_our_names, ours.address
            )
            for probe in NAME_SERVER
        }
        found[RUNNING_STATE] = (_running_state(to_them), _running_state(to_us))
        yield found


def _apache(directory: Path) -> ApacheRocketMQ:
    return ApacheRocketMQ(directory / "apache", "ASYNC_FLUSH", PATIENT, flags=SMALL_BROKER_FLAGS)


def _wait_for_registration(client: RawClient) -> None:
    """Wait for Apache's broker: it says that it has booted ten seconds before it registers."""
    until(
        lambda: not client.ask(RequestCode.GET_ROUTEINFO_BY_TOPIC, {"topic": "TBW102"}).code,
        lambda: "Apache's broker does not register",
        seconds=REGISTRATION_SECONDS,
        look_seconds=0.1,
    )


def _running_state(client: RawClient) -> dict[str, object]:
    answer = client.ask(RequestCode.GET_BROKER_RUNTIME_INFO)
    table: dict[str, object] = fastjson.loads(answer.body.decode())["table"]
    return table


def _both(probe: Probe, to_them: RawClient, there: str, to_us: RawClient, here: str) -> Any:
    """Ask both. Apache shows a message a moment after it acknowledged it: a read may lag.

    A read is asked of both again: a broker closes a connection that is silent for two minutes.
    """
    budget = Budget(SETTLE_SECONDS)
    while True:
        ours = seen(probe, to_us.ask(probe.code, probe.ext, probe.body), here)
        theirs = seen(probe, to_them.ask(probe.code, probe.ext, probe.body), there)
        may_lag = (probe.lags or probe.code in READS) and not probe.differs
        to_compare = _comparable(probe, theirs, ours)
        if not may_lag or to_compare[0] == to_compare[1] or not budget.is_left():
            return theirs, ours


@pytest.mark.parametrize("probe", SCRIPT, ids=lambda probe: probe.name)
def test_both_brokers_answer_alike(probe: Probe, answers: Answers) -> None:
    _compare(probe, *answers[probe.name])


@pytest.mark.parametrize("probe", PLACES, ids=lambda probe: probe.name)
def test_both_brokers_answer_alike_where_there_is_little(probe: Probe, answers: Answers) -> None:
    _compare(probe, *answers[f"{PLACE}{probe.name}"])


@pytest.mark.parametrize("probe", NAME_SERVER, ids=lambda probe: probe.name)
def test_both_name_servers_answer_alike(probe: Probe, answers: Answers) -> None:
    _compare(probe, *answers[f"{NAME_SERVERS}{probe.name}"])


def _compare(probe: Probe, theirs: Answer, ours: Answer) -> None:
    theirs, ours = _comparable(probe, theirs, ours)
    if probe.differs:
        assert ours != theirs, f"no difference any more: {probe.differs}"
    else:
        assert ours == theirs


def _comparable(probe: Probe, theirs: Answer, ours: Answer) -> tuple[Answer, Answer]:
    """Return both without their remarks where Apache's is an exception of Java."""
    if probe.shows_all and _JAVA.match(str(theirs.get("remark"))):
        return {**theirs, "remark": None}, {**ours, "remark": None}
    return theirs, ours


def test_the_running_state_is_told_under_apaches_names(answers: Answers) -> None:
    theirs, ours = (set(table) for table in answers[RUNNING_STATE])
    assert {name for name in theirs - ours if not name.startswith("commitLogDiskRatio_")} == set()
    assert {name for name in ours - theirs if not name.startswith("scheduleMessage")} == {
        "brokerVersion",
        "filesHeldSeconds",
    }
