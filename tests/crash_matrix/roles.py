"""What a process of a run does: each function is the whole life of one, if nothing ends it before.

Receives a world; returns when the process has done its work. Those of `Role` are the ones that
die; what their worlds are prepared by is in `preparing`, and what goes on after them is `drain`.
"""

import math
import sys
import threading
import time
import types
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager

from tests.crash_matrix.application import AFTER, BY_MESSAGE, COUNT_MAX, GROUPS, WANTED, build
from tests.crash_matrix.modes import Role
from tests.crash_matrix.placing import BY_CALL, by_an_idempotent_call, order_of, place_missing
from tests.crash_matrix.worlds import CHECK_BACK, LONG_AGO, Books, World
from tests.waiting import allowed_seconds, looks

from reliable_mq import ReliableMQ
from reliable_mq.cli.main import run as command
from reliable_mq.client.thread_client import Client
from reliable_mq.reconcile.brokers.popped_pulls import pulled_in_flight
from reliable_mq.runtime.blocking_link import BlockingLink

LIFE_SECONDS_MAX = 180.0
"""Most take a second; on a machine that is busy otherwise a life has longer, see `Life`."""
CLOSING_SECONDS_MAX = 20.0
"""So long a life that has waited in vain may take to close the application."""
RECEIPT_SECONDS_MAX = 2.0
TOMBSTONE_SECONDS_MAX = 20.0
TOLD_SECONDS_MAX = 5.0
CHECKED_BACK_SECONDS = sum(map(int, CHECK_BACK.values())) / 1000 + 0.3
FAR = 1_000_000
"""An offset that no queue has: what is said to lie there was lost."""

FLAWED_SECONDS = 3.0
UNSETTLED = "FROM rmq_message_stub WHERE status = 0 AND resend_time IS NOT NULL"
UNSENT = "FROM rmq_message_stub WHERE status = 0 AND broker_name IS NULL"
_EFFECTS_OF_ORDERS = f"FROM effects WHERE consumer_group <> '{AFTER}'"
_BY_MESSAGE = f"FROM effects WHERE consumer_group = '{BY_MESSAGE}'"
_TOLD = "FROM rmq_alert WHERE state = 2"
_TOMBSTONES = "FROM rmq_message_stub WHERE status = 2 AND length(content) = 0"
_NOT_ASKED_FOR = (
    "FROM rmq_message_stub WHERE status = 0 AND resend_time IS NOT NULL "
    f'AND (broker_name IS NULL OR "offset" >= {FAR} OR "count" >= {COUNT_MAX} '
    "OR message_key = '1')"
)
OLD = tuple(
    f"FROM rmq_{table} WHERE {column} < '{LONG_AGO} 01:00:00'"
    for table, column in (
        ("message_stub", "update_date"),
        ("consume_log", "consume_date"),
        ("business_key", "consume_date"),
        ("idempotent_call", "expire_date"),
    )
)
"""What retention finds to be old, in each of its tables."""


class Life:
    """How long this process may live: said once, at its fork, and all its limits come from that.

    First what it waits for has to come; then it has time to close; then it tells where it hangs.
    """

    ends_at = math.inf

    @classmethod
    def begin(cls) -> None:
        """Let the life begin now."""
        cls.ends_at = time.monotonic() + allowed_seconds(LIFE_SECONDS_MAX)

    @classmethod
    def seconds_left(cls, beyond: float = 0.0) -> float:
        """Return how long it may go on, and so many seconds beyond its end."""
        return max(0.0, cls.ends_at + beyond - time.monotonic())


def producer(world: World) -> None:
    """Place the orders; the relay sends them before the application closes."""
    mq = build(world)
    place_missing(mq, world)
    mq.close()


def answerer(world: World) -> None:
    """Answer for the halves of another process until none is left."""
    mq = build(world)
    mq._half_messages.join()
    with Books(world) as books:
        wait(lambda: books.count(UNSENT) == 0)
        wait(lambda: books.count(_TOMBSTONES) >= 1, TOMBSTONE_SECONDS_MAX)
    mq.close()


def worker(world: World) -> None:
    """Consume until every group has had its effect of every order.

    What the relay does not send in time is left to a scheduler, and there is none in this life.
    """
    mq = build(world)
    wanted = len(WANTED) * len(GROUPS)
    with mq, Books(world) as books:
        wait(lambda: books.count(_EFFECTS_OF_ORDERS) >= wanted)
        wanted += len(WANTED)
        wait(lambda: books.count("FROM effects") >= wanted, RECEIPT_SECONDS_MAX)


def scheduler(world: World) -> None:
    """Send what is due, confirm what was left behind, tell of what was sent often enough."""
    mq = build(world)
    with resending(mq), Books(world) as books:
        wait(lambda: books.count(_NOT_ASKED_FOR) == 0)
        wait(lambda: books.count(_TOLD) >= 1, TOLD_SECONDS_MAX)  # a thread of its own tells
    mq.close()


def keeper(world: World) -> None:
    """Remove what is old from all databases, and nothing else."""
    mq = build(world)
    keeping = [(mq.retention(database=name), each.clock) for name, each in mq.databases.items()]
    with Books(world) as books:

        def is_all_gone() -> bool:
            for retention, clock in keeping:
                retention.run_once(clock.measured_now())
            return not any(map(books.count, OLD))

        wait(is_all_gone)
    mq.close()


def person(world: World) -> None:
    """Retry what waits for a person by hand: dead letters, and stubs of which too many were sent.

    Whoever is not sure that it was done does it again.
    """
    desk = types.ModuleType("desk")  # as `--app MODULE:OBJECT` finds it
    desk.mq = mq = build(world)  # type: ignore[attr-defined]
    sys.modules["desk"] = desk
    _do("dlq", "retry", "--group", world.group("mails"))
    for name in mq.databases:
        _do("stub", "retry", "--escalated", "--topic", world.topic("orders"), "--database", name)
    mq.close()


def _do(*words: str) -> None:
    try:
        command([*words, "--app", "desk:mq", "--yes", "--note", "the counter is open again"])
    except SystemExit as end:
        if end.code:
            raise


def drain(world: World) -> None:
    """The application after the death: everything of it, until nothing is left to be done."""
    mq = build(world)
    place_missing(mq, world)
    by_an_idempotent_call(mq, world, order_of(BY_CALL))  # who was killed does not know: again
    with resending(mq), mq, Books(world) as books, Client(world.broker) as client:
        wait(lambda: books.count(UNSETTLED) == 0)
        wait(lambda: is_read_to_the_end(client, world))
        # What is in flight is read already. A planted flaw may have lost it.
        seconds_max = FLAWED_SECONDS if world.flaw else None
        wait(lambda: books.count(_BY_MESSAGE) >= len(WANTED), seconds_max)
        if world.is_half:  # a half that nobody ended is asked for, and nothing must come of it
            time.sleep(CHECKED_BACK_SECONDS)
            wait(lambda: is_read_to_the_end(client, world))


def drain_by_hand(world: World) -> None:
    """As `drain`, and a person begins by retrying what still waits, once the time is over for which
    the dead one has claimed dead letters."""
    with Books(world) as books:
        ours = "action = 'dlq retry' AND changed = 0"
        books.run(f"UPDATE rmq_audit SET create_date = '{LONG_AGO} 00:00:00' WHERE {ours}")
    person(world)
    drain(world)


def drain_and_keep(world: World) -> None:
    """As `drain`; then retention goes on where it ended, when the dead one's minute is over."""
    drain(world)
    with Books(world) as books:
        books.run(f"UPDATE rmq_retention SET lease_until = '{LONG_AGO} 00:00:00'")
    keeper(world)


@contextmanager
def resending(mq: ReliableMQ) -> Iterator[None]:
    """Run the resend scheduler of an application while the block runs."""
    stopped = threading.Event()
    thread = threading.Thread(target=mq.resend_forever, args=(stopped,), daemon=True)
    thread.start()
    try:
        yield
    finally:
        stopped.set()
        thread.join(Life.seconds_left(CLOSING_SECONDS_MAX))


def is_read_to_the_end(client: Client, world: World) -> bool:
    """Say whether no message waits for a group any more, not even one that comes twice."""
    read = [(world.group(name), world.topic("orders")) for name in GROUPS]
    read.append((world.group(AFTER), world.topic("paid")))
    return all(
        committed >= end
        for group, topic in read
        for committed, end in client.consumer_progress(group, topic).values()
    )


def nothing_is_in_flight(client: Client, world: World) -> bool:
    """Say whether the group by the message has acknowledged all that it got, so that nothing comes
    again."""
    now_ms = int(time.time() * 1000)
    (broker,) = client.topic_route(world.topic("orders")).brokers.values()
    with BlockingLink(str(broker.master), LIFE_SECONDS_MAX) as link:
        flying = pulled_in_flight(link.call, "DefaultCluster", now_ms, now_ms)
    return all(group != world.group(BY_MESSAGE) for group, _ in flying)


DYING: Mapping[str, Callable[[World], None]] = {
    Role.PRODUCER: producer,
    Role.WORKER: worker,
    Role.SCHEDULER: scheduler,
    Role.ANSWERER: answerer,
    Role.KEEPER: keeper,
    Role.PERSON: person,
}
DRAINS: Mapping[str, Callable[[World], None]] = {
    "drain": drain,
    "drain by hand": drain_by_hand,
    "drain and keep": drain_and_keep,
}
DRAINED_BY = {Role.PERSON: "drain by hand", Role.KEEPER: "drain and keep"}


def wait(condition: Callable[[], bool], seconds_max: float | None = None) -> None:
    """Wait until a condition holds, or for `seconds_max` if it need not.

    Raises:
        TimeoutError: when it must hold and does not.
    """
    deadline = Life.ends_at if seconds_max is None else time.monotonic() + seconds_max
    for _ in looks(lambda: not condition()):
        if time.monotonic() > deadline:
            if seconds_max is not None:
                return
            raise TimeoutError("the life came to no end")
