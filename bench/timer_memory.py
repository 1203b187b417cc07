"""How much memory pending timers take: a broker's core on a real disk that is given many.

`python -m bench.timer_memory --count 10000000 --store DIRECTORY` prints one JSON object: what the
process holds at the end, and how late the first timers of a full second came.
"""

import argparse
import json
import time
from pathlib import Path

from reliable_mq.broker_core.config_reading import broker_config
from reliable_mq.broker_core.core import BrokerCore
from reliable_mq.broker_core.requests.timed import put_into_wheel
from reliable_mq.broker_core.store.appender import StoredMessage
from reliable_mq.broker_core.store.commit_log import CommitLog
from reliable_mq.runtime.file_disk import FileDisk
from reliable_mq.wire.properties import TIMER_DELIVER_MS, UNIQ_KEY, encode_properties
from reliable_mq.wire.record import pack_host

TURN = 1_000  # messages of one turn, as many as one turn takes up
START_MS = 1_700_000_000_000
HOST = pack_host("127.0.0.1", 1)
SPREAD_SECONDS = 24 * 3600


def memory_kib() -> dict[str, int]:
    """What the kernel counts for this process, in KiB."""
    lines = Path("/proc/self/status").read_text().splitlines()
    wanted = ("VmRSS", "RssAnon", "RssFile", "VmHWM")
    return {
        name: int(line.split()[1]) for line in lines for name in wanted if line.startswith(name)
    }


def send(core: BrokerCore, number: int, now_ms: int, due_ms: int) -> None:
    """Do with a timed message what a send does, without the wire."""
    properties = {UNIQ_KEY: f"{number:032X}", TIMER_DELIVER_MS: str(due_ms)}
    message = StoredMessage(
        topic="timers",
        queue_id=number % 8,
        body=b"%016d" % number,
        properties=b"",
        flag=0,
        sys_flag=0,
        born_time_ms=now_ms,
        born_host=HOST,
    )
    put_into_wheel(core.state, message, properties, now_ms)
    message.properties = encode_properties(properties)
    core.state.append(message, now_ms)


def finish_turn(core: BrokerCore) -> None:
    """Write what the turn appended; a sync would measure the disk."""
    batch = core.take_turn().batch
    if batch:
        CommitLog.write_batch(batch)
        core.stored(batch.end, durable=True)


def run(count: int, store: Path) -> dict[str, object]:
    disk = FileDisk(store)
    core = BrokerCore(broker_config({"flushDiskType": "ASYNC_FLUSH"})[0], disk)
    core.open(START_MS)
    empty, began = memory_kib(), time.monotonic()
    now_ms = START_MS
    for first in range(0, count, TURN):
        for number in range(first, min(first + TURN, count)):
            delay_ms = 3_600_000 + number * 7_919_777 % (SPREAD_SECONDS * 1000)
            send(core, number, now_ms, START_MS + delay_ms)
        finish_turn(core)
        now_ms += 20
        core.tick(now_ms)
        finish_turn(core)
        while core.index_some(now_ms):
            pass
        if first % 100_000 == 0:
            work = core.begin_timer_checkpoint(now_ms)
            if work:
                work()
            print(first, memory_kib(), f"{time.monotonic() - began:.0f} s", flush=True)
    taken = core.state.timers.counts.of("timers")
    return {"pending": taken, "seconds": time.monotonic() - began, "before": empty} | memory_kib()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=10_000_000)
    parser.add_argument("--store", type=Path, required=True)
    options = parser.parse_args()
    print(json.dumps(run(options.count, options.store)))
