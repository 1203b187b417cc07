"""Messages a second that Apache's Java client can send to a master with one slave: to Apache's pair
and to ours. As `send_throughput`, which see: both pairs run at once, and take rounds in turn.

    python -m bench.pair_throughput [--role ASYNC_MASTER] [--settings SYNC_FLUSH/disk …]
    python -m bench.pair_throughput --quick        some six minutes, nothing written

Everything is on the same two cores: the client, both masters and both slaves. Both masters wait for
one slave (`inSyncReplicas=2`; Apache's default of 1 waits for nobody). A setting is the flush type
of all brokers, and `slaveFlush` of our slave: Apache's slave always reports what it has received.
With ASYNC_FLUSH ours does, too, whatever `slaveFlush` is.
"""

import argparse
import sys
from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any, Self

from bench import raw_results
from bench.apache_rocketmq import ApacheRocketMQ
from bench.java_programs import missing_tools
from bench.reliable_mq_broker import ReliableMQBroker
from bench.send_tables import send_table
from bench.send_throughput import BODY_BYTES, Mode, measure, pin_to_two_cores

HEAP = ("-Xms1g", "-Xmx1g", "-XX:+UseG1GC", "-XX:MaxDirectMemorySize=2g")
THREADS = (1, 16, 64)


Make = Callable[[Path, str, dict[str, str], str], ApacheRocketMQ | ReliableMQBroker]


class ReplicatedPair:
    """A master and one slave, with a name server. A context manager.

    Args:
        make: makes a broker in a directory, with properties and name servers.
        directory: an empty directory.
        flush_disk_type: of both.
        role: of the master.
    """

    def __init__(
        self,
        make: Make,
        role: str,
        directory: Path,
        flush_disk_type: str,
    ) -> None:
        common = {"brokerName": "pair", "inSyncReplicas": "2", "brokerIP2": "127.0.0.1"}
        self.master = make(directory, flush_disk_type, {**common, "brokerRole": role}, "")
        self.label = self.master.label
        self._slave = partial(make, directory.with_name("slave"), flush_disk_type)
        self._slave_settings = {**common, "brokerRole": "SLAVE", "brokerId": "1"}
        self._running = ExitStack()

    @property
    def name_server_address(self) -> str:
        return self.master.name_server_address

    @property
    def pids(self) -> list[int]:
        return [*self.master.pids, *self.slave.pids]

    def __enter__(self) -> Self:
        with ExitStack() as stack:
            stack.enter_context(self.master)
            self.slave = self._slave(self._slave_settings, self.name_server_address)
            stack.enter_context(self.slave)
            self._running = stack.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._running.close()


def ours(
    directory: Path,
    flush: str,
    settings: dict[str, str],
    name_servers: str,
    slave_flush: str = "disk",
) -> ReliableMQBroker:
    if settings["brokerRole"] == "SLAVE":
        settings = {**settings, "slaveFlush": slave_flush}
    return ReliableMQBroker(directory, flush, settings=settings, name_servers=name_servers)


def apaches(
    directory: Path, flush: str, settings: dict[str, str], name_servers: str
) -> ApacheRocketMQ:
    return ApacheRocketMQ(directory, flush, settings, name_servers, HEAP)


MAKERS: dict[str, Make] = {"apache": apaches, "ours": ours}


SETTINGS = ("SYNC_FLUSH/disk", "SYNC_FLUSH/received", "ASYNC_FLUSH/disk", "ASYNC_FLUSH/received")
OF_ROLE = {"SYNC_MASTER": SETTINGS[:3], "ASYNC_MASTER": (SETTINGS[0], SETTINGS[2])}


def measure_setting(
    setting: str, options: argparse.Namespace, lengths: dict[str, Any]
) -> list[dict[str, Any]]:
    """Return the rounds of both pairs with one setting."""
    flush, _, slave_flush = setting.partition("/")
    makers: dict[str, Make] = {**MAKERS, "ours": partial(ours, slave_flush=slave_flush)}
    pairs = {key: partial(ReplicatedPair, makers[key], options.role) for key in options.brokers}
    modes = [Mode(flush, threads, 1) for threads in options.threads]
    rounds = measure(modes, pairs, patience=options.patience, **lengths)
    what = options.role + (", slaveFlush=received" if slave_flush == "received" else "")
    for each in rounds:
        each["mode"] = f"{what}, {each['mode']}"
    return rounds


def main() -> int:
    parser = argparse.ArgumentParser(description="Send throughput of a master with a slave.")
    parser.add_argument("--role", choices=OF_ROLE, default="SYNC_MASTER")
    parser.add_argument("--settings", nargs="+", choices=SETTINGS, help="default: by the role")
    parser.add_argument("--brokers", nargs="+", choices=MAKERS, default=list(MAKERS))
    parser.add_argument("--threads", nargs="+", type=int, default=list(THREADS))
    parser.add_argument("--quick", action="store_true", help="short rounds, nothing written")
    parser.add_argument("--warmup", type=float, help="seconds (30; quick: 15)")
    parser.add_argument("--runs", type=int, help="rounds per mode and pair (3; quick: 1)")
    parser.add_argument("--seconds", type=float, help="length of a round (5; quick: 3)")
    parser.add_argument(
        "--patience", type=float, default=0, help="seconds to wait before a turn for quiet"
    )
    options = parser.parse_args()
    if reason := missing_tools():
        print(reason, file=sys.stderr)
        return 2
    pin_to_two_cores()
    lengths: dict[str, Any] = {
        "warmup": options.warmup or (15 if options.quick else 30),
        "runs": options.runs or (1 if options.quick else 3),
        "seconds": options.seconds or (3 if options.quick else 5),
    }
    rounds = [
        one
        for setting in options.settings or OF_ROLE[options.role]
        for one in measure_setting(setting, options, lengths)
    ]
    name = f"pair-{options.role.partition('_')[0].lower()}"
    results = raw_results.of_now(name, {**lengths, "body": BODY_BYTES}, rounds)
    if not options.quick:
        print(f"raw results: {raw_results.write(results)}")
    print(send_table(results))
    return 1 if any(each["errors"] for each in rounds) else 0


if __name__ == "__main__":
    sys.exit(main())
