"""A well-behaved client, while others are not: what it asks must be answered soon.

It runs in a process of its own. A delay is counted in processor time of the server's loop, less the
time that this process itself had to wait for a processor: so a busy machine delays nothing.
Run as a program: `python -m tests.fuzz.bystander BROKER PID NAMESRV PID ENTRY`. It ends with its
input, and prints what it has seen as JSON.
"""

import select
import socket
import struct
import sys

import msgspec
from tests.fuzz.entry import Entry
from tests.fuzz.served_process import loop_nanoseconds, memory_of, waited_nanoseconds
from tests.waiting import Budget

from reliable_mq.wire.codes import RequestCode
from reliable_mq.wire.command import request

TOPIC = "bystanders"
GROUP = "bystanders"
_PAUSE_SECONDS = 0.002
_ANSWER_SECONDS = 30.0  # of an idle machine


class Seen(msgspec.Struct):
    """What a bystander has seen.

    `delay_seconds` is the longest, and `delayed` what was asked then. `memory` is the most that the
    servers had together, in bytes. `fault` says what was not answered.
    """

    asked: int = 0
    delay_seconds: float = 0.0
    delayed: str = ""
    memory: int = 0
    fault: str = ""


class _Server:
    """One connection to a server."""

    def __init__(self, address: str, pid: int, entry: Entry) -> None:
        host, _, port = address.rpartition(":")
        self.pid = pid
        self._socket = entry.opened(socket.create_connection((host, int(port))))

    def ask(self, frame: bytes) -> float:
        """Ask, and return for how many seconds the server worked before its answer came.

        Raises:
            OSError: when no answer comes.
        """
        waited, began = waited_nanoseconds(), loop_nanoseconds(self.pid)
        self._socket.sendall(frame)
        budget = Budget(_ANSWER_SECONDS)
        data = b""
        while len(data) < 4 or len(data) < 4 + struct.unpack_from(">i", data)[0]:
            self._socket.settimeout(1.0)
            try:
                part = self._socket.recv(65536)
            except TimeoutError:
                if not budget.is_left():
                    raise
                continue
            if not part:
                raise ConnectionResetError("the connection was closed")
            data += part
        worked = loop_nanoseconds(self.pid) - began
        return max(0, worked - (waited_nanoseconds() - waited)) / 1e9


def _questions(entry: Entry) -> list[tuple[bool, str, bytes]]:
    """Return what is asked in turn: whether of the broker, its name, the frame."""
    queue = {"consumerGroup": GROUP, "topic": TOPIC, "queueId": "0"}
    pull = {
        **queue,
        "queueOffset": "0",
        "maxMsgNums": "1",
        "sysFlag": "4",
        "commitOffset": "0",
        "suspendTimeoutMillis": "0",
        "subscription": "*",
        "subVersion": "0",
    }
    asked = [
        (True, RequestCode.QUERY_CONSUMER_OFFSET, queue),
        (True, RequestCode.PULL_MESSAGE, pull),
        (False, RequestCode.GET_ROUTEINFO_BY_TOPIC, {"topic": TOPIC}),
    ]
    return [(broker, code.name, entry.encoded(request(code, ext))) for broker, code, ext in asked]


def watch(broker: _Server, name_server: _Server, entry: Entry) -> Seen:
    """Ask one thing after another until the input ends."""
    seen, questions = Seen(), _questions(entry)
    pids = {broker.pid, name_server.pid}
    name = ""
    try:
        is_over = False
        while not is_over:
            for is_brokers, name, frame in questions:
                delay = (broker if is_brokers else name_server).ask(frame)
                seen.asked += 1
                if delay > seen.delay_seconds:
                    seen.delay_seconds, seen.delayed = delay, name
                seen.memory = max(seen.memory, sum(map(memory_of, pids)))
                is_over = bool(select.select([sys.stdin], [], [], _PAUSE_SECONDS)[0])
    except OSError as error:
        seen.fault = f"{name}: {error or type(error).__name__}"
    return seen


def main() -> None:
    """Watch the servers of the command line."""
    address, pid, name_address, name_pid, text = sys.argv[1:]
    entry = msgspec.json.decode(text, type=Entry)
    broker = _Server(address, int(pid), entry)
    name_server = _Server(name_address, int(name_pid), entry)
    print("ready", flush=True)
    print(msgspec.json.encode(watch(broker, name_server, entry)).decode(), flush=True)


if __name__ == "__main__":
    main()
