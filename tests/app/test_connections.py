"""What all threads of an application share can be had while one of them makes more of it."""

import threading
from pathlib import Path

from reliable_mq.app.thread_connections import Connections
from reliable_mq.client.asyncio_client import AsyncClient
from reliable_mq.database.sql_database import Database
from reliable_mq.outbox.resend_policy import ResendPolicy
from reliable_mq.outbox.sql_stubs import SqlStubs
from reliable_mq.settings import Settings


def test_the_loop_gets_the_client_while_a_thread_that_makes_a_part_waits_for_the_loop() -> None:
    """A worker is started under the lock and on the loop; meanwhile the loop sends a half."""
    connections = Connections("shop", Settings(broker="127.0.0.1:1"), ResendPolicy())
    client = connections.client
    is_held, is_over = threading.Event(), threading.Event()

    def start_a_part() -> None:
        with connections._lock:
            is_held.set()
            is_over.wait(30)

    async def ask() -> AsyncClient:
        return connections.client

    thread = threading.Thread(target=start_a_part)
    thread.start()
    try:
        assert is_held.wait(30)
        assert connections._thread is not None
        assert connections._thread.submit(ask()).result(60) is client
    finally:
        is_over.set()
        thread.join()
        connections.close()


def test_only_where_a_confirmation_can_record_a_send_may_its_result_wait(
    tmp_path: Path, postgres_url: str
) -> None:
    connections = Connections("shop", Settings(broker="127.0.0.1:1"), ResendPolicy())
    may_wait = []
    for url in (f"sqlite:///{tmp_path}/shop.db", postgres_url):
        database = Database(url, prefix="rmq_", connections=1)
        stubs = SqlStubs(database.engine, database.stubs)
        may_wait.append(connections._make_relay(database, stubs, "me")._may_defer)
        database.close()
    connections.close()
    assert may_wait == [False, True]
