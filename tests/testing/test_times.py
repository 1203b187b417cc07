"""When messages with a time arrive, in worlds whose clock the test sets."""

import asyncio
import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import pytest
from sqlalchemy import select
from tests.testing.test_message_world import Shop

from reliable_mq import Reject, ReliableMQ
from reliable_mq.database.row_values import StubStatus
from reliable_mq.errors import Refused, RemoteError, UsageError
from reliable_mq.testing.manual_clock import ManualClock
from reliable_mq.testing.memory_broker import MemoryBroker
from reliable_mq.testing.message_world import MessageWorld

RANGE = 60.0
"""Seconds: a `timer_range_seconds` that a test can pass."""

Clock = Callable[[], float]


class Reminders:
    """An application whose messages have a time."""

    def __init__(self, url: str, **settings: Any) -> None:
        self.mq = mq = ReliableMQ("reminders", database=url, **settings)
        mq.create_tables()
        self.arrived: dict[str, float] = {}
        self.clock: Clock = float

        @mq.consumer("reminders", group="people")
        def remind(reminder: dict[str, str]) -> None:
            self.arrived[reminder["name"]] = self.clock()

    @contextmanager
    def world(self, **properties: Any) -> Iterator[MessageWorld]:
        with MessageWorld(self.mq, **properties) as world:
            self.clock = world.clock.now
            yield world

    def send(self, name: str = "it", **options: Any) -> str:
        with self.mq.transaction() as tx:
            return tx.send("reminders", {"name": name}, **options)

    def stub(self, message_id: str) -> Any:
        table = self.mq.database.stubs
        with self.mq.database.engine.connect() as connection:
            return connection.execute(select(table).where(table.c.message_id == message_id)).one()


Make = Callable[..., Reminders]


@pytest.fixture
def make(database_url: str) -> Iterator[Make]:
    made: list[Reminders] = []

    def one(**settings: Any) -> Reminders:
        made.append(Reminders(database_url, **settings))
        return made[-1]

    yield one
    for each in made:
        each.mq.close()


def pass_time(world: MessageWorld, seconds: float, step: float) -> None:
    for _ in range(round(seconds / step)):
        world.advance(step)


def wait_until(world: MessageWorld, moment: float) -> None:
    world.advance(moment - world.clock.now())


def test_a_delay_of_three_seconds_takes_three_seconds(make: Make) -> None:
    app = make()
    with app.world() as world:
        began = world.clock.now()
        app.send(delay=timedelta(seconds=3))
        world.deliver()
        pass_time(world, 4, 0.25)

        assert app.arrived["it"] - began == pytest.approx(3.0, abs=0.25)


def test_an_instant_counts_in_its_time_zone_and_one_that_has_passed_is_now(make: Make) -> None:
    app = make()
    with app.world() as world:
        began = world.clock.now()
        soon = datetime.fromtimestamp(began + 5, timezone(timedelta(hours=5, minutes=30)))
        past = datetime.fromtimestamp(began - 86_400, UTC)
        app.send("soon", deliver_at=soon)
        app.send("past", deliver_at=past)
        app.send("none", delay=timedelta())
        app.send("negative", delay=timedelta(seconds=-3))
        app.send("least", delay=timedelta(milliseconds=1))
        world.deliver()
        at_once = set(app.arrived)
        pass_time(world, 6, 0.25)

    assert at_once == {"past", "none", "negative"}
    assert app.arrived["soon"] - began == pytest.approx(5.0, abs=0.25)
    assert app.arrived["least"] - began <= 0.25


def test_what_many_payloads_say_of_their_time_is_followed(shop: Shop) -> None:
    with MessageWorld(shop.mq) as world:
        at = datetime.fromtimestamp(world.clock.now() + 3, UTC)
        with shop.mq.transaction() as tx:
            tx.send_many("orders", [{"id": 7}], deliver_at=lambda _order: at)
        world.deliver()
        assert shop.payments(7) == 0
        world.advance(4)
        assert shop.payments(7) == 1


@pytest.fixture
def shop(database_url: str) -> Iterator[Shop]:
    made = Shop(database_url)
    yield made
    made.mq.close()


def test_what_is_further_than_the_range_waits_in_the_database_and_comes_in_time(
    make: Make,
) -> None:
    # Given a message ten minutes ahead, where brokers take one minute
    app = make(timer_range_seconds=RANGE)
    with app.world(timerMaxDelaySec=str(int(RANGE))) as world:
        began = world.clock.now()
        name = app.send(delay=timedelta(minutes=10))
        world.deliver()
        stub = app.stub(name)
        assert (stub.owner, stub.count, stub.missed) == (None, 0, True)
        assert stub.resend_time.timestamp() == pytest.approx(began + 600 - RANGE)

        # When processes and brokers die meanwhile, before it was sent and after
        wait_until(world, began + 300)
        world.restart()
        world.broker.restart()
        wait_until(world, began + 535)
        assert app.stub(name).count == 0
        wait_until(world, began + 545)
        sent = app.stub(name)
        world.restart()
        world.broker.restart()
        wait_until(world, began + 595)
        assert app.arrived == {}
        pass_time(world, 10, 0.5)
        world.settle()

        # Then it was sent once, and came at its time
        assert (sent.count, sent.broker_name) == (1, "memory")
        assert app.arrived["it"] - began == pytest.approx(600, abs=1.5)
        assert app.stub(name).status == StubStatus.CONFIRMED


def test_exactly_the_range_goes_to_the_broker_and_a_millisecond_more_waits(make: Make) -> None:
    app = make(timer_range_seconds=RANGE)
    with app.world(timerMaxDelaySec=str(int(RANGE))) as world:
        within = app.send("within", delay=timedelta(seconds=RANGE))
        beyond = app.send("beyond", delay=timedelta(seconds=RANGE, milliseconds=1))
        world.deliver()

        assert app.stub(within).broker_name == "memory"
        assert app.stub(beyond).broker_name is None
        pass_time(world, 62, 1)
        assert app.arrived.keys() == {"within", "beyond"}


def test_a_broker_that_takes_less_than_it_is_believed_to_is_asked_again(make: Make) -> None:
    app = make()
    with app.world(timerMaxDelaySec="30") as world:
        began = world.clock.now()
        name = app.send(delay=timedelta(minutes=5))
        world.deliver()
        refused = app.stub(name)
        pass_time(world, 302, 1)

        assert refused.count == 0
        assert "timer message illegal" in refused.note
        assert app.stub(name).count == 1
        assert app.arrived["it"] - began == pytest.approx(300, abs=1.5)


def test_without_timers_a_delay_is_rounded_up_and_the_stub_says_so(
    make: Make, caplog: pytest.LogCaptureFixture
) -> None:
    app = make()
    with app.world(timerWheelEnable="false") as world, caplog.at_level(logging.WARNING):
        began = world.clock.now()
        names = [app.send(str(number), delay=timedelta(seconds=3)) for number in range(3)]
        world.deliver()
        stub = app.stub(names[0])
        pass_time(world, 6, 0.5)

        assert stub.deliver_time.timestamp() == pytest.approx(began + 5)
        assert "rounded up to a delay level of 5 s" in stub.note
        assert [app.arrived[name] - began for name in "012"] == pytest.approx([5.0] * 3, abs=0.5)


def test_without_timers_hours_wait_in_the_database_until_the_longest_level_fits(
    make: Make,
) -> None:
    app = make()
    with app.world(timerWheelEnable="false") as world:
        began = world.clock.now()
        name = app.send(delay=timedelta(hours=3))
        world.deliver()
        assert app.stub(name).count == 0
        world.advance(hours=1, seconds=60)
        assert app.stub(name).broker_name == "memory"
        assert app.arrived == {}
        world.advance(hours=2, seconds=300)
        assert app.arrived["it"] - began == pytest.approx(3 * 3600, abs=300)


class Ahead:
    """A clock that is wrong by an hour."""

    def __init__(self, right: ManualClock) -> None:
        self._right = right

    @property
    def epoch_ms(self) -> int:
        return self._right.epoch_ms + 3_600_000


def test_the_clock_of_the_broker_may_be_wrong(make: Make) -> None:
    app = make()
    world = MessageWorld(app.mq)
    world.broker = MemoryBroker(Ahead(world.clock))  # type: ignore[arg-type]
    with world:
        app.clock, began = world.clock.now, world.clock.now()
        app.send("delay", delay=timedelta(seconds=3))
        app.send("instant", deliver_at=datetime.fromtimestamp(began + 5, UTC))
        world.deliver()
        pass_time(world, 6, 0.5)

    assert app.arrived["delay"] - began == pytest.approx(3.0, abs=0.5)
    assert app.arrived["instant"] - began == pytest.approx(5.0, abs=0.5)


def test_a_message_with_a_time_fails_and_is_given_up_like_any_other(make: Make) -> None:
    # Given a handler that fails once, and one that refuses
    app = make()
    left: list[Exception] = [Reject("no"), OSError("once")]

    def fail() -> float:
        if left:
            raise left.pop()
        return world.clock.now()

    with app.world() as world:
        app.clock = fail
        began = world.clock.now()
        app.send(delay=timedelta(seconds=3))
        world.deliver()
        pass_time(world, 8, 0.5)

        # Then it comes again after the usual wait, and its dead letter waits for nothing
        (letter,) = world.dead_letters("people")
        assert letter.store_time_ms / 1000 - began <= 7
        assert app.arrived == {}


def test_a_time_without_a_stub_is_followed_in_every_face(make: Make) -> None:
    app = make(send_outside_transaction="allow")
    with app.world(timerWheelEnable="false") as world:
        began = world.clock.now()
        producer = app.mq.producer
        producer.send("reminders", {"name": "thread"}, delay=timedelta(seconds=3))
        late = producer.send_async("reminders", {"name": "loop"}, delay=timedelta(seconds=3))
        asyncio.run(late)
        pass_time(world, 6, 0.5)
        with pytest.raises(RemoteError, match="timerWheelEnable is false"):
            producer.send("reminders", {"name": "far"}, delay=timedelta(hours=3))

    assert [app.arrived[name] - began for name in ("thread", "loop")] == pytest.approx(
        [5.0] * 2, abs=0.5
    )


def test_a_paused_topic_sends_what_became_due_when_it_goes_on(make: Make) -> None:
    app = make(timer_range_seconds=RANGE)
    with app.world() as world:
        app.send(delay=timedelta(seconds=RANGE + 30))
        app.mq.resending.pause("reminders", note="by hand")
        world.advance(RANGE + 60)
        assert app.arrived == {}
        app.mq.resending.resume("reminders")
        world.advance(2)
        assert app.arrived.keys() == {"it"}


def test_an_ordering_key_is_refused_for_what_waits_in_the_database_and_for_nothing_else(
    make: Make,
) -> None:
    app = make(timer_range_seconds=RANGE)
    with app.world() as world:
        with pytest.raises(UsageError, match="later messages of the key would wait"):
            app.send(delay=timedelta(seconds=RANGE + 1), ordering_key="carol")
        app.send("later", delay=timedelta(seconds=RANGE), ordering_key="carol")
        app.send("now", ordering_key="carol")
        world.deliver()
        assert app.arrived.keys() == {"now"}
        pass_time(world, 61, 1)
        assert app.arrived.keys() == {"now", "later"}


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"delay": timedelta(1), "deliver_at": datetime.now(UTC)}, "not both"),
        ({"deliver_at": datetime(2027, 1, 1)}, "has no time zone"),  # noqa: DTZ001
        ({"deliver_at": "tomorrow"}, "a datetime is needed"),
        ({"deliver_at": 1_800_000_000}, "a datetime is needed"),
        ({"deliver_at": datetime.max.replace(tzinfo=UTC)}, "more than a hundred years"),
        ({"delay": timedelta(days=365 * 102)}, "more than a hundred years"),
    ],
)
def test_a_time_that_nobody_can_follow_is_refused_where_it_is_written(
    make: Make, options: dict[str, Any], says: str
) -> None:
    app = make(send_outside_transaction="allow")
    with app.world():
        with pytest.raises(UsageError, match=says):
            app.send(**options)
        with pytest.raises((UsageError, Refused), match=f"{says}|bigger than the max delay"):
            app.mq.producer.send("reminders", {"name": "it"}, **options)


def test_a_time_of_a_hundred_years_waits_and_disturbs_nobody(make: Make) -> None:
    app = make()
    with app.world() as world:
        name = app.send("far", delay=timedelta(days=36_500))
        app.send("near")
        world.advance(days=3)

        stub = app.stub(name)
        assert (stub.status, stub.count, stub.note) == (StubStatus.UNCONFIRMED, 0, None)
        assert app.arrived.keys() == {"near"}
