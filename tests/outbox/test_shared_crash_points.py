"""P2 with shared relays: whichever step of one is the last, another one or a scheduler goes on."""

import pytest
from sqlalchemy import select, text
from tests.app.kill_switch import Killed, KillSwitch
from tests.resend.worlds import World

from reliable_mq.database.sql_database import Database
from reliable_mq.outbox.relay import Relay
from reliable_mq.outbox.sql_outbox import SqlOutbox
from reliable_mq.outbox.sql_stubs import SqlStubs
from reliable_mq.outbox.sql_transaction import TransactionScope
from reliable_mq.outbox.sql_unowned import SqlUnowned
from reliable_mq.outbox.stub import Stub

LEASE = 5.0
STEPS_MAX = 60
STEPS_MIN = 10


class Nobody:
    """What a process without a relay hands its stubs to."""

    def accept_committed(self, stubs: list[Stub]) -> None: ...


class Shop:
    """Stubs of a process that runs no relay, and the relays and schedulers of others."""

    def __init__(self, url: str) -> None:
        self.world = World(url)
        self.url = url

    def place(self) -> list[str]:
        """Commit three messages, two of them of one key, and take back a fourth."""
        database = self.world.database
        outbox = SqlOutbox(
            self.world.stubs,
            Nobody(),
            owner=None,
            lease=LEASE,
            groups_of_topic=lambda _topic, _tag: (),
            clock=lambda _connection: 0.0,
        )
        with database.engine.begin() as connection:
            connection.execute(text(f"DELETE FROM {database.stubs.name}"))
        self.world.broker.sent.clear()
        with TransactionScope(outbox, database.session, database.async_session, None) as tx:
            kept = tx.send_many("orders", ["first", "second"], ordering_key="k")
            savepoint = tx.session.begin_nested()
            tx.send("orders", "lost")
            savepoint.rollback()
            kept.append(tx.send("orders", "third"))
        return kept

    def relay(self, owner: str, now: float, switch: KillSwitch | None = None) -> None:
        """Let one process claim and send, until it dies."""
        database = Database(self.url, prefix="rmq_", connections=2)
        if switch is not None:
            switch.watch(database.engine)
        stubs = SqlStubs(database.engine, database.stubs)
        relay = Relay(
            stubs, self.world.broker, lambda _c, at, _d: at + 10, owner=owner, lease=LEASE
        )
        try:
            relay.accept(SqlUnowned(stubs, owner=owner, lease=LEASE).claim(now, 10), now)
            relay.run_once(now)
        except Killed:
            pass
        database.close()

    def statuses(self) -> set[int]:
        table = self.world.database.stubs
        with self.world.database.engine.begin() as connection:
            return set(connection.execute(select(table.c.status)).scalars())


@pytest.mark.parametrize("next_one", ["relay", "scheduler"])
def test_no_step_of_a_shared_relay_loses_a_message_or_its_place(
    database_url: str, next_one: str
) -> None:
    shop = Shop(database_url)
    for step in range(STEPS_MAX):
        placed = [each.rstrip("0") for each in shop.place()]
        switch = KillSwitch(step)

        shop.relay("dies", 1.0, switch)
        if next_one == "relay":
            shop.relay("goes-on", 2.0)
        for now in (100.0, 200.0):  # leases have passed
            shop.world.scheduler.run_once(now)

        sent = shop.world.broker.sent
        assert set(sent) == set(placed), switch.names
        assert sent.index(placed[0]) < sent.index(placed[1]), switch.names
        assert shop.statuses() == {1}, switch.names
        if not switch.dead:
            break

    assert step >= STEPS_MIN
    shop.world.database.close()
