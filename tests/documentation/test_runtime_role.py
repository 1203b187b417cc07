"""The rights that the page on databases gives to a role are enough to send, consume and resend."""

import re
from pathlib import Path

import pytest
from sqlalchemy import create_engine, make_url, text
from sqlalchemy.orm import Session
from tests.waiting import until

from reliable_mq import ReliableMQ

PAGE = Path(__file__).parents[2] / "docs" / "reference" / "databases.md"
pytestmark = pytest.mark.processes


def test_the_tables_are_in_the_schema_that_the_url_of_the_page_names(
    postgres_url: str, tmp_path: Path
) -> None:
    (query,) = re.findall(r"shop@db/shop(\?options=[^']*)'", PAGE.read_text())
    engine = create_engine(postgres_url)
    with engine.begin() as connection:
        connection.execute(text("CREATE SCHEMA mq"))
    mq = ReliableMQ("shop", broker=f"embedded:{tmp_path}/broker", database=postgres_url + query)
    try:
        mq.create_tables()
        with mq.transaction() as tx:
            tx.send("orders", {"id": 7})
        with engine.begin() as connection:
            assert connection.scalar(text("SELECT count(*) FROM mq.rmq_message_stub")) == 1
        findings = [each for each in mq.examine() if each.check in {"writes", "tables", "indexes"}]
        assert {each.level for each in findings} == {"ok"}, findings
    finally:
        mq.close()
        engine.dispose()


def test_a_role_with_the_rights_of_the_page_runs_an_application(
    postgres_url: str, tmp_path: Path
) -> None:
    part = PAGE.read_text().partition("## Rights of the runtime's role\n")[2]
    (grants,) = re.findall(r"```sql\n(.*?)```", part.partition("\n##")[0], re.DOTALL)
    owner = ReliableMQ("shop", broker=f"embedded:{tmp_path}/owner", database=postgres_url)
    owner.create_tables()
    owner.close()
    engine = create_engine(postgres_url)
    with engine.begin() as connection:
        connection.execute(text("CREATE TABLE effects (id INTEGER)"))
        connection.execute(text("DROP ROLE IF EXISTS shop_runtime"))
        connection.execute(text("CREATE ROLE shop_runtime LOGIN"))
        connection.execute(text(grants))
    url = make_url(postgres_url).set(username="shop_runtime")
    mq = ReliableMQ(
        "shop",
        broker=f"embedded:{tmp_path}/broker",
        database=url.render_as_string(hide_password=False),
    )

    @mq.consumer("orders", group="payments", idempotent_by="id")
    def pay(order: dict[str, int], session: Session) -> None:
        session.execute(text("INSERT INTO effects VALUES (:id)"), order)

    try:
        with mq:
            with mq.transaction() as tx:
                tx.send("orders", {"id": 7})

            def effects() -> list[int]:
                with engine.begin() as connection:
                    return list(connection.scalars(text("SELECT id FROM effects")))

            until(lambda: effects() == [7])
            mq.resend_once()
            mq.retention().run_once(mq.database.clock.measured_now())
            findings = [each for each in mq.examine() if each.check in {"writes", "tables"}]
            assert {each.level for each in findings} == {"ok"}, findings
    finally:
        mq.close()
        with engine.begin() as connection:
            connection.execute(text("DROP OWNED BY shop_runtime; DROP ROLE shop_runtime"))
        engine.dispose()
