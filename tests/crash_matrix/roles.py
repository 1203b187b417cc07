"""What a process of a run does: each function is the whole life of one, if nothing ends it before.

Receives a world; returns when the process has done its work. Those of `Role` are the ones that
die; the others prepare a world for them, and live on after them.
"""

import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager

import msgspec
from tests.crash_matrix.application import (
    AFTER,
    GROUPS,
    LONELY,
    WANTED,
    build,
    place_lonely,
    place_missing,
)
from tests.crash_matrix.modes import Form, Role
from tests.crash_matrix.worlds import CHECK_BACK, Books, World

from reliable_mq import ReliableMQ
from reliable_mq.app.thread_halves import Halves
from reliable_mq.client.thread_client import Client
from reliable_mq.errors import Unavailable
from reliable_mq.testing.local_servers import free_port

LIFE_SECONDS_MAX = 60.0
RECEIPT_SECONDS_MAX = 2.0
CHECKED_BACK_SECONDS = sum(map(int, CHECK_BACK.values())) / 1000 + 0.3
LOOK_SECONDS = 0.01
FAR = 1_000_000
"""An offset that no queue has: what is said to lie there was lost."""

_EFFECTS_OF_ORDERS = f"FROM effects WHERE consumer_group <> '{AFTER}'"
_UNSETTLED = "FROM rmq_message_stub WHERE status = 0 AND resend_time IS NOT NULL"
_UNSENT = "FROM rmq_message_stub WHERE status = 0 AND broker_name IS NULL"
_TOMBSTONES = "FROM rmq_message_stub WHERE status = 2 AND length(content) = 0"
_NOT_ASKED_FOR = (
    "FROM rmq_message_stub WHERE status = 0 AND resend_time IS NOT NULL "
    f'AND (broker_name IS NULL OR "offset" >= {FAR} OR "count" >= 16 OR message_key = \'1\')'
)


def producer(world: World) -> None:
    """Place the orders; the relay sends them before the application closes."""
    mq = build(world)
    place_missing(mq, world)
    mq.close()


def hanging(world: World) -> None:
    """Prepare a world whose halves nobody has ended, neither those of stubs nor those without."""
    mq = build(world)
    lost = Unavailable("the way to the broker is cut")
    mq._connections.commit_halves = lambda halves: [lost] * len(halves)  # type: ignore[method-assign]

    async def post_none(_self: Halves, _halves: object) -> None: ...

    Halves._post_all = post_none  # type: ignore[method-assign,assignment]
    place_missing(mq, world)
    mq.close()


def answerer(world: World) -> None:
    """Answer for the halves of another process until none is left."""
    mq = build(world)
    mq._half_messages.join()
    with Books(world) as books:
        _wait(lambda: books.count(_UNSENT) == 0 and books.count(_TOMBSTONES) >= 1)
    mq.close()


def worker(world: World) -> None:
    """Consume until every group has had its effect of every order.

    What the relay does not send in time is left to a scheduler, and there is none in this life.
    """
    mq = build(world)
    wanted = len(WANTED) * len(GROUPS)
    with mq, Books(world) as books:
        _wait(lambda: books.count(_EFFECTS_OF_ORDERS) >= wanted)
        wanted += len(WANTED)
        _wait(lambda: books.count("FROM effects") >= wanted, RECEIPT_SECONDS_MAX)


def scheduler(world: World) -> None:
    """Send what is due, confirm what was left behind, tell of what was sent often enough."""
    mq = build(world)
    with _resending(mq), Books(world) as books:
        _wait(lambda: books.count(_NOT_ASKED_FOR) == 0)
    mq.close()


def sent(world: World) -> None:
    """Prepare a world whose messages wait for a worker."""
    mq = build(world, relay_lease=LIFE_SECONDS_MAX)
    place_missing(mq, world)
    with Books(world) as books:
        _wait(lambda: books.count(_UNSENT) == 0)
    mq.close()


def overdue(world: World) -> None:
    """Prepare a world in which a scheduler finds one of everything that it looks after.

    Orders 1 and 2 were consumed, and 1 was not confirmed. The broker was away when 3, 4 and 5 were
    placed, and has lost 5 since. Nobody consumes the lonely one, which was sent often enough.
    """
    mq = build(world, relay_lease=LIFE_SECONDS_MAX)
    place_missing(mq, world, up_to=2)
    with _resending(mq), mq, Books(world) as books:
        wanted = 2 * (len(GROUPS) + 1)
        _wait(lambda: books.count("FROM effects") >= wanted)
        _wait(lambda: books.count(_UNSETTLED) == 0)
    outbox = msgspec.structs.replace(world.mode, form=Form.OUTBOX)  # a half needs its broker
    nowhere = f"127.0.0.1:{free_port()}"
    unheard = msgspec.structs.replace(world, broker=nowhere, mode=outbox)
    away = build(unheard)
    place_missing(away, unheard)
    place_lonely(away, unheard)
    away.close()
    with Books(world) as books:
        stub = "UPDATE rmq_message_stub SET resend_time = create_date"
        orders = f"topic = '{world.topic('orders')}'"
        books.run(f"{stub} WHERE {orders} AND status = 0")
        books.run(f"{stub}, status = 0 WHERE message_key = '1' AND {orders}")
        books.run(
            f"{stub}, broker_name = 'shop-broker', queue_id = 0, \"offset\" = {FAR}, "
            f"\"count\" = 1 WHERE message_key = '5'"
        )
        books.run(f"{stub}, \"count\" = 16 WHERE message_key = '{LONELY}'")


def drain(world: World) -> None:
    """The application after the death: everything of it, until nothing is left to be done."""
    mq = build(world)
    place_missing(mq, world)
    with _resending(mq), mq, Books(world) as books, Client(world.broker) as client:
        _wait(lambda: books.count(_UNSETTLED) == 0)
        _wait(lambda: _is_read_to_the_end(client, world))
        if world.is_half:  # a half that nobody ended is asked for, and nothing must come of it
            time.sleep(CHECKED_BACK_SECONDS)
            _wait(lambda: _is_read_to_the_end(client, world))


@contextmanager
def _resending(mq: ReliableMQ) -> Iterator[None]:
    """Run the resend scheduler of an application while the block runs."""
    stopped = threading.Event()
    resending = threading.Thread(target=mq.resend_forever, args=(stopped,), daemon=True)
    resending.start()
    try:
        yield
    finally:
        stopped.set()
        resending.join(LIFE_SECONDS_MAX)


def _is_read_to_the_end(client: Client, world: World) -> bool:
    """Say whether no message waits for a group any more, not even one that comes twice."""
    read = [(world.group(name), world.topic("orders")) for name in GROUPS]
    read.append((world.group(AFTER), world.topic("paid")))
    return all(
        committed >= end
        for group, topic in read
        for committed, end in client.consumer_progress(group, topic).values()
    )


LIVES: Mapping[str, Callable[[World], None]] = {
    Role.PRODUCER: producer,
    Role.WORKER: worker,
    Role.SCHEDULER: scheduler,
    Role.ANSWERER: answerer,
    "hanging": hanging,
    "sent": sent,
    "overdue": overdue,
    "drain": drain,
}

PREPARED_BY: Mapping[Role, str] = {
    Role.WORKER: "sent",
    Role.SCHEDULER: "overdue",
    Role.ANSWERER: "hanging",
}


def _wait(condition: Callable[[], bool], seconds_max: float | None = None) -> None:
    """Wait until a condition holds, or for `seconds_max` if it need not.

    Raises:
        TimeoutError: when it must hold and does not.
    """
    deadline = time.monotonic() + (seconds_max or LIFE_SECONDS_MAX)
    while not condition():
        if time.monotonic() > deadline:
            if seconds_max is not None:
                return
            raise TimeoutError("the life came to no end")
        time.sleep(LOOK_SECONDS)
