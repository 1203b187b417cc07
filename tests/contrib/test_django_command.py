"""`manage.py reliable_mq`: every verb, for this project, with Django's own options."""

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from django.core.management import call_command
from django.core.management.base import CommandError
from tests.contrib.django_project import project, set_up
from tests.waiting import until

from reliable_mq.contrib.django.application import DjangoMQ

set_up()

SETTINGS = """
SECRET_KEY = "only for tests"
INSTALLED_APPS = ["reliable_mq.contrib.django"]
DATABASES = {"default": {"ENGINE": "django.db.backends.sqlite3", "NAME": "shop.db"}}
RELIABLE_MQ = {"NAME": "shop", "BROKER": "127.0.0.1:1"}
"""

CONSUMERS = """
from reliable_mq.contrib.django import mq

@mq.consumer("orders", group="payments")
def pay(order: dict) -> None: ...
"""
MANAGE = """
import os, sys
from django.core.management import execute_from_command_line

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "shop_settings")
execute_from_command_line(sys.argv)
"""


@pytest.fixture
def mq(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[DjangoMQ]:
    monkeypatch.setenv("RELIABLE_MQ_APP", "another.project:mq")
    monkeypatch.setenv("PYTHONPATH", os.environ.get("PYTHONPATH", ""))  # the command changes it
    with project(f"sqlite:///{tmp_path / 'shop.db'}") as made:
        yield made


def test_a_verb_is_called_from_code_with_its_options(
    mq: DjangoMQ, capsys: pytest.CaptureFixture[str]
) -> None:
    with mq.transaction() as tx:
        message_id = tx.send("orders", {"id": 1}, key="4711")

    call_command("reliable_mq", "stub", "list", "--json")

    assert message_id in capsys.readouterr().out


def test_a_verb_that_fails_is_an_error_of_the_command(mq: DjangoMQ) -> None:
    with pytest.raises(CommandError, match="ended with the code 2") as raised:
        call_command("reliable_mq", "stub", "nonsense")

    assert raised.value.returncode == 2


@pytest.mark.parametrize(
    "words",
    [
        ("--settings=shop_settings", "--pythonpath", "lib"),
        ("--settings", "shop_settings", "--pythonpath=lib"),
    ],
)
def test_options_of_manage_py_are_obeyed_and_not_passed_on(
    tmp_path: Path, words: tuple[str, ...]
) -> None:
    (tmp_path / "lib").mkdir()
    (tmp_path / "lib" / "shop_settings.py").write_text(SETTINGS)
    around = {name: each for name, each in os.environ.items() if name != "DJANGO_SETTINGS_MODULE"}

    def manage(*given: str) -> str:
        done = subprocess.run(
            [sys.executable, "-m", "django", *given, *words],
            cwd=tmp_path,
            env=around,
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    manage("migrate")

    assert "rmq_message_stub" in manage("reliable_mq", "create-tables")
    assert manage("reliable_mq", "stub", "list", "--json").strip() == "[]"


@pytest.mark.processes
def test_all_processes_of_a_worker_find_the_project_wherever_it_was_started(tmp_path: Path) -> None:
    project, elsewhere = tmp_path / "project", tmp_path / "elsewhere"
    elsewhere.mkdir()
    for name, source in {
        "shop_settings.py": SETTINGS.replace("shop.db", f"{tmp_path}/shop.db").replace(
            '"reliable_mq.contrib.django"', '"reliable_mq.contrib.django", "shop_app"'
        ),
        "shop_app/__init__.py": "",
        "shop_app/consumers.py": CONSUMERS,
        "manage.py": MANAGE,
    }.items():
        (project / name).parent.mkdir(parents=True, exist_ok=True)
        (project / name).write_text(source)
    around = {name: each for name, each in os.environ.items() if name != "DJANGO_SETTINGS_MODULE"}
    words = [sys.executable, str(project / "manage.py")]
    subprocess.run([*words, "migrate", "-v0"], cwd=elsewhere, env=around, check=True)

    log = tmp_path / "worker.log"
    with log.open("w") as output:
        worker = subprocess.Popen(
            [*words, "reliable_mq", "run", "--processes", "2"],
            cwd=elsewhere,
            env=around,
            stderr=output,
        )
        try:
            until(lambda: log.read_text().count("[application_ready]") == 2, log.read_text)
        finally:
            worker.terminate()
            worker.wait(60)
