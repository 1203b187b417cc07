"""A process that starts while its database is away waits; one that is refused ends with a line."""

import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest
from tests.forked_programs import Programs
from tests.waiting import until

from reliable_mq.testing.local_servers import LocalPostgres, free_port

SHOP = """
from reliable_mq import ReliableMQ

mq = ReliableMQ("shop")

@mq.consumer("orders", group="payments")
def pay(order: dict) -> None: ...
"""
COMMAND = (sys.executable, "-m", "reliable_mq.cli.main")


@pytest.fixture(scope="module")
def programs() -> Iterator[Programs]:
    """For those that end by themselves."""
    with Programs("psycopg", "reliable_mq.app.application", "reliable_mq.cli.run") as made:
        yield made


@pytest.fixture
def shop(tmp_path: Path) -> Path:
    (tmp_path / "shop.py").write_text(SHOP)
    return tmp_path


def environment(database: str) -> dict[str, str]:
    around = {name: each for name, each in os.environ.items() if "RELIABLE_MQ" not in name}
    broker = {"RELIABLE_MQ_BROKER": f"127.0.0.1:{free_port()}"}
    return around | broker | {"RELIABLE_MQ_DATABASE": database, "RELIABLE_MQ_APP": "shop:mq"}


def says(log: Path, text: str) -> bool:
    return text in log.read_text()


@pytest.fixture
def started(shop: Path) -> Iterator[list[subprocess.Popen[bytes]]]:
    made: list[subprocess.Popen[bytes]] = []
    yield made
    for each in made:
        each.kill()
        each.wait()


@pytest.fixture
def server() -> Iterator[LocalPostgres]:
    with tempfile.TemporaryDirectory(dir="/tmp") as folder:
        Path(folder).chmod(0o755)  # as root, PostgreSQL runs as nobody
        made = LocalPostgres(Path(folder) / "postgres")
        yield made
        made.stop()


@pytest.mark.processes
@pytest.mark.parametrize(
    ("verb", "ready"), [("run", "application_waits"), ("resend", "resend_started")]
)
def test_a_process_waits_for_its_database_and_goes_on_when_it_is_there(
    programs: Programs,
    shop: Path,
    server: LocalPostgres,
    started: list[subprocess.Popen[bytes]],
    verb: str,
    ready: str,
) -> None:
    url = server.start()
    around = environment(url)
    assert programs.run([*COMMAND[1:], "create-tables"], cwd=shop, env=around).returncode == 0
    server.stop()
    log = shop / "log"
    with log.open("wb") as output:
        process = subprocess.Popen(
            [*COMMAND, verb, "--log-format", "json"], cwd=shop, env=around, stderr=output
        )
    started.append(process)

    def events() -> list[str]:
        return [json.loads(line).get("event", "") for line in log.read_text().splitlines()]

    until(lambda: "database_lost" in events(), log.read_text, seconds=60)
    assert process.poll() is None
    server.start()
    until(lambda: ready in events(), log.read_text, seconds=60)
    assert events().count("database_lost") == 1
    assert "database_back" in events()
    process.send_signal(signal.SIGTERM)
    assert process.wait(60) == 0


@pytest.mark.processes
def test_a_process_that_waits_ends_when_it_is_asked_to(
    shop: Path, started: list[subprocess.Popen[bytes]]
) -> None:
    around = environment(f"postgresql+psycopg://x@127.0.0.1:{free_port()}/shop")
    for verb, code in (("run", 0), ("resend", 0), ("create-tables", 1)):
        log = shop / f"{verb}.log"
        with log.open("wb") as output:
            words = ("--wait",) if verb == "create-tables" else ()
            process = subprocess.Popen(
                [*COMMAND, verb, *words], cwd=shop, env=around, stderr=output
            )
        started.append(process)
        until(partial(says, log, "[database_lost]"), log.read_text, seconds=60)

        process.send_signal(signal.SIGTERM)

        assert process.wait(60) == code, log.read_text()
        assert "Traceback" not in log.read_text()


@pytest.mark.parametrize("verb", ["run", "resend"])
def test_a_refusal_ends_with_one_line_in_the_format_of_the_log(
    programs: Programs, shop: Path, postgres_url: str, verb: str
) -> None:
    unknown = postgres_url.rpartition("/")[0] + "/nowhere"

    words = [*COMMAND[1:], verb, "--log-format", "json"]
    done = programs.run(words, cwd=shop, env=environment(unknown))

    assert done.returncode == 1
    *_, last = map(json.loads, done.stderr.splitlines())
    assert last["level"] == "ERROR"
    assert 'database "nowhere" does not exist' in last["message"]


@pytest.mark.parametrize("verb", ["run", "resend"])
def test_waiting_makes_no_file_of_sqlite(programs: Programs, shop: Path, verb: str) -> None:
    around = environment("sqlite:///shop.db")
    done = programs.run([*COMMAND[1:], verb], cwd=shop, env=around)

    assert done.returncode == 2
    assert "there is no file shop.db" in done.stderr
    assert not (shop / "shop.db").exists()
