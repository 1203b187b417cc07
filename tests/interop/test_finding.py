"""One store, our broker and Apache's by turns: what one has indexed, the other finds."""

import shutil
from pathlib import Path

from bench.apache_rocketmq import ApacheRocketMQ
from bench.java_programs import build_server
from bench.reliable_mq_broker import ReliableMQBroker
from tests.broker_core.raw_client import RawClient
from tests.with_java import INTEROP, skipped_without_java

from reliable_mq.wire.codes import RequestCode, ResponseCode
from reliable_mq.wire.properties import encode_properties
from reliable_mq.wire.record import iter_records

TOPIC = "found"
FOREVER = 2**62
TRIES = 100  # Apache shows a message a moment after it acknowledged it

pytestmark = INTEROP


def send(address: str, numbers: range) -> None:
    """Send messages with a unique key, two keys and a tag."""
    with RawClient(address) as client:
        for number in numbers:
            properties = {
                "KEYS": f"order-{number} customer-{number % 2}",
                "TAGS": "red",
                "UNIQ_KEY": f"{number:032X}",
            }
            header = {
                "a": "producers",
                "b": TOPIC,
                "c": "TBW102",
                "d": 1,
                "e": 0,
                "f": 0,
                "g": 1,
                "h": 0,
                "i": encode_properties(properties).decode(),
            }
            body = b"%d" % number
            assert client.ask(RequestCode.SEND_MESSAGE_V2, header, body).code == 0


def find(client: RawClient, key: str, **changes: object) -> list[int]:
    """Return the numbers of the messages that a query finds."""
    header = {"topic": TOPIC, "key": key, "maxNum": 64, "beginTimestamp": 0}
    answer = client.ask(RequestCode.QUERY_MESSAGE, {**header, "endTimestamp": FOREVER, **changes})
    if answer.code == ResponseCode.QUERY_NOT_FOUND:
        return []
    return [int(record.body) for record in iter_records(answer.body)]


def finds_all(address: str, count: int) -> None:
    """Look for messages 0 to `count` - 1 in every way there is."""
    with RawClient(address) as client:
        for _ in range(TRIES):
            if find(client, f"order-{count - 1}"):
                break
        for number in range(count):
            assert find(client, f"order-{number}") == [number]
            assert find(client, f"{number:032X}", _UNIQUE_KEY_QUERY="true") == [number]
        assert find(client, "customer-1") == list(range(1, count, 2))
        assert find(client, "customer-1", maxNum=2) == list(range(1, count, 2))[-2:]
        assert find(client, "red", indexType="T") == list(range(count))
        assert find(client, "green", indexType="T") == []


def index_in(folder: Path) -> bytes:
    """Return the head, the slots and the first entries of the one index file."""
    (path,) = folder.iterdir()
    with path.open("rb") as file:
        return file.read(40 + 5_000_000 * 4 + 25 * 5 * 20)


def test_each_broker_finds_what_the_other_has_indexed_after_a_stop_and_after_a_kill(
    tmp_path: Path,
) -> None:
    with skipped_without_java():
        build_server()
    ours = ReliableMQBroker(tmp_path / "both")
    ours.start()
    send(ours.address, range(10))
    finds_all(ours.address, 10)
    ours.kill()
    with ApacheRocketMQ(tmp_path / "both", "ASYNC_FLUSH") as apache:
        finds_all(apache.address, 10)
        send(apache.address, range(10, 20))
        finds_all(apache.address, 20)
    with ours:
        finds_all(ours.address, 20)
        send(ours.address, range(20, 25))
        finds_all(ours.address, 25)
    folder = tmp_path / "both" / "store" / "index"
    by_both = index_in(folder)
    shutil.rmtree(folder)
    with ours:
        finds_all(ours.address, 25)
    assert index_in(folder) == by_both
