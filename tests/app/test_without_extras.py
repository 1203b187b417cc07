"""What a user sees who has installed no extra, or not the one that is needed.

Each case runs in a process of its own, in which the modules of the extras cannot be imported. The
processes are forks of one that has imported what a plain install brings, as that takes longest.
"""

import json
import subprocess
import sys
import tomllib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from reliable_mq.extras import EXTRA_OF_MODULE

ROOT = Path(__file__).parents[2]
HIDE = f"""
import importlib.machinery, sys

HIDDEN = {sorted(EXTRA_OF_MODULE.keys() | {"backports"})!r}

class Hiding(importlib.machinery.PathFinder):
    @classmethod
    def find_spec(cls, name, path=None, target=None):
        is_hidden = name.partition(".")[0] in HIDDEN or name == "compression.zstd"
        return None if is_hidden else super().find_spec(name, path, target)

place = sys.meta_path.index(importlib.machinery.PathFinder)
sys.meta_path[place] = Hiding
"""
FORK = (
    HIDE
    + """
import asyncio, json, os
import redis, rich.progress, sqlalchemy.ext.asyncio, typer
import reliable_mq.app.application, reliable_mq.cli.main

def begin(code, folder):
    child = os.fork()
    if child:
        return child
    os.chdir(folder)
    for descriptor, name in enumerate((os.devnull, "stdout", "stderr")):
        os.dup2(os.open(name, os.O_RDWR | os.O_CREAT), descriptor)
    exec(compile(code, "<case>", "exec"), {"__name__": "__main__"})
    sys.exit()

for line in sys.stdin:
    child = begin(*json.loads(line))
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
"""
)
"""Takes a line of JSON, code and a folder; runs the code in a fork, which writes what it says to
files of that folder; prints its exit code."""
POSTGRES = "ReliableMQ('shop', database='postgresql+psycopg://u@127.0.0.1:1/shop')"
MYSQL = "ReliableMQ('shop', database='mysql+pymysql://u@127.0.0.1:1/shop')"
SQLITE = "ReliableMQ('shop', database='sqlite:///a.db')"
MAIL = (
    "escalation_mail_server='smtp://a:25', escalation_mail_from='a@b.c', escalation_mail_to='a@b.c'"
)
SERVERS = "from pathlib import Path; from reliable_mq.testing.local_servers import *; "
SPARK = "from reliable_mq.reconcile.runs.spark_session import register; register(None)"
PERIODIC = """
from reliable_mq import *
mq = ReliableMQ("shop", database="sqlite:///a.db")
@mq.periodic("0 3 * * *", topic="nightly")
def nightly():
    pass
"""
# What a user writes, and the extra that the error names.
CASES = {
    "a metrics middleware": ("from reliable_mq import *; PrometheusMiddleware()", "prometheus"),
    "a tracing middleware": ("from reliable_mq import *; OpenTelemetryMiddleware()", "otel"),
    "PostgreSQL": (f"from reliable_mq import *; {POSTGRES}.create_tables()", "postgres"),
    "MySQL": (f"from reliable_mq import *; {MYSQL}.create_tables()", "mysql"),
    "MySQL from asyncio": (
        (
            "import asyncio\nfrom reliable_mq import *\n"
            f"async def main(): {MYSQL}.database.async_session()\nasyncio.run(main())"
        ),
        "mysql",
    ),
    "SQLite from asyncio": (
        (
            "import asyncio\nfrom reliable_mq import *\n"
            f"async def main(): {SQLITE}.database.async_session()\nasyncio.run(main())"
        ),
        "sqlite",
    ),
    "a migration": (f"from reliable_mq import *; {SQLITE}.migrate()", "migrations"),
    "mails": (
        f"from reliable_mq import *; ReliableMQ('a', database='sqlite:///a.db', {MAIL}).alerts()",
        "mail",
    ),
    "compression by LZ4": ("from reliable_mq import *; ClientSettings(compression='lz4')", "lz4"),
    "compression by ZSTD": (
        "from reliable_mq import *; ClientSettings(compression='zstd')",
        "zstd",
    ),
    "a local PostgreSQL": (f"{SERVERS}LocalPostgres(Path('pg')).start()", "embedded"),
    "a local Valkey": (f"{SERVERS}LocalValkey(Path('valkey')).start()", "embedded"),
    "sources for Spark": (SPARK, "spark"),
    "a periodic message": (
        PERIODIC,
        "periodic",
    ),
}
OIDC = "--oidc-issuer https://a.example --oidc-client c --public-url https://b.example"
# The same, of commands: words after `reliable-mq`.
COMMANDS = {
    "reconcile": ("reconcile --db sqlite:///a.db --store .", "spark"),
    "migrate": ("migrate --db sqlite:///a.db", "migrations"),
    "dev": ("dev --app shop:mq", "dev-server"),
    "access import": ("access import plain_acl.yml --broker 127.0.0.1:9", "yaml"),
    "demo": ("demo --orders 50", "demo,embedded,postgres,spark"),
    "proxy": ("proxy --namesrv 127.0.0.1:9876", "grpc"),
    "console": ("console --app shop:mq", "console"),
    "log-in at a provider": (f"console --app shop:mq {OIDC}", "oidc"),
    "metrics": ("resend --db sqlite:///a.db --metrics-port 9100", "prometheus"),
}


class Said(NamedTuple):
    """What a process has printed, and its exit code."""

    returncode: int
    stdout: str
    stderr: str


Run = Callable[[str, Path], Said]


@pytest.fixture(scope="module")
def run_hidden() -> Iterator[Run]:
    """Give what runs code in a folder, in a process without the modules of extras."""
    words = [sys.executable, "-c", FORK]
    with subprocess.Popen(
        words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1
    ) as process:
        asked, told = process.stdin, process.stdout
        assert asked is not None
        assert told is not None

        def run(code: str, folder: Path) -> Said:
            asked.write(json.dumps([code, str(folder)]) + "\n")
            returncode = int(told.readline())
            said = ((folder / name).read_text() for name in ("stdout", "stderr"))
            return Said(returncode, *said)

        yield run
        asked.close()


@pytest.mark.parametrize(("code", "extra"), CASES.values(), ids=CASES)
def test_code_that_needs_an_extra_raises_an_error_that_names_it(
    code: str, extra: str, run_hidden: Run, tmp_path: Path
) -> None:
    said = run_hidden(code, tmp_path)

    last = said.stderr.strip().splitlines()[-1]
    assert f"pip install 'reliable-mq[{extra}]'" in last, said.stderr


@pytest.mark.parametrize(("words", "extra"), COMMANDS.values(), ids=COMMANDS)
def test_a_command_that_needs_an_extra_names_it_in_one_line(
    words: str, extra: str, run_hidden: Run, tmp_path: Path
) -> None:
    said = run_hidden(f"from reliable_mq.cli.main import run; run({words.split()!r})", tmp_path)

    (line,) = said.stderr.strip().splitlines()
    assert line.startswith("error: ")
    assert f"pip install 'reliable-mq[{extra}]'" in line


def test_every_public_name_can_be_imported_without_extras(run_hidden: Run, tmp_path: Path) -> None:
    assert run_hidden("from reliable_mq import *", tmp_path).stderr == ""


def test_an_embedded_broker_and_sqlite_need_no_extra(run_hidden: Run, tmp_path: Path) -> None:
    """Given no extra, when an order is sent in a transaction, then its consumer gets it once."""
    code = """
from threading import Event
from reliable_mq import ReliableMQ
mq = ReliableMQ("shop", broker="embedded:store", database="sqlite:///shop.db")
paid = Event()
@mq.consumer("orders", group="payments")
def pay(order: dict) -> None:
    print("paid", order["id"])
    paid.set()
mq.create_tables()
with mq:
    with mq.transaction() as tx:
        tx.send("orders", {"id": 7})
    assert paid.wait(60)
"""
    said = run_hidden(code, tmp_path)

    assert (said.stdout, said.returncode) == ("paid 7\n", 0), said.stderr


def test_every_extra_is_named_by_a_case() -> None:
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"][
        "optional-dependencies"
    ]
    sums = {"all", "dev", "docs", "observability"}
    frameworks = {"django", "fastapi", "flask", "litestar"}  # tests/contrib/test_missing_extras.py

    named = {extra for _, extra in (*CASES.values(), *COMMANDS.values())}
    named = {each for extra in named for each in extra.split(",")}
    assert named == extras.keys() - sums - frameworks


def test_the_help_of_a_command_needs_no_extra(run_hidden: Run, tmp_path: Path) -> None:
    said = run_hidden("from reliable_mq.cli.main import run; run(['demo', '--help'])", tmp_path)

    assert (said.returncode, said.stderr) == (0, "")
    assert "--orders" in said.stdout
