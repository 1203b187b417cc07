"""The heartbeat: a file and systemd's socket tell that a process works."""

import logging
import os
import socket
import threading
from pathlib import Path

import pytest

from reliable_mq.runtime.heartbeat import BEAT_SECONDS, BeatingSignal, Heartbeat


def test_the_first_beat_makes_the_file_and_the_end_removes_it(tmp_path: Path) -> None:
    file = tmp_path / "health"
    heart = Heartbeat(str(file), "")
    assert not file.exists()

    heart.beat()
    assert file.exists()
    heart.end()
    assert not file.exists()


def test_a_later_beat_makes_the_file_young_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file, now = tmp_path / "health", [0.0]
    monkeypatch.setattr("reliable_mq.runtime.heartbeat.time.monotonic", lambda: now[0])
    heart = Heartbeat(str(file), "")
    heart.beat()
    os.utime(file, (0, 0))

    now[0] += BEAT_SECONDS / 2
    heart.beat()
    assert file.stat().st_mtime == 0, "told at most once a second"
    now[0] += BEAT_SECONDS
    heart.beat()
    assert file.stat().st_mtime > 0


def test_systemd_is_told_of_start_life_and_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = [0.0]
    monkeypatch.setattr("reliable_mq.runtime.heartbeat.time.monotonic", lambda: now[0])
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as systemd:
        systemd.bind(str(tmp_path / "notify"))
        heart = Heartbeat("", str(tmp_path / "notify"))
        heart.beat()
        now[0] += BEAT_SECONDS
        heart.beat()
        heart.end()
        told = [systemd.recv(100).decode() for _ in range(3)]

    assert told == ["READY=1\nWATCHDOG=1", "WATCHDOG=1", "STOPPING=1"]


def test_a_place_that_cannot_be_written_is_told_once_and_stops_nothing(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = [0.0]
    monkeypatch.setattr("reliable_mq.runtime.heartbeat.time.monotonic", lambda: now[0])
    heart = Heartbeat(str(tmp_path / "none" / "health"), str(tmp_path / "nobody"))
    with caplog.at_level(logging.WARNING):
        for _ in range(3):
            heart.beat()
            now[0] += BEAT_SECONDS

    assert len(caplog.messages) == 1


def test_only_the_main_thread_beats(tmp_path: Path) -> None:
    """Given a loop of another thread that still looks, then the file does not get younger."""
    file = tmp_path / "health"
    stopped = threading.Event()
    signal = BeatingSignal(stopped, Heartbeat(str(file), ""))

    other = threading.Thread(target=signal.wait, args=(0.0,))
    other.start()
    other.join()
    assert not file.exists()
    assert signal.wait(0.0) is signal.is_set() is False
    assert file.exists()
