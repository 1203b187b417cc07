"""The pages of docs/how-to about frameworks: their files and commands, as a reader uses them."""

import re
import shlex
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest
from bench.child_process import LoggedProcess
from tests.contrib.asking import asked
from tests.waiting import SECONDS_MAX, until

from reliable_mq.testing.local_servers import free_port

pytestmark = [pytest.mark.processes, pytest.mark.packaging]

ROOT = Path(__file__).parents[2]
PAGES = ROOT / "docs" / "how-to"
LINES_MAX = 160
_FILE = re.compile(r'^```python title="([^"]+)"\n(.*?)^```', re.MULTILINE | re.DOTALL)
_SHELL = re.compile(r"^```sh\n(.*?)^```", re.MULTILINE | re.DOTALL)
_PYTHON = re.compile(r"^```python[^\n]*\n(.*?)^```", re.MULTILINE | re.DOTALL)


TESTS_OF_DJANGO = """
from django.test import TestCase, TransactionTestCase
from orders.models import Order
from reliable_mq.contrib.django.models import MessageStub

class Sent(TestCase):
    def test_an_order_is_announced(self):
        with self.captureOnCommitCallbacks(execute=True) as callbacks:
            answer = self.client.post("/orders", {"item": "tea"}, "application/json")
        assert answer.status_code == 201, answer.content
        assert len(callbacks) == 1
        assert MessageStub.objects.get(topic="orders").count == 0

class Committed(TransactionTestCase):
    def test_an_order_is_announced(self):
        answer = self.client.post("/orders", {"item": "tea"}, "application/json")
        assert answer.status_code == 201, answer.content
        assert MessageStub.objects.filter(topic="orders").count() == 1
"""


class Reader:
    """A person in an empty directory, who does what a page says."""

    def __init__(self, page: str, directory: Path) -> None:
        self.text = (PAGES / f"{page}.md").read_text()
        self.directory = directory
        self.files: dict[str, str] = {}
        for name, source in _FILE.findall(self.text):  # a later block adds to the file
            self.files[name] = self.files.get(name, "") + source
        self._web, self._name_server = free_port(), free_port()
        self._names = iter(range(100))
        self._bin = Path(sys.executable).parent

    def write_files(self) -> None:
        for name, source in self.files.items():
            self.write(name, source)

    def write(self, name: str, source: str) -> None:
        """Write a file of the page. The ports are free ones."""
        path = self.directory / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(source.replace("127.0.0.1:9876", f"127.0.0.1:{self._name_server}"))

    def command(self, beginning: str) -> list[str]:
        """Return the words of a command of the page, with free ports."""
        lines = [line for block in _SHELL.findall(self.text) for line in block.splitlines()]
        (line,) = [line for line in lines if line.startswith(beginning)][:1]
        words = shlex.split(line, comments=True)
        words[0] = sys.executable if words[0] == "python" else str(self._bin / words[0])
        if "uvicorn" in words[0]:
            words += ["--port", str(self._web)]
        if "gunicorn" in words[0]:
            words += ["--bind", f"127.0.0.1:{self._web}", "--worker-tmp-dir", "/tmp"]
        if words[-1] == "runserver":
            words += ["--noreload", f"127.0.0.1:{self._web}"]
        if "broker" in words:
            words += ["--port", "0", "--namesrv-port", str(self._name_server)]
        return words

    def do(self, *words: str) -> None:
        with self._process(list(words)) as process:
            assert process.child.wait(SECONDS_MAX) == 0, process.output()

    @contextmanager
    def doing(self, beginning: str) -> Iterator[LoggedProcess]:
        with self._process(self.command(beginning)) as process:
            yield process

    @contextmanager
    def _process(self, words: list[str]) -> Iterator[LoggedProcess]:
        log = self.directory / f"{next(self._names)}.log"
        around = {
            "PYTHONPATH": str(self.directory),
            "PYTHONUNBUFFERED": "1",
            "RELIABLE_MQ_BROKER": f"127.0.0.1:{self._name_server}",
        }
        process = LoggedProcess(
            [sys.executable, "-c", _IN, str(self.directory), *words], log, environment=around
        )
        try:
            yield process
        finally:
            if process.child.poll() is None:
                process.stop()

    def place_an_order_and_wait_until_it_is_paid(self, *processes: LoggedProcess) -> None:
        def said() -> str:
            return "\n".join(each.output() for each in processes)

        body = b'{"item": "tea"}'
        until(lambda: asked(self._web, "POST", "/orders", body)[0] == 201, said)
        until(lambda: asked(self._web, "GET", "/orders/1")[1] == {"is_paid": True}, said)


_IN = "import os, sys; os.chdir(sys.argv[1]); os.execv(sys.argv[2], sys.argv[2:])"


@pytest.mark.parametrize("page", ["fastapi", "litestar"])
def test_a_shop_with_an_embedded_broker(page: str, tmp_path: Path) -> None:
    reader = Reader(page, tmp_path)
    reader.write_files()
    reader.do(*reader.command("python shop.py"))

    with reader.doing("uvicorn shop:app") as web:
        reader.place_an_order_and_wait_until_it_is_paid(web)


def test_a_shop_with_flask(tmp_path: Path) -> None:
    reader = Reader("flask", tmp_path)
    reader.write_files()
    reader.do(*reader.command("python shop.py"))

    with ExitStack() as stack:
        processes = [
            stack.enter_context(reader.doing(each))
            for each in (
                "reliable-mq broker",
                "gunicorn",
                "flask --app shop reliable-mq run",
                "flask --app shop reliable-mq resend",
            )
        ]
        reader.place_an_order_and_wait_until_it_is_paid(*processes)


def test_a_project_with_django(tmp_path: Path) -> None:
    reader = Reader("django", tmp_path)
    reader.do(sys.executable, "-m", "django", "startproject", "shop", ".")
    reader.do(sys.executable, "-m", "django", "startapp", "orders")
    for name, source in reader.files.items():
        path = tmp_path / "shop" / name
        if path.exists():  # the page adds to what `startproject` made
            reader.write(f"shop/{name}", path.read_text() + source)
        else:
            reader.write(name, source)
    reader.do(*reader.command("python manage.py makemigrations"))
    reader.write("orders/tests.py", TESTS_OF_DJANGO)
    reader.do(sys.executable, "manage.py", "test", "orders")
    reader.do(*reader.command("python manage.py migrate"))

    with ExitStack() as stack:
        processes = [
            stack.enter_context(reader.doing(each))
            for each in (
                "reliable-mq broker",
                "python manage.py runserver",
                "python manage.py reliable_mq run",
                "python manage.py reliable_mq resend",
            )
        ]
        reader.place_an_order_and_wait_until_it_is_paid(*processes)


@pytest.mark.parametrize(
    "page", ["django", "fastapi", "faststream", "flask", "litestar", "sqlmodel"]
)
def test_a_page_is_short_and_its_code_can_be_read(page: str) -> None:
    text = (PAGES / f"{page}.md").read_text()

    assert len(text.splitlines()) <= LINES_MAX
    for block in _PYTHON.findall(text):
        compile(block, f"{page}.md", "exec")
