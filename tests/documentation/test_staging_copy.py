"""A copy of production, emptied as the page on databases says, sends nothing of it."""

import re
from pathlib import Path

from sqlalchemy import create_engine, text

from reliable_mq import ReliableMQ

PAGE = (Path(__file__).parents[2] / "docs" / "reference" / "databases.md").read_text()


def test_an_emptied_copy_sends_nothing_and_has_an_identity_of_its_own(
    postgres_url: str, tmp_path: Path
) -> None:
    part = PAGE.partition("## A copy for staging\n")[2].partition("\n## ")[0]
    (statement,) = re.findall(r"```sql\n(.*?)```", part, re.DOTALL)
    production = ReliableMQ("shop", broker="127.0.0.1:1", database=postgres_url, relay="shared")
    production.create_tables()
    with production.transaction() as tx:
        tx.send("orders", {"id": 7})
    identity = production.database.identity.value()
    production.close()
    engine = create_engine(postgres_url)
    with engine.begin() as connection:
        connection.exec_driver_sql(statement.replace("%", "%%"))
    engine.dispose()

    staging = ReliableMQ("shop", broker=f"embedded:{tmp_path}/broker", database=postgres_url)
    try:
        staging.create_tables()
        staging.databases.check_tables()
        assert staging.database.identity.value() != identity
        assert staging.resend_once()["main"]["claimed"] == 0
        with staging.database.engine.connect() as connection:
            assert connection.scalar(text("SELECT count(*) FROM rmq_message_stub")) == 0
    finally:
        staging.close()
