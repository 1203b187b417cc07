"""The parts of `reliable-mq dev`: its processes, their guard, and what its log shows."""

import os
import signal
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path
from subprocess import PIPE

import pytest
from tests.waiting import until

from reliable_mq import Client, Message
from reliable_mq.cli import dev_guard
from reliable_mq.cli.dev import DevRun, _locked, _shown
from reliable_mq.cli.dev_changes import is_test
from reliable_mq.cli.dev_guard import DevGuard
from reliable_mq.cli.dev_log import DevLog
from reliable_mq.cli.dev_options import given_ports
from reliable_mq.cli.dev_probe import DevNeeds
from reliable_mq.cli.dev_process import DevFailed, DevProcess
from reliable_mq.cli.dev_restarts import RESTARTS_MAX, WITHIN_SECONDS, Restarts
from reliable_mq.cli.dev_servers import DevServers
from reliable_mq.errors import UsageError
from reliable_mq.testing.local_servers import free_port


@pytest.mark.parametrize(
    ("variable", "url"),
    [
        ("RELIABLE_MQ_DATABASE", "postgresql://u:s3cret@h:1/x"),
        ("RELIABLE_MQ_REDIS", "redis://:s3@cret@h:1/0"),
        ("RELIABLE_MQ_DATABASE", "mysql://u:s/3:cret@h/x?a=b"),
        ("RELIABLE_MQ_DATABASE", "postgresql://h/x?user=u&password=s3cret&a=b"),
        ("RELIABLE_MQ_DATABASE", "postgresql://h/x?sslpassword=s3cret"),
    ],
)
def test_the_log_shows_no_password(variable: str, url: str) -> None:
    shown = _shown(variable, url)

    assert "cret" not in shown
    assert shown.endswith("…") or "h" in shown.partition("://")[2]


@pytest.fixture
def guard() -> Iterator[DevGuard]:
    with DevGuard() as made:
        yield made


def test_a_folder_has_one_dev_until_the_guard_of_the_last_one_has_ended(tmp_path: Path) -> None:
    def lock_twice() -> None:
        with (
            pytest.raises(UsageError, match=r"another reliable-mq dev uses .*: stop it, or give"),
            _locked(tmp_path),
        ):
            pass

    with _locked(tmp_path) as lock:
        lock_twice()
        guard = DevGuard(lock)
    lock_twice()
    with guard:
        pass
    with _locked(tmp_path):
        pass


class CountingGuard(DevGuard):
    """A guard that knows how many processes it was told of."""

    def __init__(self) -> None:
        super().__init__()
        self.count = 0

    def add(self, pid: int, stop_signal: signal.Signals = signal.SIGTERM) -> None:
        self.count += 1
        super().add(pid, stop_signal)


def test_dev_starts_its_broker_once(tmp_path: Path) -> None:
    """A second one would find the store locked; on a loaded machine it could be the first."""
    needs = DevNeeds(
        broker=True, database=False, redis=False, is_embedded=False, has_consumers=True
    )
    with CountingGuard() as guard:
        servers = DevServers(tmp_path, {}, DevLog(), guard)
        try:
            servers.start_needed(needs)
        finally:
            servers.stop()

        assert guard.count == 1
        assert servers.addresses["RELIABLE_MQ_BROKER"]


def test_a_server_at_a_fixed_port_is_started_though_the_application_has_an_address(
    tmp_path: Path, guard: DevGuard, capsys: pytest.CaptureFixture[str]
) -> None:
    """Settings of Django name a fixed port, and only this command has to be typed."""
    port = free_port()
    needs = DevNeeds(
        broker=False, database=False, redis=False, is_embedded=False, has_consumers=True
    )
    servers = DevServers(tmp_path, {}, DevLog(), guard, {"valkey": port})
    try:
        servers.start_needed(needs)
        with pytest.raises(DevFailed, match=f"valkey: port {port} is taken .*--valkey-port"):
            DevServers(tmp_path, {}, DevLog(), guard, {"valkey": port}).start_needed(needs)
    finally:
        servers.stop()

    assert servers.addresses == {"RELIABLE_MQ_REDIS": f"redis://127.0.0.1:{port}/0"}
    with pytest.raises(UsageError, match="--postgres-port starts a server, and an option or"):
        given_ports({"RELIABLE_MQ_DATABASE": "postgresql://there"}, postgres=port)


def test_a_server_that_is_killed_is_started_again_at_its_port_with_one_line(
    tmp_path: Path, guard: DevGuard, capsys: pytest.CaptureFixture[str]
) -> None:
    needs = DevNeeds(broker=True, database=False, redis=True, is_embedded=False, has_consumers=True)
    servers = DevServers(tmp_path, {}, DevLog(), guard)
    try:
        servers.start_needed(needs)
        before = dict(servers.addresses)
        (valkey,) = servers._local
        broker = servers._broker
        assert valkey.pid is not None
        assert broker is not None
        for pid in (valkey.pid, broker._child.pid):
            os.kill(pid, signal.SIGKILL)
        until(lambda: not valkey.is_running and broker.exit_code is not None)

        servers.check()

        assert valkey.is_running
        assert servers._broker is not None
        assert servers._broker.exit_code is None
        assert servers.addresses == before
        with Client(before["RELIABLE_MQ_BROKER"]) as client:
            client.send(Message(topic="orders", body=b"{}"))
    finally:
        servers.stop()
    again = "was killed by SIGKILL; starting it again at the same port"
    told = [line for line in capsys.readouterr().out.splitlines() if "again" in line]
    assert [line.partition("| ")[2] for line in told] == [f"Valkey {again}", f"broker {again}"]


def test_a_server_that_ends_again_and_again_ends_dev(
    tmp_path: Path, guard: DevGuard, monkeypatch: pytest.MonkeyPatch
) -> None:
    servers = DevServers(tmp_path, {}, DevLog(), guard)
    monkeypatch.setattr(
        servers, "_start_broker", lambda: setattr(servers, "_broker", ended_process(guard))
    )
    servers._start_broker()

    for _ in range(RESTARTS_MAX):
        servers.check()
    with pytest.raises(DevFailed, match="broker has ended 6 times within 60 s; its lines above"):
        servers.check()


def ended_process(guard: DevGuard) -> DevProcess:
    process = DevProcess("broker", ["false"], os.environ, DevLog(), guard)
    until(lambda: process.exit_code is not None)
    return process


def test_a_part_is_started_again_five_times_a_minute_and_others_do_not_count() -> None:
    restarts = Restarts()

    assert all(restarts.allow("broker", 10.0 + each) for each in range(RESTARTS_MAX))
    assert not restarts.allow("broker", 10.0 + WITHIN_SECONDS - 0.1)
    assert restarts.allow("worker", 10.0 + WITHIN_SECONDS - 0.1)
    assert restarts.allow("broker", 10.0 + WITHIN_SECONDS)
    assert not restarts.allow("broker", 10.0 + WITHIN_SECONDS + 0.5)


def test_a_worker_that_is_killed_again_and_again_waits_for_a_change(
    tmp_path: Path, guard: DevGuard, capsys: pytest.CaptureFixture[str]
) -> None:
    log = DevLog()
    servers = DevServers(tmp_path, {}, log, guard)
    run = DevRun("shop:mq", servers, log, guard, 1, (), (), threading.Event())
    run._add("worker", ["sh", "-c", "kill -9 $$"])
    while run._running:
        until(lambda: all(each.exit_code is not None for each in run._running))
        run._report_ends()

    told = capsys.readouterr().out
    assert told.count("starting it again") == RESTARTS_MAX
    assert "worker has ended 6 times within 60 s; waiting for a change" in told


def test_errors_have_their_whole_texts_unless_the_developer_chose_otherwise(
    tmp_path: Path, guard: DevGuard, monkeypatch: pytest.MonkeyPatch
) -> None:
    variable = "RELIABLE_MQ_ERROR_TEXTS"
    monkeypatch.delenv(variable, raising=False)
    servers = DevServers(tmp_path, {}, DevLog(), guard)
    assert servers.environment()[variable] == "whole"

    monkeypatch.setenv(variable, "types")
    assert servers.environment()[variable] == "types"


def test_dev_says_once_which_server_the_application_names(
    tmp_path: Path, guard: DevGuard, capsys: pytest.CaptureFixture[str]
) -> None:
    named = DevNeeds(
        broker=False, database=False, redis=False, is_embedded=False, has_consumers=True
    )
    servers = DevServers(tmp_path, {"RELIABLE_MQ_DATABASE": "sqlite:///x.db"}, DevLog(), guard)
    for _ in range(2):
        servers.start_needed(named)

    told = capsys.readouterr().out
    assert told.count("the application names its broker: none is started") == 1
    assert "names its database" not in told


@pytest.mark.parametrize(
    ("number", "is_again"), [(signal.SIGKILL, True), (signal.SIGSEGV, False), (40, False)]
)
def test_what_somebody_killed_is_started_again_and_what_died_by_itself_is_not(
    tmp_path: Path,
    guard: DevGuard,
    capsys: pytest.CaptureFixture[str],
    number: int,
    is_again: bool,
) -> None:
    log = DevLog()
    servers = DevServers(tmp_path, {}, log, guard)
    run = DevRun("shop:mq", servers, log, guard, 1, (), (), threading.Event())
    first = tmp_path / "first"
    script = f"[ -e {first} ] && exec sleep 1000; touch {first}; ulimit -c 0; kill -{number:d} $$"
    run._add("worker", ["sh", "-c", script])
    (process,) = run._running
    until(lambda: process.exit_code is not None)

    run._report_ends()

    assert len(run._running) == is_again
    run.stop()
    told = capsys.readouterr().out
    assert ("starting it again" in told) is is_again
    assert (f"ended with code {-number}; waiting for a change" in told) is not is_again


def test_a_process_that_does_not_get_ready_is_named(guard: DevGuard) -> None:
    process = DevProcess("broker", ["false"], os.environ, DevLog(), guard)

    with pytest.raises(DevFailed, match="broker did not start"):
        process.wait_for_first_line()
    process.stop()


def test_a_process_that_does_not_end_is_killed_with_what_it_started(
    monkeypatch: pytest.MonkeyPatch, guard: DevGuard
) -> None:
    monkeypatch.setattr("reliable_mq.cli.dev_process.STOP_SECONDS_MAX", 0.2)
    script = "trap '' TERM; sleep 1000 & echo $!; wait; wait"
    process = DevProcess("stubborn", ["sh", "-c", script], os.environ, DevLog(), guard)
    child = int(process.wait_for_first_line())

    process.stop()

    assert process.exit_code == -signal.SIGKILL
    until(lambda: not Path(f"/proc/{child}").exists() or _is_zombie(child), seconds=30)


def test_the_guard_stops_what_still_runs_and_nothing_that_was_removed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Given a process that ignores the request, then it is killed with what it started."""
    monkeypatch.setattr(dev_guard, "STOP_SECONDS_MAX", 2.0)
    script = "trap '' TERM; sleep 1000 & echo $!; wait; wait"
    polite, stubborn, removed = (
        subprocess.Popen(["sh", "-c", line], stdout=PIPE, text=True, start_new_session=True)
        for line in ("echo; exec sleep 1000", script, "echo; exec sleep 1000")
    )
    all_of_them = (polite, stubborn, removed)
    children = [each.stdout.readline().strip() for each in all_of_them if each.stdout]
    lines = [f"{int(signal.SIGTERM)} {each.pid}\n" for each in all_of_them]

    dev_guard.guard([*lines, f"0 {removed.pid}\n"])

    assert polite.wait(30) == -signal.SIGTERM
    assert stubborn.wait(30) == -signal.SIGKILL
    until(lambda: not Path(f"/proc/{children[1]}").exists() or _is_zombie(int(children[1])))
    assert removed.poll() is None
    removed.kill()
    for each in all_of_them:
        each.communicate()


def _is_zombie(pid: int) -> bool:
    return Path(f"/proc/{pid}/stat").read_text().split(")")[-1].split()[0] == "Z"


@pytest.mark.parametrize(
    ("path", "said"),
    [
        ("tests/conftest.py", True),
        ("shop/tests/orders.py", True),
        ("shop/test_orders.py", True),
        ("orders/tests.py", True),
        ("orders_test.py", True),
        ("shop/contests.py", False),
        ("shop/latest.py", False),
        ("shop.py", False),
    ],
)
def test_a_change_of_a_test_starts_nothing_again(path: str, said: bool) -> None:
    assert is_test(Path(path)) is said
