"""Messages a second that Apache's Java client can send to a master with one slave: to Apache's pair
and to ours. As `send_throughput`, which see: both pairs run at once, and take rounds in turn.

    python -m bench.pair_throughput [--role ASYNC_MASTER] [--flush ASYNC_FLUSH]
    python -m bench.pair_throughput --quick        a minute, nothing written

Everything is on the same two cores: the client, both masters and both slaves. Both masters wait for
one slave (`inSyncReplicas=2`; Apache's default of 1 waits for nobody).
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
from bench.render import send_table
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
    directory: Path, flush: str, settings: dict[str, str], name_servers: str
) -> ReliableMQBroker:
    return ReliableMQBroker(directory, flush, settings=settings, name_servers=name_servers)


def apaches(
    directory: Path, flush: str, settings: dict[str, str], name_servers: str
) -> ApacheRocketMQ:
    return ApacheRocketMQ(directory, flush, settings, name_servers, HEAP)


MAKERS: dict[str, Make] = {"apache": apaches, "ours": ours}


def main() -> int:
    parser = argparse.ArgumentParser(description="Send throughput of a master with a slave.")
    parser.add_argument("--role", choices=["SYNC_MASTER", "ASYNC_MASTER"], default="SYNC_MASTER")
    parser.add_argument("--flush", choices=["SYNC_FLUSH", "ASYNC_FLUSH"], default="SYNC_FLUSH")
    parser.add_argument("--brokers", nargs="+", choices=MAKERS, default=list(MAKERS))
    parser.add_argument("--threads", nargs="+", type=int, default=list(THREADS))
    parser.add_argument("--quick", action="store_true", help="one short round, nothing written")
    parser.add_argument("--warmup", type=float, help="seconds (15; quick: 5)")
    parser.add_argument("--runs", type=int, help="rounds per mode and pair (3; quick: 1)")
    parser.add_argument("--seconds", type=float, help="length of a round (5; quick: 3)")
    options = parser.parse_args()
    if reason := missing_tools():
        print(reason, file=sys.stderr)
        return 2
    pin_to_two_cores()
    modes = [Mode(options.flush, threads, 1) for threads in options.threads]
    pairs = {key: partial(ReplicatedPair, MAKERS[key], options.role) for key in options.brokers}
    settings: dict[str, Any] = {
        "warmup": options.warmup or (5 if options.quick else 15),
        "runs": options.runs or (1 if options.quick else 3),
        "seconds": options.seconds or (3 if options.quick else 5),
    }
    rounds = measure(modes, pairs, patience=0, **settings)
    for each in rounds:
        each["mode"] = f"{options.role}, {each['mode']}"
    settings["body"] = BODY_BYTES
    results = raw_results.of_now(f"pair-{options.role.partition('_')[0].lower()}", settings, rounds)
    if not options.quick:
        print(f"raw results: {raw_results.write(results)}")
    print(send_table(results))
    return 1 if any(each["errors"] for each in rounds) else 0


if __name__ == "__main__":
    sys.exit(main())
