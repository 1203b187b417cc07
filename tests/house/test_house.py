"""The figures of the house count what they say."""

import subprocess
import sys
from pathlib import Path

import pytest
from tests.house import figures, walk_count
from tests.house.walk_count import Call, Walk, count, package_of, record

FILES_MAX, CHANGES_MAX = 60, 80
MESSAGES = 60  # on a busy machine, other work falls into most of the walks


def test_the_walk_of_a_warm_message_is_short() -> None:
    """A process of its own: a tracer that another test sets stays in this one, and lengthens it."""
    program = [sys.executable, "-m", "tests.house.walk_count", str(MESSAGES)]
    root = Path(__file__).parents[2]
    run = subprocess.run(program, cwd=root, capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stderr
    figures_of = {name: int(value) for value, name, *_ in map(str.split, run.stdout.splitlines())}
    assert figures_of["files"] <= FILES_MAX, run.stdout
    assert figures_of["changes"] <= CHANGES_MAX, run.stdout


def test_a_warm_message_is_followed_from_its_send_to_the_commit_of_its_consumer() -> None:
    (calls,) = record(1)
    names = [each.code.co_qualname for each in calls]
    assert names[0].startswith("ReliableMQ.transaction")
    assert {package_of(each.code) for each in calls} >= {
        *("app", "outbox", "client", "wire", "runtime", "broker_core", "idempotency")
    }
    assert not [name for name in names if name.endswith("_forever")]


def test_a_change_of_package_is_counted_within_a_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    def of(place: str) -> Call:
        thread, _, path = place.partition(":")
        return Call(int(thread), compile("", f"{walk_count.ROOT}{path}", "exec"))

    calls = [of(each) for each in ("1:a/x.py", "1:b/x.py", "2:a/x.py", "1:b/y.py", "2:a/x.py")]
    assert count(calls) == Walk(calls=5, functions=3, files=3, changes=1)


def test_circles_are_found() -> None:
    graph = {"a": {"b"}, "b": {"c"}, "c": {"a"}, "d": {"a"}, "e": set[str]()}
    assert figures.circles(graph) == [["a", "b", "c"]]


def test_sentences_are_counted_without_code_and_tables(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(
        "# A title of many words\n\nOne two three. Four `five six seven`:\n\n"
        "- eight [nine](https://ten/eleven)\n\n| a | table | row |\n\n```\ncode here too\n```\n"
    )
    assert figures.sentence_lengths(page) == [3, 2, 2]
