"""Memory and time of popped messages in flight: `python -m bench.popped_messages --count 1000000`.

One broker core over files, driven without sockets. It pops all messages, acknowledges half of them
in a random order, is killed, and starts again. Printed: memory for each message in flight, the time
of an acknowledgement in each tenth, the time of the start, and how late messages come back.
"""

import argparse
import gc
import random
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from reliable_mq.broker_core.config_reading import broker_config
from reliable_mq.broker_core.core import BrokerCore
from reliable_mq.broker_core.state import PeerConnection
from reliable_mq.broker_core.store.appender import StoredMessage
from reliable_mq.broker_core.store.commit_log import CommitLog
from reliable_mq.runtime.file_disk import FileDisk
from reliable_mq.wire.codes import RequestCode
from reliable_mq.wire.command import decode_command, request
from reliable_mq.wire.frame import FrameReader
from reliable_mq.wire.record import pack_host

_TOPIC, _GROUP = "popped", "poppers"
_AT_ONCE = 32  # requests of one turn of the loop
_PEER = PeerConnection(1, pack_host("127.0.0.1", 1), "127.0.0.1:1")


class Driver:
    """One broker core, and the clock that it is told."""

    def __init__(self, folder: Path, now_ms: int) -> None:
        self.now_ms = now_ms
        self._folder = folder
        self.open()

    def open(self) -> None:
        config, _ = broker_config({"brokerName": "b"})
        self._disk = FileDisk(self._folder)
        self.core = BrokerCore(config, self._disk)
        self.core.open(self.now_ms)

    def kill(self) -> None:
        """Leave the store as a killed process does."""
        self._disk.close()

    def turn(self) -> list[bytes]:
        """Write what is to be written; return the replies."""
        frames: list[bytes] = []
        while True:
            turn = self.core.take_turn(self.now_ms, self.now_ms)
            frames += [bytes(frame) for _, frame in turn.replies]
            if turn.files:
                for path, text in turn.files.items():
                    self._disk.write_text(path, text)
                self.core.saved()
            if turn.batch is None:
                return frames
            CommitLog.write_batch(turn.batch)
            CommitLog.sync(turn.batch)
            self.core.stored(turn.batch.end, durable=True, now_ms=self.now_ms)

    def checkpoint(self) -> None:
        """Do what the broker does every second, and every ten seconds."""
        work = self.core.begin_timer_checkpoint(self.now_ms)
        if work is not None:
            work()
        self.core.state.store.begin_checkpoint()()

    def ask(self, code: int, ext: dict[str, object]) -> None:
        fields = {name: str(value) for name, value in ext.items()}
        self.core.receive(_PEER, request(code, fields), self.now_ms)

    def tick(self, count: int = 1) -> None:
        for _ in range(count):
            self.now_ms += 20
            self.core.tick(self.now_ms)
            self.turn()


def _resident() -> int:
    gc.collect()
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("RssAnon"):
            return int(line.split()[1]) * 1024
    return 0


def _fill(driver: Driver, count: int, size: int) -> None:
    header = {"topic": _TOPIC, "readQueueNums": 4, "writeQueueNums": 4, "perm": 6}
    driver.ask(RequestCode.UPDATE_AND_CREATE_TOPIC, header)
    driver.turn()
    like = StoredMessage(
        topic=_TOPIC,
        queue_id=0,
        body=b"",
        properties=b"",
        flag=0,
        sys_flag=0,
        born_time_ms=driver.now_ms,
        born_host=_PEER.host,
    )
    bodies, properties = [bytes(size)] * 1_000, [b"UNIQ_KEY\x01x\x02"] * 1_000
    for number in range(count // 1_000):
        like.queue_id = number % 4
        driver.core.state.store.appender.append_batch(
            like, [0] * 1_000, bodies, properties, driver.now_ms
        )
        driver.turn()


def _pop_all(driver: Driver, count: int, invisible_ms: int) -> Iterator[dict[str, str]]:
    """Pop everything; yield the headers that acknowledge it."""
    popped = 0
    while popped < count:
        for _ in range(_AT_ONCE):
            ext = {"consumerGroup": _GROUP, "topic": _TOPIC, "queueId": -1, "maxMsgNums": 32}
            more = {"invisibleTime": invisible_ms, "pollTime": 0, "bornTime": 0, "initMode": 0}
            driver.ask(RequestCode.POP_MESSAGE, {**ext, **more})
        for frame in driver.turn():
            answer = decode_command(FrameReader().feed(frame)[0])
            found = answer.ext_fields
            if answer.code:
                continue
            starts = dict(part.rsplit(" ", 1) for part in found["startOffsetInfo"].split(";"))
            for part in found["msgOffsetInfo"].split(";"):
                key, offsets = part.rsplit(" ", 1)
                kind, queue_id = key.split(" ")
                for offset in offsets.split(","):
                    popped += 1
                    yield {
                        "consumerGroup": _GROUP,
                        "topic": _TOPIC,
                        "queueId": queue_id,
                        "offset": offset,
                        "extraInfo": f"{starts[key]} {found['popTime']} {invisible_ms} "
                        f"{found['reviveQid']} {kind} b {queue_id} {offset}",
                    }
        driver.tick()


def main() -> None:
    """Run it once."""
    parser = argparse.ArgumentParser(prog="python -m bench.popped_messages", description=__doc__)
    parser.add_argument("--count", type=int, default=1_000_000, help="messages in flight")
    parser.add_argument("--size", type=int, default=100, help="bytes of a body")
    words = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        driver = Driver(Path(folder), int(time.time() * 1_000))
        _fill(driver, words.count, words.size)
        before = _resident()
        began = time.perf_counter()
        handles: list[dict[str, str]] = []
        keep = words.count // 10
        for number, header in enumerate(_pop_all(driver, words.count, 3_600_000)):
            if number % 10 == 0 and len(handles) < keep:
                handles.append(header)
        took = time.perf_counter() - began
        held = _resident() - before
        print(f"pop: {words.count / took:,.0f} messages/s, {held / words.count:.1f} bytes each")
        random.Random(1).shuffle(handles)
        tenth = max(1, len(handles) // 10)
        for index in range(0, len(handles), tenth):
            began = time.perf_counter()
            some = handles[index : index + tenth]
            for at, header in enumerate(some):
                driver.ask(RequestCode.ACK_MESSAGE, dict(header))
                if at % _AT_ONCE == 0:
                    driver.turn()
            driver.turn()
            each = (time.perf_counter() - began) / len(some) * 1e6
            driver.tick(tenth // 1_000 + 1)
            driver.checkpoint()
            print(f"ack: {each:.1f} us each, {index + len(some):,} acknowledged")
        driver.kill()
        began = time.perf_counter()
        driver.open()
        driver.tick()
        print(f"start after a kill: {time.perf_counter() - began:.2f} s")


if __name__ == "__main__":
    main()
