"""mqadmin at a master and its slave: it prints for ours, and for mixed pairs, what Apache's print.

The pair of Apache's is the measure. The four pairs run one after another. The doctor and the
comparison of stores look at them, too.
"""

import difflib
import re
from collections.abc import Iterator
from contextlib import ExitStack
from datetime import UTC, datetime
from pathlib import Path
from typing import NamedTuple

import pytest
from tests.doctor.test_doctor import context
from tests.interop.admin_shell import AdminShell
from tests.interop.test_mqadmin import NEUTRAL
from tests.interop.test_replication import MASTER, SLAVE, Make, apaches, log_end, ours
from tests.waiting import until
from tests.with_java import INTEROP, Broker

from reliable_mq.client.thread_client import Client
from reliable_mq.doctor.finding import CheckFindings, Finding, Level
from reliable_mq.doctor.replica_checks import replicas
from reliable_mq.message import Message
from reliable_mq.reconcile.brokers.file_slave import SlaveComparison, compare_with_slave
from reliable_mq.reconcile.brokers.file_store import read_layout

COMMANDS = (
    "clusterList -n NS",
    "clusterList -n NS -m",
    "haStatus -n NS -b MASTER",
    "haStatus -n NS -b SLAVE",
    "haStatus -n NS -c DefaultCluster",
    "getBrokerEpoch -n NS -b pair",
    "getBrokerEpoch -n NS -c DefaultCluster",
    "brokerStatus -n NS -b MASTER",
    "brokerStatus -n NS -b SLAVE",
    "brokerStatus -n NS -c DefaultCluster",
)
PAIRS = {
    "apache/apache": (apaches, apaches),
    "ours/ours": (ours, ours),
    "ours/apache": (ours, apaches),
    "apache/ours": (apaches, ours),
}
OURS_ONLY = {
    *("brokerVersion", "filesHeldSeconds", "masterTablesAgeSeconds", "masterTablesFailure"),
    "brokerEpoch",  # the fence of pairs without a controller: decision 078
    *("deliveredElsewhere", "standsIn"),  # of slaves: decision 083
}
"""Names of `brokerStatus` that Apache's has not."""
FLUSHED = "#MasterFlushOffset"
"""Our slave knows it; Apache's says 0 if no controller tells it."""
COUNT = 20
NEVER = datetime(9999, 1, 1, tzinfo=UTC)

pytestmark = INTEROP

Printed = dict[str, dict[str, list[str]]]
"""By pair and command: the lines."""


class Examined(NamedTuple):
    """What was seen of a pair while it ran.

    `printed`: by command, the lines. `compared`: the stores of both.
    """

    printed: dict[str, list[str]]
    findings: list[Finding]
    compared: SlaveComparison


class Pair:
    """A master and a slave that has its log."""

    def __init__(self, folder: Path, makes: tuple[Make, Make], shell: AdminShell) -> None:
        self._makes, self._folder, self._shell = makes, folder, shell
        self._running = ExitStack()

    def __enter__(self) -> "Pair":
        make_master, make_slave = self._makes
        self.master: Broker = make_master(self._folder / "master", MASTER, "")
        self._running.enter_context(self.master)
        self.names = self.master.name_server_address
        self.slave: Broker = make_slave(self._folder / "slave", SLAVE, self.names)
        self._shell.wait_for_broker(self.names, "pair")
        with Client(self.names) as client:
            client.create_topic("t", 2)
            self._running.enter_context(self.slave)
            for number in range(COUNT):
                client.send(Message(topic="t", body=b"%d" % number))
        until(self._is_level, lambda: "the slave does not follow", seconds=120)
        return self

    def __exit__(self, *_: object) -> None:
        self._running.close()

    def _is_level(self) -> bool:
        status = self._shell.run("haStatus", "-n", self.names, "-b", self.master.address)
        listed = self._shell.run("clusterList", "-n", self.names)
        return (
            log_end(self.slave.address) == log_end(self.master.address)
            and bool(re.search(r"#InSyncSlaveNum\s+1", status))
            and self.slave.address in listed
            and str(log_end(self.master.address)) in status
        )

    def examine(self) -> Examined:
        with Client(self.names) as client:
            told = CheckFindings("replicas")
            replicas(context(cluster=client.cluster_facts()), told)
        stores = str(self._folder / "master" / "store"), str(self._folder / "slave" / "store")
        until(lambda: read_layout(stores[0]).sure_end == log_end(self.master.address))
        compared = compare_with_slave("pair", *stores, young_since=NEVER, rows_max=100)
        return Examined({each: self.run(each) for each in COMMANDS}, told.findings, compared)

    def run(self, command: str) -> list[str]:
        """Return the lines that a command prints, without what differs by nature."""
        places = {"NS": self.names, "MASTER": self.master.address, "SLAVE": self.slave.address}
        words = [places.get(word, word) for word in command.split()]
        text = self._shell.run(*words)
        for name, place in places.items():
            text = text.replace(place, name)
        return list(_neutral(text))


_MORE = [
    (r"\b\d+-\d+\(", "TIMERS("),  # of this moment
    (r"(Ratio)_/\S+", r"\1"),  # a line for each folder
]


def _neutral(text: str) -> Iterator[str]:
    for pattern, word in [*_MORE, *NEUTRAL[:-1], (r"\b\d{3,}\b", "NUMBER"), NEUTRAL[-1]]:
        text = re.sub(pattern, word, text)
    yield from (line.strip() for line in text.splitlines() if line.strip())


@pytest.fixture(scope="module")
def examined(tmp_path_factory: pytest.TempPathFactory, shell: AdminShell) -> dict[str, Examined]:
    found: dict[str, Examined] = {}
    with shell.closing_clients():
        for name, makes in PAIRS.items():
            folder = tmp_path_factory.mktemp(name.replace("/", "-"))
            with Pair(folder, makes, shell) as pair:
                found[name] = pair.examine()
    return found


@pytest.fixture(scope="module")
def printed(examined: dict[str, Examined]) -> Printed:
    return {name: each.printed for name, each in examined.items()}


@pytest.mark.parametrize("command", [each for each in COMMANDS if "brokerStatus" not in each])
@pytest.mark.parametrize("pair", [name for name in PAIRS if "ours" in name])
def test_mqadmin_prints_of_a_pair_what_it_prints_of_apaches(
    pair: str, command: str, printed: Printed
) -> None:
    theirs, here = printed["apache/apache"][command], printed[pair][command]
    if command == "haStatus -n NS -b SLAVE" and pair.endswith("/ours"):
        theirs = [re.sub(rf"{FLUSHED}\t0", f"{FLUSHED}\tNUMBER", line) for line in theirs]
    assert here == theirs, "\n".join(difflib.unified_diff(theirs, here, "theirs", pair, n=0))


@pytest.mark.parametrize("command", [each for each in COMMANDS if "brokerStatus" in each])
@pytest.mark.parametrize("pair", [name for name in PAIRS if "ours" in name])
def test_a_broker_of_a_pair_tells_nothing_of_itself_that_apaches_does_not(
    pair: str, command: str, printed: Printed
) -> None:
    """Ours leaves out what it does not have."""
    theirs, here = printed["apache/apache"][command], printed[pair][command]
    assert here
    assert _names(here) - OURS_ONLY <= _names(theirs)


def _names(lines: list[str]) -> set[str]:
    return {re.split(r"\s*:", line)[0].split()[-1] for line in lines if ":" in line}


def test_the_status_of_a_pair_says_that_the_slave_keeps_up(printed: Printed) -> None:
    """The measure itself: else two that print nothing would be equal."""
    status = "\n".join(printed["apache/apache"]["haStatus -n NS -b MASTER"])
    assert "#InSyncSlaveNum 1" in status.replace("\t", " ")
    assert " 0 RATE OK NUMBER" in status


@pytest.mark.parametrize("pair", PAIRS)
def test_the_doctor_finds_each_pair_sound(pair: str, examined: dict[str, Examined]) -> None:
    """A master of ours has a name server inside, which is a warning."""
    (found,) = examined[pair].findings
    if pair.startswith("ours"):
        assert (found.level, "runs in the same process" in found.text) == (Level.WARNING, True)
    else:
        assert (found.level, "1 connected, lacking 0 bytes" in found.text) == (Level.OK, True)


@pytest.mark.parametrize("pair", PAIRS)
def test_the_stores_of_each_pair_are_the_same_while_both_run(
    pair: str, examined: dict[str, Examined]
) -> None:
    compared = examined[pair].compared
    assert (compared.flaw(), compared.counts) == (None, {})
    assert compared.master_log[1] > COUNT * 100
    assert compared.slave_log[1] >= compared.master_log[1]
