"""The relay's lanes at their edges: without a key, topics that work again, leases that end now."""

from tests.outbox.test_relay import MemoryBook, MemoryBroker, World

from reliable_mq.outbox.relay import Relay
from reliable_mq.outbox.stub import Stub


def test_stubs_without_a_key_do_not_wait_for_each_other() -> None:
    world = World(batch_max=64)
    names = [f"m{number}" for number in range(40)]
    world.accept(*names)
    world.relay.run_once(1.0)
    assert world.broker.calls == [names]


def test_a_batch_takes_no_more_than_its_most() -> None:
    world = World(batch_max=3)
    world.accept("a", "b", "c", "d")
    assert world.relay.run_once(1.0).waiting == 1
    assert world.relay.run_once(1.1).waiting == 0
    assert world.broker.calls == [["a", "b", "c"], ["d"]]


def test_a_topic_that_failed_is_told_of_once_when_one_arrives_there_again() -> None:
    book, broker, told = MemoryBook(), MemoryBroker(), list[str]()
    relay = Relay(book, broker, lambda *_: 99.0, owner="me", lease=5.0, arrives_again=told.append)

    def send(name: str, topic: str) -> None:
        book.there.add(name)
        relay.accept([Stub(seq=1, message_id=name, topic=topic, content=b"x", ordering_key="")], 0)
        relay.run_once(1.0)

    send("first", "t")
    assert told == [], "nothing had failed"
    broker.refused = {"second", "other"}
    send("second", "t")
    send("other", "u")
    assert told == []
    send("third", "t")
    send("fourth", "t")
    assert told == ["t"]


def test_what_failed_last_is_told_until_a_run_without_a_failure() -> None:
    world = World()
    world.broker.refused = {"a", "b"}
    world.accept("a", "b", "c")
    counts = world.relay.run_once(1.0)
    assert (counts.sent, counts.failed) == (1, 2)
    assert world.relay.last_failed is not None
    assert world.relay.last_failed.error == "Unavailable: no"
    world.accept("d")
    world.relay.run_once(1.1)
    assert world.relay.last_failed is None


def test_nothing_is_asked_of_a_broker_when_nothing_can_be_sent() -> None:
    world = World()
    world.accept("a")
    world.book.there.clear()
    assert world.relay.run_once(1.0).dropped == 1
    assert world.broker.calls == []
    assert world.book.outcomes == []


def test_a_lease_is_renewed_at_its_half_and_a_stub_is_left_at_its_end() -> None:
    world = World()
    world.accept("early", written=0.0)
    world.relay.run_once(2.49)
    assert world.book.renewed == []
    world.accept("half", written=0.0)
    world.relay.run_once(2.5)
    assert world.book.renewed == [({"half"}, 7.5)]
    assert world.broker.calls == [["early"], ["half"]]

    world.book.blocked = {"late"}
    world.accept("late", written=3.0)
    world.relay.run_once(5.5)
    assert world.book.renewed[1:] == [({"late"}, 10.5)]
    assert world.relay.run_once(10.49).waiting == 1
    counts = world.relay.run_once(10.5)
    assert (counts.dropped, counts.waiting) == (1, 0)
