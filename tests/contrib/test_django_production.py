"""The page "Django in production": its files and commands, as a reader uses them."""

import os
import re
import sqlite3
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from bench.child_process import LoggedProcess
from bench.reliable_mq_broker import ReliableMQBroker
from tests.contrib.asking import asked
from tests.waiting import SECONDS_MAX, run_process, until

from reliable_mq.testing.local_servers import free_port

pytestmark = pytest.mark.processes

PAGE = Path(__file__).parents[2] / "docs" / "how-to" / "django_production.md"
FILES = {
    "settings.py": """
import os
SECRET_KEY, ROOT_URLCONF, ALLOWED_HOSTS = "test", "urls", ["*"]
INSTALLED_APPS = ["reliable_mq.contrib.django", "orders"]
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"
DATABASES = {"default": {"ENGINE": "django.db.backends.sqlite3", "NAME": "shop.db",
                         "OPTIONS": {"transaction_mode": "IMMEDIATE"}}}
RELIABLE_MQ = {"BROKER": os.environ["SHOP_BROKER"], "DATABASE_CONNECTIONS": 4}
""",
    "orders/models.py": """
from django.db import models

class Order(models.Model):
    item = models.CharField(max_length=100)
""",
    "urls.py": """
from django.db import transaction
from django.http import HttpResponse
from django.urls import path
from reliable_mq.contrib.django import mq
from shop.metrics import metrics

def place(request):
    with transaction.atomic():
        mq.send("orders", {"id": 0}, key="web")
    return HttpResponse("placed")

urlpatterns = [path("place", place), path("metrics", metrics)]
""",
    "wsgi.py": "from django.core.wsgi import get_wsgi_application\n"
    "application = get_wsgi_application()\n",
}
PREPARE = """
import django
django.setup()
from django.core.management import call_command
call_command("makemigrations", "orders", verbosity=0)
call_command("migrate", verbosity=0)
from orders.models import Order
Order.objects.bulk_create(Order(item="tea") for _ in range(2500))
"""


class Project:
    """A project of Django with the files of the page."""

    def __init__(self, folder: Path, broker: str) -> None:
        self.folder = folder
        shown = re.findall(
            r'^```python title="([^"]+)"\n(.*?)^```', PAGE.read_text(), re.MULTILINE | re.DOTALL
        )
        for name, text in (FILES | dict(shown)).items():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / name).write_text(text)
        self.more = {
            "SHOP_BROKER": broker,
            "DJANGO_SETTINGS_MODULE": "settings",
            "PYTHONPATH": str(folder),
        }
        self.done("-c", PREPARE)

    def done(self, *words: str) -> str:
        ended = run_process(
            [sys.executable, *words],
            cwd=self.folder,
            env={**os.environ, **self.more},
            capture_output=True,
            timeout=120,
        )
        assert ended.returncode == 0, ended.stderr
        return str(ended.stdout)

    def keys(self) -> list[str]:
        with sqlite3.connect(self.folder / "shop.db") as connection:
            return [
                key
                for (key,) in connection.execute(
                    "SELECT message_key FROM rmq_message_stub ORDER BY seq"
                )
            ]


@pytest.fixture
def project(tmp_path: Path) -> Iterator[Project]:
    with ReliableMQBroker(tmp_path / "broker", "ASYNC_FLUSH") as broker:
        yield Project(tmp_path / "shop", broker.name_server_address)


def test_the_backfill_sends_each_order_once_and_goes_on_where_it_ended(project: Project) -> None:
    said = project.done("-m", "django", "announce_orders", "--after", "500")

    assert said.splitlines()[-1] == "to go on from here: --after 2500"
    assert project.keys() == [str(number) for number in range(501, 2501)]


def test_the_web_processes_of_gunicorn_serve_one_sum_of_what_they_sent(project: Project) -> None:
    counts = project.folder / "counts"
    counts.mkdir()
    port = free_port()
    gunicorn = LoggedProcess(
        [
            *(sys.executable, "-m", "gunicorn", "--bind", f"127.0.0.1:{port}", "--workers", "2"),
            *("--config", str(project.folder / "gunicorn.conf.py"), "--chdir", str(project.folder)),
            *("--worker-tmp-dir", str(project.folder), "wsgi:application"),
        ],
        project.folder / "gunicorn.log",
        environment={**project.more, "PROMETHEUS_MULTIPROC_DIR": str(counts)},
    )

    def sent() -> float:
        _, text = asked(port, "GET", "/metrics")
        found = re.findall(
            r"^messaging_client_sent_messages_total\{.*\} (\S+)$", text, re.MULTILINE
        )
        return sum(map(float, found))

    try:
        gunicorn.wait_for("Booting worker", SECONDS_MAX)
        for _ in range(5):
            assert asked(port, "GET", "/place") == (200, "placed")
        until(lambda: sent() == 5, seen=sent)
        gunicorn.stop()
    finally:
        gunicorn.kill()
