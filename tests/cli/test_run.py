"""`run` and `resend`: their log, metrics and workers, and the database of the environment."""

import os
import signal
import socket
import struct
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from tests.waiting import run_process

from reliable_mq import ReliableMQ
from reliable_mq.app.thread_signals import WorkerDied
from reliable_mq.cli import run as run_command
from reliable_mq.cli.main import run
from reliable_mq.cli.metrics import serve_metrics
from reliable_mq.cli.worker_metrics import WorkerMetrics
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


WORKER = """
import os, sys, time
from reliable_mq.app.thread_signals import run_until_signal
from reliable_mq.cli.run import _bound_to_supervisor

def say(*words):
    os.write(1, " ".join(map(str, words)).encode() + b"\\n")  # whole lines of two processes

def close():
    say("closing", os.getpid())
    while not os.path.exists("handled"):  # a handler that still runs
        time.sleep(0.01)
    say("closed")

with _bound_to_supervisor(int(sys.argv[-1])) as is_orphan:
    run_until_signal(lambda: say("started"), close, lambda: True)
say("orphan" if is_orphan.is_set() else "asked")
"""
SUPERVISOR = """
import os, sys
from reliable_mq.cli import run

run._supervise([[sys.executable, "worker.py"]] * 2, os.environ)
"""


@pytest.fixture
def supervisor(tmp_path: Path) -> Iterator[subprocess.Popen[str]]:
    """Give a process that supervises two workers, which have started."""
    (tmp_path / "worker.py").write_text(WORKER)
    process = subprocess.Popen(
        [sys.executable, "-c", SUPERVISOR],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    with process:
        try:
            assert process.stdout is not None
            assert [process.stdout.readline() for _ in range(2)] == ["started\n"] * 2
            yield process
        finally:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)


def test_a_signal_to_all_processes_does_not_cut_off_a_handler(
    supervisor: subprocess.Popen[str], tmp_path: Path
) -> None:
    """Given Ctrl-C, or systemd: the workers get the signal, and again from their supervisor."""
    assert supervisor.stdout is not None
    os.killpg(supervisor.pid, signal.SIGINT)
    closing = [supervisor.stdout.readline().split() for _ in range(2)]
    for word, pid in closing:
        assert word == "closing"
        os.kill(int(pid), signal.SIGINT)
        os.kill(int(pid), signal.SIGTERM)

    (tmp_path / "handled").touch()

    assert sorted(supervisor.stdout.read().split()) == ["asked", "asked", "closed", "closed"]
    assert supervisor.wait(60) == 0


def test_workers_whose_supervisor_is_killed_finish_their_handlers_and_end(
    supervisor: subprocess.Popen[str], tmp_path: Path
) -> None:
    assert supervisor.stdout is not None
    supervisor.kill()
    assert [supervisor.stdout.readline().split()[0] for _ in range(2)] == ["closing"] * 2

    (tmp_path / "handled").touch()

    said = supervisor.stdout.read()  # until both have ended
    assert sorted(said.split()) == ["closed", "closed", "orphan", "orphan"]


def test_a_worker_whose_supervisor_ended_before_it_began_ends(tmp_path: Path) -> None:
    (tmp_path / "worker.py").write_text(WORKER)
    (tmp_path / "handled").touch()
    reads, writes = os.pipe()
    os.close(writes)

    done = run_process(
        [sys.executable, "worker.py", str(reads)],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        pass_fds=(reads,),
        capture_output=True,
        text=True,
        timeout=60,
    )

    os.close(reads)
    assert done.stdout.splitlines()[-1] == "orphan"


def test_an_error_of_the_supervisor_leaves_no_worker(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run_command, "POLL_SECONDS", 0.01)
    children = started_children(monkeypatch)
    python = [sys.executable, "-S", "-c"]

    def fail(_number: int) -> None:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        run_command._supervise(
            [[*python, "raise SystemExit"], [*python, "import signal; signal.pause()"]],
            os.environ,
            fail,
        )

    assert [each.returncode for each in children] == [0, -signal.SIGKILL]


def started_children(monkeypatch: pytest.MonkeyPatch) -> list[subprocess.Popen[bytes]]:
    """Return the list of the workers that are started from now on."""
    found: list[subprocess.Popen[bytes]] = []
    start = run_command._Worker._start

    def noted(worker: run_command._Worker) -> None:
        start(worker)
        found.append(worker.child)

    monkeypatch.setattr(run_command._Worker, "_start", noted)
    return found


def test_a_worker_that_cannot_be_started_again_does_not_end_the_others(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(run_command, "RESTART_SECONDS", 0.0)
    monkeypatch.setattr(run_command, "POLL_SECONDS", 0.01)
    start, tries = run_command._Worker._start, []

    def limited(worker: run_command._Worker) -> None:
        tries.append(worker)
        if len(tries) == 2:
            raise BlockingIOError(11, "Resource temporarily unavailable")
        if len(tries) == 4:  # it was started again
            signal.raise_signal(signal.SIGTERM)
        start(worker)

    monkeypatch.setattr(run_command._Worker, "_start", limited)
    run_command._supervise([[sys.executable, "-S", "-c", "raise SystemExit"]], os.environ)

    assert "a worker cannot be started, again in 0 s: Resource temporarily" in caplog.text


def test_the_counts_of_a_worker_that_died_while_it_wrote_are_dropped_and_told(
    caplog: pytest.LogCaptureFixture,
) -> None:
    measured = WorkerMetrics()
    folder = Path(measured.environment["PROMETHEUS_MULTIPROC_DIR"])
    (folder / "counter_7.db").touch()
    with pytest.raises(struct.error):
        measured.collect()

    measured.worker_ended(7)

    assert "the counts of worker 7 are lost, sums fall: unpack_from requires" in caplog.text
    assert measured.collect() == []
    measured.close()
    assert not folder.exists()


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


def test_a_metrics_host_of_another_machine_is_named_and_no_port_is_blamed() -> None:
    with pytest.raises(AddressRefused, match=r"--metrics-host 203\.0\.113\.9: .* a host of this"):
        serve_metrics("203.0.113.9", 1)
