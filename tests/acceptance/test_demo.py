"""The demo itself, small: real orders through killed processes, a loss found and repaired."""

import json
import re
import sys
from pathlib import Path

import pytest
from tests.waiting import run_process

pytestmark = [pytest.mark.processes, pytest.mark.spark]

ORDERS, EXTRA = 150, 10
SECONDS_MAX = 420


@pytest.fixture(scope="module")
def output(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("demo")


@pytest.fixture(scope="module")
def told(output: Path) -> str:
    """Run the demo with every kind of fault once and one lost message; return what it printed."""
    words = ["--orders", str(ORDERS), "--kills", "1", "--seed", "4", "--lose", "1"]
    done = run_process(
        [sys.executable, "-m", "reliable_mq.cli.main", "demo", *words, "--out", str(output)],
        capture_output=True,
        timeout=SECONDS_MAX,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.parametrize(
    "fault",
    [
        "broker SIGKILL",
        "worker SIGKILL",
        "producer SIGKILL between commit and send",
        "scheduler SIGKILL",
        "redis stopped",
        "redis flushed",
    ],
)
def test_every_planned_fault_was_done(told: str, fault: str) -> None:
    summary = told[told.index("What it took") :]

    assert re.search(rf"│ {fault} +│ 1 ", summary)


@pytest.mark.parametrize(
    "claim",
    [
        rf"every order was committed with all its lines, and no other \({ORDERS + EXTRA}\): yes",
        rf"every order was paid exactly once, to the cent \({ORDERS + EXTRA}\): yes",
        r"every household has exactly its points \(\d+\): yes",
        r"the reconciliation names exactly the 1 lost messages: yes",
        r"the repair makes 1 of them due again: yes",
        r"the reconciliation finds nothing wrong: yes",
    ],
)
def test_every_claim_about_the_outcome_holds(told: str, claim: str) -> None:
    assert re.search(claim, told)


def test_the_reports_are_there_and_agree_with_the_story(told: str, output: Path) -> None:
    first = json.loads((output / "reconcile" / "summary.json").read_text())
    second = json.loads((output / "reconcile-after-repair" / "summary.json").read_text())
    deleted = re.findall(r"deleted ([0-9A-F]{32})", told)

    assert {finding["message_id"] for finding in first["findings"]} == set(deleted)
    assert all(finding["evidence"] for finding in first["findings"])
    assert second["clean"]
    assert "<html" in (output / "reconcile" / "report.html").read_text()


def test_nothing_is_left_running(told: str, output: Path) -> None:
    left = [
        path.parent.name
        for path in Path("/proc").glob("[0-9]*/cmdline")
        if str(output).encode() in _command_line(path)
    ]

    assert told
    assert left == []


def _command_line(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError:  # it ended while we looked
        return b""
