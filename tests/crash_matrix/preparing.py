"""What a world is prepared by before a process dies in it: lives that nobody ends.

Receives an empty world; leaves one in which the process that is to die finds its work.
"""

from collections.abc import Callable, Mapping

import msgspec
from tests.crash_matrix.application import (
    COUNT_MAX,
    GROUPS,
    LONELY,
    WANTED,
    build,
    closed,
)
from tests.crash_matrix.modes import Form, Role
from tests.crash_matrix.placing import place_lonely, place_missing, post_letter
from tests.crash_matrix.roles import (
    FAR,
    LIFE_SECONDS_MAX,
    UNSENT,
    UNSETTLED,
    is_read_to_the_end,
    nothing_is_in_flight,
    resending,
    wait,
)
from tests.crash_matrix.worlds import LONG_AGO, Books, World

from reliable_mq import ReliableMQ
from reliable_mq.client.thread_client import Client
from reliable_mq.errors import Unavailable
from reliable_mq.outbox.thread_halves import Halves
from reliable_mq.testing.local_servers import free_port

UNCONSUMED = 5
"""The order that the broker never got, and whose stub waits for a person."""
YOUNG = 6
"""The order that retention must leave alone."""
FORGOTTEN = 99
"""What a letter was posted of so long ago that its key is forgotten."""

_GIVEN_UP = "FROM rmq_message_stub WHERE status = 0 AND given_up AND resend_time IS NULL"
_UNTOLD = "FROM rmq_consume_log WHERE confirm_time IS NOT NULL"


def sent(world: World) -> None:
    """Prepare a world whose messages wait for a worker."""
    mq = build(_relaying_itself(world), relay_lease_seconds=LIFE_SECONDS_MAX)
    place_missing(mq, world)
    with Books(world) as books:
        wait(lambda: books.count(UNSENT) == 0)
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


def overdue(world: World) -> None:
    """Prepare a world in which a scheduler finds one of everything that it looks after.

    Orders 1 and 2 were consumed, and 1 was not confirmed. The broker was away when the others were
    placed, and has lost 5 since. Nobody consumes the lonely one, which was sent often enough.
    """
    mq = build(world, relay_lease_seconds=LIFE_SECONDS_MAX)
    place_missing(mq, world, (1, 2))
    _consume(mq, world, 2 * (len(GROUPS) + 1))
    away, unheard = _without_broker(world)
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
        books.run(f"{stub}, \"count\" = {COUNT_MAX} WHERE message_key = '{LONELY}'")


def given_up(world: World) -> None:
    """Prepare a world in which two things wait for a person.

    `mails` has refused order 6, which is a dead letter of it; the broker never got order 5, however
    often it was sent.
    """
    mq = build(world, relay_lease_seconds=LIFE_SECONDS_MAX)
    closed(world).touch()
    place_missing(mq, world, set(WANTED) - {UNCONSUMED})
    with resending(mq), mq, Books(world) as books:
        wanted = (len(WANTED) - 1) * (len(GROUPS) + 1) - 1
        wait(lambda: books.count("FROM effects") >= wanted)
        wait(lambda: books.count(_GIVEN_UP) == 1 and books.count(UNSETTLED) == 0)
    closed(world).unlink()
    away, unheard = _without_broker(world)
    place_missing(away, unheard)
    away.close()
    with Books(world) as books:
        books.run(
            f'UPDATE rmq_message_stub SET resend_time = create_date, "count" = {COUNT_MAX} '
            f"WHERE message_key = '{UNCONSUMED}'"
        )
        last = build(world)
        with resending(last):
            wait(lambda: books.count(UNSETTLED) == 0)
        last.close()


def grown_old(world: World) -> None:
    """Prepare a world in which all is settled, and all but order 6 is as old as can be.

    Windows that are short enough to be waited for are refused (P7), so the rows are made old.
    """
    mq = build(world, relay_lease_seconds=LIFE_SECONDS_MAX)
    post_letter(mq, FORGOTTEN)
    place_missing(mq, world)
    _consume(mq, world, len(WANTED) * (len(GROUPS) + 1))
    old = f"'{LONG_AGO} 00:00:00.000000'"
    with Books(world) as books:
        young = books.ask(f"SELECT message_id FROM rmq_message_stub WHERE message_key = '{YOUNG}'")
        others = "WHERE message_id NOT IN ({})".format(", ".join(f"'{row[0]}'" for row in young))
        books.run(f"UPDATE rmq_message_stub SET create_date={old}, update_date={old} {others}")
        for table in ("consume_log", "business_key"):
            books.run(f"UPDATE rmq_{table} SET create_date={old}, consume_date={old} {others}")
        forgotten = f"WHERE call_key = '{FORGOTTEN}'"
        books.run(f"UPDATE rmq_idempotent_call SET expire_date={old} {forgotten}")
        books.run("DELETE FROM rmq_retention")  # whoever had the duty would have it for a minute


def _consume(mq: ReliableMQ, world: World, effects: int) -> None:
    """Run everything of an application until so many effects are there and nothing is open.

    Nor does a message wait, or come again, that was sent twice: when its rows are old, its log may
    be gone.
    """
    with resending(mq), mq, Books(world) as books, Client(world.broker) as client:
        wait(lambda: books.count("FROM effects") >= effects)
        wait(lambda: books.count(UNSETTLED) == 0 and books.count(_UNTOLD) == 0)
        wait(lambda: is_read_to_the_end(client, world))
        wait(lambda: nothing_is_in_flight(client, world))


def _relaying_itself(world: World) -> World:
    if world.mode.form is not Form.SHARED:
        return world
    return msgspec.structs.replace(
        world, mode=msgspec.structs.replace(world.mode, form=Form.OUTBOX)
    )


def _without_broker(world: World) -> tuple[ReliableMQ, World]:
    """Return an application that reaches no broker, and its world; a half would need one."""
    mode = world.mode
    if mode.form is Form.HALF:
        mode = msgspec.structs.replace(mode, form=Form.OUTBOX)
    nowhere = f"127.0.0.1:{free_port()}"
    unheard = msgspec.structs.replace(world, broker=nowhere, mode=mode)
    return build(unheard, relay_lease_seconds=LIFE_SECONDS_MAX), unheard


PREPARING: Mapping[str, Callable[[World], None]] = {
    "sent": sent,
    "hanging": hanging,
    "overdue": overdue,
    "given up": given_up,
    "grown old": grown_old,
}
PREPARED_BY: Mapping[Role, str] = {
    Role.WORKER: "sent",
    Role.ANSWERER: "hanging",
    Role.SCHEDULER: "overdue",
    Role.PERSON: "given up",
    Role.KEEPER: "grown old",
}
