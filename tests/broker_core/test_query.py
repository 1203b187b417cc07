"""Messages found by key: the index follows the log, is rebuilt from it, and lies like Apache's."""

from contextlib import suppress
from random import Random

import pytest
from tests.broker_core.broker_world import START_MS, TOPIC, BrokerWorld, connection, there

from reliable_mq.broker_core.requests import query as queries
from reliable_mq.broker_core.store.appender import StoredMessage
from reliable_mq.broker_core.store.index_file import file_size
from reliable_mq.broker_core.store.message_index import FOLDER
from reliable_mq.testing.memory_disk import MachineStopped
from reliable_mq.wire.codes import RequestCode, ResponseCode
from reliable_mq.wire.command import Command
from reliable_mq.wire.java_hash import index_hash
from reliable_mq.wire.record import iter_records

SLOTS, ENTRIES = 100, 2000
DAY_MS = 86_400_000


def query(key: str, **changes: object) -> dict[str, object]:
    return {
        "topic": TOPIC,
        "key": key,
        "maxNum": 64,
        "beginTimestamp": 0,
        "endTimestamp": START_MS + DAY_MS,
        **changes,
    }


def find(world: BrokerWorld, key: str, **changes: object) -> list[bytes]:
    """Return the bodies that a query finds; it waits for the index with the next step of time."""
    unique = {"_UNIQUE_KEY_QUERY": "true"} if changes.pop("unique", False) else {}
    answer = ask(world, {**query(key, **changes), **unique})
    if answer.code == ResponseCode.QUERY_NOT_FOUND:
        return []
    assert answer.code == 0, answer.remark
    return [record.body for record in iter_records(answer.body)]


def ask(world: BrokerWorld, ext: dict[str, object]) -> Command:
    answer = world.begin(RequestCode.QUERY_MESSAGE, ext)
    opaque = world.last_opaque
    while answer is None:
        world.pass_time(20, step=20)
        answer = world.reply_to(opaque)
    return answer


def index_files(world: BrokerWorld) -> list[bytes]:
    return [data for path, data in sorted(world.disk.files().items()) if path.startswith(FOLDER)]


def filled_world(**properties: str) -> BrokerWorld:
    """Return a broker with message n at second n, for n from 0 to 9, of two keys and two tags."""
    world = BrokerWorld(None, **properties)
    for number in range(10):
        keys = f"order-{number} customer-{number % 2}"
        tag = "even" if number % 2 == 0 else "odd"
        world.send(b"%d" % number, KEYS=keys, TAGS=tag, UNIQ_KEY=f"{number:032X}")
        world.pass_time(1000)
    return world


def test_a_message_is_found_by_each_of_its_keys_its_unique_key_and_its_tag() -> None:
    world = filled_world()
    assert find(world, "order-3") == [b"3"]
    assert find(world, "customer-1") == [b"1", b"3", b"5", b"7", b"9"]
    assert find(world, f"{4:032X}", unique=True) == [b"4"]
    assert find(world, "even", indexType="T") == [b"0", b"2", b"4", b"6", b"8"]
    assert find(world, "even") == []
    assert find(world, "order-10") == []
    assert find(world, "order-3", topic="other") == []


def test_a_query_gives_the_newest_messages_in_the_order_of_the_log() -> None:
    assert find(filled_world(), "customer-0", maxNum=2) == [b"6", b"8"]


def test_a_query_keeps_to_its_time_span_both_ends_included() -> None:
    world = filled_world()
    span = {"beginTimestamp": START_MS + 2000, "endTimestamp": START_MS + 6000}
    assert find(world, "customer-0", **span) == [b"2", b"4", b"6"]


def test_a_query_right_after_a_send_finds_the_message() -> None:
    world = BrokerWorld()
    world.send(b"new", KEYS="k")
    assert not world.state.store.is_indexed
    assert world.begin(RequestCode.QUERY_MESSAGE, query("k")) is None
    opaque = world.last_opaque
    world.pass_time(20, step=20)
    answer = world.reply_to(opaque)
    assert answer is not None
    assert answer.code == 0


def test_a_busy_broker_puts_its_index_off_until_somebody_asks() -> None:
    world = BrokerWorld()
    for _ in range(3):
        world.send(b"new", KEYS="k")
        world.core.tick(world.now_ms)
    assert there(world.state.store.index).indexed == 0
    assert not world.core.is_index_wanted

    assert world.begin(RequestCode.QUERY_MESSAGE, query("k")) is None
    assert world.core.is_index_wanted
    assert not world.core.index_some(world.now_ms)
    assert not world.core.is_index_wanted


def test_a_busy_broker_puts_its_index_off_for_two_seconds() -> None:
    world = BrokerWorld()
    for passed, is_wanted in ((20, False), (1_900, False), (100, True), (20, True)):
        world.send(b"new", KEYS="k")
        world.now_ms += passed
        world.core.tick(world.now_ms)
        assert world.core.is_index_wanted == is_wanted

    assert not world.core.index_some(world.now_ms)
    assert not world.core.is_index_wanted
    world.send(b"new", KEYS="k")
    for back in (5_000, 0):  # a clock that went back delays the index by as much as it is late
        world.now_ms -= back
        world.core.tick(world.now_ms)
        assert not world.core.is_index_wanted


def test_a_slave_that_copies_a_whole_log_puts_its_index_off_until_somebody_asks() -> None:
    world = BrokerWorld()
    world.state.store.is_copying = True
    for _ in range(100):
        world.send(b"new", KEYS="k")
        world.now_ms += 30
        world.core.tick(world.now_ms)
        assert not world.core.is_index_wanted

    assert world.begin(RequestCode.QUERY_MESSAGE, query("k")) is None
    assert world.core.is_index_wanted
    assert not world.core.index_some(world.now_ms)
    world.send(b"new", KEYS="k")
    world.now_ms += 3_000
    world.core.tick(world.now_ms)
    world.state.store.is_copying = False
    assert world.core.is_index_wanted, "it has the log now"


def test_a_message_without_any_key_makes_no_index_file() -> None:
    world = BrokerWorld()
    message = StoredMessage(
        topic=TOPIC,
        queue_id=0,
        body=b"plain",
        properties=b"KEYS\x01\x02",
        flag=0,
        sys_flag=0,
        born_time_ms=START_MS,
        born_host=bytes(8),
    )
    world.state.append(message, START_MS)
    world.finish_turn()
    world.pass_time(100)
    assert world.state.store.is_indexed
    assert index_files(world) == []


def test_the_index_goes_on_in_another_file_when_one_is_full_and_finds_in_both() -> None:
    world = filled_world(maxIndexNum="20")  # 19 entries of 40 fit one file
    assert find(world, "customer-1") == [b"1", b"3", b"5", b"7", b"9"]
    files = index_files(world)
    assert len(files) == 3
    assert {len(data) for data in files} == {file_size(SLOTS, 20)}


def test_a_full_file_is_noted_in_the_checkpoint_when_it_is_on_the_medium() -> None:
    world = filled_world(maxIndexNum="20")
    world.pass_time(100)
    world.state.store.checkpoint()
    noted = int.from_bytes(world.disk.files()["checkpoint"][16:24])
    assert noted == START_MS + 9000  # the second file ends with keys of message 9


def test_a_file_lies_as_apache_lays_it() -> None:
    world = filled_world()
    world.pass_time(100)
    (data,) = index_files(world)
    head = [int.from_bytes(data[at : at + 8]) for at in (0, 8, 16, 24)]
    assert head[:3] == [START_MS, START_MS + 9000, 0]
    assert int.from_bytes(data[36:40]) == 41  # ten messages of four keys, from entry 1
    entry = data[40 + SLOTS * 4 + 20 :][:20]
    assert int.from_bytes(entry[:4]) == index_hash(TOPIC, f"{0:032X}")
    slot = 40 + index_hash(TOPIC, "order-9") % SLOTS * 4
    assert int.from_bytes(data[slot : slot + 4]) in range(37, 41)


def test_the_index_survives_a_clean_stop_and_is_not_built_again() -> None:
    world = filled_world()
    world.stop()
    before = index_files(world)
    world.start()
    assert world.state.store.is_indexed
    assert index_files(world) == before
    assert find(world, "order-9") == [b"9"]


def test_after_a_kill_the_index_goes_on_where_it_was() -> None:
    world = filled_world()
    world.send(b"10", KEYS="order-10")
    world.disk.kill()
    world.start()
    for number in range(11):
        assert find(world, f"order-{number}") == [b"%d" % number]


def test_a_kill_within_any_write_of_the_index_loses_and_doubles_nothing() -> None:
    intact = filled_world()
    world = filled_world()
    world.pass_time(100)
    for step in range(12):
        world.send(b"late", KEYS=f"late-{step}")
        world.disk.stop_before = len(world.disk.operations) + step
        world.disk.torn = 7
        with suppress(MachineStopped):
            world.core.index_some(world.now_ms)
        world.disk.kill()
        world.start()
        for other in range(step + 1):
            assert find(world, f"late-{other}") == [b"late"]
        assert find(world, "customer-1") == find(intact, "customer-1")


def test_after_a_power_loss_the_index_is_built_from_the_log() -> None:
    world = filled_world()
    world.pass_time(100)
    world.disk.lose_power(Random(1))
    world.start()
    for number in range(10):
        assert find(world, f"order-{number}") == [b"%d" % number]


def test_a_full_disk_stops_the_index_and_not_the_broker() -> None:
    world = filled_world()
    world.send(b"x", KEYS="late")
    world.disk.fail_at = len(world.disk.operations)
    world.pass_time(20, step=20)
    assert world.state.is_index_stuck
    world.pass_time(20, step=20)
    assert not world.state.is_index_stuck
    assert find(world, "late") == [b"x"]


def test_a_broker_without_an_index_finds_nothing_and_writes_none() -> None:
    world = filled_world(messageIndexEnable="false")
    assert find(world, "order-3") == []
    assert index_files(world) == []


@pytest.mark.parametrize("count", [0x7F000043, 2**31 - 1])
def test_an_index_file_whose_head_cannot_be_right_is_built_again(count: int) -> None:
    world = filled_world()
    find(world, "order-9")
    world.stop()
    (path,) = [path for path in world.disk.paths() if path.startswith(FOLDER)]
    content = bytearray(world.disk.files()[path])
    content[36:40] = count.to_bytes(4)
    world.disk.place_file(path, bytes(content))

    world.start()

    assert find(world, "order-9") == [b"9"]


def test_an_index_file_of_another_size_is_left_alone_and_another_name_is_taken() -> None:
    world = filled_world()
    world.stop()
    (path,) = world.disk.names("index")
    world.disk.place_file(f"index/{path}", b"short")
    world.start()
    assert find(world, "order-3") == [b"3"]
    assert world.disk.size_of(f"index/{path}") == len(b"short")


def test_queries_that_waited_are_answered_one_after_another(world: BrokerWorld) -> None:
    """A thousand answers of many MiB each would be in memory at once."""
    world.create_topic()
    world.send(KEYS="k")
    for _ in range(3):
        assert world.begin(RequestCode.QUERY_MESSAGE, query("k")) is None
    world.inbox.clear()
    counts: list[int] = []
    while len(counts) < 3:
        is_more = world.core.index_some(world.now_ms)
        world.finish_turn()
        counts.append(len(world.inbox.get(1, [])))
        assert is_more is (len(counts) < 3)
    assert counts == [1, 2, 3]


def test_queries_of_a_closed_connection_are_dropped(world: BrokerWorld) -> None:
    world.create_topic()
    world.send(KEYS="k")
    for of in (1, 2):
        assert world.begin(RequestCode.QUERY_MESSAGE, query("k"), of=of) is None
    world.core.disconnected(connection(1).id)
    assert [each.connection for each in world.state.waiting_queries] == [connection(2)]


def test_a_query_returns_the_newest_messages_that_have_so_many_bytes(
    world: BrokerWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.create_topic()
    for number in range(4):
        world.send(b"%d" % number * 200, KEYS="k")
    monkeypatch.setattr(queries, "QUERY_SIZE_MAX", 1_000)
    assert [body[:1] for body in find(world, "k")] == [b"2", b"3"]
    monkeypatch.setattr(queries, "QUERY_SIZE_MAX", 1)
    assert [body[:1] for body in find(world, "k")] == [b"3"]
