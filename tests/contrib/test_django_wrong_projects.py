"""Wrong projects of Django: settings, files and command lines, each with one line that helps."""

import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from tests.forked_programs import Programs

pytestmark = pytest.mark.processes

FILES = {
    "shop/__init__.py": "",
    "shop/settings.py": """
SECRET_KEY = "only for tests"
INSTALLED_APPS = ["reliable_mq.contrib.django", "orders"]
ROOT_URLCONF = "shop.urls"
DATABASES = {"default": {"ENGINE": "django.db.backends.sqlite3", "NAME": "shop.db",
                         "OPTIONS": {"transaction_mode": "IMMEDIATE"}}}
RELIABLE_MQ = {"BROKER": "127.0.0.1:1"}
""",
    "shop/urls.py": "urlpatterns = []\n",
    "shop/wsgi.py": "application = None\n",
    "orders/__init__.py": "",
    "orders/consumers.py": """
from reliable_mq.contrib.django import mq

@mq.consumer("orders", group="payments")
def pay(order: dict) -> None: ...
""",
    "manage.py": """
import os, sys
from django.core.management import execute_from_command_line

if __name__ == "__main__":
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "shop.settings")
    execute_from_command_line(sys.argv)
""",
}
Typed = Callable[..., tuple[int, str]]
OURS = ("-m", "reliable_mq.cli.entry")
LEAVE_OUT = "in a project of Django leave MODULE:OBJECT out: write python manage.py reliable_mq …"


@pytest.fixture(scope="module")
def programs() -> Iterator[Programs]:
    with Programs(
        *("django.core.management.commands.migrate", "django.db.backends.sqlite3.base"),
        *("django.test.runner", "reliable_mq.app.application", "reliable_mq.cli.main"),
    ) as made:
        yield made


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name, text in FILES.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    return tmp_path


@pytest.fixture
def typed(programs: Programs, folder: Path) -> Typed:
    """Give the code and all that a command in the project's folder has printed."""
    ours = ("DJANGO_SETTINGS_MODULE", "RELIABLE_MQ_")
    around = {name: each for name, each in os.environ.items() if not name.startswith(ours)}

    def run(*words: str, **more: str) -> tuple[int, str]:
        done = programs.run(words, cwd=folder, env={**around, **more})
        return done.returncode, done.stdout + done.stderr

    return run


def set_more(folder: Path, line: str) -> None:
    """Add a line to the settings."""
    path = folder / "shop" / "settings.py"
    path.write_text(f"{path.read_text()}\n{line}\n")


def test_a_project_that_has_not_installed_the_app_is_told_so(folder: Path, typed: Typed) -> None:
    set_more(folder, 'INSTALLED_APPS.remove("reliable_mq.contrib.django")')
    says = "'reliable_mq.contrib.django' is not in INSTALLED_APPS: add it there, then run python "

    run = (*OURS, "run", "reliable_mq.contrib.django:mq")
    code, said = typed(*run, DJANGO_SETTINGS_MODULE="shop.settings")
    _, sent = typed("manage.py", "shell", "-c", "from reliable_mq.contrib.django import mq")

    assert (code, said.count("\n")) == (2, 1)
    assert says in said
    assert says in sent.splitlines()[-1]


@pytest.mark.parametrize(
    "words",
    [
        (*OURS, "run", "shop:mq"),
        (*OURS, "run", "nowhere:mq"),
        (*OURS, "run", "shop.wsgi:application"),
        (*OURS, "run"),
        (*OURS, "stub", "list", "--app", "orders:mq"),
        ("manage.py", "reliable_mq", "run", "orders:mq"),
        ("manage.py", "reliable_mq", "run", "shop.wsgi:application"),
    ],
    ids=" ".join,
)
def test_a_project_needs_no_module_and_object(typed: Typed, words: tuple[str, ...]) -> None:
    code, said = typed(*words)

    assert (code, said.count("\n")) == (2, 1)
    assert LEAVE_OUT in said


@pytest.mark.parametrize(
    ("words", "code", "says"),
    [
        (("stub", "4711"), 2, "No such command '4711': did you mean 'stub show 4711'?"),
        (("show", "4711"), 2, "No such command 'show': did you mean 'stub show'?"),
        (("purge",), 2, "'stub void'? See python manage.py reliable_mq --help"),
        (("inspect", "active"), 2, "No such command 'inspect': did you mean 'group members'?"),
        (("runworker",), 2, "No such command 'runworker': did you mean 'run'?"),
        (("run", "--concurrency", "4"), 2, "No such option: --concurrency: did you mean --proce"),
        (("stub", "list", "--using", "x"), 2, "No such option: --using: did you mean --database-"),
        (("stub", "list", "--database-name", "x"), 2, "there is no database 'x'; known: default"),
        (("stub", "list", "--database-name", "default"), 0, "no stub matches"),
    ],
)
def test_the_words_of_django_and_celery_are_understood_on_the_command_line(
    typed: Typed, words: tuple[str, ...], code: int, says: str
) -> None:
    typed("manage.py", "migrate", "-v0")

    found, said = typed("manage.py", "reliable_mq", *words)

    assert (found, said.count("\n")) == (code, 1)
    assert says in said


def test_consumers_in_another_module_are_named(folder: Path, typed: Typed) -> None:
    (folder / "orders" / "consumers.py").rename(folder / "orders" / "consumer.py")
    says = "orders/consumer.py has consumers, and only consumers.py is imported: rename it, or "

    code, run = typed("manage.py", "reliable_mq", "run")
    _, check = typed("manage.py", "check")

    assert code == 2
    assert run.startswith(f"error: application shop has no consumers: {says}")
    assert f"(reliable_mq.W006) {says}" in check


OWN = """
from reliable_mq import ReliableMQ
mq = ReliableMQ("shop", broker="127.0.0.1:1")

@mq.consumer("orders", group="payments")
def pay(order: dict) -> None: ...
"""


def test_an_application_of_its_own_with_consumers_is_named(folder: Path, typed: Typed) -> None:
    (folder / "orders" / "consumers.py").write_text(OWN)
    says = (
        "orders.consumers.mq is a ReliableMQ of its own, and python manage.py reliable_mq run does "
        "not run its consumers: write `from reliable_mq.contrib.django import mq` there"
    )

    code, run = typed("manage.py", "reliable_mq", "run")
    _, check = typed("manage.py", "check")

    assert (code, run.count("\n")) == (2, 1)
    assert run.startswith(f"error: application shop has no consumers: {says}")
    assert f"(reliable_mq.W007) {says}" in check


def test_consumers_that_start_with_django_are_warned_of(folder: Path, typed: Typed) -> None:
    (folder / "orders" / "apps.py").write_text(
        "from django.apps import AppConfig\n"
        "class Orders(AppConfig):\n"
        "    name = 'orders'\n"
        "    def ready(self):\n"
        "        from reliable_mq.contrib.django import mq\n"
        "        mq.start()\n"
    )

    _, said = typed("manage.py", "check")

    assert "mq.start() while Django starts, as in AppConfig.ready: each process of the" in said
    assert "leave it out, and run python manage.py reliable_mq run" in said


def test_a_project_without_consumers_is_told_where_they_are(folder: Path, typed: Typed) -> None:
    (folder / "orders" / "consumers.py").unlink()

    code, said = typed("manage.py", "reliable_mq", "run")

    assert (code, said.count("\n")) == (2, 1)
    assert "write @mq.consumer(…) in a module consumers.py of an app of INSTALLED_APPS" in said


@pytest.mark.parametrize(
    ("line", "says"),
    [
        (
            'RELIABLE_MQ = {"BROKR": "x", "REDSI": "y"}',
            (
                "there is no setting brokr; did you mean broker?",
                "there is no setting redsi; did you mean redis?",
            ),
        ),
        (
            'RELIABLE_MQ = {"BROKER": "http://127.0.0.1:9876", "REDIS": "localhost"}',
            (
                "redis='localhost' is not a Redis URL: it must begin with redis://",
                "RELIABLE_MQ[\"BROKER\"]: name server 'http://127.0.0.1:9876' is no host:port: le",
            ),
        ),
        (
            'RELIABLE_MQ = {"DATABASES": ["billng"], "RESEND_COUNT_MAX": -3}',
            (
                "RELIABLE_MQ['DATABASES'] names 'billng'; DATABASES has default",
                "setting resend_count_max: it must be greater than or equal to 1",
            ),
        ),
        (
            'RELIABLE_MQ = {"broker": "127.0.0.1:1", "DATABASE": "default"}',
            (
                "RELIABLE_MQ['broker']: write its keys in capitals, 'BROKER'",
                "RELIABLE_MQ['DATABASE']: the database is one of Django's DATABASES; name its al",
            ),
        ),
        (
            "RELIABLE_MQ = None",
            ('RELIABLE_MQ in the settings of Django must be a dictionary, such as {"BROKER"',),
        ),
    ],
)
@pytest.mark.parametrize("has_consumers", [True, False])
def test_the_check_names_every_wrong_setting_in_a_line_of_its_own(
    folder: Path, typed: Typed, line: str, says: tuple[str, ...], has_consumers: bool
) -> None:
    if not has_consumers:
        (folder / "orders" / "consumers.py").unlink()
    set_more(folder, line)

    code, said = typed("manage.py", "check")

    assert code == 1
    found = [each for each in said.splitlines() if "E001" in each]
    assert len(found) == len(says), said
    for each in says:
        assert any(f"(reliable_mq.E001) {each}" in line for line in found), said
    assert "Traceback" not in said


@pytest.mark.parametrize(
    ("line", "says"),
    [
        (
            'del RELIABLE_MQ; RELIABLE_MQ_BROKER = "127.0.0.1:1"',
            'RELIABLE_MQ_BROKER is read by nobody: write RELIABLE_MQ = {"BROKER": …}',
        ),
        (
            "RELIABLEMQ = RELIABLE_MQ; del RELIABLE_MQ",
            "RELIABLEMQ is read by nobody: the setting is RELIABLE_MQ",
        ),
    ],
)
def test_the_check_warns_of_a_setting_that_nobody_reads(
    folder: Path, typed: Typed, line: str, says: str
) -> None:
    set_more(folder, line)

    code, said = typed("manage.py", "check")

    assert code == 0
    assert f"?: (reliable_mq.W005) {says}" in said


def test_the_check_of_a_right_project_says_nothing(folder: Path, typed: Typed) -> None:
    set_more(folder, 'RELIABLE_MQ_BROKER = RELIABLE_MQ["BROKER"]')

    assert typed("manage.py", "check") == (
        0,
        "System check identified no issues (0 silenced).\n",
    )


TESTS = """
from django.test import TestCase, TransactionTestCase
from reliable_mq.contrib.django import mq
from reliable_mq.testing.message_world import MessageWorld

class Inside(TestCase):
    def test(self):
        with MessageWorld(mq): ...

class Outside(TransactionTestCase):
    def test(self):
        with MessageWorld(mq): ...
"""


def test_a_world_says_which_test_case_and_which_database_it_needs(
    folder: Path, typed: Typed
) -> None:
    (folder / "orders" / "tests.py").write_text(TESTS)

    _, in_memory = typed("manage.py", "test", "orders.tests.Outside")
    set_more(folder, 'DATABASES["default"]["TEST"] = {"NAME": "test.db"}')
    _, inside = typed("manage.py", "test", "orders.tests.Inside")
    code, outside = typed("manage.py", "test", "orders.tests.Outside")

    assert (
        "ConfigurationError: the test database 'default' is in memory, and no other connection "
        "can read it: write DATABASES['default']['TEST'] = {'NAME': 'test.db'}\n"
    ) in in_memory
    assert (
        "UsageError: a transaction of 'default' is open around MessageWorld (a TestCase opens one "
        "around each test), so nothing is committed: let the class be a TransactionTestCase, or "
    ) in inside
    assert code == 0, outside
