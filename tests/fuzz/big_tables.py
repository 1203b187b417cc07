"""Tables of very many rows: registrations, topics, settings of a name server, numbers."""

import zlib
from collections.abc import Mapping
from pathlib import Path
from random import Random

import msgspec
from tests.fuzz.bystander import TOPIC
from tests.fuzz.fields import try_frame
from tests.fuzz.mutations import NUMBERS
from tests.fuzz.scene import VICTIM, Broken, Peer, Scene

from reliable_mq.broker_core.config import BrokerConfig
from reliable_mq.wire.codes import RequestCode as Ask
from reliable_mq.wire.codes import ResponseCode as Code

HEADER = {
    "brokerName": "stranger",
    "brokerAddr": "10.0.0.1:10911",
    "clusterName": "strangers",
    "brokerId": "0",
    "bodyCrc32": "0",
    "compressed": "false",
}
_ROWS_OF_PREPARED = {"large": 70_000, "small": 20_000}


def compressed(rows: int, name_length: int) -> bytes:
    """Return a registration as Apache packs it, or one that grows beyond all reason."""
    version = b'{"counter":1,"stateVersion":0,"timestamp":5}'
    line = b"%%0%dd 4 3 6 SINGLE_TAG" % name_length
    size = (len(line % 0)).to_bytes(4)
    packer = zlib.compressobj(1)
    parts = [packer.compress(len(version).to_bytes(4) + version + rows.to_bytes(4))]
    for begin in range(0, rows, 10_000):
        lines = range(begin, min(begin + 10_000, rows))
        parts.append(packer.compress(b"".join([size + line % number for number in lines])))
    parts += [packer.compress((2).to_bytes(4) + b"[]" + bytes(4)), packer.flush()]
    return b"".join(parts)


def _plain(rows: int, name_length: int) -> bytes:
    row = b'"%%0%dd":{"topicName":"%%0%dd","readQueueNums":8}' % (name_length, name_length)
    table = b",".join([row % (number, number) for number in range(rows)])
    return b'{"topicConfigSerializeWrapper":{"topicConfigTable":{%b}}}' % table


def registrations(scene: Scene) -> None:
    """Brokers that nobody knows register very many topics, and take their leave."""
    random = scene.random
    for number in range(random.randint(1, 3)):
        peer = scene.peer(scene.name_server)
        is_packed = random.random() < 0.6
        rows = random.choice((1_000, 100_000, 290_000, 1_000_000 if is_packed else 300_000))
        length = random.choice((8, 8, 30, 100)) if rows < 300_000 else 8
        scene.note("registration", (is_packed, rows, length))
        header = {**HEADER, "brokerName": f"stranger-{number % 2}"}
        header["compressed"] = str(is_packed).lower()
        body = (compressed if is_packed else _plain)(rows, length)
        frame = try_frame(lambda: peer.frame(Ask.REGISTER_BROKER, header, body))  # noqa: B023
        if frame and peer.send(frame):
            answer = peer.wait()
            scene.note("answer", answer and (answer.code, answer.remark))
            _look(scene, header)
        if random.random() < 0.5:
            peer.close()
        else:
            peer.ask(Ask.UNREGISTER_BROKER, header)


def _look(scene: Scene, header: Mapping[str, str]) -> None:
    """Ask a name server for what takes long when it knows many topics."""
    peer = scene.peer(scene.name_server)
    codes = (
        *(Ask.GET_ALL_TOPIC_LIST_FROM_NAMESERVER, Ask.GET_TOPICS_BY_CLUSTER),
        *(Ask.WIPE_WRITE_PERM_OF_BROKER, Ask.GET_UNIT_TOPIC_LIST, Ask.ADD_WRITE_PERM_OF_BROKER),
    )
    for code in scene.random.sample(codes, 2):
        scene.note("look", code.name)
        peer.ask(code, {**header, "cluster": "strangers"})


def settings(scene: Scene) -> None:
    """Very many settings, or very long ones, are put into the name server."""
    random = scene.random
    peers = [scene.peer(scene.name_server) for _ in range(random.choice((1, 8)))]
    count, length = random.choice(((4, 2**20), (60, 60_000), (2_000, 1_000), (5_000, 100)))
    scene.note("settings", (len(peers), count, length))
    value = random.choice(("x", "\x01")) * length
    for peer in peers:
        for begin in range(0, count, 500):
            frames = [
                peer.frame(
                    Ask.PUT_KV_CONFIG, {"namespace": "n", "key": f"k{number}", "value": value}
                )
                for number in range(begin, min(begin + 500, count))
            ]
            if not peer.send(b"".join(frames)):
                return
    for peer in peers:
        answer = peer.wait()
        scene.note("answer", answer and (answer.code, (answer.remark or "")[:80]))
    peers[0].ask(Ask.PUT_KV_CONFIG, {"namespace": "n", "key": "k0", "value": "y"})
    peers[0].ask(Ask.GET_KVLIST_BY_NAMESPACE, {"namespace": "n"})


def prepare_topics(store: Path, random: Random) -> None:
    """Write the file of a broker that has very many topics; as one table they fit no frame."""
    kind = random.choice(("large", "small", "large"))
    name = "t%0100d" if kind == "large" else "t%d"
    rows = _ROWS_OF_PREPARED[kind]
    queues = random.choice((1, 8))
    table = {
        name % number: {
            "topicName": name % number,
            "readQueueNums": queues,
            "writeQueueNums": queues,
            "perm": 6,
        }
        for number in range(rows)
    }
    file = store / "config" / "topics.json"
    file.parent.mkdir(parents=True)
    version = {"counter": 1, "stateVersion": 0, "timestamp": 1}
    file.write_bytes(
        msgspec.json.encode(
            {"dataVersion": version, "writer": "reliable_mq", "topicConfigTable": table}
        )
    )


def many_topics(scene: Scene) -> None:
    """A broker with very many topics registers all of them, and tools read them page by page."""
    peer = scene.peer()
    names: set[str] = set()
    version, total = "", 1
    while len(names) < total:
        ext = {"topicSeq": len(names), "maxTopicNum": 2_000, "dataVersion": version}
        answer = peer.ask(Ask.GET_ALL_TOPIC_CONFIG, ext)
        if answer is None or answer.code != Code.SUCCESS:
            raise Broken(f"no page of topics: {answer and (answer.code, answer.remark)}")
        page = msgspec.json.decode(answer.body)
        if not page["topicConfigTable"]:
            raise Broken(f"{len(names)} topics came in pages, {total} are told of")
        total = int(answer.ext_fields["totalTopicNum"])
        names |= page["topicConfigTable"].keys()
        version = msgspec.json.encode(page["dataVersion"]).decode()
    for code in (Ask.GET_ALL_TOPIC_CONFIG, Ask.GET_BROKER_RUNTIME_INFO, Ask.CLEAN_UNUSED_TOPIC):
        answer = peer.ask(code)
        scene.note("answer", (code.name, answer and (answer.code, (answer.remark or "")[:80])))
    ext = {"topic": VICTIM, "readQueueNums": 4, "writeQueueNums": 4, "perm": 6}
    ext |= {"topicFilterType": "SINGLE_TAG", "defaultTopic": "TBW102", "order": "false"}
    peer.ask(Ask.UPDATE_AND_CREATE_TOPIC, ext)
    for name in (VICTIM, *scene.random.sample(sorted(names), 3), TOPIC):
        if not name.startswith("rmq_sys") and not name.startswith("RMQ_SYS"):
            scene.until_route(name)


_NUMBERS = (*NUMBERS, "9" * 400, "9" * 5_000, "-" + "9" * 400, "9" * 60_000, "1e999")
_LIKELY = ("registerNameServerPeriod", "cleanResourceInterval", "timerFlushIntervalMs")
_COUNTED = [
    field.encode_name
    for field in msgspec.structs.fields(BrokerConfig)
    if field.encode_name not in {"messageDelayLevel", "deleteWhen"}
]
QUICK = {
    "registerNameServerPeriod": "150",
    "cleanResourceInterval": "150",
    "timerFlushIntervalMs": "150",
    "flushConsumerOffsetInterval": "150",
    "flushDelayOffsetInterval": "150",
    "transactionCheckInterval": "150",
}
"""So a broker comes soon to what was changed."""


def numbers(scene: Scene) -> None:
    """Any number is put into any property, and the broker lives with it."""
    random = scene.random
    peer = scene.peer()
    for round_ in range(random.randint(4, 12)):
        name = random.choice(_LIKELY if round_ < 2 else _COUNTED)
        value = random.choice(_NUMBERS[-5:] if round_ < 2 else _NUMBERS)
        if name in _REFUSING or (name in _LIKELY and round_ >= 2):
            continue
        scene.note("number", (name, value[:30]))
        _change(peer, name, value)
    scene.pass_time(0.6)
    # What was taken may let the broker refuse sends, as it was told to: it is taken back.
    before = {f.encode_name: f.default for f in msgspec.structs.fields(BrokerConfig)}
    kept = {name: before[name] for name in _COUNTED if name not in _AT_START and before[name] != ""}
    for name, value in kept.items():
        _change(peer, name, str(value).lower() if isinstance(value, bool) else str(value))


def _change(peer: Peer, name: str, value: str) -> None:
    if peer.is_open:
        peer.ask(Ask.UPDATE_BROKER_CONFIG, {}, f"{name}={value}".encode())


_AT_START = frozenset({"namesrvAddr", "listenPort", "brokerIP1"})
_REFUSING = frozenset({"autoCreateTopicEnable"})
