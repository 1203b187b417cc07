"""SIGKILL the broker, and consumers, again and again under Apache's official SDK for Java.

A producer sends numbered messages, each once, and two simple consumers acknowledge them, all over
gRPC. The broker and the consumers are killed in a random order. At the end:

- lost: a message whose send was confirmed, and that no consumer ever got. There must be none.
- came again: a message that a consumer got after its acknowledgement was confirmed. Apache's broker
  saves the offsets of groups every five seconds, and reads its records of pops again from an offset
  that is as old. So after a SIGKILL it hands out again what was popped in the five seconds before.
  Its answer to an acknowledgement is a success even if the record of it was not stored.
  Ours must bring back none: also if the consumer, or the broker, was killed right after the answer.

    python -m bench.kill_sdk --kills 20 --consumer-kills 50 --seed 7
    python -m bench.kill_sdk --kills 2 --consumer-kills 3          # two minutes
    python -m bench.kill_sdk --kills 3 --consumer-kills 5 --broker apache
"""

import argparse
import asyncio
import contextlib
import random
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from bench.apache_rocketmq import ApacheRocketMQ
from bench.child_process import ChildError, LoggedProcess
from bench.java_programs import JAVA_DIRECTORY, SDK_JARS, build_sdk, java_command, missing_tools
from bench.kill_runs import EXAMPLES_MAX, GrowingLines, run_all
from bench.reliable_mq_broker import ReliableMQBroker
from bench.rival_servers import ApacheProxy
from bench.sdk_tables import kill_sdk_table
from reliable_mq import AsyncClient

TOPIC, GROUP = "kill-sdk", "killed"
QUEUES = 8
SENDERS, RECEIVERS = 4, 4  # threads of a process
SEND_PAUSE_MS = 4
CONSUMERS = 2
SENT_BEFORE_KILL = (200, 1500)
ACKED_BEFORE_KILL = (50, 600)
READY_SECONDS = 60.0
DRAIN_SECONDS_MAX = 120.0
FLAGS = ("-Xmx256m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1")


@dataclass(slots=True)
class SdkKillReport:
    """What the kills did. `violations` is empty when the broker kept its promise."""

    broker: str
    kills: int = 0
    consumer_kills: int = 0
    sent: int = 0
    received: int = 0
    acknowledged: int = 0
    lost: int = 0
    came_again: int = 0
    restart_seconds: list[float] = field(default_factory=list)
    violations: list[str] = field(default_factory=list)


class Noted:
    """What clients have noted, each in its file.

    Args:
        sent: the file of the producer.
        consumers: those of the consumers.
    """

    def __init__(self, sent: Path, consumers: list[Path]) -> None:
        self.sent = {number for _, number, _ in _lines(sent)}
        self.got: list[tuple[int, int]] = []
        self.acked: dict[int, int] = {}
        for what, number, at in sorted(
            (line for file in consumers for line in _lines(file)), key=lambda line: line[2]
        ):
            if what == "got":
                self.got.append((number, at))
            else:
                self.acked.setdefault(number, at)

    def lost(self) -> list[int]:
        """Return what was confirmed and never came."""
        return sorted(self.sent - {number for number, _ in self.got})

    def came_again(self) -> list[int]:
        """Return what came after its acknowledgement was confirmed."""
        return [number for number, at in self.got if at > self.acked.get(number, at)]


def _lines(file: Path) -> Iterator[tuple[str, int, int]]:
    """Yield finished lines."""
    if file.exists():
        for line in file.read_text().splitlines(keepends=True):
            if line.endswith("\n"):
                what, number, at = line.split()
                yield what, int(number), int(at)


class OurSide:
    """Our broker with its gRPC endpoint."""

    def __init__(self, directory: Path, stack: contextlib.ExitStack) -> None:
        self._broker = ReliableMQBroker(directory / "ours", has_grpc=True)
        self._broker.start()
        stack.callback(self._broker.kill)
        self.endpoint = self._broker.grpc_address
        self.name_servers = self._broker.name_server_address

    def kill(self) -> None:
        """SIGKILL."""
        self._broker.kill()

    def start(self) -> None:
        """Start again, on the same ports."""
        self._broker.start()


class ApacheSide:
    """Apache's broker, behind its proxy, which lives on."""

    def __init__(self, directory: Path, stack: contextlib.ExitStack) -> None:
        (directory / "apache").mkdir()
        (directory / "proxy").mkdir()
        self._broker = ApacheRocketMQ(directory / "apache", "SYNC_FLUSH")
        self._broker.start()
        stack.callback(self._broker.kill)
        self.name_servers = self._broker.name_server_address
        proxy = ApacheProxy(directory / "proxy", self.name_servers)
        stack.enter_context(proxy)
        self.endpoint = proxy.address

    def kill(self) -> None:
        """SIGKILL."""
        self._broker.broker.kill()

    def start(self) -> None:
        """Start again, on the same ports."""
        self._broker.start_broker()


SIDES: dict[str, type[OurSide] | type[ApacheSide]] = {"ours": OurSide, "apache": ApacheSide}


class Clients:
    """The processes of the SDK, and their files.

    Args:
        directory: for everything.
        endpoint: where they connect.
    """

    def __init__(self, directory: Path, endpoint: str, stack: contextlib.ExitStack) -> None:
        self._directory, self._endpoint = directory, endpoint
        self._classes = directory / "classes"
        self._starts = 0
        self._compile()
        self.sent_file = directory / "sent"
        self.sent = GrowingLines(self.sent_file)
        self.producer = self._start("send", self.sent_file, SENDERS, SEND_PAUSE_MS)
        stack.callback(self.producer.kill)
        self.consumers: list[LoggedProcess] = []
        self.files: list[Path] = []
        self.noted: list[GrowingLines] = []
        stack.callback(self._kill_consumers)
        for at in range(CONSUMERS):
            self.start_consumer(at)

    def _kill_consumers(self) -> None:
        for each in self.consumers:
            each.kill()

    def _compile(self) -> None:
        source = JAVA_DIRECTORY / "sdk" / "SdkKills.java"
        words = ["javac", "-cp", f"{SDK_JARS}/*", "-d", str(self._classes), str(source)]
        reply = subprocess.run(words, capture_output=True, text=True, check=False)
        if reply.returncode:
            raise ChildError(reply.stderr[-2000:])

    def _start(self, verb: str, file: Path, threads: int, pause_ms: int) -> LoggedProcess:
        self._starts += 1
        path = f"{self._classes}:{SDK_JARS}/*"
        command = java_command("SdkKills", class_path=path, home=self._directory, flags=FLAGS)
        words = [verb, self._endpoint, TOPIC, GROUP, str(file), str(threads), str(pause_ms)]
        log = self._directory / f"{verb}-{self._starts}.log"
        process = LoggedProcess([*command, *words], log)
        process.wait_for("ready", READY_SECONDS)
        return process

    def start_consumer(self, at: int) -> None:
        """Start a consumer in a place, the first or again."""
        file = self._directory / f"received-{self._starts}"
        process = self._start("receive", file, RECEIVERS, 0)
        if at == len(self.consumers):
            self.consumers.append(process)
            self.noted.append(GrowingLines(file))
        else:
            self.consumers[at], self.noted[at] = process, GrowingLines(file)
        self.files.append(file)

    def wait_for_load(self, rng: random.Random, victim: int) -> None:
        """Return when messages flow: to the broker, and to the consumer that may be killed."""
        lines = self.noted[victim]
        lines.wait_for(lines.refresh() + rng.randint(*ACKED_BEFORE_KILL), self.consumers[victim])
        wanted = self.sent.refresh() + rng.randint(*SENT_BEFORE_KILL)
        self.sent.wait_for(wanted, self.producer)

    def drain(self) -> None:
        """Send no more, and wait until all that was confirmed has been acknowledged."""
        self.producer.kill()
        deadline = time.monotonic() + DRAIN_SECONDS_MAX
        while time.monotonic() < deadline:
            noted = Noted(self.sent_file, self.files)
            if noted.sent <= noted.acked.keys():
                break
            time.sleep(1.0)
        time.sleep(15.0)  # what comes again has come after the invisible time


async def _make_topic(name_servers: str) -> None:
    async with AsyncClient(name_servers) as client:
        await client.create_topic(TOPIC, QUEUES)


def kill_repeatedly(
    directory: Path, kills: int, consumer_kills: int, seed: int, broker: str
) -> SdkKillReport:
    """Run the whole measurement in `directory` and return its report.

    Raises ChildError when a process does not start again, or messages do not flow any more.
    """
    rng = random.Random(seed)
    report = SdkKillReport(broker)
    victims = ["broker"] * kills + ["consumer"] * consumer_kills
    rng.shuffle(victims)
    with contextlib.ExitStack() as stack:
        side = SIDES[broker](directory, stack)
        asyncio.run(_make_topic(side.name_servers))
        clients = Clients(directory, side.endpoint, stack)
        for victim in victims:
            at = rng.randrange(CONSUMERS)
            clients.wait_for_load(rng, at)
            if victim == "broker":
                side.kill()
                killed = time.monotonic()
                side.start()
                report.restart_seconds.append(round(time.monotonic() - killed, 3))
                report.kills += 1
            else:
                clients.consumers[at].kill()
                clients.start_consumer(at)
                report.consumer_kills += 1
            print(f"{victim} killed, {clients.sent.refresh():,} confirmed", flush=True)
        clients.wait_for_load(rng, 0)
        clients.drain()
        noted = Noted(clients.sent_file, clients.files)
    return judged(report, noted)


def judged(report: SdkKillReport, noted: Noted) -> SdkKillReport:
    """Write into a report what clients have noted."""
    lost, again = noted.lost(), noted.came_again()
    report.sent, report.received = len(noted.sent), len(noted.got)
    report.acknowledged = len(noted.acked)
    report.lost, report.came_again = len(lost), len(again)
    if lost:
        report.violations.append(f"{len(lost)} messages are lost, such as {lost[:EXAMPLES_MAX]}")
    if again and report.broker == "ours":
        most = Counter(again).most_common(EXAMPLES_MAX)
        report.violations.append(f"{len(again)} came after their acknowledgement, such as {most}")
    return report


def main() -> int:
    parser = argparse.ArgumentParser(description="SIGKILL broker and consumers under the SDK.")
    parser.add_argument("--kills", type=int, default=20, help="of the broker")
    parser.add_argument("--consumer-kills", type=int, default=50)
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(10**6))
    parser.add_argument("--broker", choices=SIDES, default="ours")
    options = parser.parse_args()
    if reason := missing_tools():
        print(reason, file=sys.stderr)
        return 2
    build_sdk()
    run = partial(
        kill_repeatedly,
        kills=options.kills,
        consumer_kills=options.consumer_kills,
        seed=options.seed,
        broker=options.broker,
    )
    return run_all("kills-sdk", options, {options.broker: run}, kill_sdk_table)


if __name__ == "__main__":
    sys.exit(main())
