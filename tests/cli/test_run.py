"""`run` and `resend`: their log, metrics and workers, and the database of the environment."""

import os
import signal
import socket
import subprocess
import sys
import urllib.request
from pathlib import Path

import pytest

from reliable_mq import ReliableMQ
from reliable_mq.app.thread_signals import WorkerDied
from reliable_mq.cli import run as run_command
from reliable_mq.cli.main import run
from reliable_mq.cli.metrics import serve_metrics
from reliable_mq.errors import AddressRefused
from reliable_mq.testing.local_servers import free_port

ID = "A" * 32


@pytest.fixture
def database(tmp_path: Path) -> str:
    url = f"sqlite:///{tmp_path / 'shop.db'}"
    mq = ReliableMQ("shop", database=url)
    mq.create_tables()
    mq.close()
    return url


def test_workers_that_fail_at_their_start_end_the_command(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run_command, "RESTART_SECONDS", 0.0)
    monkeypatch.setattr(run_command, "POLL_SECONDS", 0.01)
    with pytest.raises(WorkerDied, match="each worker failed 5 times in a row"):
        run_command._supervise([[sys.executable, "-S", "-c", "raise SystemExit(3)"]], os.environ)


def test_a_worker_that_fails_does_not_end_the_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """It fails until its file is there; another one makes that file when it is failing."""
    monkeypatch.setattr(run_command, "RESTART_SECONDS", 0.0)
    monkeypatch.setattr(run_command, "FAILING_RESTART_SECONDS", 0.1)
    monkeypatch.setattr(run_command, "POLL_SECONDS", 0.01)
    cured, served = tmp_path / "cured", tmp_path / "served"
    python = [sys.executable, "-S", "-c"]
    ill = f"import os; os.mkdir({str(served)!r}) if os.path.exists({str(cured)!r}) else exit(3)"
    well = [*python, "import signal; signal.pause()"]

    def look(worker: run_command._Worker) -> None:
        look_once(worker)
        if worker.is_failing:
            cured.mkdir(exist_ok=True)
        if served.exists() and not asked:  # a second signal would end this process
            asked.append(True)
            signal.raise_signal(signal.SIGTERM)

    asked: list[bool] = []
    look_once = run_command._Worker.restart_if_due
    monkeypatch.setattr(run_command._Worker, "restart_if_due", look)
    run_command._supervise([[*python, ill], well], os.environ)

    assert served.exists()
    assert "failed 5 times in a row" in caplog.text


def test_metrics_are_served_at_a_port_and_a_taken_port_is_told() -> None:
    port = free_port()
    serve_metrics("127.0.0.1", port)
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics") as answer:
        assert b"python_info" in answer.read()
    with pytest.raises(AddressRefused, match=f"--metrics-port {port}"):
        serve_metrics("127.0.0.1", port)


def test_the_application_says_where_its_log_goes(tmp_path: Path, database: str) -> None:
    (tmp_path / "logged_shop.py").write_text(
        "import logging\n"
        "logging.basicConfig(level=logging.INFO, format='MINE %(message)s')\n"
        "from reliable_mq import ReliableMQ\n"
        f"mq = ReliableMQ('shop', database={database!r})\n"
        "logging.getLogger('shop').info('loaded')\n"
    )
    done = subprocess.run(
        [sys.executable, "-m", "reliable_mq.cli.main", "resend", "logged_shop:mq", "--once"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )
    assert "MINE loaded" in done.stderr


def test_a_command_without_options_takes_the_database_of_the_environment(
    database: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("RELIABLE_MQ_DATABASE", raising=False)
    with pytest.raises(SystemExit):
        run(["stub", "show", ID])
    assert "or set RELIABLE_MQ_APP or RELIABLE_MQ_DATABASE" in capsys.readouterr().err

    monkeypatch.setenv("RELIABLE_MQ_DATABASE", database)
    with pytest.raises(SystemExit):
        run(["stub", "show", ID])
    assert ID in capsys.readouterr().err


def test_the_doctors_remedies_can_be_pasted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Given a database without tables, then the remedy names it as the person did.

    A password is not repeated: then the person must write the URL again.
    """
    url = f"sqlite:///{tmp_path / 'empty.db'}"
    (tmp_path / "empty.db").touch()
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        broker = f"127.0.0.1:{taken.getsockname()[1]}"
        monkeypatch.delenv("RELIABLE_MQ_DATABASE", raising=False)
        with pytest.raises(SystemExit):
            run(["doctor", "--db", url, "--broker", broker])
    said = capsys.readouterr().out
    assert f"run reliable-mq migrate --db {url} (without Alembic" in said
    assert "MODULE:OBJECT" not in said
