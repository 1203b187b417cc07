"""Several databases of one project: a message is in that of its rows, or it is refused."""

import unittest
from collections.abc import Iterator
from pathlib import Path

import pytest
from django.core.management import call_command
from django.db import connections, transaction
from django.test import TestCase, override_settings
from sqlalchemy import select
from tests.app.lives import A, B, delivery
from tests.contrib.django_lives import DjangoLife
from tests.contrib.django_project import database_of, project, set_up, use
from tests.waiting import run_scene

from reliable_mq.contrib.django.application import DjangoMQ
from reliable_mq.contrib.django.configuration import text_of_url
from reliable_mq.errors import ConfigurationError, UsageError
from reliable_mq.message import ReceivedMessage
from reliable_mq.outcomes import Consumed, Retry

set_up()

from tests.contrib.django_shop.models import Order  # noqa: E402 - after the settings

BOTH = {"NAME": "shop", "BROKER": "127.0.0.1:1", "DATABASES": ["default", "billing"]}


@pytest.fixture
def mq(tmp_path: Path) -> Iterator[DjangoMQ]:
    urls = {name: f"sqlite:///{tmp_path / name}.db" for name in ("default", "billing")}
    with (
        override_settings(RELIABLE_MQ=BOTH),
        project(urls["default"], billing=urls["billing"]) as made,
    ):
        for app in ("reliable_mq", "django_shop"):
            call_command("migrate", app, database="billing", verbosity=0)
        yield made


def stubs(mq: DjangoMQ) -> dict[str, list[str]]:
    """Return the topics of the stubs by database."""
    found = {}
    for name, database in mq.databases.items():
        with database.reading_engine.connect() as connection:
            found[name] = list(connection.execute(select(database.stubs.c.topic)).scalars())
    return found


def test_a_message_that_could_be_in_two_transactions_is_refused(mq: DjangoMQ) -> None:
    """Given ATOMIC_REQUESTS on one database, and rows on the other."""
    with transaction.atomic(), transaction.atomic("billing"):
        Order.objects.using("billing").create(item="tea")
        with pytest.raises(UsageError, match=r"default and billing are open.* using='billing'"):
            mq.send("orders", {})
        mq.send("orders", {}, using="billing")

    assert stubs(mq) == {"main": [], "billing": ["orders"]}


def test_the_blocks_of_a_test_case_make_no_message_ambiguous(mq: DjangoMQ) -> None:
    class Places(TestCase):
        databases = frozenset({"default", "billing"})

        def runTest(self) -> None:  # noqa: N802 - the name that unittest knows
            with transaction.atomic():
                mq.send("orders", {})

    result = unittest.TestResult()
    unittest.TestSuite([Places()]).run(result)
    assert not result.errors + result.failures, (result.errors + result.failures)[0][1]


def test_a_handler_sends_in_the_database_of_its_effect(mq: DjangoMQ) -> None:
    calls: list[str] = []

    @mq.consumer("orders", group="bills", database="billing")
    def bill(message: ReceivedMessage) -> Retry | None:
        calls.append(message.message_id)
        mq.send("bills", {"for": message.message_id})
        with mq.transaction() as tx:
            tx.send("receipts", {})
        return Retry(after=0.0) if len(calls) == 1 else None

    session = mq.databases["billing"].handler_session()
    (declared,) = mq._declared.consumers
    for keeps in (False, True):
        session.begin()
        with session.held():
            declared.plan.function(delivery(A))
        if keeps:
            session.commit()
        else:
            session.rollback()
    session.close()

    assert stubs(mq) == {"main": [], "billing": ["bills", "receipts"]}


@pytest.mark.parametrize("wanted", [["default", "main"], ["billing", "main"]])
def test_only_the_first_alias_may_be_called_main(tmp_path: Path, wanted: list[str]) -> None:
    urls = {each: f"sqlite:///{tmp_path / each}.db" for each in ("billing", "main")}
    with (
        override_settings(RELIABLE_MQ={**BOTH, "DATABASES": wanted}),
        pytest.raises(ConfigurationError, match="an alias of this name must be the first one"),
        project(f"sqlite:///{tmp_path / 'shop.db'}", migrated=False, **urls),
    ):
        pass


@pytest.mark.parametrize(
    ("mode", "part"),
    [
        ("REQUIRED", "ssl_check_hostname=false"),
        ("verify_ca", "ssl_check_hostname=false"),
        ("VERIFY_IDENTITY", "ssl_check_hostname=true"),
        ("PREFERRED", ""),
    ],
)
def test_the_relay_asks_mysql_for_tls_where_django_does(mode: str, part: str) -> None:
    entry = database_of("mysql+pymysql://shop@db/shop")
    use({"default": {**entry, "OPTIONS": {"ssl_mode": mode}}})

    assert text_of_url("default").partition("?")[2] == part


def test_a_connection_of_another_alias_that_was_cut_fails_one_attempt_only(
    tmp_path: Path, postgres_url: str
) -> None:
    """Given a database without our tables, from which a handler reads."""
    pids: list[int] = []

    def read(message: ReceivedMessage) -> None:
        with connections["replica"].cursor() as cursor:
            cursor.execute("SELECT pg_backend_pid()")
            pids.append(cursor.fetchone()[0])
            if len(pids) == 1:
                cursor.execute("SELECT pg_terminate_backend(pg_backend_pid())")

    async def scene(mq: DjangoMQ) -> None:
        async with DjangoLife(mq, read, max_attempts=3) as life:
            life._threads._max_workers = 1  # each call finds the connection of the one before
            assert await life.until_settled(delivery(A)) == [Consumed()]
            assert await life.until_settled(delivery(B)) == [Consumed()]

    with project(f"sqlite:///{tmp_path / 'shop.db'}", replica=postgres_url) as mq:
        run_scene(scene(mq))
    assert len(pids) == 3  # A was handled twice
    assert pids[0] != pids[1] == pids[2]
