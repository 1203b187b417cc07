"""mqadmin prints for our broker and name server what it prints for Apache's."""

import difflib
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from bench.apache_rocketmq import ApacheRocketMQ
from bench.reliable_mq_broker import ReliableMQBroker
from tests.interop.admin_shell import AdminShell
from tests.interop.asked_by import AT_BROKER, AT_NAME_SERVER
from tests.interop.steps import FILES, SCRIPT, Step
from tests.waiting import Budget
from tests.with_java import INTEROP, Broker, started

from reliable_mq.broker_core.requests.handlers import HANDLERS

SETTLE_SECONDS = 60.0
SAME = {"brokerName": "same", "cleanFileForciblyEnable": "false"}
"""Our default is not Apache's here, see docs/reference/broker.md."""
NUMBERED = list(enumerate(SCRIPT))

pytestmark = INTEROP

Printed = list[tuple[list[str], list[str]]]
"""By step: the lines for Apache's servers, and those for ours."""


class Asked:
    """A name server with a broker, and what words of the steps stand for there."""

    def __init__(self, servers: Broker, shell: AdminShell) -> None:
        self.broker, self.name_server = servers.address, servers.name_server_address
        self._shell = shell
        self._folder = servers.directory / "exported"
        self._folder.mkdir()
        for name, text in FILES.items():
            (self._folder / name).write_text(text)
        self._stands_for = {
            "NS": self.name_server,
            "BROKER": self.broker,
            "FOLDER": str(self._folder),
        }

    def run(self, step: Step) -> list[str]:
        """Return the lines that a step prints, without what differs by nature."""
        names = re.compile(r"\b(NS|BROKER|FOLDER|CLIENT|ID\d|PLACE\d)\b")
        words = [names.sub(lambda name: self._stands_for[name[0]], word) for word in step.words]
        text = Path(words[1]).read_text() if words[0] == "@file" else self._shell.run(*words)
        if words[0] == "@produce":
            ids = re.findall(r"#(\w+) #(\w+)", text)
            for number, (message_id, place) in enumerate(ids):
                self._stands_for |= {f"ID{number}": message_id, f"PLACE{number}": place}
        elif words[0] == "@who":
            self._stands_for["CLIENT"] = text.strip("#\n")
        return list(_neutral(text, step, self))


@pytest.fixture(scope="module")
def printed(tmp_path_factory: pytest.TempPathFactory, shell: AdminShell) -> Printed:
    directory = tmp_path_factory.mktemp("mqadmin")
    theirs = ApacheRocketMQ(directory / "apache", "ASYNC_FLUSH", SAME)
    ours = ReliableMQBroker(directory / "ours", "ASYNC_FLUSH", settings=SAME)
    with started(theirs), ours, shell.closing_clients():
        shell.wait_for_broker(theirs.name_server_address, "same")
        there, here = Asked(theirs, shell), Asked(ours, shell)
        return [_both(step, there, here) for step in SCRIPT]


def _both(step: Step, there: Asked, here: Asked) -> tuple[list[str], list[str]]:
    budget = Budget(SETTLE_SECONDS)
    while True:
        theirs, ours = there.run(step), here.run(step)
        if step.is_subset:
            names = {_name(line) for line in ours}
            theirs = [line for line in theirs if _name(line) in names.difference(step.ours_only)]
            ours = [line for line in ours if _name(line) not in step.ours_only]
        if not step.settles or theirs == ours or not budget.is_left():
            return theirs, ours


def _name(line: str) -> str:
    return re.split(r"[=:]", line, maxsplit=1)[0].strip()


NEUTRAL = [
    (r"/\S*/(apache|ours)/\S*", "PATH"),
    (r"127\.0\.0\.1:\d+", "CLIENT"),
    (r"\b\d+\.\d+\.\d+\.\d+@[\w#@]+", "CLIENT-ID"),
    (r"\b\d{4}-\d\d-\d\d[ ,]\d\d:\d\d:\d\d(,\d{3})?", "TIME"),
    (r"(?<!\.)\b\d{13}\b", "MILLIS"),  # not of a rate
    (r"(?<!\.)\b\d{17}\b", "TIME"),  # with milliseconds and nothing between
    (r'"counter":\d+', '"counter":NUMBER'),  # how often a table changed
    (r"\b[0-9A-F]{32,56}\b", "ID"),
    (r"\bPID: \d+", "PID"),
    (r"spentTimeMills=\d+", "spentTimeMills=SPAN"),
    (r"\b\d+ms\b|\[\d+\]ms", "SPAN"),
    (r"(\d+ (days|hours|minutes|seconds),? ?)+", "SPAN"),
    (r"\b\d+\.\d+\b", "RATE"),  # rates, latencies, ratios: of this moment
    (r" +", " "),
]


def _neutral(text: str, step: Step, asked: Asked) -> Iterator[str]:
    """Give the lines without what differs by nature; their order is a Java hash table's."""
    text = text.replace(asked.broker, "BROKER").replace(asked.name_server, "NS")
    text = text.replace(asked.broker.rpartition(":")[2], "PORT")
    text = text.replace(asked.name_server.rpartition(":")[2], "NS-PORT")
    text = replaced(text)
    lines = [line.strip().rstrip(",") for line in text.splitlines()]
    kept = (line for line in lines if line and not re.match(r"at \S+\(|\.\.\. \d+ more", line))
    yield from sorted(line for line in kept if re.search(step.only, line))


def replaced(text: str) -> str:
    """Return a text without what differs by nature."""
    for pattern, word in NEUTRAL:
        text = re.sub(pattern, word, text)
    return text


@pytest.mark.parametrize("digits", [2, 13, 17, 18])
def test_a_rate_is_told_from_a_time_however_long_it_is(digits: int) -> None:
    assert replaced(f'"tps":0.{"1" * digits}') == '"tps":RATE'
    assert replaced(f"{'1' * 13} {'1' * 17}") == "MILLIS TIME"


def test_every_request_that_a_command_makes_is_among_the_steps() -> None:
    asked = {step.words[2 if step.words[0] == "@until" else 0] for step in SCRIPT}
    assert {*AT_BROKER.values(), *AT_NAME_SERVER.values()} <= asked
    assert HANDLERS.keys() >= AT_BROKER.keys()


@pytest.mark.parametrize(("number", "step"), NUMBERED, ids=lambda x: str(getattr(x, "command", x)))
def test_mqadmin_prints_the_same(number: int, step: Step, printed: Printed) -> None:
    theirs, ours = printed[number]
    if step.differs:
        assert ours != theirs, f"no difference any more: {step.differs}"
    else:
        assert ours == theirs, "\n".join(difflib.unified_diff(theirs, ours, "theirs", "ours", n=0))
