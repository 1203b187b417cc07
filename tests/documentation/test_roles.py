"""The rights that the page on databases gives to each kind of process: enough, and no more."""

import re
import threading
from collections.abc import Iterator
from contextlib import ExitStack
from datetime import timedelta
from pathlib import Path

import pytest
from bench.reliable_mq_broker import ReliableMQBroker
from sqlalchemy import Engine, create_engine, make_url, text
from sqlalchemy.orm import Session
from tests.waiting import NEVER_BUSY, until

from reliable_mq import ReceivedMessage, Reject, ReliableMQ, injected

PAGE = Path(__file__).parents[2] / "docs" / "reference" / "databases.md"
ROLES = ("shop_sender", "shop_worker", "shop_scheduler", "shop_people")
pytestmark = pytest.mark.processes


@pytest.fixture
def owner(postgres_url: str) -> Iterator[Engine]:
    """Give the owner of the tables; the roles of the page exist and have its grants."""
    made = ReliableMQ("shop", broker="127.0.0.1:1", database=postgres_url)
    made.create_tables()
    made.close()
    engine = create_engine(postgres_url)
    part = PAGE.read_text().partition("### A role for each kind of process\n")[2]
    blocks = re.findall(r"```sql\n(.*?)```", part.partition("\n## ")[0], re.DOTALL)
    with engine.begin() as connection:
        connection.execute(text("CREATE TABLE effects (id INTEGER)"))
        for role in ROLES:
            connection.execute(text(f"CREATE ROLE {role} LOGIN"))
            connection.execute(text(f"GRANT USAGE ON SCHEMA public TO {role}"))
            connection.execute(text(f"GRANT SELECT, INSERT ON effects TO {role}"))
        connection.execute(text("".join(blocks)))
    yield engine
    with engine.begin() as connection:
        for role in ROLES:
            connection.execute(text(f"DROP OWNED BY {role}; DROP ROLE {role}"))
    engine.dispose()


def shop(database: str, role: str, broker: str) -> ReliableMQ:
    """Return the application as one kind of process has it."""
    url = make_url(database).set(username=role).render_as_string(hide_password=False)
    mq = ReliableMQ("shop", broker=broker, database=url, resend_wait=lambda _state: 0.5)

    @mq.consumer("orders", group="payments", idempotent_by="id", retry_waits=(1,), log_receipt=True)
    def pay(order: dict[str, int], session: Session, message: ReceivedMessage) -> None:
        if order["id"] == 2 and message.reconsume_times == 0:
            raise ValueError("the first attempt fails")
        if order["id"] < 0:
            raise Reject("no such order")
        session.execute(text("INSERT INTO effects VALUES (:id)"), order)
        with mq.transaction(session) as tx:
            tx.send("paid", order)

    @mq.consumer("paid", group="loyalty", batch=10)
    def reward(order: dict[str, int], session: Session) -> None:
        session.execute(text("INSERT INTO effects VALUES (:id)"), {"id": order["id"] + 100})

    @mq.periodic("* * * * * *", topic="ticks")
    def tick() -> dict[str, int]:
        return {"id": 1}

    return mq


def denied(caplog: pytest.LogCaptureFixture) -> list[str]:
    """Return what was refused to a role."""
    return [each for each in caplog.messages if "permission denied" in each]


def test_each_kind_of_process_works_with_its_own_role(
    owner: Engine, postgres_url: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with ExitStack() as stack:
        broker = stack.enter_context(ReliableMQBroker(tmp_path, settings=NEVER_BUSY))
        address = broker.name_server_address
        made = {role: shop(postgres_url, role, address) for role in ROLES}
        for mq in made.values():
            stack.callback(mq.close)
        sender, worker, scheduler, people = (made[role] for role in ROLES)

        @sender.idempotent(key="number")
        def place(number: int, session: Session = injected) -> int:
            with sender.transaction(session) as tx:
                tx.send("orders", {"id": number}, key=number, ordering_key="a")
            return number

        worker.start()
        for number in (1, 1, 2):
            assert place(number) == number
        with sender.transaction() as tx:
            tx.send_many("orders", [{"id": -1}, {"id": 3}, {"id": 3}])
            tx.send("orders", {"id": 4}, delay=timedelta(days=30))

        def effects() -> list[int]:
            with owner.begin() as connection:
                return sorted(connection.scalars(text("SELECT id FROM effects")))

        def count(table: str) -> int:
            with owner.begin() as connection:
                return int(connection.scalar(text(f"SELECT count(*) FROM {table}")) or 0)

        until(lambda: effects() == [1, 2, 3, 101, 102, 103])
        stopped = threading.Event()
        resending = threading.Thread(target=scheduler.resend_forever, args=(stopped,))
        resending.start()
        try:
            until(lambda: count("rmq_periodic_tick") > 0)
        finally:
            stopped.set()
            resending.join()
        now = scheduler.database.clock.measured_now()
        scheduler.retention().run_once(now)
        scheduler.alerts().run_once(now)
        people.resending.pause("orders", note="a try")
        people.resending.resume("orders")
        findings = [each for each in people.examine() if each.check in {"writes", "tables"}]
        assert {each.level for each in findings} == {"ok"}, findings

    assert denied(caplog) == []
    with owner.begin() as connection:
        acts = connection.scalars(text("SELECT action FROM rmq_audit")).all()
        assert "resend pause" in acts
        assert connection.scalar(text("SELECT count(*) FROM rmq_escalation")) == 1


def test_no_role_has_more_than_its_kind_needs(owner: Engine) -> None:
    rights = {
        "shop_sender": {"rmq_message_stub": "DELETE", "rmq_consume_log": "SELECT"},
        "shop_worker": {"rmq_consume_log": "DELETE", "rmq_audit": "SELECT"},
        "shop_scheduler": {"rmq_audit": "INSERT"},
        "shop_people": {"rmq_audit": "DELETE"},
    }
    with owner.begin() as connection:
        for role, lacking in rights.items():
            for table, right in lacking.items():
                asked = text(f"SELECT has_table_privilege('{role}', '{table}', '{right}')")
                assert connection.scalar(asked) is False, (role, table, right)
