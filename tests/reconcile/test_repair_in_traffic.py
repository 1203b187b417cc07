"""A repair beside a running application: real broker, database, relay, consumers and scheduler."""

import threading
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from sqlalchemy import Column, Integer, MetaData, String, Table, func, insert, select
from sqlalchemy.orm import Session
from tests.steps import EVERY_STEP
from tests.waiting import until

from reliable_mq import ReliableMQ
from reliable_mq.database.row_values import StubStatus
from reliable_mq.reconcile.repairs.repair import Repair, RepairAction
from reliable_mq.reconcile.repairs.sql_repair import RepairOrder, RepairOutcome, repair_all

WAIT = 60.0
ORDERS = 80 if EVERY_STEP else 25
"""Each order is repaired again and again while others are placed. `make crash` has all of them."""
PAYMENTS = Table(
    "payments", MetaData(), Column("number", Integer, primary_key=True), Column("id", String(32))
)
SEEN = ("status", "count", "update_date", "offset")


def stubs_of(mq: ReliableMQ) -> list[Any]:
    with mq.database.engine.connect() as connection:
        return list(connection.execute(select(mq.database.stubs)).mappings())


def wrong_findings(mq: ReliableMQ) -> Iterator[Repair]:
    """Yield a resend, and a release, of everything there is, as if all of it had been lost."""
    for number, row in enumerate(stubs_of(mq)):
        seen = {f"stub_{name}": row[name] for name in SEEN}
        action = RepairAction.RELEASE if number % 2 else RepairAction.RESEND
        yield Repair(row["message_id"], action, ("payments",), ("lost by the broker",), seen)


def test_repairs_of_everything_while_traffic_runs_change_no_effect(
    postgres_url: str, tmp_path: Path
) -> None:
    """Given orders that are committed, sent and consumed without a pause, when all that is there is
    sent again by repairs, over and over; then every order has one effect, every stub is confirmed,
    nothing is a dead letter, and no attempt failed."""
    mq = ReliableMQ(
        "shop",
        broker=f"embedded:{tmp_path / 'broker'}",
        database=postgres_url,
        resend_interval_seconds=0.1,
    )
    failures: list[str] = []

    @mq.consumer("orders", group="payments")
    def pay(order: dict[str, int], session: Session) -> None:
        session.execute(insert(PAYMENTS).values(id=str(order["id"])))

    mq.create_tables()
    PAYMENTS.create(mq.database.engine)
    stopped = threading.Event()
    results: list[RepairOutcome] = []

    def order_all() -> None:
        for number in range(ORDERS):
            with mq.transaction() as tx:
                tx.send("orders", {"id": number})

    def repair_all_the_time() -> None:
        order = RepairOrder((postgres_url,), "rmq_", "run", datetime.now(UTC))
        while not stopped.is_set():
            try:
                results.extend(repair_all(order, list(wrong_findings(mq))))
            except Exception as error:  # noqa: BLE001 - the test's result
                failures.append(str(error))

    with mq:
        scheduler = threading.Thread(target=mq.resend_forever, args=(stopped,), daemon=True)
        repairs = threading.Thread(target=repair_all_the_time, daemon=True)
        repairs.start()
        scheduler.start()
        order_all()
        until(lambda: payments(mq)[1] == ORDERS)
        until(lambda: any(each.changed for each in results))
        stopped.set()
        repairs.join()
        scheduler.join()
        last = mq.scheduler()  # for what the last repair made due
        until(lambda: last.run_once(mq.database.clock.measured_now() + 1) and is_settled(mq))

    assert failures == []
    assert is_settled(mq)
    assert payments(mq) == (ORDERS, ORDERS)
    with mq.database.engine.connect() as connection:
        logs = mq.database.logs
        assert connection.scalar(select(func.max(logs.c.attempt))) == 1
        assert connection.scalar(select(func.count()).select_from(mq.database.escalations)) == 0


def payments(mq: ReliableMQ) -> tuple[int, int]:
    counts = select(func.count(), func.count(PAYMENTS.c.id.distinct()))
    with mq.database.engine.connect() as connection:
        paid, orders = connection.execute(counts).one()
    return paid, orders


def is_settled(mq: ReliableMQ) -> bool:
    return {row["status"] for row in stubs_of(mq)} == {StubStatus.CONFIRMED.value}
