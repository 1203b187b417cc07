"""Our client beside two rivals, in turn: Apache's official Python client, and nats-py.

The official client goes through Apache's gRPC proxy to an Apache broker with ASYNC_FLUSH, its
default; ours talks to that very broker without a proxy. nats-py talks to NATS JetStream, which does
not fsync each message; ours to the bundled broker with fsync and without. Every client is a process
of its own that stays over all rounds; in a round each takes its turn while the others rest.

    python -m bench.client_rivals                     # everything
    python -m bench.client_rivals --small             # does it run? half a minute of load
    python -m bench.client_rivals --rivals nats
"""

import argparse
import contextlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, Self

from bench import raw_results
from bench.apache_rocketmq import ApacheRocketMQ
from bench.child_process import ChildError, end_by_input
from bench.java_programs import JarsUnreachable, missing_tools
from bench.quiet import wait_for_quiet, wait_until_idle
from bench.reliable_mq_broker import ReliableMQBroker
from bench.render import clients_table
from bench.rival_servers import RIVALS, ApacheProxy, NatsServer, missing_nats, rival_python

ROOT = Path(__file__).parent.parent
IN_FLIGHT = 64
THREADS = 16
SETTLE_SECONDS_MAX = 15.0
OFFICIAL_TOPIC = "official"


class Client:
    """A process that plays rounds: see `rival_rounds`. A context manager.

    Args:
        command: the process.
        log: where its errors go.
    """

    def __init__(self, command: Sequence[str], log: Path) -> None:
        self._errors = log.open("w")
        environment = {"PYTHONPATH": f"{ROOT / 'src'}{os.pathsep}{ROOT}", "HOME": str(log.parent)}
        self._child = subprocess.Popen(
            list(command),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            text=True,
            cwd=ROOT,
            env={**os.environ, **environment},
        )
        self._read()

    @property
    def pid(self) -> int:
        return self._child.pid

    def do(self, verb: str, **options: object) -> dict[str, Any]:
        """Have a verb done, and return its figures.

        Raises:
            ChildError: when the process ends instead.
        """
        assert self._child.stdin is not None
        self._child.stdin.write(json.dumps({"do": verb, **options}) + "\n")
        self._child.stdin.flush()
        return self._read()

    def _read(self) -> dict[str, Any]:
        assert self._child.stdout is not None
        # A line that is no object is something that a library says.
        for line in self._child.stdout:
            if line.startswith("{"):
                figures = json.loads(line)
                assert isinstance(figures, dict)
                return figures
        raise ChildError(f"{self._child.args!r} ended; its errors are in {self._errors.name}")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        end_by_input(self._child, 10)
        self._errors.close()


class Turn(NamedTuple):
    """What a side does in each round: the name of the row, the verb, and its options."""

    what: str
    verb: str
    options: Mapping[str, object]


class Side(NamedTuple):
    """A client, the processes that it keeps busy, and its turns."""

    name: str
    client: Client
    server_pids: list[int]
    turns: list[Turn]


class Sizes(NamedTuple):
    """How long a turn sends, and how many messages one consumes."""

    seconds: float
    backlog: int
    official_backlog: int


def our_turns(sizes: Sizes) -> list[Turn]:
    """What ours does at every broker."""
    return [
        Turn("one at a time", "one", {"seconds": sizes.seconds}),
        Turn("one thread", "thread", {"seconds": sizes.seconds}),
        Turn("64 in flight", "many", {"lanes": IN_FLIGHT, "seconds": sizes.seconds}),
        Turn("consumed", "push", {"backlog": sizes.backlog}),
    ]


def nats_turns(sizes: Sizes) -> list[Turn]:
    """What nats-py does: it may consume in either way, the better one counts."""
    return [
        Turn("one at a time", "one", {"seconds": sizes.seconds}),
        Turn("64 in flight", "many", {"lanes": IN_FLIGHT, "seconds": sizes.seconds}),
        Turn("consumed", "fetch", {"backlog": sizes.backlog}),
        Turn("consumed by push", "push", {"backlog": sizes.backlog}),
    ]


def official_turns(sizes: Sizes) -> list[Turn]:
    """What the official client does: it may have many under way in either of two ways."""
    return [
        Turn("one thread", "one", {"seconds": sizes.seconds}),
        Turn("16 threads", "threads", {"lanes": THREADS, "seconds": sizes.seconds}),
        Turn("64 futures", "futures", {"lanes": IN_FLIGHT, "seconds": sizes.seconds}),
        Turn("consumed", "receive", {"backlog": sizes.official_backlog}),
    ]


def our_side(
    name: str, broker: ApacheRocketMQ | ReliableMQBroker, directory: Path, sizes: Sizes
) -> Side:
    command = [sys.executable, "-m", "bench.rival_ours", broker.name_server_address]
    client = Client(command, directory / f"ours-{name}.log")
    return Side(f"ours, {name}", client, broker.pids, our_turns(sizes))


def made(directory: Path) -> Path:
    directory.mkdir()
    return directory


def with_apache(directory: Path, sizes: Sizes, stack: contextlib.ExitStack) -> list[Side]:
    """Start Apache's broker, its proxy, the official client, and ours beside it."""
    apache = ApacheRocketMQ(made(directory / "apache"), "ASYNC_FLUSH")
    stack.enter_context(apache)
    ours = our_side("Apache's broker", apache, directory, sizes)
    stack.enter_context(ours.client)
    ours.client.do("prepare")
    for topic in (OFFICIAL_TOPIC, f"{OFFICIAL_TOPIC}-backlog"):
        ours.client.do("fill", topic=topic, count=0)
    proxy = ApacheProxy(made(directory / "proxy"), apache.name_server_address)
    stack.enter_context(proxy)
    command = [rival_python(), "-m", "bench.rival_rocketmq", proxy.address, OFFICIAL_TOPIC]
    client = stack.enter_context(Client(command, directory / "official.log"))
    client.do("prepare")
    pids = [*apache.pids, *proxy.pids]
    return [Side("rocketmq-python-client", client, pids, official_turns(sizes)), ours]


def with_nats(directory: Path, sizes: Sizes, loop: str, stack: contextlib.ExitStack) -> list[Side]:
    """Start NATS, two bundled brokers, nats-py, and ours at each broker."""
    server = stack.enter_context(NatsServer(made(directory / "nats")))
    command = [rival_python(), "-m", "bench.rival_nats", server.url, "--loop", loop]
    client = stack.enter_context(Client(command, directory / "nats.log"))
    sides = [Side("nats-py", client, server.pids, nats_turns(sizes))]
    for name, flush in (("fsync", "SYNC_FLUSH"), ("ASYNC_FLUSH", "ASYNC_FLUSH")):
        broker = stack.enter_context(ReliableMQBroker(directory / flush, flush))
        sides.append(our_side(name, broker, directory, sizes))
        stack.enter_context(sides[-1].client)
    for side in sides:
        side.client.do("prepare")
    return sides


def play(
    sides: Sequence[Side], rounds: int, patience: float, fill: Client | None
) -> list[dict[str, Any]]:
    """Let the sides take turns, the first round not counting, and return what each came to."""
    found: list[dict[str, Any]] = []
    pids = [pid for side in sides for pid in (side.client.pid, *side.server_pids)]
    kinds = list(dict.fromkeys(turn.what for side in sides for turn in side.turns))
    for number in range(rounds + 1):
        for what in kinds:
            for side in sides:
                for turn in side.turns:
                    if turn.what != what:
                        continue
                    if turn.verb == "receive":
                        assert fill is not None
                        topic = f"{OFFICIAL_TOPIC}-backlog"
                        fill.do("fill", topic=topic, count=turn.options["backlog"])
                    wait_until_idle(pids, SETTLE_SECONDS_MAX)
                    wait_for_quiet(pids, patience)
                    figures = side.client.do(turn.verb, **turn.options)
                    line = {"round": number, "side": side.name, "what": what, **figures}
                    print(line, flush=True)
                    if number:
                        found.append(line)
    return found


def missing(rival: str) -> str | None:
    """Return what keeps a rival from running, as one sentence, or None."""
    return missing_tools() if rival == "official" else missing_nats()


def measure(
    rival: str, directory: Path, options: argparse.Namespace, sizes: Sizes
) -> list[dict[str, Any]]:
    """Measure one rival and ours, with their servers alone on the machine."""
    with contextlib.ExitStack() as stack:
        if rival == "official":
            sides = with_apache(directory, sizes, stack)
            return play(sides, options.rounds, options.patience, sides[1].client)
        sides = with_nats(directory, sizes, options.loop, stack)
        return play(sides, options.rounds, options.patience, None)


def main() -> int:
    parser = argparse.ArgumentParser(description="Our client beside two rivals.")
    names = ["official", "nats"]
    parser.add_argument("--rivals", nargs="+", choices=names, default=names)
    parser.add_argument("--rounds", type=int, default=5, help="that count; one more comes first")
    parser.add_argument("--seconds", type=float, default=5.0, help="of sending in a turn")
    parser.add_argument("--backlog", type=int, default=60_000, help="messages consumed in a turn")
    parser.add_argument("--official-backlog", type=int, default=2_500, help="for the slower rival")
    parser.add_argument("--loop", choices=["asyncio", "uvloop"], default="uvloop", help="nats-py's")
    parser.add_argument("--patience", type=float, default=0.0, help="seconds to wait for quiet")
    parser.add_argument("--small", action="store_true", help="a round of next to nothing")
    options = parser.parse_args()
    if options.small:
        options.rounds, options.seconds = 1, 1.0
        options.backlog, options.official_backlog = 3_000, 200
    sizes = Sizes(options.seconds, options.backlog, options.official_backlog)
    directory = Path(tempfile.mkdtemp(prefix="reliable-mq-rivals-"))
    print(f"logs are in {directory} until it has gone well")
    for rival in options.rivals:
        if (reason := missing(rival)) is not None:
            print(f"{rival} is left out, {reason}")
            continue
        try:
            found = measure(rival, made(directory / rival), options, sizes)
        except JarsUnreachable as unreachable:
            print(f"{rival} is left out: {unreachable}")
            continue
        settings = {**sizes._asdict(), "rounds": options.rounds, "loop": options.loop}
        settings |= {"versions": " ".join(RIVALS[:2])}
        results = raw_results.of_now(f"clients-{rival}", settings, found)
        if not options.small:
            print(f"raw results: {raw_results.write(results)}")
        print(clients_table(results))
    shutil.rmtree(directory)
    return 0


if __name__ == "__main__":
    sys.exit(main())
