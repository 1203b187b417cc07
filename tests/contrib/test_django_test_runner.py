"""`manage.py test`: the test database can be dropped, nothing was sent, and worlds deliver."""

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

import pytest
from tests.forked_programs import Programs

pytestmark = pytest.mark.processes

SETTINGS = """
import os
from sqlalchemy import make_url

url = make_url(os.environ["SHOP_DATABASE"])
SECRET_KEY = "only for tests"
INSTALLED_APPS = ["django.contrib.contenttypes", "reliable_mq.contrib.django", "shop_tests"]
SQLITE = {
    "ENGINE": "django.db.backends.sqlite3", "NAME": url.database, "TEST": {"NAME": "test.db"},
    "OPTIONS": {"transaction_mode": "IMMEDIATE"},
}
POSTGRESQL = {
    "ENGINE": "django.db.backends.postgresql", "NAME": url.database, "USER": url.username,
    "HOST": url.host, "PORT": str(url.port),
}
DATABASES = {"default": SQLITE if url.get_backend_name() == "sqlite" else POSTGRESQL}
RELIABLE_MQ = {"NAME": "shop", "BROKER": "127.0.0.1:1"}
"""
TESTS = """
import threading
from django.db import connection, transaction
from django.test import TestCase, TransactionTestCase
from reliable_mq.contrib.django import mq
from reliable_mq.contrib.django.models import ConsumeLog, MessageStub
from reliable_mq.contrib.health import readiness
from reliable_mq.errors import UsageError
from reliable_mq.testing.message_world import MessageWorld

handled = []

@mq.consumer("orders", group="payments")
def pay(order: dict) -> None:
    assert MessageStub.objects.exists()
    handled.append(order["id"])

@mq.idempotent(key="key")
def keyed(key: str) -> str:
    MessageStub.objects.exists()
    return key

class Committed(TransactionTestCase):
    def test_a_message_is_there_and_not_sent(self):
        self.assertFalse(MessageStub.objects.exists())
        with transaction.atomic():
            mq.send("orders", {"id": 1})
        with mq.transaction() as tx:
            tx.send("orders", {"id": 2})
        self.assertEqual(list(MessageStub.objects.values_list("count", flat=True)), [0, 0])
        self.assertEqual(mq._connections.relay_waiting(), {"main": 0})
        self.assertTrue(readiness(mq).is_well)

    test_no_test_finds_rows_of_another = test_a_message_is_there_and_not_sent

    def test_a_world_delivers_it(self):
        with MessageWorld(mq) as world:
            with transaction.atomic():
                mq.send("orders", {"id": 1})
            world.deliver()
            world.assert_sent("orders", {"id": 1})
        self.assertEqual(ConsumeLog.objects.filter(state=1).count(), 1)

    def test_nothing_else_leaves_the_process(self):
        with self.assertRaisesRegex(UsageError, "in tests of Django nothing is sent"):
            mq.producer.send("orders", {"id": 1})
        with self.assertRaisesRegex(UsageError, "in tests of Django nothing is sent"):
            mq.start()

class OnAnotherProcess(Committed):
    def test_our_engines_lead_where_django_does(self):
        name = connection.settings_dict["NAME"]
        self.assertIn("test", str(name))
        self.assertEqual(mq.database.engine.url.database, str(name))
        with transaction.atomic():
            mq.send("orders", {"id": 7})
        with mq.database.engine.connect() as other:
            count = other.exec_driver_sql("SELECT count(*) FROM rmq_message_stub").scalar()
        self.assertEqual(count, 1)

class RolledBack(TestCase):
    def test_a_block_of_the_test_counts_as_none(self):
        with self.assertRaisesRegex(UsageError, "no transaction is open"):
            mq.send("orders", {"id": 1})
        with transaction.atomic():
            mq.send("orders", {"id": 1})
        self.assertEqual(MessageStub.objects.count(), 1)
        self.assertEqual(keyed("k-1"), "k-1")
"""
DJANGO_TEST = ("-m", "django", "test")
CONNECTED_BEFORE = """
from django.apps import AppConfig

class Config(AppConfig):
    name = "shop_tests"

    def ready(self):
        from reliable_mq.contrib.django import mq
        with mq.database.engine.connect():
            pass  # to the real database
"""


Ran = Callable[..., str]


@pytest.fixture(scope="module")
def programs() -> Iterator[Programs]:
    with Programs(
        *("django.core.management.commands.migrate", "django.db.backends.sqlite3.base"),
        *("django.db.backends.postgresql.base", "django.test.runner"),
        "reliable_mq.app.application",
    ) as made:
        yield made


@pytest.fixture
def ran(programs: Programs, tmp_path: Path) -> Ran:
    """Run the tests of a project; give what the runner said. Fails if a test does."""

    def run(database_url: str, *options: str, **files: str) -> str:
        return _ran(programs, tmp_path, database_url, options, files)

    return run


def _ran(
    programs: Programs,
    folder: Path,
    database_url: str,
    options: Sequence[str],
    files: Mapping[str, str],
) -> str:
    (folder / "shop_settings.py").write_text(SETTINGS)
    (folder / "shop_tests").mkdir()
    (folder / "shop_tests" / "__init__.py").write_text("")
    (folder / "shop_tests" / "tests.py").write_text(TESTS)
    for name, text in files.items():
        (folder / "shop_tests" / f"{name}.py").write_text(text)
    done = programs.run(
        [*DJANGO_TEST, "shop_tests", "--settings=shop_settings", *options],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(folder), "SHOP_DATABASE": database_url},
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stderr


def test_the_test_database_is_dropped_after_tests_that_committed_messages(
    ran: Ran, database_url: str
) -> None:
    assert "Ran 10 tests" in ran(database_url)


def test_processes_that_share_the_tests_have_databases_of_their_own(
    ran: Ran, postgres_url: str
) -> None:
    assert "Ran 10 tests" in ran(postgres_url, "--parallel", "2")


def test_a_connection_from_before_the_tests_is_not_used_in_them(
    ran: Ran, postgres_url: str
) -> None:
    assert "Ran 10 tests" in ran(postgres_url, apps=CONNECTED_BEFORE)
