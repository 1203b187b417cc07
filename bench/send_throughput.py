"""Messages a second that Apache's Java client can send, to Apache's broker and to ours.

Both brokers run at once on the same two cores as the clients, are warmed up, and then take rounds
in turn, so that the machine's moods hit both. Only the ratio of one run is a result.
The ceiling takes rounds with them: a server in C that answers at once and stores nothing.

    python -m bench.send_throughput                all modes, 15 minutes, raw results written
    python -m bench.send_throughput --quick        16 threads, SYNC_FLUSH, a minute, nothing written
    python -m bench.send_throughput --quick --brokers ours
"""

import argparse
import contextlib
import os
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from bench import raw_results
from bench.apache_rocketmq import ApacheRocketMQ
from bench.java_programs import WarmProgram, missing_tools
from bench.quiet import OthersLoad, wait_for_quiet, wait_until_idle
from bench.reliable_mq_broker import ReliableMQBroker
from bench.send_ceiling import SendCeiling, missing_compiler
from bench.send_tables import send_table

BODY_BYTES = 1024
CORES = 2
SETTLE_SECONDS_MAX = 10
MODE_WARMUP_SECONDS = 1  # in every round, after the long warm-up of the process
WARM_ROUND_SECONDS = 4
STEADY = 0.05  # two warm rounds in a row that differ by less are steady


class Running(Protocol):
    """A broker that runs, alone or with slaves."""

    @property
    def label(self) -> str:
        """Its name in tables."""

    @property
    def name_server_address(self) -> str:
        """ "host:port" of its name server."""

    @property
    def pids(self) -> list[int]:
        """Its processes."""


Start = Callable[[Path, str], AbstractContextManager[Running]]
BROKERS = {"apache": ApacheRocketMQ, "ours": ReliableMQBroker}
SERVERS: dict[str, Start] = {**BROKERS, "ceiling": SendCeiling}


class Mode(NamedTuple):
    """One line of the table. `bar` is the least ratio to Apache's rate; 0: none is asked for."""

    flush_disk_type: str
    threads: int
    batch: int
    bar: float = 0.0

    @property
    def name(self) -> str:
        threads = f"{self.threads} thread" + "s" * (self.threads > 1)
        batches = f", batches of {self.batch}" if self.batch > 1 else ""
        return f"{self.flush_disk_type}, {threads}{batches}"


BAR = Mode("SYNC_FLUSH", 16, 1, 2.5)
MODES = [
    BAR,
    Mode("SYNC_FLUSH", 1, 1, 3.0),
    Mode("SYNC_FLUSH", 64, 1, 2.0),
    Mode("SYNC_FLUSH", 8, 32, 1.5),
    Mode("ASYNC_FLUSH", 16, 1, 1.5),
    Mode("ASYNC_FLUSH", 1, 1, 1.5),
    Mode("ASYNC_FLUSH", 64, 1, 1.6),
    Mode("ASYNC_FLUSH", 8, 32, 1.3),
]


def pin_to_two_cores() -> None:
    """Keep this process, and the children it will have, on the first two cores."""
    if sys.platform == "linux":
        os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:CORES])


class Pair(NamedTuple):
    """A running broker and its warm sender."""

    label: str
    sender: WarmProgram
    pids: list[int]


@contextlib.contextmanager
def warm_pairs(
    directory: Path, flush_disk_type: str, brokers: Mapping[str, Start], warmup: float
) -> Iterator[list[Pair]]:
    """Start the brokers and a sender for each, and give them once they are warm."""
    with contextlib.ExitStack() as stack:
        pairs = []
        for key, start in brokers.items():
            home = directory / f"{key}-{flush_disk_type}"
            home.mkdir()
            broker = stack.enter_context(start(home / "broker", flush_disk_type))
            sender = WarmProgram(
                "Sender", home, namesrv=broker.name_server_address, body=BODY_BYTES
            )
            stack.enter_context(sender)
            pairs.append(Pair(broker.label, sender, [*broker.pids, sender.pid]))
            warm(pairs[-1], warmup)
        yield pairs


def warm(pair: Pair, seconds_max: float) -> None:
    """Send until two rounds in a row differ by less than 5 %, or for about `seconds_max`."""
    rates: list[float] = []
    while len(rates) * WARM_ROUND_SECONDS < seconds_max:
        seconds = min(WARM_ROUND_SECONDS, seconds_max)
        rates.append(pair.sender.round(threads=BAR.threads, seconds=seconds)["per_second"])
        if len(rates) > 1 and rates[-2] and abs(rates[-1] / rates[-2] - 1) < STEADY:
            break
    print(f"warm: {pair.label}, {', '.join(f'{rate:,.0f}' for rate in rates)} msg/s", flush=True)


def take_round(pair: Pair, mode: Mode, seconds: float, pids: list[int]) -> dict[str, Any]:
    """Send one round and return it, with the processors that others (not `pids`) used in it."""
    others = OthersLoad(pids)
    seen = pair.sender.round(
        threads=mode.threads, batch=mode.batch, warmup=MODE_WARMUP_SECONDS, seconds=seconds
    )
    seen["others_processors"] = round(others.processors(), 2)
    print(
        f"{mode.name}: {pair.label} {seen['per_second']:,.0f} msg/s, p99 {seen['p99_ms']:.1f} ms, "
        f"{seen['errors']} errors, others {seen['others_processors']} processors",
        flush=True,
    )
    return {"mode": mode.name, "bar": mode.bar, "broker": pair.label, **seen}


def measure(
    modes: list[Mode],
    brokers: Mapping[str, Start],
    *,
    warmup: float,
    runs: int,
    seconds: float,
    patience: float,
) -> list[dict[str, Any]]:
    """Run every mode `runs` times, brokers in turn, and return the rounds.

    Args:
        brokers: what starts a broker in an empty directory, with a flush type.
        warmup: most seconds of sending before the first round of a broker process.
        seconds: measured length of one round.
        patience: seconds to wait before each turn for others to leave the machine alone.
    """
    rounds: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory(prefix="reliable-mq-send-") as directory:
        for flush in dict.fromkeys(mode.flush_disk_type for mode in modes):
            with warm_pairs(Path(directory), flush, brokers, warmup) as pairs:
                pids = [pid for pair in pairs for pid in pair.pids]
                for mode in (mode for mode in modes if mode.flush_disk_type == flush):
                    for _ in range(runs):
                        wait_for_quiet(pids, patience)
                        for pair in pairs:
                            wait_until_idle(pids, SETTLE_SECONDS_MAX)
                            rounds.append(take_round(pair, mode, seconds, pids))
    return rounds


def main() -> int:
    parser = argparse.ArgumentParser(description="Send throughput, both brokers in one run.")
    parser.add_argument("--quick", action="store_true", help="the mode of the bar only, short")
    parser.add_argument("--brokers", nargs="+", choices=SERVERS, default=list(SERVERS))
    parser.add_argument("--warmup", type=float, help="at most, seconds (60; quick: 8)")
    parser.add_argument("--runs", type=int, help="rounds per mode and broker (5; quick: 1)")
    parser.add_argument("--seconds", type=float, help="length of a round (5; quick: 4)")
    parser.add_argument(
        "--patience",
        type=float,
        default=0,
        help="seconds to wait before a turn for a quiet machine",
    )
    options = parser.parse_args()
    if reason := missing_tools() or missing_compiler():
        print(reason, file=sys.stderr)
        return 2
    pin_to_two_cores()
    settings: dict[str, Any] = {
        "warmup": options.warmup or (8 if options.quick else 60),
        "runs": options.runs or (1 if options.quick else 5),
        "seconds": options.seconds or (4 if options.quick else 5),
        "patience": options.patience,
    }
    brokers = {key: SERVERS[key] for key in options.brokers}
    rounds = measure([BAR] if options.quick else MODES, brokers, **settings)
    settings["body"] = BODY_BYTES
    results = raw_results.of_now("send", settings, rounds)
    if not options.quick:
        print(f"raw results: {raw_results.write(results)}")
    print(send_table(results))
    return 1 if any(each["errors"] for each in rounds) else 0


if __name__ == "__main__":
    sys.exit(main())
