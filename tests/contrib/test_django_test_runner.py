"""`manage.py test`: the test database can be dropped, nothing was sent, and worlds deliver."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.processes

SETTINGS = """
import os
from sqlalchemy import make_url

url = make_url(os.environ["SHOP_DATABASE"])
SECRET_KEY = "only for tests"
INSTALLED_APPS = ["reliable_mq.contrib.django"]
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
from django.db import transaction
from django.test import TransactionTestCase
from reliable_mq.contrib.django import mq
from reliable_mq.contrib.django.models import ConsumeLog, MessageStub
from reliable_mq.contrib.health import readiness
from reliable_mq.testing.message_world import MessageWorld

@mq.consumer("orders", group="payments")
def pay(order: dict) -> None:
    assert MessageStub.objects.exists()

class Committed(TransactionTestCase):
    def test_a_message_is_there_and_not_sent(self):
        with transaction.atomic():
            mq.send("orders", {"id": 1})
        with mq.transaction() as tx:
            tx.send("orders", {"id": 2})
        self.assertEqual(list(MessageStub.objects.values_list("count", flat=True)), [0, 0])
        self.assertEqual(mq._connections.relay_waiting(), {"main": 0})
        self.assertTrue(readiness(mq).is_well)

    def test_a_world_delivers_it(self):
        with MessageWorld(mq) as world:
            with transaction.atomic():
                mq.send("orders", {"id": 1})
            world.deliver()
            world.assert_sent("orders", {"id": 1})
        self.assertEqual(ConsumeLog.objects.filter(state=1).count(), 1)
"""


def test_the_test_database_is_dropped_after_a_test_that_committed_messages(
    tmp_path: Path, database_url: str
) -> None:
    (tmp_path / "shop_settings.py").write_text(SETTINGS)
    (tmp_path / "shop_tests").mkdir()
    (tmp_path / "shop_tests" / "__init__.py").write_text("")
    (tmp_path / "shop_tests" / "tests.py").write_text(TESTS)

    done = subprocess.run(
        [sys.executable, "-m", "django", "test", "shop_tests", "--settings=shop_settings"],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(tmp_path), "SHOP_DATABASE": database_url},
        capture_output=True,
        text=True,
        check=False,
    )

    assert done.returncode == 0, done.stdout + done.stderr
    assert "Ran 2 tests" in done.stderr
