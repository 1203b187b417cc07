"""What is fuzzed: a target plays a case, decided by a number, and raises when something breaks.

What a target may raise of its own accord stands in it; everything else is a finding.
"""

import logging
from collections.abc import Callable, Mapping
from contextlib import suppress
from random import Random

from tests.broker_core.broker_world import BrokerWorld, connection
from tests.fuzz.access import access
from tests.fuzz.mutations import mutated, mutated_json, odd_text
from tests.fuzz.requests import _HEARTBEAT, START_MS, request_bytes
from tests.reconcile.plain_scan import scan

from reliable_mq.broker_core.config_reading import broker_config
from reliable_mq.errors import (
    ConfigurationError,
    FrameError,
    MessageRefused,
    RecordError,
    StoreError,
)
from reliable_mq.name_server.core import NameServerCore
from reliable_mq.reconcile.brokers.log_columns import columns
from reliable_mq.reconcile.brokers.log_schema import LOG_SCHEMA, log_batch
from reliable_mq.testing.memory_disk import MemoryDisk
from reliable_mq.wire import fastjson
from reliable_mq.wire.batch_body import BatchItem, decode_batch, encode_batch
from reliable_mq.wire.codes import RequestCode
from reliable_mq.wire.command import decode_command, encode_command, request
from reliable_mq.wire.frame import Frame, FrameReader
from reliable_mq.wire.java_properties import parse_properties
from reliable_mq.wire.properties import decode_properties, encode_properties
from reliable_mq.wire.record import (
    Record,
    decode_record,
    iter_records,
    pack_host,
)
from reliable_mq.wire.record_encode import encode_record
from reliable_mq.wire.record_scan import claimed_size_at, head_at, valid_size_at

Input = Callable[[str, object], None]
"""Takes what a case feeds, under a name, so that a finding can show it."""


class Finding(Exception):
    """A target did what it must not do."""


class Bugs(logging.Handler):
    """Turns what is logged as a bug into a finding."""

    def __init__(self) -> None:
        super().__init__(logging.ERROR)
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        if record.exc_info:  # damage that is told in one line is no bug
            self.lines.append(self.format(record))


def frames(random: Random, note: Input) -> None:
    """Frames cut from a damaged stream are the same however it is split."""
    stream = b"".join(request_bytes(random) for _ in range(random.randint(1, 4)))
    note("stream", stream)
    results: list[list[Frame] | None] = []
    for _ in range(2):
        reader, at = FrameReader(), 0
        found: list[Frame] = []
        try:
            while at < len(stream):
                size = random.choice((1, 7, 100, len(stream)))
                found += reader.feed(stream[at : at + size])
                at += size
        except FrameError:
            results.append(None)
            continue
        results.append(found)
        for frame in found:
            try:
                again = encode_command(decode_command(frame))
            except FrameError:
                continue
            if len(FrameReader().feed(again)) != 1:
                raise Finding("a command does not come back as one frame")
    if results[0] != results[1]:
        raise Finding(f"cut in two ways: {results}")


def broker(random: Random, note: Input) -> None:
    """A broker that is asked odd things answers, and goes on."""
    _odd_requests(random, note, timerWheelEnable="false")


def timers(random: Random, note: Input) -> None:
    """The same with timed messages; their wheel takes memory of its own."""
    _odd_requests(random, note)


def _odd_requests(random: Random, note: Input, **settings: str) -> None:
    settings = {**settings, "enablePropertyFilter": "true", "recallMessageEnable": "true"}
    world = BrokerWorld(None, **settings)
    world.create_topic()
    world.ask(RequestCode.HEART_BEAT, {}, fastjson.dumps(_HEARTBEAT))
    for _ in range(random.randint(20, 60)):
        data = request_bytes(random)
        note("request", data)
        peer = connection(random.randint(1, 3))
        try:
            commands = [decode_command(frame) for frame in FrameReader().feed(data)]
        except FrameError:
            world.core.disconnected(peer.id)
            world.finish_turn()
            continue
        for command in commands:
            world.core.receive(peer, command, world.now_ms)
        world.finish_turn()
        if random.random() < 0.1:
            world.pass_time(random.choice((20, 1_000, 5_000)), step=500)
    world.stop()
    note("open", "again")
    again = BrokerWorld(world.disk, **settings)
    again.create_topic("afterwards")
    again.send(topic="afterwards")
    again.stop()


def name_server(random: Random, note: Input) -> None:
    """A name server that is asked odd things answers, and goes on."""
    core = NameServerCore()
    known, any_code = sorted(core.codes), list(RequestCode)
    for _ in range(30):
        fields = {
            name: odd_text(random) if random.random() < 0.2 else "broker-a"
            for name in ("brokerName", "brokerAddr", "clusterName", "topic", "namespace", "key")
        }
        if random.random() < 0.7:
            fields |= {"brokerId": "0", "compressed": "false", "bodyCrc32": "0"}
        table = {"topicConfigTable": {"t": {"topicName": "t", "readQueueNums": 1, "perm": 6}}}
        value = {"filterServerList": [], "topicConfigSerializeWrapper": table}
        code = random.choice(known if random.random() < 0.9 else any_code)
        command = request(code, fields, fastjson.dumps(mutated_json(random, value)))
        note("request", command)
        encode_command(core.receive(1, command, START_MS))


def _some_record(random: Random, offset: int) -> Record:
    return Record(
        topic=random.choice(("orders", "t" * 200)),
        body=random.randbytes(random.randint(0, 80)),
        properties=encode_properties({"TAGS": "a", "UNIQ_KEY": "AC11" * 8}),
        queue_offset=random.randrange(2**40),
        commit_log_offset=offset,
        born_host=pack_host(random.choice(("10.0.0.1", "2001:db8::1")), 10911),
        store_host=pack_host("10.0.0.1", 10911),
        sys_flag=random.choice((0, 4, 8, 12, 1)),
        store_time_ms=START_MS,
    )


def records(random: Random, note: Input) -> None:
    """Damaged records are refused, or read as records: by all three readers of the log."""
    log = b""
    for _ in range(3):
        log += encode_record(_some_record(random, len(log)))
    data = mutated(random, log)
    note("log", data)
    try:
        for record in iter_records(data):
            record.property_map()
            encode_record(record)
    except RecordError:
        pass
    at = 0
    view = memoryview(data)
    while size := valid_size_at(view, at, at):
        decode_record(data, at, check_body=True)
        head_at(view, at)
        claimed_size_at(view, at, at)
        at += size
    check_body = random.random() < 0.5
    rows, used, end = scan(data, 0, check_body=check_body)
    batch, *ends = columns(data, 0, LOG_SCHEMA, check_body=check_body)
    if ends != [used, end] or batch.to_pylist() != log_batch(rows).to_pylist():
        raise Finding("the scan of many records at once disagrees with the plain one")


def batches(random: Random, note: Input) -> None:
    """A damaged batch is refused, or is a batch."""
    items = [
        BatchItem(random.randrange(9), random.randbytes(random.randint(0, 40)), b"TAGS\x01a\x02")
        for _ in range(random.randint(0, 5))
    ]
    data = mutated(random, encode_batch(items))
    note("body", data)
    try:
        found = decode_batch(data)
    except RecordError:
        return
    if decode_batch(encode_batch(found)) != found:
        raise Finding("a batch does not come back as it was")


def properties(random: Random, note: Input) -> None:
    """Any bytes read as properties; any text as a broker.conf."""
    data = mutated(random, encode_properties({"TAGS": "a", "KEYS": "b c", "é": "😀"}))
    note("properties", data)
    found = decode_properties(data)
    try:
        again = encode_properties(found)
    except MessageRefused:  # a value with a separator in it
        return
    if decode_properties(again) != found:
        raise Finding("properties do not come back as they were")
    text = mutated(random, b"a=b\\\n  c\n# x\nflushDiskType = SYNC_FLUSH\nbrokerId:0\n")
    note("broker.conf", text)
    with suppress(ConfigurationError):
        broker_config(parse_properties(text.decode("utf-8", "replace")))


def json_texts(random: Random, note: Input) -> None:
    """Any bytes read as fastjson's form, or are refused with a ValueError."""
    text = fastjson.dumps(mutated_json(random, _HEARTBEAT))
    data = mutated(random, random.choice((text, b"{0:'a',{\"t\":1}:[,{}],}", b"[" * 90_000)))
    note("text", data)
    try:
        value = fastjson.loads(data)
    except ValueError:
        return
    hash(repr(value))


def _lived_in(random: Random, settings: Mapping[str, str]) -> MemoryDisk:
    """Return a store with something in every file; perhaps its broker was killed."""
    world = BrokerWorld(None, **settings)
    timed = {"TIMER_DELAY_SEC": "2"} if "timerWheelEnable" not in settings else {}
    world.create_topic(queues=2)
    for number in range(20):
        world.send(
            b"x" * random.choice((1, 300, 3_000)),
            queue_id=number % 2,
            TAGS="paid",
            KEYS=f"k{number}",
            **random.choice(({}, {}, {"DELAY": "1"}, timed)),
        )
    world.pass_time(2_500, step=500)
    if random.random() < 0.5:
        world.stop()
    else:
        world.finish_turn()
        if random.random() < 0.5:
            world.disk.lose_power(random)
    return world.disk


def _damage(random: Random, disk: MemoryDisk, path: str, note: Input) -> None:
    data = disk.written_part(path)
    if not disk.is_text(path):
        if random.random() < 0.1 and disk.size_of(path) < 2**20:
            disk.place_file(path, mutated(random, disk.files()[path]))  # perhaps of another size
            return
        damaged = mutated(random, data, keeps_size=True)
        note("bytes", damaged)
        disk.damage(path, damaged)
        return
    damaged = mutated(random, data)
    if random.random() < 0.6 and data[:1] == b"{":
        damaged = fastjson.dumps(mutated_json(random, fastjson.loads(data)))
    note("text", damaged)
    disk.place_file(path, damaged)


def store_files(random: Random, note: Input) -> None:
    """A damaged store is refused with a reason, or opened; then everything can be asked."""
    settings = {"mappedFileSizeTimerLog": "4096"}
    if random.random() < 0.7:
        settings["timerWheelEnable"] = "false"
    disk = _lived_in(random, settings)
    path = random.choice(disk.paths())
    note("file", path)
    _damage(random, disk, path, note)
    try:
        world = BrokerWorld(disk, **settings)
    except StoreError:
        return
    for queue_id in (0, 1):
        world.begin(
            RequestCode.PULL_MESSAGE,
            {
                "consumerGroup": "payments",
                "topic": "orders",
                "queueId": queue_id,
                "queueOffset": 0,
                "maxMsgNums": 32,
                "sysFlag": 4,
                "commitOffset": 0,
                "suspendTimeoutMillis": 0,
                "subscription": "*",
            },
        )
    world.begin(RequestCode.QUERY_MESSAGE, _QUERY)
    world.pass_time(3_000, step=500)
    world.send()
    world.stop()
    try:
        BrokerWorld(disk, **settings).stop()
    except StoreError as error:
        raise Finding(f"a store that was opened is refused after a clean stop: {error}") from error


_QUERY = {"topic": "orders", "key": "k1", "maxNum": 8, "beginTimestamp": 0, "endTimestamp": 2**60}


NO_CONNECTIONS = frozenset({"timers", "store"})
"""Targets that take memory for a whole broker, not for a connection."""

TARGETS: Mapping[str, tuple[int, Callable[[Random, Input], None]]] = {
    "broker": (8, broker),
    "timers": (1, timers),
    "store": (8, store_files),
    "frames": (3, frames),
    "records": (3, records),
    "batches": (1, batches),
    "properties": (1, properties),
    "json": (1, json_texts),
    "names": (1, name_server),
    "access": (3, access),
}
