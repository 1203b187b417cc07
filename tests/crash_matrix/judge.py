"""What a world must look like when everything is drained, asked in plain SQL.

Receives a world; hands on sentences that say what is wrong with it. It uses nothing of what is
tested but the names of tables and columns.
"""

from collections import Counter
from collections.abc import Mapping

from redis import Redis as RedisClient
from redis.exceptions import RedisError
from tests.crash_matrix.application import (
    AFTER,
    BY_MESSAGE,
    FAILS_FIRST,
    GROUPS,
    LONELY,
    PAID_TWICE,
    REFUSED,
    WANTED,
)
from tests.crash_matrix.modes import Databases, Redis, Role
from tests.crash_matrix.placing import BY_CALL
from tests.crash_matrix.preparing import UNCONSUMED, YOUNG
from tests.crash_matrix.roles import OLD
from tests.crash_matrix.worlds import LONG_AGO, Books, World

CONFIRMED, CONSUMED = 1, 1
Attempts = Mapping[tuple[str, str], int]
"""The fewest attempts that a message must have had at last, by (consumer group, message id)."""


def attempts_begun(world: World, role: Role) -> Attempts:
    """Return what is known, right after a death, of attempts that began and came to no end.

    Whoever goes on must count them: what the consume log says, and what Redis says where Redis
    survives. A person lets them begin anew.
    """
    if role is Role.PERSON:
        return {}
    begun: dict[tuple[str, str], int] = {}
    with Books(world) as books:
        logs = books.ask("SELECT consumer_group, message_id, state, attempt FROM rmq_consume_log")
    consumed = {(group, message) for group, message, state, _ in logs if state == CONSUMED}
    for group, message, state, attempt in logs:
        if state != CONSUMED:
            begun[group, message] = attempt + 1
    if world.mode.redis in {Redis.UP, Redis.FAILING_OVER}:
        for (group, message), attempt in _leases(world).items():
            if (group, message) not in consumed:
                begun[group, message] = max(attempt + 1, begun.get((group, message), 0))
    return begun


def _leases(world: World) -> Attempts:
    """Return the attempts that Redis counts for claims of this world that are not done."""
    found: dict[tuple[str, str], int] = {}
    try:
        with RedisClient.from_url(world.redis, decode_responses=True) as client:
            for key in client.scan_iter(f"rmq:*-{world.run}:*"):
                value = client.get(key)
                if isinstance(value, str) and value != "done":
                    _, group, message = key.split(":")
                    found[group, message] = int(value.partition(":")[0])
    except RedisError:
        return {}
    return found


MARKED = " OR ".join(f"{each}_removed_until >= '{LONG_AGO}'" for each in ("stubs", "logs"))
"""What a row says from which a message of the distant past may be gone."""


def torn(world: World) -> list[str]:
    """Return what retention may not leave behind at any moment, asked right after a death.

    Wherever a row of a message is gone, the mark says so; a log is gone only after its stub.
    """
    found = []
    with Books(world) as books:
        for book in books.each():
            stubs = {row[0] for row in book("SELECT message_id FROM rmq_message_stub")}
            marks = book(f"SELECT 1 FROM rmq_retention WHERE {MARKED}")
            old = [bool(book(f"SELECT 1 {each}")) for each in OLD[:2]]
            if not all(old) and not marks:
                found.append("rows are gone, and no mark says it")
            if world.mode.databases is Databases.ONE:
                logs = {row[0] for row in book("SELECT message_id FROM rmq_consume_log")}
                found += [f"the log of {each} went before its stub" for each in stubs - logs]
    return found


def wrongs(world: World, role: Role, begun: Attempts) -> list[str]:
    """Return what is wrong in a world that was drained; empty: every promise was kept."""
    wanted = [*WANTED, *([LONELY] if role is Role.SCHEDULER else [])]
    with Books(world) as books:
        kept = [YOUNG] if role is Role.KEEPER else wanted
        return [
            *_orders(books, wanted),
            *_stubs(books, world, kept),
            *_effects(books, world),
            *_letters(books),
            *(_order(books, world) if kept == wanted else []),
            *_consume_logs(books, world, kept, begun),
            *_told(books, world, role),
        ]


def _orders(books: Books, wanted: list[int]) -> list[str]:
    orders = Counter(row[0] for row in books.ask("SELECT id FROM orders"))
    if orders == Counter(wanted):
        return []
    return [f"orders are {sorted(orders.elements())}, wanted were {wanted}"]


def _stubs(books: Books, world: World, kept: list[int]) -> list[str]:
    """P1 and P2: each order has one stub, no stub is without its order, all are confirmed."""
    found = []
    orders = Counter({row[0]: 1 for row in books.ask("SELECT id FROM orders") if row[0] in kept})
    payments = "SELECT order_id FROM effects WHERE consumer_group='payments'"
    paid = Counter(row[0] for row in books.ask(payments) if row[0] in kept)
    if PAID_TWICE in paid:
        paid[PAID_TWICE] += 1
    for rows, topics in (
        (orders, (world.topic("orders"), world.topic("lonely"))),
        (paid, (world.topic("paid"),)),
    ):
        among = ", ".join(f"'{topic}'" for topic in topics)
        stubs = books.ask(
            "SELECT message_key, status FROM rmq_message_stub "
            f"WHERE topic IN ({among}) AND length(content) > 0 ORDER BY seq"
        )
        # A tombstone has no content: it is there instead of a stub, and is none.
        keys = Counter(int(key) for key, _ in stubs)
        if keys != rows:
            found.append(f"stubs {sorted(keys.elements())}, rows {sorted(rows.elements())}")
        open_ = [key for key, status in stubs if status != CONFIRMED and int(key) != LONELY]
        if open_:
            found.append(f"stubs of {topics[0]} that are not confirmed: {open_}")
    return found


def _letters(books: Books) -> list[str]:
    """P5: an effect elsewhere happened, and whoever had it again was told of the doubt."""
    posted = f"FROM letters WHERE order_id = {BY_CALL} ORDER BY id"
    doubts = [bool(row[0]) for row in books.ask(f"SELECT is_in_doubt {posted}")]
    return [] if doubts and all(doubts[1:]) else [f"letters were posted in doubt: {doubts}"]


def _effects(books: Books, world: World) -> list[str]:
    """P4: every order has its effect exactly once in every group."""
    found = []
    for group in (*GROUPS, AFTER):
        effects = Counter(
            row[0]
            for row in books.ask(
                f"SELECT order_id FROM effects WHERE consumer_group = '{group}' ORDER BY id"
            )
        )
        if effects != Counter(list(WANTED)):
            found.append(f"effects of {group}: {sorted(effects.elements())}")
    return found


def _order(books: Books, world: World) -> list[str]:
    """P6: the effects of each customer came in the order of the stubs."""
    found = []
    in_order = [group for group in GROUPS if group != BY_MESSAGE]
    for topic, groups in (("orders", in_order), ("paid", [AFTER])):
        rows = [
            int(row[0])
            for row in books.ask(
                "SELECT message_key FROM rmq_message_stub "
                f"WHERE topic = '{world.topic(topic)}' AND length(content) > 0 ORDER BY seq"
            )
        ]
        for group in groups:
            for customer in sorted({name for name in WANTED.values() if name}):
                effects = [
                    row[0]
                    for row in books.ask(
                        f"SELECT order_id FROM effects WHERE consumer_group = '{group}' "
                        f"AND customer = '{customer}' ORDER BY id"
                    )
                ]
                stubs = dict.fromkeys(key for key in rows if WANTED.get(key) == customer)
                if effects != list(stubs):
                    found.append(f"{customer}'s effects of {group} came as {effects}")
    return found


def _consume_logs(books: Books, world: World, kept: list[int], begun: Attempts) -> list[str]:
    """Every log says CONSUMED, and no attempt that began is forgotten."""
    ours = f"consumer_group LIKE '%-{world.run}'"  # the others' are of notices
    logs = books.ask(
        f"SELECT consumer_group, message_id, state, attempt FROM rmq_consume_log WHERE {ours}"
    )
    found = [
        f"the log of {group} and {message} says {state}"
        for group, message, state, _ in logs
        if state != CONSUMED
    ]
    messages = len(WANTED.keys() & kept) * (len(GROUPS) + 1) + (PAID_TWICE in kept)
    if len(logs) != messages:
        found.append(f"there are {len(logs)} consume logs")
    attempts = {(group, message): attempt for group, message, _, attempt in logs}
    found += [
        f"{group} counts {attempts.get((group, message))} attempts at {message}, "
        f"{at_least} had begun"
        for (group, message), at_least in begun.items()
        if attempts.get((group, message), at_least) < at_least
    ]
    if world.mode.redis is Redis.UP:  # who forgets fails again, and is right
        # What a worker took by the message, and did not claim in time, was delivered and is no
        # attempt: it had died, or the machine was busy.
        others = ("payments", BY_MESSAGE)
        failing = books.ask(
            "SELECT message_id FROM rmq_message_stub WHERE length(content) > 0 "
            f"AND message_key = '{FAILS_FIRST}' AND topic = '{world.topic('orders')}'"
        )
        found += [
            f"{group} counts one attempt at {message}, which failed"
            for (group, message), attempt in attempts.items()
            if (message,) in failing and attempt < 2 and not group.startswith(others)
        ]
    return found


def _told(books: Books, world: World, role: Role) -> list[str]:
    """A person was told of what nobody consumes, and what a person did is written down."""
    if role is Role.SCHEDULER:
        stub = f"FROM rmq_message_stub WHERE topic = '{world.topic('lonely')}'"
        rows = books.ask(f"SELECT status, resend_time {stub}")
        open_ = books.count("FROM rmq_escalation WHERE open_key IS NOT NULL")
        return [] if (rows, open_) == ([(0, None)], 1) else [f"lonely: {rows}, {open_} escalations"]
    if role is Role.PERSON:
        done = {row[0] for row in books.ask("SELECT action FROM rmq_audit WHERE changed = 1")}
        keys = f"SELECT count(*) FROM rmq_escalation WHERE message_key IN ('{UNCONSUMED}', "
        told = sum(row[0] for row in books.ask(f"{keys}'{REFUSED}')"))
        if done != {"dlq retry", "stub retry"} or told < 2:
            return [f"a person was told of {told} and did {sorted(done)}"]
    return []
