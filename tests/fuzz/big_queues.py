"""Queues of very many messages, and very many pulls that wait at one."""

from collections.abc import Callable

from tests.fuzz.bystander import GROUP, TOPIC
from tests.fuzz.fields import PULL, SEND, try_frame
from tests.fuzz.scene import VICTIM, Broken, Peer, Scene

from reliable_mq.wire.batch_body import BatchItem, encode_batch
from reliable_mq.wire.codes import RequestCode as Ask
from reliable_mq.wire.codes import ResponseCode as Code

_BATCH_COUNT = 5_000
_TAGS = 970
_WIDE = 10_000  # queues
_WINDOW = 2_000  # requests that are sent before their answers are looked for


def _sent(peer: Peer, ext: dict[str, str], body: bytes, code: int = Ask.SEND_MESSAGE_V2) -> None:
    answer = peer.ask(code, ext, body)
    if answer is None or answer.code != Code.SUCCESS:
        raise Broken(f"a send is refused: {answer and (answer.code, answer.remark)}")


def _fill(scene: Scene, peer: Peer, count: int, topic: str) -> None:
    """Store so many messages with a tag, or with other tags in between."""
    kinds = [b"TAGS\x01blue\x02", b"TAGS\x01green\x02price\x015\x02", b""]
    random = scene.random
    items = [BatchItem(0, b"x", random.choice(kinds)) for _ in range(_BATCH_COUNT)]
    body = encode_batch(items)
    ext = {**SEND, "b": topic, "m": "true"}
    for _ in range(0, count, _BATCH_COUNT):
        _sent(peer, ext, body, Ask.SEND_BATCH_MESSAGE)


def large_pulls(scene: Scene) -> None:
    """Pulls that ask for everything, of a queue in which hardly anything matches."""
    random = scene.random
    peer = scene.peer()
    count = random.choice((20_000, 200_000, 400_000))
    _fill(scene, peer, count, VICTIM)
    for _ in range(random.randint(3, 6)):
        begin = random.choice((0, 0, 0, random.randrange(count)))
        most = random.choice((32, 10**5, 2**31 - 1))
        kind = random.choice(("TAG", "SQL92"))
        wanted = random.choice(("red", "red || green", "*"))
        if kind == "SQL92":
            parts = random.choice((1, 100, 400))
            wanted = " OR ".join(f"price = {number}" for number in range(10, 10 + parts))
        at_once = random.choice((1, 1, 50))
        scene.note("pulls", (at_once, begin, most, kind, wanted[:40]))
        pull = {**PULL, "topic": VICTIM, "queueOffset": begin, "maxMsgNums": most}
        pull |= {"subscription": wanted, "expressionType": kind}
        frames = [peer.frame(Ask.PULL_MESSAGE, pull) for _ in range(at_once)]
        if peer.send(b"".join(frames)):
            answer = peer.wait()
            scene.note("answer", answer and (answer.code, answer.ext_fields.get("nextBeginOffset")))


def _other_tags(number: int) -> str:
    """Return very many tags, of which one is in every pull, as the subscription of one of many."""
    return "t0||" + "||".join(f"o{number}-{tag}" for tag in range(_TAGS))


def held_pulls(scene: Scene) -> None:
    """Very many pulls of one connection that wait, and a message that may wake all of them."""
    random = scene.random
    sender, peer = scene.peer(), scene.peer()
    _sent(sender, {**SEND, "b": VICTIM}, b"first")
    count = random.choice((5_000, 40_000, 100_000))
    kind = random.choice(("*", "one tag", "tags", "SQL92", "other tags"))
    if kind == "other tags":  # of each pull; their size limits how many wait
        count = min(count, _WINDOW)
    scene.note("held", (count, kind))
    pull = {**PULL, "topic": VICTIM, "queueOffset": 1, "sysFlag": "6"}
    pull |= {"suspendTimeoutMillis": random.choice((15_000, 60_000, 2**62))}
    if kind == "SQL92":
        pull |= {"expressionType": "SQL92", "subscription": "price > 7"}
    elif kind != "*":
        many = 1 if kind == "one tag" else 10
        pull["subscription"] = "||".join(f"t{number}" for number in range(many))
    for _ in range(0, count, _WINDOW):
        pulls = [pull] * _WINDOW
        if kind == "other tags":
            pulls = [pull | {"subscription": _other_tags(number)} for number in range(_WINDOW)]
        frames = [peer.frame(Ask.PULL_MESSAGE, each) for each in pulls]
        if not peer.send(b"".join(frames)):
            return
    if peer.ask(-1) is None:
        return
    properties = random.choice(("TAGS\x01t0\x02", "TAGS\x01no\x02", "price\x018\x02"))
    for _ in range(random.choice((1, 3))):
        _sent(sender, {**SEND, "b": VICTIM, "i": properties}, b"next")
    peer.ask(-1)
    if random.random() < 0.5:
        peer.close()  # and all that still wait are forgotten at once
        _sent(sender, {**SEND, "b": VICTIM, "i": properties}, b"last")


def large_sends(scene: Scene) -> None:
    """Batches and messages as large as they may be, and larger."""
    random = scene.random
    peer = scene.peer()
    for _ in range(random.randint(3, 6)):
        kind = random.randrange(4)
        ext = {**SEND, "b": VICTIM}
        code, body = (
            Ask.SEND_MESSAGE_V2,
            b"x" * random.choice((2**20, 2**22, 2**22 + 1, 2**24 - 900)),
        )
        if kind:
            code = Ask.SEND_BATCH_MESSAGE
            ext["m"] = "true"
            own = random.choice((b"", b"TAGS\x01a\x02", b"KEYS\x01" + b"k " * 100 + b"\x02"))
            item = BatchItem(0, b"x" * random.choice((0, 1, 40, 100)), own)
            count = len(body) // len(encode_batch([item]))
            scene.note("batch", (count, len(item.body), len(own)))
            body = encode_batch([item]) * count
        else:
            ext["i"] = "KEYS\x01" + "k " * random.choice((0, 1_000, 16_000, 2**19)) + "\x02"
        scene.note("send", (code.name, len(body), len(ext["i"])))
        frame = try_frame(lambda: peer.frame(code, ext, body))  # noqa: B023
        if frame and peer.send(frame):
            answer = peer.wait()
            scene.note("answer", answer and (answer.code, (answer.remark or "")[:80]))


def invented_ids(scene: Scene) -> None:
    """Commits, resets and locks for queues that are not there: nothing of them is kept."""
    random = scene.random
    peer = scene.peer()
    peer.ask(Ask.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, {}, b'{"groupName":"%b"}' % GROUP.encode())
    count = random.choice((3_000, 10_000, 30_000))
    first = random.choice((8, 10**6, -(2**31), 2**31 - 1 - count))
    reset = random.random() < 0.3
    scene.note("invented", (count, first, reset))
    ext: dict[str, object] = {"consumerGroup": GROUP, "topic": TOPIC, "commitOffset": 1}
    if reset:
        ext = {"group": GROUP, "topic": TOPIC, "timestamp": -1, "isForce": "true", "offset": 0}
        count = min(count, 3_000)
    code = Ask.INVOKE_BROKER_TO_RESET_OFFSET if reset else Ask.UPDATE_CONSUMER_OFFSET
    for begin in range(0, count, _WINDOW):
        numbers = range(first + begin, first + min(begin + _WINDOW, count))
        frames = [peer.frame(code, {**ext, "queueId": number}) for number in numbers]
        if not peer.send(b"".join(frames)) or peer.wait() is None:
            return
        peer.answers.clear()
    queues = b",".join(
        b'{"topic":"%b","brokerName":"b","queueId":%d}' % (TOPIC.encode(), number)
        for number in range(first, first + min(count, 9_000))
    )
    body = b'{"consumerGroup":"locking","clientId":"c","mqSet":[%b]}' % queues
    locked = peer.ask(Ask.LOCK_BATCH_MQ, {}, body)
    if locked is not None and len(locked.body) > 1_000:
        raise Broken("queues are locked that are not there")
    kept = peer.ask(Ask.GET_ALL_CONSUMER_OFFSET)
    if kept is not None and len(kept.body) > 10_000:
        raise Broken(f"{len(kept.body)} bytes of offsets of queues that are not there are kept")


def multiplied_ids(scene: Scene) -> None:
    """Groups are invented, and each has something in every queue of a wide topic."""
    random = scene.random
    peer = scene.peer()
    wide = {"topic": "wide", "readQueueNums": _WIDE, "writeQueueNums": _WIDE, "perm": 6}
    wide |= {"topicFilterType": "SINGLE_TAG", "defaultTopic": "TBW102"}
    peer.ask(Ask.UPDATE_AND_CREATE_TOPIC, wide)
    kind, count = random.choice((("locks", 100), ("offsets", 3_000), ("topics", 2_000)))
    scene.note("multiplied", (kind, count))
    code, ext, body = _multiplied(peer, kind)
    for begin in range(0, count, _WINDOW):
        frames = [
            peer.frame(code, ext(str(number)), body % number if body else b"x")
            for number in range(begin, min(begin + _WINDOW, count))
        ]
        if not peer.send(b"".join(frames)) or peer.wait() is None:
            return
        peer.answers.clear()


def _multiplied(peer: Peer, kind: str) -> tuple[int, Callable[[str], dict[str, object]], bytes]:
    """Return the code, the header for a number, and the body with a place for the number."""
    if kind == "topics":
        return Ask.SEND_MESSAGE_V2, lambda name: {**SEND, "b": f"invented-{name:0>100}"}, b""
    if kind == "locks":
        queues = b",".join(
            b'{"topic":"wide","brokerName":"b","queueId":%d}' % number for number in range(_WIDE)
        )
        body = b'{"consumerGroup":"locking-%d","clientId":"c","mqSet":[' + queues + b"]}"
        return Ask.LOCK_BATCH_MQ, lambda _name: {}, body
    peer.ask(Ask.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, {}, b'{"groupName":"source"}')
    reset = {"topic": "wide", "group": "source", "timestamp": -1, "isForce": "true"}
    peer.ask(Ask.INVOKE_BROKER_TO_RESET_OFFSET, reset | {"queueId": -1})
    clone = {"srcGroup": "source", "topic": "wide", "offline": "true"}
    return Ask.CLONE_GROUP_OFFSET, lambda name: {**clone, "destGroup": f"heir-{name}"}, b""
