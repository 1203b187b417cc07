"""Many brokers of strangers, and many that register at once."""

from tests.fuzz.big_tables import HEADER, compressed
from tests.fuzz.scene import Peer, Scene

from reliable_mq.wire.codes import RequestCode as Ask

BROKERS_TOPICS = 250_000


def many_brokers(scene: Scene) -> None:
    """Some connections register very many brokers each, while many topics are known, and end."""
    random = scene.random
    owner = scene.peer(scene.name_server)
    header = {**HEADER, "compressed": "true"}
    owner.ask(Ask.REGISTER_BROKER, header, compressed(BROKERS_TOPICS, 8))
    for connection in range(random.randint(1, 3)):
        peer = scene.peer(scene.name_server)
        count = random.choice((300, 600))
        scene.note("brokers", count)
        names = range(connection * 1_000, connection * 1_000 + count)
        frames = [peer.frame(Ask.REGISTER_BROKER, _header(number)) for number in names]
        peer.send(b"".join(frames))
        answer = peer.wait()
        scene.note("answer", answer and (answer.code, answer.remark))
        if random.random() < 0.5:
            for number in names:
                peer.send(peer.frame(Ask.UNREGISTER_BROKER, _header(number)))
            peer.ask(Ask.GET_BROKER_CLUSTER_INFO)
        peer.close()
    owner.ask(Ask.GET_BROKER_CLUSTER_INFO)


def _header(number: int) -> dict[str, str]:
    name, address = f"stranger-{number}", f"10.0.1.1:{number}"
    return {**HEADER, "brokerName": name, "brokerAddr": address, "heartbeatTimeoutMillis": "9" * 15}


def at_once(scene: Scene) -> None:
    """Many connections register very many topics each, all at once; some end meanwhile."""
    random = scene.random
    body = compressed(30_000, random.choice((8, 300)))
    peers: list[Peer] = []
    for number in range(random.choice((30, 40))):
        peer = scene.peer(scene.name_server)
        header = {**_header(number), "compressed": "true"}
        peer.send(peer.frame(Ask.REGISTER_BROKER, header, body))
        peers.append(peer)
    scene.note("at once", (len(peers), len(body)))
    for peer in random.sample(peers, 3):
        peer.close()
    for peer in peers:
        if peer.is_open:
            answer = peer.wait()
            scene.note("answer", answer and (answer.code, answer.remark))
