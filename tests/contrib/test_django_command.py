"""`manage.py reliable_mq`: every verb, for this project, with Django's own options."""

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from django.core.management import call_command
from django.core.management.base import CommandError
from tests.contrib.django_project import project, set_up
from tests.forked_programs import Programs
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


@pytest.fixture(scope="module")
def programs() -> Iterator[Programs]:
    with Programs(
        *("django.core.management.commands.migrate", "django.db.backends.sqlite3.base"),
        *("reliable_mq.app.application", "reliable_mq.cli.main"),
    ) as made:
        yield made


def around() -> dict[str, str]:
    """Return the variables that say nothing about Django or messages."""
    ours = ("DJANGO_SETTINGS_MODULE", "RELIABLE_MQ_")
    return {name: each for name, each in os.environ.items() if not name.startswith(ours)}


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
    programs: Programs, tmp_path: Path, words: tuple[str, ...]
) -> None:
    (tmp_path / "lib").mkdir()
    (tmp_path / "lib" / "shop_settings.py").write_text(SETTINGS)

    def manage(*given: str) -> str:
        done = programs.run(["-m", "django", *given, *words], cwd=tmp_path, env=around())
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    manage("migrate")

    assert manage("reliable_mq", "create-tables") == "all tables are there\n"
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
    words = [sys.executable, str(project / "manage.py")]
    subprocess.run([*words, "migrate", "-v0"], cwd=elsewhere, env=around(), check=True)

    log = tmp_path / "worker.log"
    with log.open("w") as output:
        worker = subprocess.Popen(
            [*words, "reliable_mq", "run", "--processes", "2"],
            cwd=elsewhere,
            env=around(),
            stderr=output,
        )
        try:
            until(lambda: log.read_text().count("[application_waits]") == 2, log.read_text)
        finally:
            worker.terminate()
            worker.wait(60)


@pytest.fixture
def shop(tmp_path: Path) -> Path:
    for name, source in {
        "shop_settings.py": SETTINGS.replace(
            '"reliable_mq.contrib.django"', '"reliable_mq.contrib.django", "shop_app"'
        ),
        "shop_app/__init__.py": "",
        "shop_app/consumers.py": CONSUMERS,
        "manage.py": MANAGE,
    }.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(source)
    return tmp_path


Typed = Callable[..., tuple[int, str]]


@pytest.fixture
def typed(programs: Programs, shop: Path) -> Typed:
    """Give the code and all that a command in the project's folder has printed."""

    def run(*words: str) -> tuple[int, str]:
        done = programs.run(words, cwd=shop, env=around())
        return done.returncode, done.stdout + done.stderr

    return run


def test_hints_are_commands_of_manage_py_and_settings_of_django(typed: Typed) -> None:
    _, before = typed("manage.py", "reliable_mq", "stub", "list")
    typed("manage.py", "migrate", "-v0")
    sends = "from reliable_mq.contrib.django import mq; mq.database.stubs; "
    sends += "exec('with mq.transaction() as tx: tx.send(\\'orders\\', {}, key=\\'4711\\')')"
    typed("manage.py", "shell", "-c", sends)
    typed("manage.py", "shell", "-c", sends)
    _, matches = typed("manage.py", "reliable_mq", "stub", "show", "4711")
    _, doctor = typed("manage.py", "reliable_mq", "doctor")

    assert "run python manage.py migrate" in before
    assert "to see one of them: python manage.py reliable_mq stub show MESSAGE_ID" in matches
    assert 'start the name server and the broker, or correct RELIABLE_MQ["BROKER"]' in doctor
    for each in (before, matches, doctor):
        assert "reliable-mq " not in each
        assert "--app" not in each


def test_without_settings_of_django_there_is_one_line(typed: Typed) -> None:
    words = ("-m", "reliable_mq.cli.main", "doctor", "reliable_mq.contrib.django:mq")
    code, said = typed(*words)

    assert code == 2
    assert said.count("\n") == 1
    assert "run python manage.py reliable_mq …, or set DJANGO_SETTINGS_MODULE" in said


@pytest.mark.parametrize("words", [("check",), ("migrate",)])
def test_a_wrong_key_is_the_message_of_a_check_though_consumers_are_imported(
    shop: Path, typed: Typed, words: tuple[str, ...]
) -> None:
    settings = shop / "shop_settings.py"
    settings.write_text(settings.read_text().replace('"BROKER"', '"BROKR"'))

    code, said = typed("manage.py", *words)

    assert code == 1
    assert "?: (reliable_mq.E001) there is no setting brokr; did you mean broker?" in said
    assert "Traceback" not in said


def test_a_wrong_key_ends_our_verbs_with_their_line_and_their_code(
    shop: Path, typed: Typed
) -> None:
    settings = shop / "shop_settings.py"
    settings.write_text(settings.read_text().replace('"BROKER"', '"BROKR"'))

    code, said = typed("manage.py", "reliable_mq", "run")

    assert (code, said) == (2, "error: there is no setting brokr; did you mean broker?\n")


def test_the_check_of_a_database_names_what_it_lacks(typed: Typed) -> None:
    _, before = typed("manage.py", "check", "--database", "default")
    migrated, said = typed("manage.py", "migrate", "-v0")
    _, after = typed("manage.py", "check", "--database", "default")

    assert "(reliable_mq.W003) DATABASES['default']: table rmq_alert" in before
    assert "HINT: Run python manage.py migrate reliable_mq --database default." in before
    assert migrated == 0
    assert "W003" not in said
    assert "W003" not in after
