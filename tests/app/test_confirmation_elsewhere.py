"""Consumer groups with a database of their own, over the bundled broker, end to end."""

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import select, text
from sqlalchemy.orm import Session
from tests.app.test_databases import effects, record, statuses
from tests.waiting import until

from reliable_mq import Message, ReceivedMessage, Reject, ReliableMQ, Retry
from reliable_mq.escalate.escalation import Digest
from reliable_mq.escalate.sql_settlement import operator_actions_of

QUICK: dict[str, Any] = {
    "resend_waits_seconds": (0.3, 1.0),
    "retry_waits_seconds": (0.2,),
    "resend_interval_seconds": 0.1,
    "resend_backlog_wait_seconds": 0.5,
    "send_outside_transaction": "allow",
}


class Told:
    """Who was told of what."""

    name, cooldown = "told", 0.0

    def __init__(self) -> None:
        self.escalations: list[str] = []

    def tell(self, digest: Digest) -> None:
        self.escalations += [each.message_id for each in digest.items]


@pytest.fixture
def told() -> Told:
    return Told()


@pytest.fixture
def settings() -> dict[str, Any]:
    """How the shop differs from others; a test may change it before the shop is made."""
    return dict(QUICK)


@pytest.fixture
def shop(
    database_url: str, other_url: str, tmp_path: Path, told: Told, settings: dict[str, Any]
) -> Iterator[ReliableMQ]:
    mq = ReliableMQ(
        "shop",
        broker=f"embedded:{tmp_path / 'store'}",
        database=database_url,
        databases={"billing": other_url},
        notifiers=[told],
        **settings,
    )
    mq.create_tables()
    for database in mq.databases.values():
        with database.engine.begin() as connection:
            connection.execute(text("CREATE TABLE effects (id INTEGER)"))
    yield mq
    mq.close()


@pytest.fixture
def only_people_send_again(settings: dict[str, Any]) -> None:
    """A copy of a message would be one more delivery, and may take the place of an attempt."""
    settings["resend_waits_seconds"] = (60.0,)


def owed(mq: ReliableMQ, name: str) -> list[str]:
    logs = mq.databases[name].logs
    with mq.databases[name].engine.begin() as connection:
        wanted = select(logs.c.message_id).where(logs.c.confirm_time.is_not(None))
        return list(connection.execute(wanted).scalars())


def test_a_stub_waits_for_groups_of_both_databases_and_is_confirmed(shop: ReliableMQ) -> None:
    @shop.consumer("orders", group="payments")
    def pay(order: dict[str, int], session: Session) -> None:
        record(session, order["id"])

    @shop.consumer("orders", group="ledger", database="billing", batch=16)
    async def enter(order: dict[str, int], message: ReceivedMessage) -> None:
        assert message.properties["CONFIRM_TO"].endswith(":ledger,payments")

    with shop:
        for number in range(20):
            with shop.transaction() as tx:
                tx.send("orders", {"id": number}, ordering_key=str(number % 3))
        until(lambda: statuses(shop.database) == [1] * 20)
        until(lambda: not owed(shop, "billing"))

    assert effects(shop.database) == list(range(20))
    assert statuses(shop.databases["billing"]) == []


def test_a_group_of_another_application_confirms_too(
    shop: ReliableMQ, other_url: str, tmp_path: Path
) -> None:
    """The producer's application has no consumers: its resend process reads the notices."""
    shop.topic("orders", groups=["ledger"])
    with shop.transaction() as tx:
        tx.send("orders", {"id": 7})
    address = shop._connections.client._engine._name_servers.addresses[0]
    ledger = ReliableMQ("ledger", broker=address, database=other_url)

    @ledger.consumer("orders", group="ledger")
    def enter(order: dict[str, int], session: Session) -> None:
        record(session, order["id"])

    stopped = threading.Event()
    resending = threading.Thread(target=shop.resend_forever, args=(stopped,))
    resending.start()
    try:
        with ledger:
            until(lambda: statuses(shop.database) == [1])
    finally:
        stopped.set()
        resending.join()

    assert effects(ledger.database) == [7]


def test_a_notice_that_was_lost_is_told_again_when_the_message_is_missed(shop: ReliableMQ) -> None:
    """As after a disaster at the broker: the message comes again, has no effect, is confirmed."""
    calls: list[int] = []

    @shop.consumer("orders", group="ledger", database="billing")
    def enter(order: dict[str, int], session: Session) -> None:
        calls.append(order["id"])
        # What is told of a consumed message is written with it; here it is lost.
        record(session, order["id"])

    hand = "reliable_mq.confirm.thread_notices.NoticeThread.accept_committed"
    with pytest.MonkeyPatch.context() as patch:
        lost: list[Any] = []
        patch.setattr(hand, lambda _thread, owed: lost.append(owed))
        shop.start()
        with shop.transaction() as tx:
            tx.send("orders", {"id": 1})
        until(lambda: lost)
        logs = shop.databases["billing"].logs
        with shop.databases["billing"].engine.begin() as connection:
            connection.execute(logs.update().values(confirm_time=None))
    until(lambda: statuses(shop.database) == [1])

    assert (calls, effects(shop.databases["billing"])) == ([1], [1])


@pytest.mark.usefixtures("only_people_send_again")
def test_a_message_given_up_elsewhere_is_escalated_here_and_begins_anew_when_retried(
    shop: ReliableMQ, told: Told
) -> None:
    works = threading.Event()
    attempts: list[int] = []

    @shop.consumer("orders", group="ledger", database="billing", max_attempts=2)
    def enter(order: dict[str, int], session: Session, message: ReceivedMessage) -> None:
        attempts.append(message.reconsume_times)
        if not works.is_set():
            raise Retry(after=0.1)
        record(session, order["id"])

    with shop:
        with shop.transaction() as tx:
            message_id = tx.send("orders", {"id": 1})
        until(lambda: told.escalations == [message_id])
        failed = len(attempts)
        assert failed >= 2
        until(lambda: not owed(shop, "billing"))
        works.set()
        database = shop.database
        hands, now = operator_actions_of(database), database.clock.now()
        with database.engine.begin() as connection:
            assert hands.retry(connection, [message_id], "ann", "", now) == {message_id: True}
        until(lambda: statuses(database) == [1])

    assert attempts[failed] == 0  # its attempts begin anew
    assert effects(shop.databases["billing"]) == [1]


def test_a_rejected_message_elsewhere_tells_its_reason_here(shop: ReliableMQ, told: Told) -> None:
    @shop.consumer("orders", group="ledger", database="billing")
    def enter(order: dict[str, int]) -> None:
        raise Reject("no such account")

    with shop:
        with shop.transaction() as tx:
            tx.send("orders", {"id": 1})
        until(lambda: told.escalations)

    with shop.database.engine.begin() as connection:
        note = connection.execute(select(shop.database.stubs.c.note)).scalar_one()
    assert note == "dead letter of ledger: no such account"


def test_one_look_reads_the_notices_before_it_misses_anything(
    shop: ReliableMQ, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`reliable-mq resend --once` from cron: nobody reads notices between two looks."""

    @shop.consumer("orders", group="ledger", database="billing")
    def enter(order: dict[str, int], session: Session) -> None:
        record(session, order["id"])

    monkeypatch.setattr(shop._connections, "start_scheduler", lambda _run: None)
    with shop:
        with shop.transaction() as tx:
            tx.send("orders", {"id": 1})
        until(lambda: effects(shop.databases["billing"]) == [1])
        until(lambda: not owed(shop, "billing"))
        assert statuses(shop.database) == [0]

        counts = shop.resend_once()

        assert statuses(shop.database) == [1]
        assert {name: each["sent"] for name, each in counts.items()} == {"main": 0, "billing": 0}


FOREIGN = (
    *("orders:ledger", "rmq_notices_0123:ledger", "rmq_notices_0123456789abcdef:other"),
    *("%", ""),
)


def test_a_foreign_address_for_notices_is_none(shop: ReliableMQ) -> None:
    """A message whose property names another topic does not make consumers send there."""

    @shop.consumer("orders", group="ledger", database="billing")
    def enter(order: dict[str, int], session: Session) -> None:
        record(session, order["id"])

    with shop:
        for number, address in enumerate(FOREIGN):
            body = b'{"id": %d}' % number
            foreign = Message("orders", body, properties={"CONFIRM_TO": address})
            shop._connections.loop_thread.run(shop._connections.client.send(foreign))
        billing = shop.databases["billing"]
        until(lambda: sorted(effects(billing)) == [*range(len(FOREIGN))])

    with billing.engine.begin() as connection:
        told = connection.execute(select(billing.logs.c.confirm_to)).scalars().all()
    assert told == [None] * len(FOREIGN)
