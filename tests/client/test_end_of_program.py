"""Programs end, whatever handlers do and whenever a client is closed."""

import subprocess
import sys

import pytest
from tests.client.servers import FeedingPeer, Servers
from tests.waiting import SECONDS_MAX, run_process

from reliable_mq.wire.record import Record

pytestmark = pytest.mark.processes

A_HANDLER_HANGS = """
import sys, threading
from reliable_mq import Client, ClientSettings, Subscription

hangs = threading.Event()
settings = ClientSettings(close_timeout_seconds=0.05)

def handle(messages):
    hangs.set()
    threading.Event().wait()

with Client(sys.argv[1], settings=settings) as client:
    client.consume(Subscription(group="g", topics={"t": "*"}, ordered=False), handle)
    hangs.wait()
print("the end")
"""
CLOSED_BY_THE_INTERPRETER = """
import sys
from reliable_mq import Client, Message

class Publisher:
    def __init__(self):
        self.client = Client(sys.argv[1])
        self.client.start()

    def __del__(self):
        for verb in (self.client.send, self.client.send_async, batcher.put):
            try:
                verb(Message(topic="t", body=b"too late"))
            except Exception as error:
                print(error)
        self.client.close()

publisher = Publisher()
publisher.client.send(Message(topic="t", body=b"in time"))
batcher = publisher.client.batcher()
"""


def run(program: str, servers: Servers) -> subprocess.CompletedProcess[str]:
    """Run a program to its end."""
    command = [sys.executable, "-c", program, servers.address]
    return run_process(command, check=True, timeout=SECONDS_MAX, capture_output=True)


def test_a_program_ends_though_a_handler_hangs_for_ever() -> None:
    with Servers(FeedingPeer([Record(topic="t", body=b"1")])) as servers:
        ended = run(A_HANDLER_HANGS, servers)
    assert ended.stdout == "the end\n"
    assert "1 handler calls did not end within 0.05 s" in ended.stderr


def test_who_uses_a_client_while_the_interpreter_ends_is_told_that_and_does_not_hang() -> None:
    with Servers() as servers:
        ended = run(CLOSED_BY_THE_INTERPRETER, servers)
        assert servers.broker.bodies == [b"in time"]
    assert ended.stdout.count("the interpreter is ending") == 3
    assert "the interpreter is ending" in ended.stderr  # of close
