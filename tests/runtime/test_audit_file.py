"""The file of the audit: whole lines, files that are kept, a full disk, a killed broker."""

import errno
import json
import os
import signal
import stat
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
from tests.waiting import until

from reliable_mq import Client
from reliable_mq.broker_core.audit import PATH
from reliable_mq.broker_core.config import BrokerConfig
from reliable_mq.runtime.audit_file import AuditFile

CONFIG = BrokerConfig(audit_file_size=1_000, audit_file_count=3)


def line(number: int, size: int = 100) -> bytes:
    return msgspec.json.encode({"n": number, "fill": "x" * (size - 20)})


def numbers(file: Path) -> list[int]:
    rows = [json.loads(each) for each in file.read_text().splitlines()]
    return [row.get("n", -1) for row in rows]


def test_a_full_file_is_kept_under_the_next_number(tmp_path: Path) -> None:
    """Given more lines than all files hold, then the newest ones are there, in order."""
    audit, file = AuditFile(tmp_path), tmp_path / PATH
    for number in range(100):
        audit.write([line(number)], CONFIG, 0)
    audit.close()

    files = [Path(f"{file}.{number}") for number in (3, 2, 1)] + [file]
    assert sorted(file.parent.iterdir()) == sorted(files)
    assert all(each.stat().st_size <= 1_000 for each in files)
    kept = [number for each in files for number in numbers(each)]
    assert kept == list(range(kept[0], 100))
    assert len(kept) > 30


def test_fewer_files_are_kept_when_the_setting_shrinks(tmp_path: Path) -> None:
    audit, file = AuditFile(tmp_path), tmp_path / PATH
    for number in range(60):
        audit.write([line(number)], CONFIG, 0)
    for number in range(60, 80):
        audit.write([line(number)], msgspec.structs.replace(CONFIG, audit_file_count=1), 0)
    audit.close()

    assert sorted(each.name for each in file.parent.iterdir()) == ["audit.log", "audit.log.1"]


def test_a_line_that_is_larger_than_a_file_is_written(tmp_path: Path) -> None:
    audit = AuditFile(tmp_path)
    audit.write([line(1, 5_000)], CONFIG, 0)
    audit.write([line(2, 5_000)], CONFIG, 0)
    audit.close()

    assert numbers(tmp_path / PATH) == [2]
    assert numbers(tmp_path / f"{PATH}.1") == [1]


def test_only_the_owner_may_read(tmp_path: Path) -> None:
    audit = AuditFile(tmp_path)
    audit.write([line(1)], CONFIG, 0)

    assert stat.S_IMODE((tmp_path / PATH).stat().st_mode) == 0o600
    assert stat.S_IMODE((tmp_path / PATH).parent.stat().st_mode) == 0o700


def test_a_line_that_a_killed_process_left_is_ended(tmp_path: Path) -> None:
    file = tmp_path / PATH
    file.parent.mkdir()
    file.write_bytes(line(1) + b'\n{"n": 2')
    audit = AuditFile(tmp_path)
    audit.write([line(3)], CONFIG, 0)
    audit.close()

    assert file.read_bytes().splitlines() == [line(1), b'{"n": 2', line(3)]


@pytest.fixture
def full_disk(monkeypatch: pytest.MonkeyPatch) -> Callable[[bool], None]:
    """Give a switch: while it is on, half of a line can be written and then no more."""
    write = os.write

    def on_full(descriptor: int, data: Any) -> int:
        if len(data) < 40:
            raise OSError(errno.ENOSPC, "No space left on device")
        return write(descriptor, data[: len(data) // 2])

    def switch(is_full: bool) -> None:
        monkeypatch.setattr(os, "write", on_full if is_full else write)

    return switch


def test_a_full_disk_loses_lines_tells_it_once_and_leaves_a_gap_on_record(
    tmp_path: Path, full_disk: Callable[[bool], None], caplog: pytest.LogCaptureFixture
) -> None:
    audit, file = AuditFile(tmp_path), tmp_path / PATH
    audit.write([line(1)], CONFIG, 0)
    full_disk(True)
    for number in range(2, 7):
        audit.write([line(number)], CONFIG, 0)
    assert file.read_bytes() == line(1) + b"\n", "no half of a line"
    full_disk(False)
    audit.write([line(7)], CONFIG, 0)
    audit.close()

    first, gap, last = (json.loads(each) for each in file.read_text().splitlines())
    assert (first["n"], last["n"]) == (1, 7)
    assert (gap["action"], gap["detail"]) == ("AUDIT_GAP", {"lost": 5})
    told = [each.getMessage() for each in caplog.records if "audit.log" in each.getMessage()]
    assert len(told) == 2
    assert "changes by administrators have no line" in told[0]
    assert "5 lines are missing" in told[1]


def test_a_folder_that_cannot_be_made_stops_nobody(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Given a file where the folder should be, then lines are lost and one log line tells it."""
    (tmp_path / "audit").touch()
    audit = AuditFile(tmp_path)
    audit.write([line(1)], CONFIG, 0)
    audit.write([line(2)], CONFIG, 0)

    assert len(caplog.records) == 1


@pytest.mark.processes
def test_a_change_that_was_answered_is_on_record_when_the_broker_is_killed(tmp_path: Path) -> None:
    """Given a broker that is killed right after its answer, then its file has the line."""
    words = ("broker", "--store", str(tmp_path), "--port", "0", "--namesrv-port", "0")
    process = subprocess.Popen(
        [sys.executable, "-m", "reliable_mq.cli.main", *words], stdout=subprocess.PIPE, text=True
    )
    try:
        assert process.stdout is not None
        ready = process.stdout.readline()
        server = dict(part.partition("=")[::2] for part in ready.split())["namesrv"]
        with Client(server) as client:
            client.admin.topics.create("orders", queues=2)
            process.send_signal(signal.SIGKILL)
        until(lambda: process.poll() is not None)
    finally:
        process.kill()
        process.wait()

    rows = [json.loads(each) for each in (tmp_path / PATH).read_text().splitlines()]
    made = [row for row in rows if row["detail"]["on"] == {"topic": "orders"}]
    assert [row["action"] for row in made] == ["UPDATE_AND_CREATE_TOPIC"]
    assert made[0]["address"].startswith("127.0.0.1:")
