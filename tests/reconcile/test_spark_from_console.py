"""An increment that a person starts from the console: the real command, with Spark."""

from pathlib import Path

import pytest
from bench.reliable_mq_broker import ReliableMQBroker
from sqlalchemy import func, select
from tests.console.conftest import visitor
from tests.console.doing_steps import ended, look, start
from tests.waiting import until

from reliable_mq import ReliableMQ
from reliable_mq.cli.main import DONE, run
from reliable_mq.console import console_app
from reliable_mq.database.sql_run_tables import run_table

pytestmark = [pytest.mark.spark, pytest.mark.processes]
START = "increment-start"


@pytest.mark.usefixtures("spark")
def test_an_increment_from_the_console_follows_that_of_the_command(
    postgres_url: str, tmp_path: Path
) -> None:
    """The first one is made in this process, by its session of Spark."""
    with ReliableMQBroker(tmp_path / "broker", "ASYNC_FLUSH") as broker:
        mq = ReliableMQ("shop", database=postgres_url, broker=broker.name_server_address)
        mq.topic("orders", groups=[])
        mq.create_tables()
        with mq.transaction() as tx:
            tx.send("orders", b"1")
        until(lambda: confirmed(mq) == 1)
    options = ["--store", str(broker.store), "--out", str(tmp_path / "out"), "--grace", "0s"]
    with visitor(console_app(mq, increment_options=options)) as client:
        assert "no increment yet" in look(client, START).text
        with pytest.raises(SystemExit) as done:
            run(["reconcile", "--increment", "--db", postgres_url, *options])
        assert done.value.code == DONE
        preview = look(client, START)
        assert "what has changed since run" in preview.text
        started = start(client, preview)
        found = ended(client, started)
        page = client.get(started.headers["location"]).text
        assert (found["state"], found["counts"]["done"]) == ("ended", 1), page
        assert ": clean" in page
    table = run_table(mq.database.metadata, "rmq_").c
    with mq.database.engine.connect() as connection:
        wanted = select(table.kind, table.run_id, table.previous_run_id).order_by(table.run_id)
        first, second = connection.execute(wanted).all()
    mq.close()
    assert (first.kind, second.kind) == ("increment", "increment")
    assert second.previous_run_id == first.run_id


def confirmed(mq: ReliableMQ) -> int:
    """Return how many stubs are confirmed."""
    with mq.database.engine.connect() as connection:
        stubs = select(func.count()).select_from(mq.database.stubs)
        return int(connection.scalar(stubs.where(mq.database.stubs.c.status == 1)) or 0)
