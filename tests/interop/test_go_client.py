"""Apache's Go client (rocketmq-client-go/v2) against both brokers: the core scenarios."""

import shutil
import subprocess
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from bench.apache_rocketmq import ApacheRocketMQ
from bench.reliable_mq_broker import ReliableMQBroker
from tests.broker_core.raw_client import RawClient
from tests.waiting import run_process, until
from tests.with_java import INTEROP, Broker, started

from reliable_mq.wire.codes import RequestCode

SOURCES = Path(__file__).parent / "go"
PROGRAM_SECONDS_MAX = 400
SETTLE_SECONDS = 60.0
TOPICS = ("sync", "async", "oneway", "batch", "tags", "ordered", "retry")

pytestmark = [
    *INTEROP,
    pytest.mark.skipif(shutil.which("go") is None, reason="not installed: go"),
]

Output = dict[str, str]
"""What the program printed, by "sent" or "got" and the topic."""


@pytest.fixture(scope="module")
def outputs(tmp_path_factory: pytest.TempPathFactory) -> tuple[Output, Output]:
    """Give what the program prints for Apache's broker and for ours."""
    directory = tmp_path_factory.mktemp("go-client")
    program = _built(directory)
    with (
        started(ApacheRocketMQ(directory / "apache", "ASYNC_FLUSH")) as theirs,
        ReliableMQBroker(directory / "ours") as ours,
        ThreadPoolExecutor() as both,
    ):
        for asked in (theirs, ours):
            _make_topics(asked)
        printed = both.map(lambda asked: _run(program, asked, directory), (theirs, ours))
        return next(printed), next(printed)


def _built(directory: Path) -> Path:
    program = directory / "interop"
    build = ["go", "build", "-o", str(program), "."]
    made = subprocess.run(build, cwd=SOURCES, capture_output=True, text=True, check=False)
    if "proxy" in made.stderr or "dial tcp" in made.stderr:
        pytest.skip(f"the Go module cannot be fetched: {made.stderr.strip()[-200:]}")
    assert made.returncode == 0, made.stderr
    return program


def _make_topics(asked: Broker) -> None:
    with RawClient(asked.address) as client:
        for name in TOPICS:
            topic = {"topic": f"go_{name}", "defaultTopic": "TBW102", "perm": 6}
            counts = {"readQueueNums": 2, "writeQueueNums": 2, "order": "false"}
            filters = {"topicFilterType": "SINGLE_TAG", "topicSysFlag": 0}
            made = client.ask(RequestCode.UPDATE_AND_CREATE_TOPIC, topic | counts | filters)
            assert made.code == 0, made.remark
    with RawClient(asked.name_server_address) as client:
        until(
            lambda: not client.ask(RequestCode.GET_ROUTEINFO_BY_TOPIC, {"topic": "go_retry"}).code,
            lambda: "the broker does not register",
            seconds=SETTLE_SECONDS,
        )


def _run(program: Path, asked: Broker, directory: Path) -> Output:
    done = run_process(
        [str(program), asked.name_server_address],
        cwd=directory,
        capture_output=True,
        timeout=PROGRAM_SECONDS_MAX,
    )
    assert done.returncode == 0, done.stdout + done.stderr[-2000:]
    lines = (line.split(" ", 2) for line in done.stdout.splitlines())
    return {f"{what} {topic}": " ".join(rest) for what, topic, *rest in lines if what != "error"}


@pytest.mark.parametrize("topic", TOPICS)
@pytest.mark.parametrize("what", ["sent", "got"])
def test_the_go_client_sees_at_both_brokers_the_same(
    what: str, topic: str, outputs: tuple[Output, Output]
) -> None:
    theirs, ours = outputs
    assert ours[f"{what} go_{topic}"] == theirs[f"{what} go_{topic}"]


def test_the_go_client_got_every_message(outputs: tuple[Output, Output]) -> None:
    _, ours = outputs
    everything = "[0 1 2 3 4 5 6 7]"
    for topic in ("sync", "async", "oneway", "batch", "retry"):
        assert ours[f"got go_{topic}"] == everything
    assert ours["got go_tags"] == "[0 2 3 5 6]"
    assert ours["got go_ordered"] == "map[0:[0 2 4 6] 1:[1 3 5 7]]"
