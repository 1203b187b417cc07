"""Many of what a process has few of: connections, half frames, unread answers, descriptors."""

from tests.fuzz.fields import PULL, SEND
from tests.fuzz.scene import MIB, VICTIM, Broken, Peer, Scene
from tests.waiting import Budget, looks

from reliable_mq.wire.codes import RequestCode as Ask
from reliable_mq.wire.codes import ResponseCode as Code

IDLE_SECONDS = 2.0  # of the servers of `slow_frames`
_CLOSED_SECONDS = 30.0


def partial_frames(scene: Scene) -> None:
    """Many connections that each send most of a large frame, and nothing more."""
    random = scene.random
    size = random.choice((2**16, MIB, 4 * MIB, 15 * MIB))
    total = random.choice((100, 500)) * MIB
    address = random.choice((scene.broker, scene.name_server))
    count = min(total // size, 600)
    scene.note("partial", (count, size, address))
    whole = scene.peer(address).frame(-1, {}, bytes(16 * MIB - 1_000))
    for _ in range(count):
        scene.peer(address).send(whole[:size])
        scene.check()


def slow_frames(scene: Scene) -> None:
    """Frames that come byte by byte, so that the connection is never silent: they are cut off."""
    random = scene.random
    address = random.choice((scene.broker, scene.name_server))
    size = random.choice((10, 1_000, MIB))
    peers = [scene.peer(address) for _ in range(random.choice((1, 20)))]
    scene.note("slow", (len(peers), size))
    whole = peers[0].frame(-1, {}, bytes(8 * MIB))
    for peer in peers:
        peer.send(whole[:size])
    budget = Budget(_CLOSED_SECONDS)
    for _ in looks(lambda: any(peer.is_open for peer in peers), 0.1):
        if not budget.is_left():
            raise Broken(f"a frame that never ends is kept, {budget.missed()}")
        for peer in peers:
            peer.send(b"x")
            peer.look()


def silent_readers(scene: Scene) -> None:
    """Connections that ask for large answers and read none."""
    random = scene.random
    sender = scene.peer()
    body = random.randbytes(1_000) * random.choice((1_000, 4_000))
    for _ in range(16):
        answer = sender.ask(Ask.SEND_MESSAGE_V2, {**SEND, "b": VICTIM}, body)
        if answer is None or answer.code != Code.SUCCESS:
            raise Broken(f"a send is refused: {answer and (answer.code, answer.remark)}")
    count, at_once = random.choice(((30, 40), (60, 20), (150, 8)))
    scene.note("silent", (count, at_once, len(body)))
    pull = {**PULL, "topic": VICTIM, "maxMsgNums": 32}
    for _ in range(count):
        peer = scene.peer(reads=False)
        frames = [
            peer.frame(Ask.PULL_MESSAGE, {**pull, "queueOffset": number % 16})
            for number in range(at_once)
        ]
        peer.send(b"".join(frames))
        scene.check()
    scene.until_it_takes_no_more()


def crowd(scene: Scene) -> None:
    """Very many connections that come, say something small or odd, and go or stay."""
    random = scene.random
    count = random.choice((100, 400, 800))
    scene.note("crowd", count)
    beat = b'{"clientID":"c%d","consumerDataSet":[{"groupName":"crowd"}],"producerDataSet":[]}'
    for number in range(count):
        peer = scene.peer(random.choice((scene.broker, scene.name_server)))
        kind = random.randrange(5)
        if kind == 0:
            peer.send(random.randbytes(random.choice((1, 3, 4, 100))))
        elif kind == 1:
            peer.send(peer.frame(Ask.HEART_BEAT, {}, beat % number))
        elif kind == 2:
            peer.send(peer.frame(-1) * 50)
        elif kind == 3:
            peer.close()
    scene.peer().ask(-1)


FEW_DESCRIPTORS = 160


def few_descriptors(scene: Scene) -> None:
    """More queues and connections than a broker may have descriptors: all are served."""
    random = scene.random
    peer = scene.peer()
    topics = [f"topic-{number}" for number in range(random.choice((200, 300)))]
    for topic in topics:
        _stored(peer, topic)
    crowd_size = random.choice((0, 300))
    scene.note("descriptors", (len(topics), crowd_size))
    for _ in range(crowd_size):
        scene.peer()
    for topic in random.sample(topics, 30):
        pulled = peer.ask(Ask.PULL_MESSAGE, {**PULL, "topic": topic, "queueOffset": 0})
        if pulled is None or topic.encode() not in pulled.body:
            raise Broken(f"a message is not served: {pulled and (pulled.code, pulled.remark)}")
    _stored(peer, "late")


def _stored(peer: Peer, topic: str) -> None:
    """Send one message; a broker that is busy is asked again, as clients do."""
    budget = Budget(_CLOSED_SECONDS)
    while True:
        answer = peer.ask(Ask.SEND_MESSAGE_V2, {**SEND, "b": topic}, topic.encode())
        if answer is not None and answer.code == Code.SUCCESS:
            return
        busy = answer is not None and answer.code == Code.SYSTEM_BUSY
        if not busy or not budget.is_left():
            raise Broken(f"a send is refused: {answer and (answer.code, answer.remark)}")
