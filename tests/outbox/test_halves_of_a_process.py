"""The halves of a process, over a client in memory: what is joined, sent, rolled back and left."""

import asyncio
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from tests.forked_child import in_child
from tests.waiting import until

from reliable_mq.database.sql_database import Database
from reliable_mq.errors import Unavailable
from reliable_mq.message import (
    CONFIRM_TO,
    CheckBack,
    Decision,
    Half,
    Message,
    MessageQueue,
    ReceivedMessage,
    SendResult,
)
from reliable_mq.outbox.stub import Stub
from reliable_mq.outbox.thread_half_messages import HalfMessages
from reliable_mq.outbox.thread_open_halves import OpenHalves
from reliable_mq.outbox.thread_outboxes import Outboxes
from reliable_mq.runtime.loop_thread import LoopThread


class Transactions:
    """What a client does with halves. It refuses those whose ids are in `refused`."""

    def __init__(self) -> None:
        self.joined: dict[str, Any] = {}
        self.sent: list[Message] = []
        self.groups: set[str] = set()
        self.posted: list[tuple[str, Decision]] = []
        self.refused: set[str] = set()
        self.unended: set[str] = set()
        self.under_way = self.most_under_way = 0

    async def join(self, group: str, answerer: Any) -> None:
        assert group not in self.joined, "one join is enough"
        self.joined[group] = answerer

    async def send(self, message: Message, group: str) -> Half:
        assert group in self.joined, "a broker could ask nobody"
        self.under_way += 1
        self.most_under_way = max(self.most_under_way, self.under_way)
        await asyncio.sleep(0)
        self.under_way -= 1
        if message.message_id in self.refused:
            raise Unavailable("no room")
        self.sent.append(message)
        return half_of(message.message_id, group)

    async def post(self, half: Half, decision: Decision) -> None:
        if half.message_id in self.unended:
            raise Unavailable("nobody there")
        self.posted.append((half.message_id, decision))


def half_of(message_id: str, group: str = "g") -> Half:
    return Half(
        message_id=message_id,
        group=group,
        queue=MessageQueue("orders", "b", 0),
        half_offset=1,
        commit_log_offset=2,
    )


class Client:
    def __init__(self) -> None:
        self.transactions = Transactions()


class Link:
    """The connections of a process."""

    owner = "me"

    def __init__(self) -> None:
        self.loop_thread = LoopThread()
        self.client = Client()
        self.open_halves = OpenHalves()
        self.relays: list[str] = []
        self.shared_relays = self
        self.woken: list[str] = []

    def commit_halves(self, halves: Sequence[Half]) -> list[SendResult | Exception]:
        return [Unavailable("nobody there") for _ in halves]

    def relay(self, name: str, database: Database, stubs: object) -> "Link":
        self.relays.append(name)
        return self

    def accept_committed(self, stubs: Sequence[Stub]) -> None: ...

    def wake(self, database: str) -> None:
        self.woken.append(database)


class World:
    def __init__(self, folder: Path) -> None:
        self.link = Link()
        self.databases = {
            name: Database(f"sqlite:///{folder}/{name}.db", prefix="rmq_", connections=2)
            for name in ("first", "second")
        }
        for database in self.databases.values():
            database.create_tables()
        self.messages = HalfMessages("shop", self.link, self.databases, self.next_time, 5.0)  # type: ignore[arg-type]

    @staticmethod
    def next_time(count: int, now: float, deliver_time: float | None) -> float:
        return now + 10

    @property
    def transactions(self) -> Transactions:
        return self.link.client.transactions

    def close(self) -> None:
        self.messages.close()
        self.link.loop_thread.close()
        for database in self.databases.values():
            database.close()


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    made = World(tmp_path)
    yield made
    made.close()


def stubs(*names: str, **columns: Any) -> list[Stub]:
    return [Stub(seq=0, message_id=name, topic="orders", content=b"x", **columns) for name in names]


@pytest.mark.parametrize("is_async", [False, True])
def test_halves_are_sent_for_the_group_of_their_database(world: World, is_async: bool) -> None:
    """They name the topic for notices of groups with other databases."""
    halves = world.messages.of("first")
    made = stubs("a", "b", required_groups=("payments",))
    if is_async:
        asyncio.run(halves.send_async(made))
    else:
        halves.send(made)
    identity = world.databases["first"].identity
    assert list(world.transactions.joined) == [f"shop_half_{identity.value()}"] == [halves.group]
    assert [each.message_id for each in world.transactions.sent] == ["a", "b"]
    (told,) = {each.properties[CONFIRM_TO] for each in world.transactions.sent}
    assert told == f"{identity.notice_topic()}:payments"
    assert len(world.link.open_halves) == 2
    halves.send(stubs("c"))
    assert len(world.link.open_halves) == 3


def test_many_halves_are_under_way_at_once_and_not_all(world: World) -> None:
    world.messages.of("first").send(stubs(*(f"{number}" for number in range(200))))
    assert len(world.transactions.sent) == 200
    assert world.transactions.most_under_way == 64


def test_when_one_is_refused_those_that_were_stored_are_rolled_back(world: World) -> None:
    world.transactions.refused = {"b"}
    with pytest.raises(Unavailable, match="no room"):
        world.messages.of("first").send(stubs("a", "b", "c"))
    until(lambda: len(world.transactions.posted) == 2)
    assert world.transactions.posted == [("a", Decision.ROLLBACK), ("c", Decision.ROLLBACK)]
    assert len(world.link.open_halves) == 0


def test_a_rollback_that_no_broker_takes_is_left_to_a_check_back(world: World) -> None:
    halves = world.messages.of("first")
    halves.send(stubs("a", "b", "c"))
    world.transactions.unended = {"a"}
    halves.roll_back(stubs("a", "unknown", "b"))
    assert len(world.link.open_halves) == 1
    until(lambda: world.transactions.posted)
    assert world.transactions.posted == [("b", Decision.ROLLBACK)]
    world.link.loop_thread.close()
    world.link.open_halves.add(half_of("late"))
    halves.roll_back(stubs("late"))  # a closed client raises nothing


def test_a_process_joins_the_group_of_each_database_once(world: World) -> None:
    world.messages.join()
    world.messages.join()
    groups = {f"shop_half_{each.identity.value()}" for each in world.databases.values()}
    assert set(world.transactions.joined) == groups
    assert len(groups) == 2


def test_listeners_join_when_there_is_one(world: World) -> None:
    class Listener:
        def execute(self, message: Message, argument: Any) -> Decision:
            raise NotImplementedError

        check = execute

    world.messages.listeners.register("transfers", Listener())
    world.messages.join()
    assert "shop_transactions" in world.transactions.joined
    assert len(world.transactions.joined) == 3


def test_a_new_client_joins_again(world: World) -> None:
    halves = world.messages.of("first")
    halves.join()
    world.link.client = Client()
    halves.send(stubs("a"))
    assert list(world.transactions.joined) == [halves.group]


def test_a_check_back_is_answered_from_the_table_of_its_database(world: World) -> None:
    halves = world.messages.of("first")
    halves.join()
    queue = MessageQueue("orders", "b", 0)
    message = ReceivedMessage(topic="orders", body=b"x", queue=queue, queue_offset=0)
    answer = world.transactions.joined[halves.group]
    question = CheckBack(half_of("M" * 32), message)
    assert asyncio.run(answer(question)) is Decision.ROLLBACK, "it has no stub"
    assert [rows(database) for database in world.databases.values()] == [1, 0]


def rows(database: Database) -> int:
    with database.engine.connect() as connection:
        return len(connection.execute(database.stubs.select()).all())


def test_the_parts_of_a_database_are_made_once_and_anew_in_a_forked_child(world: World) -> None:
    """The parts of a parent claim stubs under the parent's name."""
    made = world.messages.of("first")
    assert world.messages.of("first") is made
    assert world.messages.of("second") is not made

    def child() -> None:
        assert world.messages.of("first") is not made

    in_child(child)
    world.messages.close()
    assert world.messages.of("first") is not made


def outboxes(world: World, *, is_shared: bool, asked: list[int]) -> Outboxes:
    return Outboxes(
        world.link,  # type: ignore[arg-type]
        world.databases,
        world.messages,
        relay_lease=5.0,
        timer_range=3600.0,
        is_shared=is_shared,
        groups_of_topic=lambda _topic, _tag: (),
        known_groups={},
        on_first_send=lambda: asked.append(1),
    )


@pytest.mark.parametrize("is_shared", [False, True])
def test_an_outbox_is_made_once_for_each_database_and_way(world: World, is_shared: bool) -> None:
    """Its stubs belong to this process, unless the relays are shared. Halves always do."""
    asked: list[int] = []
    made = outboxes(world, is_shared=is_shared, asked=asked)
    plain, half = made.of("first", half=False), made.of("first", half=True)
    assert made.of("first", half=False) is plain
    assert made.of("first", half=True) is half
    assert len({plain, half, made.of("second", half=False)}) == 3
    assert len(asked) == 3
    assert world.link.relays == (["first"] if is_shared else ["first", "first", "second"])

    with world.databases["first"].session() as session, session.begin():
        plain.outbox.write_stub(session, "orders", b"x")
        half.outbox.write_stub(session, "orders", b"x")
    with world.databases["first"].engine.connect() as connection:
        owners = [row.owner for row in connection.execute(world.databases["first"].stubs.select())]
    assert owners == [None if is_shared else "me", "me"]
    assert world.link.woken == ["first"] * is_shared


def test_an_outbox_is_made_anew_in_a_forked_child(world: World) -> None:
    made = outboxes(world, is_shared=False, asked=[])
    before = made.of("first", half=False)

    def child() -> None:
        assert made.of("first", half=False) is not before

    in_child(child)
    assert made.of("first", half=False) is before
