"""What goes wrong around Django's connections: cuts, odd options, other drivers, aliases."""

import asyncio
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from django.db import connection, connections, transaction
from django.test import override_settings
from sqlalchemy import create_engine, select, text
from tests.app.lives import A, B, C, delivery
from tests.contrib.django_lives import DjangoLife, consumed, effects, handled
from tests.contrib.django_project import database_of, project, set_up, use
from tests.waiting import run_process, run_scene

from reliable_mq.contrib.django import application
from reliable_mq.contrib.django.application import DjangoMQ
from reliable_mq.errors import ConfigurationError
from reliable_mq.message import ReceivedMessage
from reliable_mq.outcomes import Consumed

set_up()

from tests.contrib.django_shop.models import Payment  # noqa: E402 - after the settings

pytestmark = pytest.mark.packaging  # `make frameworks`


def pay(message: ReceivedMessage) -> None:
    Payment.objects.create(message=message.message_id)


def cut(url: str, only: int = 0) -> None:
    """End all connections to the test's database, as a restart does, or only that of a process."""
    engine = create_engine(url)
    with engine.begin() as own:
        own.execute(
            text(
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
                " WHERE datname = current_database() AND pid <> pg_backend_pid()"
                " AND (:only = 0 OR pid = :only)"
            ),
            {"only": only},
        )
    engine.dispose()


@pytest.fixture
def postgres(postgres_url: str) -> Iterator[DjangoMQ]:
    with project(postgres_url) as made:
        yield made


def test_connections_that_were_cut_between_two_messages_are_replaced(
    postgres: DjangoMQ, postgres_url: str
) -> None:
    async def scene() -> None:
        async with DjangoLife(postgres, pay, max_attempts=1) as life:
            assert await life.until_settled(*map(delivery, (A, B))) == [Consumed(), Consumed()]
            cut(postgres_url)
            assert await life.until_settled(delivery(C)) == [Consumed()]

    run_scene(scene())
    assert effects(postgres) == consumed(postgres) == [A, B, C]


def test_a_connection_that_is_cut_in_the_handler_costs_no_attempt(
    postgres: DjangoMQ, postgres_url: str
) -> None:
    calls: list[str] = []

    def is_cut(message: ReceivedMessage) -> None:
        calls.append(message.message_id)
        pay(message)
        if len(calls) == 1:
            cut(postgres_url, connection.connection.info.backend_pid)
            pay(message)

    assert handled(postgres, is_cut, A, max_attempts=1) == [Consumed()]
    assert len(calls) == 2
    assert effects(postgres) == consumed(postgres) == [A]


def test_a_handler_that_swallows_the_cut_has_failed(postgres: DjangoMQ, postgres_url: str) -> None:
    calls: list[str] = []

    def swallows(message: ReceivedMessage) -> None:
        calls.append(message.message_id)
        if len(calls) == 1:
            cut(postgres_url)
            with pytest.raises(Exception, match=r".*"):
                pay(message)
            return
        pay(message)

    assert handled(postgres, swallows, A) == [Consumed()]
    assert len(calls) == 2
    assert effects(postgres) == consumed(postgres) == [A]


def test_a_send_on_a_connection_that_was_cut_fails_and_the_next_block_works(
    postgres: DjangoMQ, postgres_url: str
) -> None:
    def place() -> None:
        with transaction.atomic():
            Payment.objects.create(message="order")
            if not connection.connection.closed and not tried:
                tried.append(True)
                cut(postgres_url)
            postgres.send("orders", {})

    tried: list[bool] = []
    with pytest.raises(Exception, match="terminat"):
        place()
    connection.close_if_unusable_or_obsolete()
    place()

    with postgres.database.reading_engine.connect() as other:
        assert list(other.execute(select(postgres.database.stubs.c.topic)).scalars()) == ["orders"]
    assert effects(postgres) == ["order"]


@pytest.mark.parametrize("options", [{"server_side_binding": True}, {"application_name": "a b"}])
def test_options_of_psycopg_are_no_obstacle(
    postgres: DjangoMQ, postgres_url: str, options: dict[str, Any]
) -> None:
    entry = database_of(postgres_url)
    use({"default": {**entry, "OPTIONS": options}})
    mq = DjangoMQ.of_settings()
    application._made[:] = [mq]

    assert handled(mq, pay, A) == [Consumed()]
    with transaction.atomic():
        mq.send_many("orders", [{"id": 1}, {"id": 2}], key=lambda order: str(order["id"]))
    assert effects(mq) == consumed(mq) == [A]
    mq.close()


def test_threads_of_a_worker_give_connections_of_a_pool_back(
    postgres: DjangoMQ, postgres_url: str
) -> None:
    """Given a pool with one connection, which another thread wants after a handler."""
    pool = {"min_size": 1, "max_size": 1, "timeout": 5}
    use({"default": {**database_of(postgres_url), "OPTIONS": {"pool": pool}}})
    mq = DjangoMQ.of_settings()
    application._made[:] = [mq]

    def payments() -> int:
        try:
            return int(Payment.objects.count())
        finally:
            connections.close_all()

    async def scene() -> None:
        async with DjangoLife(mq, pay, max_attempts=1) as life:
            assert await life.until_settled(delivery(A)) == [Consumed()]
            assert await asyncio.to_thread(payments) == 1

    run_scene(scene())
    assert consumed(mq) == [A]
    mq.close()
    connection.close_pool()


def test_times_are_right_without_time_zones(database_url: str) -> None:
    with override_settings(USE_TZ=False, TIME_ZONE="Asia/Shanghai"), project(database_url) as mq:
        assert handled(mq, pay, A, log_receipt=True) == [Consumed()]
        with mq.transaction() as tx:
            tx.send("orders", {})
        stubs, logs = mq.database.stubs, mq.database.logs
        with mq.database.reading_engine.connect() as other:
            now = mq.database.clock.now()
            written = other.execute(select(stubs.c.create_date)).scalar_one()
            took_place = other.execute(select(logs.c.consume_date)).scalar_one()
        assert abs(written.timestamp() - now) < 600
        assert abs(took_place.timestamp() - now) < 600


def test_each_alias_has_its_own_messages_and_effects(database_url: str, other_url: str) -> None:
    configured = {"NAME": "shop", "BROKER": "127.0.0.1:1", "DATABASES": ["default", "other"]}
    from django.core.management import call_command

    with override_settings(RELIABLE_MQ=configured), project(database_url, other=other_url) as mq:
        for app in ("reliable_mq", "django_shop"):
            call_command("migrate", app, database="other", verbosity=0)
        with transaction.atomic("other"):
            mq.send("orders", {}, using="other")
        with mq.transaction(database="other") as tx:
            tx.send("orders", {})
        counts = {}
        for name, database in mq.databases.items():
            with database.reading_engine.connect() as each:
                counts[name] = len(each.execute(select(database.stubs.c.seq)).all())
        assert counts == {"main": 0, "other": 2}


def test_a_thread_gets_its_own_transaction(database_url: str) -> None:
    refused: list[str] = []
    with project(database_url) as mq:

        def other_thread() -> None:
            try:
                mq.send("orders", {})
            except Exception as error:  # noqa: BLE001 - it is looked at
                refused.append(str(error))
            finally:
                connections.close_all()

        with transaction.atomic():
            thread = threading.Thread(target=other_thread)
            thread.start()
            thread.join()
    assert len(refused) == 1
    assert "no transaction is open" in refused[0]


def test_manual_commits_are_refused_for_consumers(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'shop.db'}"
    with project(url):
        use({"default": {**database_of(url), "AUTOCOMMIT": False}})
        session = DjangoMQ.of_settings().database.handler_session()
        with pytest.raises(ConfigurationError, match="has AUTOCOMMIT=False"):
            session.begin()
        session.close()


_WITH_PSYCOPG2 = """
import sys
psycopg, sys.modules["psycopg"] = sys.modules.pop("psycopg", None), None
import django.db.backends.postgresql.base
import django.db.backends.postgresql.psycopg_any as chosen
del sys.modules["psycopg"]
assert not chosen.is_psycopg3
import pytest
sys.exit(pytest.main(sys.argv[1:]))
"""


def test_psycopg2_is_enough_for_django() -> None:
    words = ("-n", "0", "-q", "-p", "no:cacheprovider", "-k", "postgresql and not fork")
    files = [f"tests/contrib/test_django_{each}.py" for each in ("transactions", "consumers")]
    done = run_process(
        [sys.executable, "-c", _WITH_PSYCOPG2, *words, *files],
        timeout=300,
        capture_output=True,
        cwd=Path(__file__).parents[2],
    )
    assert done.returncode == 0, done.stdout[-5000:] + done.stderr[-2000:]
    assert " passed" in done.stdout
