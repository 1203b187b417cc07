"""One store, our broker and Apache's by turns: what one has indexed, the other finds."""

import shutil
from pathlib import Path

from bench.apache_rocketmq import ApacheRocketMQ
from bench.java_programs import build_server
from bench.reliable_mq_broker import ReliableMQBroker
from tests.broker_core.raw_client import RawClient
from tests.waiting import until
from tests.with_java import INTEROP, skipped_without_java

from reliable_mq.wire.batch_body import BatchItem, encode_batch
from reliable_mq.wire.codes import RequestCode, ResponseCode
from reliable_mq.wire.command import encode_command, request
from reliable_mq.wire.properties import encode_properties
from reliable_mq.wire.record import iter_records

TOPIC = "found"
ALIKE = range(100, 148)  # the first one alone, some in one write, the others in one batch
BATCHED = range(124, 148)
FOREVER = 2**62

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
            header = header_of(encode_properties(properties))
            body = b"%d" % number
            assert client.ask(RequestCode.SEND_MESSAGE_V2, header, body).code == 0


def header_of(properties: bytes, **changes: str) -> dict[str, str]:
    """Return the header of a send to the topic, changed."""
    places = {"a": "producers", "b": TOPIC, "c": "TBW102", "d": "1", "e": "0", "f": "0"}
    return {**places, "g": "1700000000000", "h": "0", "i": properties.decode(), **changes}


def send_alike(address: str) -> None:
    """Send messages that differ in body and unique key only: ours stores these together.

    It makes the index of them without reading them again.
    """
    first, *others = range(ALIKE.start, BATCHED.start)
    with RawClient(address) as client:
        for together in ([first], others):
            client.write(b"".join(map(frame_of_alike, together)))
            for opaque in together:
                assert client.wait(opaque).code == 0
        items = [BatchItem(0, b"%d" % number, properties_of_alike(number)) for number in BATCHED]
        fields = header_of(b"", m="true")
        assert client.ask(RequestCode.SEND_BATCH_MESSAGE, fields, encode_batch(items)).code == 0


def frame_of_alike(number: int) -> bytes:
    header = header_of(properties_of_alike(number))
    command = request(RequestCode.SEND_MESSAGE_V2, header, b"%d" % number)
    command.opaque = number
    return encode_command(command)


def properties_of_alike(number: int) -> bytes:
    return encode_properties({"KEYS": "alike", "TAGS": "blue", "UNIQ_KEY": f"{number:032X}"})


def finds_alike(address: str) -> None:
    """Look for the messages that differ little."""
    with RawClient(address) as client:
        until(lambda: find(client, "alike", maxNum=1) == [ALIKE[-1]])
        for number in ALIKE:
            assert find(client, f"{number:032X}", _UNIQUE_KEY_QUERY="true") == [number]
        assert find(client, "alike") == [*ALIKE]
        assert find(client, "blue", indexType="T") == [*ALIKE]


def find(client: RawClient, key: str, **changes: object) -> list[int]:
    """Return the numbers of the messages that a query finds."""
    header = {"topic": TOPIC, "key": key, "maxNum": 64, "beginTimestamp": 0}
    answer = client.ask(RequestCode.QUERY_MESSAGE, {**header, "endTimestamp": FOREVER, **changes})
    if answer.code == ResponseCode.QUERY_NOT_FOUND:
        return []
    return [int(record.body) for record in iter_records(answer.body)]


def finds_all(address: str, count: int) -> None:
    """Look for messages 0 to `count` - 1 in every way there is.

    A broker shows a message a moment after it acknowledged it.
    """
    with RawClient(address) as client:
        until(lambda: find(client, f"order-{count - 1}") == [count - 1])
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
        return file.read(40 + 5_000_000 * 4 + (25 + len(ALIKE)) * 5 * 20)


def test_each_broker_finds_what_the_other_has_indexed_after_a_stop_and_after_a_kill(
    tmp_path: Path,
) -> None:
    with skipped_without_java():
        build_server()
    ours = ReliableMQBroker(tmp_path / "both")
    ours.start()
    send(ours.address, range(10))
    send_alike(ours.address)
    finds_all(ours.address, 10)
    finds_alike(ours.address)
    ours.kill()
    with ApacheRocketMQ(tmp_path / "both", "ASYNC_FLUSH") as apache:
        finds_all(apache.address, 10)
        finds_alike(apache.address)
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
        finds_alike(ours.address)
    assert index_in(folder) == by_both
