"""`reliable-mq dev` while a server is away: its steps, and what failed; and names in its log."""

import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.waiting import until

from reliable_mq.cli.dev import DevRun
from reliable_mq.cli.dev_guard import DevGuard
from reliable_mq.cli.dev_log import DevLog
from reliable_mq.cli.dev_names import name_of
from reliable_mq.cli.dev_probe import DevNeeds
from reliable_mq.cli.dev_servers import DevServers
from reliable_mq.testing.local_servers import LocalServer


@pytest.fixture
def guard() -> Iterator[DevGuard]:
    with DevGuard() as made:
        yield made


def test_a_server_that_ends_while_a_step_runs_is_started_again(
    tmp_path: Path, guard: DevGuard, capsys: pytest.CaptureFixture[str]
) -> None:
    """A step such as `migrate` waits for its server, and dev waits for the step."""
    log = DevLog()
    servers = DevServers(tmp_path, {}, log, guard)
    needs = DevNeeds(
        broker=False, database=False, redis=True, is_embedded=False, has_consumers=False
    )
    run = DevRun("shop:mq", servers, log, guard, 1, (), (), threading.Event())
    try:
        servers.start_needed(needs)
        (valkey,) = servers._local
        first = valkey.pid
        assert first is not None
        wait = f"for _ in $(seq 1000); do [ -e {tmp_path}/again ] && exit 0; sleep 0.05; done"
        script = f"kill -9 {first}; {wait}; exit 1"
        guard_of = threading.Thread(target=_note_start, args=(valkey, first, tmp_path / "again"))
        guard_of.start()

        assert run._code_of_step("before", ["sh", "-c", script]) == 0
        guard_of.join()
    finally:
        servers.stop()
    assert servers.returns == 1


def _note_start(server: LocalServer, first: int, file: Path) -> None:
    until(lambda: server.pid != first and server.is_running, seconds=60)
    file.touch()


def test_a_step_that_fails_while_a_server_is_away_runs_once_more(
    tmp_path: Path, guard: DevGuard
) -> None:
    log = DevLog()
    servers = DevServers(tmp_path, {}, log, guard)
    run = DevRun("shop:mq", servers, log, guard, 1, (), (), threading.Event())
    tries = tmp_path / "tries"
    script = f"echo >> {tries}; exit 3"

    assert run._code_of_step("before", ["sh", "-c", script]) == 3
    assert len(tries.read_text()) == 1

    servers.check = lambda: setattr(servers, "returns", 1)  # type: ignore[method-assign]
    assert run._code_of_step("before", ["sh", "-c", script]) == 3
    assert len(tries.read_text()) == 3


def test_what_failed_while_a_server_was_away_is_started_when_it_is_back(
    tmp_path: Path, guard: DevGuard, capsys: pytest.CaptureFixture[str]
) -> None:
    """Once for each return: what fails all the same waits for a change."""
    log = DevLog()
    servers = DevServers(tmp_path, {}, log, guard)
    run = DevRun("shop:mq", servers, log, guard, 1, (), (), threading.Event())
    starts = tmp_path / "starts"

    def end() -> int:
        until(lambda: all(each.exit_code is not None for each in run._running))
        run._report_ends()
        run._start_failed()
        return len(run._running)

    run._add("web", ["sh", "-c", f"echo >> {starts}; exit 1"])
    run._add("done", ["true"])
    assert end() == 0
    servers.returns += 1
    assert end() == 1
    assert end() == 0
    assert end() == 0
    assert len(starts.read_text()) == 2
    run.stop()
    servers.returns += 1
    assert end() == 0, "a change has started all again"
    assert "a server is back; starting web again" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("command", "name"),
    [
        ("python manage.py runserver --noreload", "runserver"),
        ("python3.12 -u manage.py runserver 8001", "runserver"),
        ("/usr/bin/python manage.py reliable_mq console", "console"),
        ("django-admin runserver", "runserver"),
        ("python -m uvicorn web:app", "uvicorn"),
        ("uv run uvicorn web:app", "uvicorn"),
        ("poetry run python manage.py runserver", "runserver"),
        ("env DEBUG=1 .venv/bin/gunicorn shop.wsgi", "gunicorn"),
        ("reliable-mq console shop:mq", "console"),
        ("python web.py", "web.py"),
        ("python", "python"),
        ("a-very-long-program-name", "a-very-lo"),
    ],
)
def test_a_command_is_called_by_what_it_runs(command: str, name: str) -> None:
    assert name_of(command.split()) == name
