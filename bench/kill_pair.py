"""SIGKILL a master, its slave, or both, again and again while a client sends.

The master acknowledges what the slave has, too (`brokerRole=SYNC_MASTER`). After each death of the
master the slave must serve every acknowledged message within three seconds. In the end nothing is
missing at either broker, and both logs have the same bytes.

    python -m bench.kill_pair --kills 20 --seed 7
"""

import contextlib
import random
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from bench.child_process import ChildError
from bench.kill_runs import LOADS, GrowingLines, clients_of, options_parser, run_all, violations
from bench.positions import Position, number_of, read_positions
from bench.python_client import INLINE_SUBSCRIPTION, PULL_COUNT, READER_GROUP, TOPIC
from bench.reliable_mq_broker import ReliableMQBroker
from bench.reliable_mq_name_server import ReliableMQNameServer
from bench.render import kill_pair_table
from bench.replica_logs import Copied, compare, log_end
from reliable_mq.client.consuming.offsets import offset_in
from reliable_mq.client.consuming.pulling import received
from reliable_mq.client.thread_client import Client
from reliable_mq.message import MessageQueue
from reliable_mq.runtime.blocking_link import BlockingLink
from reliable_mq.testing.local_servers import free_port
from reliable_mq.wire.codes import RequestCode, ResponseCode
from reliable_mq.wire.command import request
from reliable_mq.wire.headers import PullMessageHeader, PullResultHeader, QueueHeader
from reliable_mq.wire.record import iter_records

ACKNOWLEDGEMENTS_BEFORE_KILL = (200, 3000)  # how many of them after a start: drawn per kill
SERVED_SECONDS_MAX = 3.0
CATCH_UP_SECONDS_MAX = 60.0
POLL_SECONDS = 0.02
QUEUES = 4
NAME = "pair"
SMALL = {"mappedFileSizeCommitLog": str(16 * 1024 * 1024), "brokerName": NAME}
VICTIMS = ("master", "slave", "both")


@dataclass(slots=True)
class PairReport:
    """What the kills did. `violations` is empty when the pair kept its promise.

    `served_seconds`: of each kill of the master, until the slave had served all that was
    acknowledged.
    """

    client: str
    victim: str
    kills: int = 0
    acknowledged: int = 0
    stored: int = 0
    log_bytes: int = 0
    served_seconds: list[float] = field(default_factory=list)
    violations: list[str] = field(default_factory=list)


class QueueReader:
    """Reads what is new in the queues of one broker. A context manager.

    Args:
        address: the broker's.
    """

    def __init__(self, address: str) -> None:
        self._link = BlockingLink(address, 10)
        self._next = dict.fromkeys(range(QUEUES), 0)
        self.found: dict[tuple[int, int], Position] = {}

    def read_on(self) -> None:
        """Read every queue to its end."""
        for queue_id in self._next:
            queue = MessageQueue(TOPIC, NAME, queue_id)
            header = QueueHeader(topic=TOPIC, queue_id=queue_id)
            end = offset_in(self._link.call(request(RequestCode.GET_MAX_OFFSET, header.to_ext())))
            while self._next[queue_id] < end:
                self._pull(queue)

    def _pull(self, queue: MessageQueue) -> None:
        header = PullMessageHeader(
            consumer_group=READER_GROUP,
            topic=queue.topic,
            queue_id=queue.queue_id,
            queue_offset=self._next[queue.queue_id],
            max_msg_nums=PULL_COUNT,
            sys_flag=INLINE_SUBSCRIPTION,
            commit_offset=0,
            suspend_timeout_millis=0,
            subscription="*",
        )
        reply = self._link.call(request(RequestCode.PULL_MESSAGE, header.to_ext()))
        if reply.code != ResponseCode.SUCCESS:
            raise ChildError(f"{self._link.address} answers a pull with {reply}")
        for record in iter_records(reply.body):
            message = received(record, queue)
            place = (queue.queue_id, message.queue_offset)
            self.found[place] = Position(*place, message.message_id, number_of(message.body))
        result = reply.pull_result or PullResultHeader.decode(reply.ext_fields)
        self._next[queue.queue_id] = result.next_begin_offset

    def lacks(self, told: list[Position]) -> list[Position]:
        """Return what was acknowledged and was not read at its place."""
        return [each for each in told if self.found.get(each[:2]) != each]

    def close(self) -> None:
        """Close the connection."""
        self._link.close()

    @property
    def positions(self) -> list[Position]:
        """What was read, each queue in the order of its offsets."""
        return [self.found[place] for place in sorted(self.found)]


class BrokerPair:
    """A master, its slave and a name server, each in a process of its own. A context manager."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._stack = contextlib.ExitStack()

    def __enter__(self) -> "BrokerPair":
        with contextlib.ExitStack() as stack:
            names = stack.enter_context(ReliableMQNameServer(self._directory))
            self.name_servers = names.address
            port = str(free_port())
            roles = {
                "master": {"brokerRole": "SYNC_MASTER", "haListenPort": port},
                "slave": {"brokerRole": "SLAVE", "brokerId": "1", "slaveReadEnable": "true"},
            }
            self.brokers = {
                role: ReliableMQBroker(
                    self._directory / role,
                    settings={**SMALL, **settings},
                    name_servers=self.name_servers,
                )
                for role, settings in roles.items()
            }
            for broker in self.brokers.values():
                broker.start()
                stack.callback(broker.kill)
            with Client(self.name_servers) as client:
                client.create_topic(TOPIC, QUEUES)
            self._stack = stack.pop_all()
        try:
            self._wait_until(self._slave_has_topic, "the slave does not know the topic")
        except BaseException:
            self._stack.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def _wait_until(self, holds: Callable[[], bool], complaint: str) -> None:
        deadline = time.monotonic() + CATCH_UP_SECONDS_MAX
        while not holds():
            if time.monotonic() > deadline:
                raise ChildError(complaint)
            time.sleep(POLL_SECONDS)

    def _slave_has_topic(self) -> bool:
        with BlockingLink(self.brokers["slave"].address, 10) as link:
            answer = link.call(request(RequestCode.GET_TOPIC_CONFIG, {"topic": TOPIC}))
        return answer.code == ResponseCode.SUCCESS

    def catch_up(self) -> Copied:
        """Compare both logs, when the slave has everything."""
        master, slave = self.brokers["master"], self.brokers["slave"]
        self._wait_until(
            lambda: log_end(master.address) == log_end(slave.address) >= 0,
            "the slave does not catch up",
        )
        end = log_end(master.address)
        return compare(master.store, slave.store, end, end)


def kill_pair_repeatedly(
    directory: Path,
    kills: int,
    seed: int,
    client: str,
    victim: str,
    served_seconds_max: float = SERVED_SECONDS_MAX,
) -> PairReport:
    """Run the whole measurement in `directory` and return its report.

    Args:
        directory: empty; stores, logs and position files go there.
        kills: how often.
        seed: of the moments.
        client: "java" or "python".
        victim: one of `VICTIMS`.
        served_seconds_max: so long the slave may take to serve what was acknowledged.

    Raises ChildError when a broker does not start again, no message is acknowledged any more, or
    the slave does not catch up.
    """
    rng = random.Random(seed)
    report = PairReport(client, victim)
    acknowledged = directory / "acknowledged"
    lines = GrowingLines(acknowledged)
    with BrokerPair(directory) as pair, contextlib.ExitStack() as stack:
        master, slave = pair.brokers["master"], pair.brokers["slave"]
        sender = LOADS[client].start_sender(directory, pair.name_servers, acknowledged)
        stack.callback(sender.kill)
        reader = QueueReader(slave.address)
        stack.callback(reader.close)
        for _ in range(kills):
            lines.wait_for(lines.refresh() + rng.randint(*ACKNOWLEDGEMENTS_BEFORE_KILL), sender)
            if victim == "slave":
                reader.close()
                slave.kill()
            else:
                master.kill()
                if victim == "both":
                    reader.close()
                    slave.kill()
            report.kills += 1
            if victim != "master":
                slave.start()
            if victim != "slave":
                report.served_seconds.append(
                    _serve(reader, acknowledged, report, served_seconds_max)
                )
                master.start()
        lines.wait_for(lines.refresh() + ACKNOWLEDGEMENTS_BEFORE_KILL[0], sender)
        sender.stop()
        copied = pair.catch_up()
        report.log_bytes = copied.compared
        at_master = QueueReader(master.address)
        stack.callback(at_master.close)
        told = list(read_positions(acknowledged))
        for each, where in ((reader, "slave"), (at_master, "master")):
            each.read_on()
            wrong = violations(told, each.positions)
            report.violations += [f"at the {where}: {sentence}" for sentence in wrong]
        if copied.different:
            report.violations.append(f"{copied.different} bytes of the two logs differ")
        report.acknowledged, report.stored = len(told), len(reader.found)
    return report


def _serve(
    reader: QueueReader, acknowledged: Path, report: PairReport, seconds_max: float
) -> float:
    """Return after how many seconds the slave has served all that was acknowledged."""
    began = time.monotonic()
    while True:
        reader.read_on()
        missing = reader.lacks(list(read_positions(acknowledged)))
        seconds = time.monotonic() - began
        if seconds > seconds_max:
            report.violations.append(
                f"what was acknowledged was not served by the slave within {seconds_max:g} s"
                f"; {len(missing)} messages are missing, such as {missing[:3]}"
            )
        if not missing or seconds > seconds_max:
            return round(seconds, 3)
        time.sleep(POLL_SECONDS)


def main() -> int:
    parser = options_parser("SIGKILL a master, its slave, or both under load; count the losses.")
    parser.add_argument("--victims", nargs="+", choices=VICTIMS, default=VICTIMS)
    options = parser.parse_args()
    told = {"kills": options.kills, "seed": options.seed}
    runs = {
        f"{client}-{victim}": partial(kill_pair_repeatedly, client=client, victim=victim, **told)
        for client in clients_of(options)
        for victim in options.victims
    }
    return run_all("kills-pair", options, runs, kill_pair_table)


if __name__ == "__main__":
    sys.exit(main())
