"""The rights that the page on access control gives to a reader are enough to consume one topic."""

import json
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest
from bench.reliable_mq_broker import ReliableMQBroker
from tests.access.access_world import ON, ROOT, SECRET
from tests.waiting import until

from reliable_mq import Client, ClientSettings, Message, ReceivedMessage, Reject, Subscription
from reliable_mq.client.connecting.security import Credentials

PAGE = Path(__file__).parents[2] / "docs" / "how-to" / "access_control.md"
HEADING = "### The least rights: an account that only reads one topic\n"
READER = "a secret of the reader"
pytestmark = pytest.mark.processes


def test_an_account_that_reads_one_topic_stores_its_dead_letter_with_the_reason(
    tmp_path: Path,
) -> None:
    part = PAGE.read_text().partition(HEADING)[2]
    lines = re.findall(r"^reliable-mq (access .*)$", part.partition("\n#")[0], re.MULTILINE)
    assert len(lines) == 2
    (tmp_path / "books.secret").write_text(READER)

    def settings(user: str, secret: str) -> ClientSettings:
        return ClientSettings(credentials=Credentials(access_key=user, secret_key=secret))

    def refuse(messages: Sequence[ReceivedMessage]) -> Reject:
        return Reject(f"nobody wants {messages[0].body.decode()}")

    with ReliableMQBroker(tmp_path / "broker", settings=ON) as broker:
        variables = {
            **os.environ,
            "RELIABLE_MQ_BROKER": broker.name_server_address,
            "RELIABLE_MQ_ACCESS_KEY": ROOT,
            "RELIABLE_MQ_SECRET_KEY": SECRET,
        }

        def said(line: str) -> str:
            words = [sys.executable, "-m", "reliable_mq.cli.main", *shlex.split(line)]
            return subprocess.run(
                words, env=variables, cwd=tmp_path, check=True, capture_output=True, text=True
            ).stdout

        with Client(broker.name_server_address, settings=settings(ROOT, SECRET)) as root:
            root.create_topic("orders", 4)
            root.send(Message(topic="orders", body=b"order 7"))
        for line in lines:
            said(line)
        with Client(broker.name_server_address, settings=settings("books", READER)) as books:
            books.consume(Subscription(group="books", topics={"orders": "*"}), refuse)

            def reasons() -> list[str]:
                found = json.loads(
                    said("dlq list --group books --json --broker " + broker.name_server_address)
                )
                return [each["reason"] for each in found]

            until(lambda: reasons() == ["nobody wants order 7"], look_seconds=0.5)
        log = (broker.directory / "broker-1.log").read_text()
    assert "is refused" not in log, "the account has all that a consumer needs"
