"""Apache's official clients tell the same stories at Apache's proxy and at ours."""

import json
import os
import shutil
import subprocess
from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from bench.child_process import ChildError
from bench.java_programs import SDK_JARS, build_sdk, java_command
from bench.rival_servers import rival_python
from tests.interop.sdk_servers import ENDPOINTS, Endpoint, running
from tests.waiting import until
from tests.with_java import INTEROP, skipped_without_java

from reliable_mq.wire.codes import RequestCode, ResponseCode

pytestmark = INTEROP

STORIES = Path(__file__).parent / "sdk"
STORY_SECONDS = 150
BUILT = Path(__file__).parents[2] / "build" / "sdk"
NODE_CLIENT = "rocketmq-client-nodejs@1.0.8"
LANGUAGES = ("python", "java", "go", "node")
_numbers = count(1)
OWN_LIMITS: dict[tuple[str, str], str] = {
    ("test_messages_of_a_group_keep_their_order", "node"): (
        f"{NODE_CLIENT} does not try a failed message of a group again."
    ),
    ("test_messages_of_a_group_keep_their_order", "go"): (
        "The client for Go, 5.1.4, goes on with the same receive when a message has failed, and"
        " tries it later. So here each message is sent when the one before was seen."
    ),
}
"""What a client cannot do at Apache's proxy either, by the name of the test and the language."""


@pytest.fixture(scope="module")
def endpoints(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Endpoint]]:
    with running(tmp_path_factory.mktemp("endpoints")) as found:
        yield found


def _command(language: str, home: Path) -> list[str]:
    """Return what plays a story in a language; it is installed then, or the test is skipped."""
    try:
        return {"python": _python, "node": _node, "go": _go}[language]()
    except KeyError:
        return _java(home)
    except ChildError as error:
        pytest.skip(f"the official client cannot be installed: {error}")


def _python() -> list[str]:
    return [rival_python(), str(STORIES / "stories.py")]


def _java(home: Path) -> list[str]:
    with skipped_without_java():
        build_sdk()
    flags = ("-Xmx256m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1")
    program = str(STORIES / "Stories.java")
    return java_command(program, class_path=f"{SDK_JARS}/*", home=home, flags=flags)


def _node() -> list[str]:
    packages = BUILT / "node"
    if not (packages / "installed").exists():
        packages.mkdir(parents=True, exist_ok=True)
        _made(["npm", "install", "--silent", "--no-audit", "--no-fund", NODE_CLIENT], packages)
        (packages / "installed").touch()
    program = packages / "stories.js"  # it finds its packages beside it
    program.write_text((STORIES / "stories.js").read_text())
    return ["node", str(program)]


def _go() -> list[str]:
    program = BUILT / "go-stories"
    BUILT.mkdir(parents=True, exist_ok=True)
    _made(["go", "build", "-o", str(program), "."], STORIES / "go")
    return [str(program)]


def _made(command: list[str], directory: Path) -> None:
    if shutil.which(command[0]) is None:
        raise ChildError(f"not installed: {command[0]}")
    run = subprocess.run(command, cwd=directory, capture_output=True, text=True, check=False)
    if run.returncode:
        raise ChildError(f"{command}: {run.stderr[-1000:]}")


class Teller(NamedTuple):
    """Plays stories in one language at one endpoint."""

    language: str
    endpoint: Endpoint
    home: Path

    def told(
        self,
        story: str,
        kind: str = "NORMAL",
        *,
        is_orderly: bool = False,
        retries: int = 16,
        meanwhile: Callable[[str, str], None] = lambda _topic, _group: None,
    ) -> Any:
        """Play a story with a topic and a group of its own; return what the application saw.

        Args:
            story: its name.
            kind: what messages the topic takes.
            is_orderly: whether the group gets messages in their order.
            retries: of the group.
            meanwhile: is called with the topic and the group; then the input of the story ends.
        """
        mark = f"{story}-{self.language}-{self.endpoint.name}-{next(_numbers)}"
        topic, group = f"topic-{mark}", f"group-{mark}"
        self.endpoint.make_topic(topic, kind)
        for each in (group, f"{group}-sql"):
            self.endpoint.make_group(each, is_orderly=is_orderly, retries=retries)
        words, variables = [self.endpoint.address, story, topic, group], dict(os.environ)
        if (security := self.endpoint.security) is not None:
            words += (security.user, security.secret)
            variables["GRPC_DEFAULT_SSL_ROOTS_FILE_PATH"] = str(security.authority)
        play = subprocess.Popen(
            [*_command(self.language, self.home), *words],
            env=variables,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        try:
            meanwhile(topic, group)
            output, errors = play.communicate(timeout=STORY_SECONDS)
        finally:
            play.kill()
        lines = [each for each in output.splitlines() if each.startswith("RESULT ")]
        assert lines, f"{output[-2000:]}\n{errors[-4000:]}"
        return json.loads(lines[0].removeprefix("RESULT "))


@pytest.fixture(params=LANGUAGES)
def language(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(params=ENDPOINTS)
def teller(
    request: pytest.FixtureRequest, language: str, endpoints: dict[str, Endpoint], tmp_path: Path
) -> Teller:
    endpoint = endpoints[request.param]
    if not endpoint.has_pop:
        pytest.skip("the broker has no POP")
    return Teller(language, endpoint, tmp_path)


class TestStories:
    """Each is played at Apache's proxy first, which says what is right."""

    def test_messages_are_sent_received_and_acknowledged(self, teller: Teller) -> None:
        result = teller.told("simple")
        assert result["seen"] == [
            {
                "number": number,
                "body": f"body {number}",
                "tag": f"tag{number % 2}",
                "keys": ["all", f"key{number}"],
                "shop": f"shop {number}",
                "attempt": 1,
                "corrupted": False,
            }
            for number in range(10)
        ]
        assert result["left"] == 0

    def test_a_message_comes_back_when_its_invisible_time_is_over(self, teller: Teller) -> None:
        result = teller.told("change")
        assert (result["same"], result["attempts"], result["left"]) == (True, [1, 2], 0)
        assert 2 <= result["seconds"] < 15

    def test_a_push_consumer_gets_a_failed_message_again(self, teller: Teller) -> None:
        expected = sorted([*((f"body {number}", 1) for number in range(10)), ("body 3", 2)])
        assert teller.told("push")["seen"] == [list(each) for each in expected]

    def test_messages_of_a_group_keep_their_order(self, teller: Teller) -> None:
        seen = teller.told("fifo", "FIFO", is_orderly=True)["seen"]
        again = () if teller.language == "node" else (2,)  # see OWN_LIMITS
        expected = (0, 1, 2, *again, 3, 4, 5)
        assert seen == [f"body {number}" for number in expected]

    def test_a_delayed_message_is_late_and_a_recalled_one_never_comes(self, teller: Teller) -> None:
        result = teller.told("delay", "DELAY")
        assert (result["bodies"], result["recalled"], result["left"]) == (["body 1"], True, [])
        assert result["seconds"] >= 3

    def test_transactions_end_as_the_producer_says_also_when_the_broker_asks(
        self, teller: Teller
    ) -> None:
        result = teller.told("transaction", "TRANSACTION")
        assert result == {"bodies": ["body 1", "body 3"], "asked": ["body 3"], "left": 0}

    def test_filters_let_through_what_they_say(self, teller: Teller) -> None:
        result = teller.told("filters")
        assert result == {
            "tagged": ["body 0", "body 2", "body 3"],
            "sized": ["body 12", "body 13"],
        }

    def test_a_message_that_always_fails_comes_as_often_as_its_group_allows(
        self, teller: Teller
    ) -> None:
        def buried(_topic: str, group: str) -> None:
            dead = f"%DLQ%{group}"
            until(lambda: teller.endpoint.end_of(dead) == 1, look_seconds=0.2)

        assert teller.told("dead", retries=1, meanwhile=buried)["attempts"] == [1, 2]


STACKS = {"java": "STATE: ", "go": "goroutine", "node": "mock stack", "python": ""}
"""What is in the stacks of each client; "": it leaves the command unanswered."""


def test_tools_ask_a_consumer_of_our_broker(
    language: str, endpoints: dict[str, Endpoint], tmp_path: Path
) -> None:
    """Apache's proxy of a cluster passes no questions on: it says "not implement yet"."""
    endpoint = endpoints["ours"]

    def asked(topic: str, group: str) -> None:
        connections = RequestCode.GET_CONSUMER_CONNECTION_LIST
        until(lambda: endpoint.ask(connections, consumerGroup=group).code == 0)
        answer = endpoint.ask(connections, consumerGroup=group)
        (member,) = json.loads(answer.body)["connectionSet"]
        named = {"consumerGroup": group, "clientId": member["clientId"]}
        answer = endpoint.ask(RequestCode.GET_CONSUMER_RUNNING_INFO, **named, jstackEnable="true")
        if not STACKS[language]:
            assert answer.code == ResponseCode.CONSUME_MSG_TIMEOUT
            return
        assert STACKS[language] in json.loads(answer.body)["jstack"]
        until(lambda: endpoint.first_message(topic))
        answer = endpoint.ask(
            RequestCode.CONSUME_MESSAGE_DIRECTLY, **named, msgId=endpoint.first_message(topic)
        )
        if language == "java":  # its listener fails each time
            assert json.loads(answer.body)["consumeResult"] == "CR_LATER"
        else:  # Go 5.1.4: NOT_IMPLEMENTED; Node.js 1.0.8: no result
            assert answer.code != 0

    assert Teller(language, endpoint, tmp_path).told("dead", meanwhile=asked)["attempts"]
