"""Apache's official SDKs of version 5 at Apache's broker and proxy, and at ours, in one run.

Each SDK sends by 1 and by 16 threads, and receives and acknowledges with a simple consumer. Every
client is a process that stays over all rounds; the two sides take turns, and each begins as often
as the other. Apache's servers still get faster while they are measured, so few turns would show
them slower than they are. A third endpoint stores nothing and answers at once (`sdk_ceiling`):
what an SDK reaches there is the most that it can do on this machine. The table says which share of
it ours reaches, and which share the bar is. Also measured: processor time of the servers for each
message, the memory of all server processes, and the time from their start until they are ready.

    python -m bench.sdk_throughput                     # Java and Python
    python -m bench.sdk_throughput --sdks java --small # does it run?
    python -m bench.sdk_throughput --proxy local       # Apache's broker and proxy in one process
"""

import argparse
import contextlib
import shutil
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from bench import raw_results
from bench.apache_rocketmq import ApacheRocketMQ
from bench.client_rivals import Client, made
from bench.java_programs import JAVA_DIRECTORY, SDK_JARS, build_sdk, java_command, missing_tools
from bench.quiet import resident_mib, used_seconds, wait_until_idle
from bench.reliable_mq_broker import ReliableMQBroker
from bench.rival_servers import RIVALS, ApacheInOne, ApacheProxy, rival_python
from bench.sdk_ceiling import SdkCeiling
from bench.sdk_tables import sdk_table
from bench.send_ceiling import missing_compiler
from bench.send_throughput import pin_to_two_cores
from bench.table_text import OURS

SDKS = ("java", "python")
JAVA_SDK = "rocketmq-client-java 5.2.0"
SETTLE_SECONDS_MAX = 10.0
JAVA_FLAGS = ("-Xms512m", "-Xmx1g", "-XX:+UseParallelGC")
RECEIVERS = {"java": 16, "python": 1}
"""Threads that receive: the official Python consumer is held up by its own process with one."""


class Side(NamedTuple):
    """Servers that run, and where clients find them."""

    name: str
    endpoint: str
    name_servers: str
    pids: list[int]
    start_seconds: float


class Turn(NamedTuple):
    """One line of the table."""

    what: str
    verb: str
    options: dict[str, Any]
    bar: float


def turns(sdk: str, seconds: float, backlog: int) -> list[Turn]:
    """Return what an SDK does in each round."""
    lanes = RECEIVERS[sdk]
    threads = "1 thread" if lanes == 1 else f"{lanes} threads"
    more: dict[str, Any] = {"lanes": lanes} if lanes > 1 else {}
    return [
        Turn("send, 1 thread", "threads", {"lanes": 1, "seconds": seconds}, 2.0),
        Turn("send, 16 threads", "threads", {"lanes": 16, "seconds": seconds}, 1.5),
        Turn(f"receive + ack, {threads}", "receive", {**more, "backlog": backlog}, 2.0),
    ]


def start_apache(directory: Path, options: argparse.Namespace, stack: contextlib.ExitStack) -> Side:
    """Start Apache's servers, one after the other, as each needs the one before."""
    begun = time.monotonic()
    if options.proxy == "local":
        both = stack.enter_context(ApacheInOne(made(directory / "apache"), options.flush))
        took = time.monotonic() - begun
        return Side(both.label, both.endpoint, both.name_server_address, both.pids, took)
    apache = stack.enter_context(ApacheRocketMQ(made(directory / "apache"), options.flush))
    proxy = ApacheProxy(made(directory / "proxy"), apache.name_server_address)
    stack.enter_context(proxy)
    took = time.monotonic() - begun
    pids = [*proxy.pids, *apache.pids]
    return Side(apache.label, proxy.address, apache.name_server_address, pids, took)


@contextlib.contextmanager
def running(directory: Path, options: argparse.Namespace) -> Iterator[list[Side]]:
    """Run the servers of both sides."""
    with contextlib.ExitStack() as stack:
        theirs = start_apache(directory, options, stack)
        begun = time.monotonic()
        ours = ReliableMQBroker(made(directory / "ours"), options.flush, has_grpc=True)
        stack.enter_context(ours)
        took, names = time.monotonic() - begun, ours.name_server_address
        yield [theirs, Side(OURS, ours.grpc_address, names, ours.pids, took)]


def sdk_client(sdk: str, side: Side, directory: Path) -> Client:
    """Start an SDK's client of a side."""
    topic = f"sdk-{sdk}"
    if sdk == "python":
        command = [rival_python(), "-m", "bench.rival_rocketmq", side.endpoint, topic]
    else:
        program = str(JAVA_DIRECTORY / "sdk" / "SdkLoad.java")
        words = java_command(program, class_path=f"{SDK_JARS}/*", home=directory, flags=JAVA_FLAGS)
        command = [*words, side.endpoint, topic]
    return Client(command, directory / f"{sdk}.log")


class Players(NamedTuple):
    """A side, its SDK client, and what fills its topics; None: it needs no messages."""

    side: Side
    client: Client
    filler: Client | None
    backlog_topic: str


def take_turn(players: Players, turn: Turn) -> dict[str, Any]:
    """Let one side do one thing; return its figures."""
    if turn.verb == "receive" and players.filler is not None:
        players.filler.do("fill", topic=players.backlog_topic, count=turn.options["backlog"])
    wait_until_idle(players.side.pids, SETTLE_SECONDS_MAX)
    used = used_seconds(players.side.pids)
    own = used_seconds([players.client.pid])
    figures = players.client.do(turn.verb, **turn.options)
    count = max(1, figures["count"])
    used, own = used_seconds(players.side.pids) - used, used_seconds([players.client.pid]) - own
    return {
        "broker": players.side.name,
        "what": turn.what,
        "bar": turn.bar,
        **figures,
        "server_us": round(used / count * 1e6, 1),
        "client_us": round(own / count * 1e6, 1),
    }


def start_ceiling(directory: Path, sdk: str, stack: contextlib.ExitStack) -> Side:
    """Start the endpoint that stores nothing."""
    begun = time.monotonic()
    ceiling = stack.enter_context(SdkCeiling(directory / f"{sdk}-ceiling", f"sdk-{sdk}"))
    took = time.monotonic() - begun
    return Side(ceiling.label, ceiling.address, "", ceiling.pids, took)


def play_at(side: Side, sdk: str, home: Path, stack: contextlib.ExitStack) -> Players:
    """Start an SDK's client of a side, and what fills its topics."""
    topic, filler = f"sdk-{sdk}", None
    if side.name_servers:
        command = [sys.executable, "-m", "bench.rival_ours", side.name_servers]
        filler = stack.enter_context(Client(command, home / "filler.log"))
        for each in (topic, f"{topic}-backlog"):
            filler.do("fill", topic=each, count=0)
    client = stack.enter_context(sdk_client(sdk, side, home))
    client.do("prepare")
    return Players(side, client, filler, f"{topic}-backlog")


def measure_sdk(
    sdk: str, sides: Sequence[Side], directory: Path, options: argparse.Namespace
) -> list[dict[str, Any]]:
    """Measure one SDK at both sides, and at the endpoint that stores nothing."""
    backlog = options.java_backlog if sdk == "java" else options.python_backlog
    found: list[dict[str, Any]] = []
    with contextlib.ExitStack() as stack:
        all_players = [
            play_at(side, sdk, made(directory / f"{sdk}-{number}"), stack)
            for number, side in enumerate((*sides, start_ceiling(directory, sdk, stack)))
        ]
        for players in all_players:
            for turn in turns(sdk, options.warmup, backlog):
                print("warm-up:", sdk, take_turn(players, turn), flush=True)
        for turn in turns(sdk, options.seconds, backlog):
            for run in range(options.runs):
                for players in all_players[:: -1 if run % 2 else 1]:  # none is always first
                    line = {"sdk": sdk, "run": run, **take_turn(players, turn)}
                    print(line, flush=True)
                    found.append(line)
    return found


def whole_figures(sides: Sequence[Side]) -> list[dict[str, Any]]:
    """Return what concerns the servers as such."""
    found = []
    for side in sides:
        memory = sum(map(resident_mib, side.pids))
        for what, value, bar in (
            ("memory of all processes, MiB", memory, 0.15),
            ("start until ready, s", side.start_seconds, 0.2),
        ):
            figure = {"value": round(value, 2), "bar": bar}
            found.append({"broker": side.name, "what": what, **figure})
    return found


def report(sdk: str, rounds: list[dict[str, Any]], options: argparse.Namespace) -> None:
    """Print the table of an SDK, and keep its results unless the turns were short."""
    settings = {k: v for k, v in vars(options).items() if k not in ("small", "sdks")}
    settings["sdk"] = JAVA_SDK if sdk == "java" else RIVALS[0]
    name = f"sdk-{sdk}" if options.proxy == "cluster" else f"sdk-{sdk}-local"
    results = raw_results.of_now(name, settings, rounds)
    if not options.small:
        print(f"raw results: {raw_results.write(results)}")
    print(sdk_table(results), flush=True)


def main() -> int:
    parser = argparse.ArgumentParser(description="Apache's official SDKs at both sides.")
    parser.add_argument("--sdks", nargs="+", choices=SDKS, default=list(SDKS))
    parser.add_argument("--flush", default="ASYNC_FLUSH", choices=["ASYNC_FLUSH", "SYNC_FLUSH"])
    parser.add_argument("--proxy", default="cluster", choices=["cluster", "local"], help="Apache's")
    parser.add_argument("--runs", type=int, default=5, help="turns of each side that count")
    parser.add_argument("--warmup", type=float, default=12.0, help="seconds of each kind of send")
    parser.add_argument("--seconds", type=float, default=4.0, help="of sending in a turn")
    parser.add_argument("--java-backlog", type=int, default=20_000, help="messages of a turn")
    parser.add_argument("--python-backlog", type=int, default=2_500, help="messages of a turn")
    parser.add_argument("--small", action="store_true", help="short turns, nothing is written")
    options = parser.parse_args()
    if reason := missing_tools() or missing_compiler():
        print(reason, file=sys.stderr)
        return 2
    if options.small:
        options.runs, options.warmup, options.seconds = 1, 4.0, 2.0
        options.java_backlog, options.python_backlog = 5_000, 500
    build_sdk()
    pin_to_two_cores()
    directory = Path(tempfile.mkdtemp(prefix="reliable-mq-sdk-"))
    print(f"logs are in {directory} until it has gone well", flush=True)
    is_bad = False
    with running(directory, options) as sides:
        for sdk in options.sdks:
            rounds = measure_sdk(sdk, sides, directory, options)
            is_bad |= any(each.get("errors") for each in rounds)
            report(sdk, [*rounds, *whole_figures(sides)], options)
    shutil.rmtree(directory)
    return int(is_bad)


if __name__ == "__main__":
    sys.exit(main())
