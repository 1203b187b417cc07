"""SIGKILL the broker again and again while a client sends, and count what was lost.

After the last restart three ledgers are compared: what the client was told, what explicit pulls
read, and the order in which each thread sent.

    python -m bench.kill_broker --kills 20 --seed 7
"""

import contextlib
import random
import sys
import time
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from bench.kill_runs import LOADS, GrowingLines, clients_of, options_parser, run_all, violations
from bench.positions import read_positions
from bench.reliable_mq_broker import ReliableMQBroker
from bench.render import kill_table

ACKNOWLEDGEMENTS_BEFORE_KILL = (200, 6000)  # how many of them after a start: drawn per kill


@dataclass(slots=True)
class KillReport:
    """What the kills did. `violations` is empty when the broker kept its promise (P3)."""

    client: str
    kills: int = 0
    acknowledged: int = 0
    stored: int = 0
    restart_seconds: list[float] = field(default_factory=list)
    violations: list[str] = field(default_factory=list)


def kill_repeatedly(directory: Path, kills: int, seed: int, client: str) -> KillReport:
    """Run the whole measurement in `directory` and return its report.

    Args:
        directory: empty; store, logs and position files go there.
        kills: how often.
        seed: of the moments.
        client: "java" or "python".

    Raises ChildError when a broker does not start again, or no message is acknowledged any more.
    """
    rng = random.Random(seed)
    load = LOADS[client]
    report = KillReport(client)
    acknowledged, found = directory / "acknowledged", directory / "found"
    lines = GrowingLines(acknowledged)
    with contextlib.ExitStack() as stack:
        broker = ReliableMQBroker(directory)
        broker.start()
        stack.callback(broker.kill)
        sender = load.start_sender(directory, broker.name_server_address, acknowledged)
        stack.callback(sender.kill)
        for _ in range(kills):
            lines.wait_for(lines.refresh() + rng.randint(*ACKNOWLEDGEMENTS_BEFORE_KILL), sender)
            broker.kill()
            killed = time.monotonic()
            broker.start()
            report.restart_seconds.append(round(time.monotonic() - killed, 3))
            report.kills += 1
        lines.wait_for(lines.refresh() + ACKNOWLEDGEMENTS_BEFORE_KILL[0], sender)
        sender.stop()
        broker.kill()
        broker.start()
        load.read(directory, broker.name_server_address, found)
    told, stored = list(read_positions(acknowledged)), list(read_positions(found))
    report.acknowledged, report.stored = len(told), len(stored)
    report.violations = violations(told, stored)
    return report


def main() -> int:
    options = options_parser("SIGKILL the broker under load; count the losses.").parse_args()
    runs = {
        client: partial(kill_repeatedly, kills=options.kills, seed=options.seed, client=client)
        for client in clients_of(options)
    }
    return run_all("kills", options, runs, kill_table)


if __name__ == "__main__":
    sys.exit(main())
