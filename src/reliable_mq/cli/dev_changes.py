"""Which files an application's developer has changed, for `reliable-mq dev`."""

import os
import queue
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from reliable_mq.cli.dev_log import DevLog
from reliable_mq.extras import extra_of

WATCHED = (".py", ".toml", ".env")


def is_test(path: Path) -> bool:
    """Say whether a file is one of tests, which no process of the application imports."""
    name = path.name
    return (
        bool({"tests", "test"} & {*path.parts[:-1]})
        or name.startswith("test_")
        or name.endswith("_test.py")
        or name in ("conftest.py", "tests.py")
    )


def next_of(changes: "queue.Queue[list[str]]", seconds: float) -> list[str]:
    """Return all files that have changed; wait at most some seconds for the first."""
    found = set[str]()
    with suppress(queue.Empty):
        found.update(changes.get(timeout=seconds))
        while True:
            found.update(changes.get_nowait())
    return sorted(found)


@contextmanager
def files_changed(
    folder: Path, reload: bool, stopped: threading.Event, log: DevLog
) -> Iterator["queue.Queue[list[str]]"]:
    """Return a queue of changed files below the current folder, while the block runs."""
    changed: queue.Queue[list[str]] = queue.Queue()
    if not reload:
        yield changed
        return
    with extra_of("dev"):
        import watchfiles  # noqa: PLC0415 - an extra

    here, ours = Path.cwd(), str(folder.resolve())
    usual = watchfiles.DefaultFilter()

    def wanted(change: Any, path: str) -> bool:
        is_source = path.endswith(WATCHED) and not is_test(Path(os.path.relpath(path, here)))
        return usual(change, path) and is_source and not path.startswith(ours)

    def watch() -> None:
        watcher = watchfiles.watch(
            here, watch_filter=wanted, stop_event=stopped, raise_interrupt=False, rust_timeout=500
        )
        try:
            for changes in watcher:
                changed.put(sorted({os.path.relpath(path, here) for _, path in changes}))
        except OSError as error:  # too many files, for example
            log.write_line("dev", f"changes of files are not seen any more: {error}")

    thread = threading.Thread(target=watch, name="changes", daemon=True)
    thread.start()
    try:
        yield changed
    finally:
        stopped.set()
        thread.join(5.0)
